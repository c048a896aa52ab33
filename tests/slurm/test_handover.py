"""Attempts that are handed over to a real Slurm, one batch job each."""

import time
from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, until
from executors.contract import FIRST
from slurm.actions import HOLD, ONCE, nodes, ran, release_jobs, submit
from slurm.handover_bench import HandoverBench
from slurm.slurm_cluster import SlurmCluster
from slurm.test_failures import wrap
from ssh.test_training import SCRIPT
from stoker.cli.output import times
from stoker.core import events as e
from stoker.executors.slurm.commands import SlurmCommands


def hand_over(box: DaemonFixture, *options: str) -> None:
    """Start a daemon with a Slurm cluster that has no pilots."""
    box.up()
    words = options or ("--", "-p", "gpu")
    done = box.stoker("nodes", "add", "lab", "slurm://", *words)
    assert done.returncode == 0, done.stderr
    assert "one Slurm job per attempt" in done.stdout


def test_an_attempt_is_a_slurm_job_with_what_it_requests(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    hand_over(idle)
    job = int(
        idle.submit(
            "--gpus", "a100:2", "--cpus", "3", "--mem", "500M", "--time", "10m",
            "--wrap", f"echo $CUDA_VISIBLE_DEVICES $STOKER_GPUS; {HOLD}; exit 5",
        )
    )  # fmt: skip
    idle.says(job, "0,1 0,1")
    name, cores, memory, limit, gres = slurm.jobs(format="%j %C %m %l %b")[0]
    install = (idle.state / "install").read_text()[:8]
    assert name == f"stoker-{install}-lab-{job}.0"
    assert (cores, memory, limit, gres) == ("3", "500M", "12:00", "gres:gpu:a100:2")
    assert "lab: 2 GPUs of 1 job" in idle.client.gpus()["note"]
    view = idle.job(job)
    [host] = view["hosts"]
    assert host in ("n1", "n2")
    assert view["devices"] == {"gpu": ["0", "1"]}
    assert f"lab/{host}:0,1" in idle.stoker("queue").stdout
    assert view["external_id"].startswith("Slurm ")
    release_jobs(idle)
    ended = idle.end_of(job)
    assert (ended["result"], ended["node"]) == (5, "lab")
    until(lambda: not slurm.jobs())
    until(lambda: not list((idle.user / ".stoker/run").glob("*/*.claim")))


def test_a_slurm_script_gets_the_variables_and_the_tools_of_its_own_job(
    slurm: SlurmCluster, idle: DaemonFixture, tmp_path: Path
) -> None:
    hand_over(idle)
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/sh\n#SBATCH --gres=gpu:1 --ntasks=2\n"
        "echo $SLURM_JOB_ID ${SLURM_WORKING_CLUSTER-own} $SLURM_GPUS_ON_NODE\n"
        "srun -l sh -c 'echo $SLURM_PROCID'\n"
    )
    job = int(idle.submit("-o", tmp_path / "out", script))
    idle.end_of(job)
    lines = (tmp_path / "out").read_text().splitlines()
    assert lines[0] == f"{job} own 1"
    assert sorted(lines[1:]) == ["0: 0", "1: 1"]


