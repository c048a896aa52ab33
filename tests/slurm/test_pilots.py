"""Pilots of a real Slurm: asked for when jobs need them, used as nodes, released when idle."""

from pathlib import Path

from e2e.daemon_fixture import DaemonFixture, until
from e2e.journal import journal
from slurm.actions import (
    HOLD,
    add_cluster,
    nodes,
    pilots,
    release_jobs,
    submit,
)
from slurm.slurm_cluster import SlurmCluster
from ssh.gpus import NVIDIA_SMI, write_gpus
from stoker.cli.output import times


def test_a_job_runs_in_a_pilot_that_is_released_when_it_is_idle(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    add_cluster(idle, pilot="gpus=2 cores=2 mem=1G time=30m max=2 idle=1s")
    assert pilots(idle) == []
    job = submit(idle, "echo $CUDA_VISIBLE_DEVICES ${SLURM_JOB_ID-none}; exit 5")
    ended = idle.end_of(job)
    assert (ended["result"], ended["node"]) == (5, "lab-1")
    assert idle.output(job).split() == ["0", "none"]
    until(lambda: not pilots(idle))
    until(lambda: not slurm.jobs())
    run = idle.user / ".stoker/run"
    until(lambda: not list(run.iterdir()))
    install = (idle.state / "install").read_text()[:8]
    assert not list(Path("/tmp").glob(f"stoker-{install}-*"))


def test_two_jobs_share_a_pilot_that_ends_with_the_removal_of_its_cluster(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    add_cluster(idle)
    jobs = [submit(idle, f"echo $CUDA_VISIBLE_DEVICES; {HOLD}") for _ in range(2)]
    for job in jobs:
        idle.becomes(job, "RUNNING")
    assert len(slurm.jobs()) == 1
    assert nodes(idle)["lab-1"]["resources"]["gpu"]["total"] == "2"
    release_jobs(idle)
    assert [idle.end_of(job)["result"] for job in jobs] == [0, 0]
    assert sorted(idle.output(job).strip() for job in jobs) == ["0", "1"]
    done = idle.stoker("nodes", "remove", "lab")
    assert done.returncode == 0, done.stderr
    assert pilots(idle) == []
    until(lambda: not slurm.jobs())


def test_two_jobs_share_the_memory_of_one_gpu_of_a_pilot(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    (programs := idle.user / "bin").mkdir()
    smi = programs / "nvidia-smi"
    smi.write_text(NVIDIA_SMI.read_text())
    smi.chmod(0o755)
    write_gpus(idle.user, [{}, {}], [])
    (idle.user / ".bash_profile").write_text(f"PATH={programs}:$PATH\n")
    add_cluster(idle, pilot="gpus=1 vram=16G cores=2 mem=1G time=30m max=1 idle=60s")
    options = ("--epochs", "1", "--gpu-memory", "6G", "--single-gpu", "--wrap")
    line = f"echo $CUDA_VISIBLE_DEVICES; {HOLD}"
    jobs = [int(idle.submit(*options, line)) for _ in range(2)]
    for job in jobs:
        idle.becomes(job, "RUNNING")
    third = idle.submit(*options, "true")
    until(lambda: "memory" in idle.stoker("why", third).stdout)
    release_jobs(idle)
    assert [idle.end_of(job)["result"] for job in (*jobs, third)] == [0, 0, 0]
    assert [idle.output(job) for job in jobs] == ["0\n", "0\n"]
    assert {idle.job(job)["node"] for job in jobs} == {"lab-1"}


ELASTIC = """
import os, time
from stoker.training import job

for epoch in job.epochs(100_000):
    time.sleep(0.1 / len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")))
    gpus = os.environ["CUDA_VISIBLE_DEVICES"]
    print("epoch", epoch, "on", gpus, flush=True)
    if gpus == "0,1":
        open("grown", "w").close()
"""


def test_an_elastic_job_grows_in_a_pilot_and_its_log_is_followed(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    add_cluster(idle, pilot="gpus=2 cores=2 mem=1G time=30m max=1 idle=60s")
    script = idle.script("elastic.py", ELASTIC)
    job = int(idle.submit("--gpus", "1..2", "/usr/bin/python3", script))
    idle.becomes(job, "RUNNING")
    logs = idle.popen("logs", "-f", str(job))
    try:
        until((idle.user / "grown").exists)
        measured = idle.job(job)["training"]
        assert measured["epochs_done"] > 0
        assert measured["epoch_seconds"] > 0
        idle.stoker("cancel", job)
        text, _ = logs.communicate(timeout=30)
    finally:
        logs.kill()
    epochs = [line.split() for line in text.decode().splitlines() if line.startswith("epoch ")]
    assert [int(words[1]) for words in epochs] == list(range(len(epochs)))
    assert [words[3] for words in epochs] == sorted(words[3] for words in epochs)
    assert {words[3] for words in epochs} == {"0", "0,1"}
    assert [event["gpus"] for event in journal(idle, "StopAsked")] == [2]


def test_a_gang_runs_in_two_pilots(slurm: SlurmCluster, idle: DaemonFixture) -> None:
    add_cluster(idle)
    job = idle.submit("-N", "2", "--gpus", "2", "--wrap", "echo $STOKER_NODE_RANK")
    assert idle.end_of(job)["result"] == 0, (idle.job(job), idle.log, idle.output(job))
    assert {part["node"] for part in idle.job(job)["parts"]} == {"lab-1", "lab-2"}


def test_a_queued_pilot_is_shown_with_what_slurm_says_of_it(
    slurm: SlurmCluster, idle: DaemonFixture
) -> None:
    blocker = slurm.occupy()
    add_cluster(idle)
    job = submit(idle, HOLD)
    id = slurm.only_job("PENDING")
    expected = f"waits for an allocation of lab (Slurm job {id}: Resources"
    until(lambda: expected in idle.stoker("why", job).stdout)
    until(lambda: "; expected start " in idle.job(job)["reason_text"])
    views = nodes(idle)
    assert views["lab"]["pilots"] == {"running": 0, "queued": 1}
    assert (views["lab"]["kind"], views["lab"]["resources"]) == ("slurm", {})
    pilot = views["lab-1"]
    assert (pilot["state"], pilot["cluster"], pilot["kind"]) == ("queued", "lab", "slurm-pilot")
    assert (pilot["allocation"]["id"], pilot["allocation"]["reason"]) == (id, "Resources")
    assert pilot["allocation"]["start"] is not None
    estimate = until(lambda: idle.client.eta([str(job)])["jobs"][0]["start"])
    assert estimate["basis"] == "the schedule of its cluster"
    likely, start = times.epoch(estimate["likely"]), pilot["allocation"]["start"]
    assert abs((likely or 0.0) - (times.epoch(start) or 0.0)) < 60
    assert idle.stoker("eta", job).stdout.endswith("from the schedule of its cluster.\n")
    table = idle.stoker("nodes").stdout
    assert "0 pilots, 1 waiting in Slurm's queue" in table
    assert f"Slurm job {id}: Resources" in table
    assert idle.client.gpus()["gpus"] == []
    assert idle.client.daemon()["queued"] == ["lab-1"]
    slurm.run("scancel", blocker)
    idle.becomes(job, "RUNNING")
    table = idle.stoker("nodes").stdout
    assert "1 pilot" in table
    assert "30 min left" in table