def test_a_queued_attempt_shows_what_slurm_says_and_can_be_cancelled(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    blocker = slurm.occupy()
    hand_over(idle, "--ahead", "2", "--", "-p", "gpu")
    jobs = [submit(idle, f"{ONCE}; exit 5") for _ in range(4)]
    until(lambda: len(slurm.jobs("PENDING")) == 2)
    until(lambda: "queued on lab (Slurm " in (idle.job(jobs[0])["reason_text"] or ""))
    assert "2 jobs wait in its queue" in idle.stoker("why", jobs[3]).stdout
    assert "2 jobs wait there" in idle.stoker("nodes").stdout
    gpus = idle.client.gpus()
    assert (gpus["gpus"], gpus["note"]) == ([], "lab provides GPUs when jobs need them")
    assert "only cancel keeps it from starting" in idle.stoker("hold", jobs[0]).stderr
    until(lambda: "Resources; expected start in " in idle.stoker("why", jobs[0]).stdout)
    first, last = idle.client.eta([str(jobs[0]), str(jobs[3])])["jobs"]
    limit = (times.epoch(first["start"]["likely"]) or 0.0) - time.time()
    assert 0 < limit <= 3000  # that of the job that occupies the nodes
    assert last["never"] == "the cluster decides when it starts"
    idle.stoker("cancel", str(jobs[0]))
    assert idle.end_of(jobs[0])["state"] == "CANCELLED"
    slurm.run("scancel", blocker)
    assert [idle.end_of(job)["result"] for job in jobs[1:]] == [5, 5, 5]
    assert sorted(ran(idle)) == jobs[1:]


def test_a_share_of_a_gpu_is_rejected_with_advice(slurm: SlurmCluster, idle: DaemonFixture) -> None:
    hand_over(idle)
    done = idle.stoker("submit", "--gpus", "0.5", "--wrap", "true")
    assert done.returncode != 0
    assert "lab gives whole GPUs only; a pilot can share them" in done.stderr


def test_what_no_node_has_fails_in_the_words_of_sbatch(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    hand_over(idle)
    job = int(idle.submit("--gpus", "3", "--wrap", "true"))
    assert idle.end_of(job)["result"] != 0
    assert "node configuration is not available" in str(idle.job(job))


def test_a_wrong_partition_is_reported_and_the_job_stays(
    slurm: SlurmCluster, idle: DaemonFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = idle.user / "calls"
    wrap(idle, "sbatch", f'echo >>{calls}; exec $REAL "$@"', monkeypatch)
    hand_over(idle, "--", "-p", "wrong")
    job = submit(idle, "true")
    until(lambda: "invalid partition specified: wrong" in idle.stoker("why", job).stdout)
    assert "invalid partition specified: wrong" in idle.stoker("nodes").stdout
    assert idle.job(job)["state"] == "PENDING"
    time.sleep(1)
    assert calls.read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("profile", "options", "shown", "logins"),
    [
        ("export GREETING=hello", (), "hello", 1),
        ("export GREETING=hello", ("--export=ALL",), "", 0),
        ("exit 1", (), "", 1),
    ],
)
def test_jobs_have_the_environment_of_one_login_shell(
    slurm: SlurmCluster,
    idle: DaemonFixture,
    profile: str,
    options: tuple[str, ...],
    shown: str,
    logins: int,
) -> None:
    script = idle.user / ".bash_profile"
    script.write_text(f'[ -n "$SLURM_JOB_ID" ] || echo >>{idle.user}/logins\n{profile}\n')
    hand_over(idle, "--", "-p", "gpu", *options)
    for _ in range(2):
        job = submit(idle, "echo $GREETING")
        assert idle.end_of(job)["result"] == 0
        assert idle.output(job) == f"{shown}\n"
    count = idle.user / "logins"
    assert (len(count.read_text().splitlines()) if count.exists() else 0) == logins


def test_a_killed_daemon_finds_queued_and_running_attempts(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    hand_over(idle)
    job = submit(idle, f"{ONCE}; echo one; {HOLD}; echo two; exit 5")
    idle.crash()
    idle.up()
    idle.says(job, "one")
    idle.crash()
    release_jobs(idle)
    until(lambda: not slurm.jobs())
    idle.up()
    assert idle.end_of(job)["result"] == 5
    assert idle.output(job) == "one\ntwo\n"
    assert ran(idle) == [job]


def test_a_controller_that_forgets_a_job_doubles_and_loses_nothing(
    slurm: SlurmCluster, idle: DaemonFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = idle.user / "first"
    flag.touch()
    wrap(
        idle, "sbatch",
        f'[ -e {flag} ] || exec $REAL "$@"; rm {flag}; cat >/dev/null; echo 4711', monkeypatch,
    )  # fmt: skip
    hand_over(idle)
    job = submit(idle, f"{ONCE}; exit 5")
    assert idle.end_of(job)["result"] == 5
    assert ran(idle) == [job]


def test_an_attempt_that_slurm_preempts_runs_again(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    hand_over(idle, "--", "-p", "low")
    job = submit(idle, f"{ONCE}; {HOLD}; exit 5", "--requeue")
    until(lambda: ran(idle))
    preemptor = slurm.occupy("-p", "high")
    idle.client.refresh_nodes(["lab"])
    until(lambda: "PREEMPTED" in idle.log)
    release_jobs(idle)
    slurm.run("scancel", preemptor)
    assert idle.end_of(job)["result"] == 5
    assert ran(idle) == [job, job]


def test_a_training_job_is_stopped_and_reports_through_files(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    hand_over(idle)
    idle.script("train.py", SCRIPT)
    job = int(idle.submit("--gpus", "1", "--epochs", "3", "/usr/bin/python3", "train.py"))
    (idle.user / "go0").touch()
    until(lambda: (idle.job(job)["training"] or {}).get("epochs_done") == 1)
    # As Slurm does 120 s before its own limit; the job continues in another Slurm job.
    slurm.run("scancel", "--batch", "--signal=USR2", slurm.only_job("RUNNING"))
    until(lambda: list((idle.user / ".stoker/run").glob("*/*.reports/stop")))
    (idle.user / "go1").touch()
    until(lambda: idle.job(job)["attempt"] == 1)
    for epoch in (1, 2):
        (idle.user / f"go{epoch}").touch()
    assert idle.end_of(job)["result"] == 0
    assert "trained 111" in idle.output(job)


def test_a_submission_that_times_out_runs_once(
    slurm: SlurmCluster, idle: DaemonFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrap(idle, "sbatch", f'echo >>{tmp_path}/calls; $REAL "$@"; sleep 3', monkeypatch)
    bench = HandoverBench(tmp_path, idle.user, SlurmCommands(timeout=2))
    try:
        bench.executor.start(bench.launch(FIRST, seconds=1.0, code=3))
        assert bench.exit(FIRST).code == 3
        bench.wait(100)
        assert bench.starts(FIRST) == 1
        assert (tmp_path / "calls").read_text() == "\n"
    finally:
        bench.stop()


def test_a_second_submission_of_an_attempt_has_no_effect(
    slurm: SlurmCluster, idle: DaemonFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script"
    wrap(idle, "sbatch", f'cat >{script}; $REAL "$@" <{script}; $REAL "$@" <{script}', monkeypatch)
    bench = HandoverBench(tmp_path, idle.user)
    try:
        bench.executor.start(bench.launch(FIRST, seconds=50.0, code=3))
        assert bench.exit(FIRST).code == 3
        bench.wait(100)
        assert bench.starts(FIRST) == 1
        assert len(bench.of(FIRST, e.ProcessExited)) == 1
    finally:
        bench.stop()


def test_an_attempt_of_a_killed_batch_job_is_lost(slurm: SlurmCluster, idle: DaemonFixture) -> None:
    hand_over(idle)
    job = submit(idle, f"{ONCE}; {HOLD}; exit 5", "--no-requeue")
    until(lambda: ran(idle))
    id = slurm.only_job()
    slurm.run("scancel", "--signal=KILL", "--full", id)
    idle.client.refresh_nodes(["lab"])
    assert idle.end_of(job)["state"] in ("NODE_FAIL", "FAILED")


def test_a_cluster_with_pilots_hands_over_what_they_cannot_run(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    idle.up()
    shape = "gpus=1 cores=2 mem=1G time=30m max=1 idle=60s"
    words = ("nodes", "add", "lab", "slurm://", "--pilot", shape, "--ahead", "4")
    assert idle.stoker(*words, "--", "-p", "gpu").returncode == 0
    until(lambda: nodes(idle).get("lab-jobs", {}).get("state") == "up")
    small = submit(idle, f"{ONCE}; {HOLD}; exit 5")
    large = int(idle.submit("--gpus", "2", "--wrap", f"{ONCE}; {HOLD}; exit 6"))
    until(lambda: sorted(ran(idle)) == [small, large])
    assert [idle.job(job)["node"] for job in (small, large)] == ["lab-1", "lab-jobs"]
    assert len(slurm.jobs()) == 2
    assert nodes(idle)["lab"]["pilots"] == {"running": 1, "queued": 0}
    release_jobs(idle)
    assert [idle.end_of(job)["result"] for job in (small, large)] == [5, 6]
    assert idle.stoker("nodes", "remove", "lab").returncode == 0
    until(lambda: not slurm.jobs())
