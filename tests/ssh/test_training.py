"""Training jobs on SSH nodes: reports, stop requests, and resuming on any node."""

import json
from pathlib import Path
from typing import Any

from e2e.daemon_fixture import DaemonFixture, until
from e2e.journal import journal
from ssh.node_actions import HOLD, add, disconnect, release_jobs, reopen, wait_for_state
from ssh.ssh_cluster import SshCluster
from ssh.ssh_host import SshHost

PYTHON = "/usr/bin/python3"
ONE = ("--gpus", "1", "--cpus", "0")
"""A GPU, and no cores: those may be short where many tests run at once."""
SCRIPT = """
import os, time
from kubernetesdlprofile import kubeprofiler

kp = kubeprofiler.KubeProfiler()
total = 0
if kp.RESTARTED:
    with open(kp.ckpt_path) as file:
        total = int(file.read())
last = os.path.basename(kp.ckpt_path)
print("begins", os.uname().nodename, kp.EPOCHS_DONE, total, last, flush=True)
for epoch in range(kp.EPOCHS_DONE, kp.EPOCHS):
    kp.start_epoch()
    for _ in range(3):
        kp.measure()
    while not os.path.exists(os.path.expanduser(f"~/go{epoch}")):
        time.sleep(0.01)
    kp.end_epoch()
    total += 10 ** epoch
    with open(f"{kp.root_dir}/model-{epoch}", "w") as file:
        file.write(str(total))
    if epoch:
        os.unlink(f"{kp.root_dir}/model-{epoch - 1}")
print("trained", total, flush=True)
"""


def machines(cluster: SshCluster) -> tuple[SshHost, SshHost]:
    return cluster.machine("g", gpus=1), cluster.machine("h", gpus=1)


def train(box: DaemonFixture, *more: str, epochs: int = 4) -> int:
    box.script("train.py", SCRIPT)
    options = (*ONE, "--exclusive-gpu", "--epochs", str(epochs), *more)
    return int(box.submit(*options, PYTHON, "train.py"))


def wait_for_stop(machine: SshHost, job: int) -> None:
    """Wait until the stop request of a job has reached its node."""
    until(lambda: list((machine.home / ".stoker/run").glob(f"*/{job}.*.reports/stop")))


def go(machine: SshHost, *epochs: int) -> None:
    """Let these epochs finish."""
    for epoch in epochs:
        (machine.home / f"go{epoch}").touch()


def done(box: DaemonFixture, job: int) -> int:
    return int(box.job(job)["training"]["epochs_done"])


def counted(box: DaemonFixture) -> list[int]:
    return [event["done"] for event in journal(box, "EpochsCounted")]


def checkpoints(box: DaemonFixture, job: int) -> dict[str, str]:
    """Return the local checkpoints of a job."""
    directory = Path(box.job(job)["training"]["checkpoints"])
    return {path.name: path.read_text() for path in directory.glob("[!.]*")}


def test_a_job_preempted_on_one_node_resumes_on_the_other(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    g, h = machines(cluster)
    add(box, g, h)
    box.stoker("drain", "h")
    job = train(box)
    go(g, 0, 1)
    until(lambda: done(box, job) == 2)
    assert remote_checkpoints(g, box, job) == {"model-1": "11"}
    urgent = int(box.submit("-w", "g", *ONE, "--priority", "9", "--wrap", HOLD))
    wait_for_stop(g, job)
    go(g, 2)
    box.becomes(urgent, "RUNNING")
    assert done(box, job) == 3
    assert checkpoints(box, job) == {"model-2": "111"}
    before = box.job(job)["attempt"]
    box.stoker("undrain", "h")
    box.becomes(job, "RUNNING")
    box.says(job, "begins h 3 111 model-2\n")
    go(h, 3)
    end = box.end_of(job)
    assert (end["result"], end["attempt"], done(box, job)) == (0, before, 4)
    assert "trained 1111" in box.output(job)
    assert checkpoints(box, job) == {"model-3": "1111"}
    assert counted(box) == sorted(set(counted(box)))
    release_jobs(g)
    assert box.end_of(urgent)["result"] == 0


def remote_checkpoints(machine: SshHost, box: DaemonFixture, job: int) -> dict[str, str]:
    directory = machine.home / ".stoker/checkpoints" / box.job(job)["training"]["uuid"]
    return {path.name: path.read_text() for path in directory.glob("[!.]*")}


def test_reports_written_while_disconnected_are_counted_once(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    g, _ = machines(cluster)
    add(box, g)
    job = train(box, epochs=5)
    go(g, 0)
    until(lambda: done(box, job) == 1)
    disconnect(g)
    go(g, 1, 2)
    wait_for_state(box, g, "unreachable")
    box.crash()
    box.up()
    reopen(box, g)
    until(lambda: done(box, job) == 3)
    g.kill_connections()
    go(g, 3)
    until(lambda: done(box, job) == 4)
    go(g, 4)
    assert box.end_of(job)["result"] == 0
    assert done(box, job) == 5
    epochs = counted(box)
    assert epochs == sorted(set(epochs))
    assert checkpoints(box, job) == {"model-4": "11111"}


def test_a_stop_request_is_repeated_until_the_job_stops(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    g, _ = machines(cluster)
    add(box, g)
    job = train(box)
    until(lambda: journal(box, "TrainingBegan"))
    urgent = int(box.submit("-w", "g", *ONE, "--priority", "9", "--wrap", "hostname"))
    [run] = (g.home / ".stoker/run").iterdir()
    stop = run / f"{job}.0.reports/stop"
    until(stop.exists)
    disconnect(g)
    stop.unlink()
    reopen(box, g)
    until(stop.exists)
    box.crash()
    stop.unlink()
    box.up()
    until(stop.exists)
    go(g, 0)
    assert box.end_of(urgent)["result"] == 0
    until(lambda: done(box, job) == 1)
    go(g, 1, 2, 3)
    assert box.end_of(job)["result"] == 0
    assert box.job(job)["attempt"] == 1
    assert "begins g 1 1 model-0" in box.output(job)


def test_checkpoints_that_cannot_be_fetched_keep_the_job_on_their_node(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    g, h = machines(cluster)
    add(box, g, h)
    box.stoker("drain", "h")
    job = train(box, epochs=2)
    directory = Path(box.job(job)["training"]["checkpoints"])
    until(lambda: journal(box, "TrainingBegan"))
    directory.parent.mkdir(exist_ok=True)
    directory.write_text("in the way")
    urgent = int(box.submit("-w", "g", *ONE, "--priority", "9", "--wrap", HOLD))
    wait_for_stop(g, job)
    go(g, 0)
    box.becomes(urgent, "RUNNING")
    box.stoker("undrain", "h")
    waiting = box.job(job)
    assert waiting["state"] == "PENDING"
    assert waiting["request"]["nodelist"] == ["g"]
    assert "the job can resume only on g" in box.stoker("show", job).stdout
    directory.unlink()
    go(g, 1)
    release_jobs(g)
    assert box.end_of(job)["result"] == 0
    assert "begins g 1 1 model-0" in box.output(job)
    assert checkpoints(box, job) == {"model-1": "11"}


def test_checkpoints_are_fetched_from_a_restarted_node_also_by_tar(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    machine = cluster.machine("plain", gpus=1, hide=("rsync",))
    add(box, machine)
    job = train(box, "--requeue", epochs=3)
    go(machine, 0, 1)
    until(lambda: done(box, job) == 2)
    machine.fake_reboot()
    box.client.refresh_nodes([machine.name])
    box.says(job, "begins plain 2 11 model-1\n")
    assert checkpoints(box, job) == {"model-1": "11"}
    go(machine, 2)
    assert box.end_of(job)["result"] == 0
    assert checkpoints(box, job) == {"model-2": "111"}


def test_the_training_library_comes_first_on_the_python_path(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    bare = cluster.machine("bare", bare=True)
    (cluster.a.home / ".bashrc").write_text("export PYTHONPATH=/profile\n")
    add(box, cluster.a, bare)
    for machine, python_path in ((cluster.a, "/profile"), (bare, "/asked")):
        line = 'echo "${PYTHONPATH#*:}"; ls ${PYTHONPATH%%:*}'
        named = ("-w", machine.name, "--gpus", "0", "--cpus", "0", "--env", "PYTHONPATH=/asked")
        job = box.submit(*named, "--epochs", "1", "--wrap", line)
        assert box.end_of(job)["result"] == 0
        assert box.output(job) == f"{python_path}\nkubernetesdlprofile\nstoker\n"
    job = box.submit(
        "-w", "a", "--gpus", "0", "--cpus", "0", "--wrap", "echo $PYTHONPATH$STOKER_LIBRARY"
    )
    assert box.end_of(job)["result"] == 0
    assert box.output(job) == "/profile\n"


PARTS = """
echo "$NODE_RANK/$WORLD_SIZE/$NUM_NODES $NODELIST $MASTER_ADDR:$MASTER_PORT"
echo "$TF_CONFIG"
say() { printf '%s\\n' "$1" >>"$STOKER_REPORTS/report"; }
waits() { until [ -e "$STOKER_REPORTS/$1" ]; do sleep 0.02; done; }
if [ "$NODE_RANK" = 0 ]; then
    mkdir -p "$STOKER_REPORTS"
    say '{"k":"hello"}'
    say '{"k":"start","e":0}'
    waits stop
    say '{"k":"stop_at","e":3}'
    until [ -e ~/go ]; do sleep 0.02; done
    say '{"k":"stopped","e":3}'
else
    waits stop_at
    cat "$STOKER_REPORTS/stop_at"
fi
exit 75
"""


def submit_parts(box: DaemonFixture, line: str) -> int:
    """Submit a job on both nodes that prints every variable about its parts."""
    options = {
        "nodes": "2", "nodelist": "g,h", "gpus_per_node": "1", "cpus": "0", "epochs": "9",
    }  # fmt: skip
    submission = {
        "what": {"line": line}, "options": options, "directory": str(box.user),
        "environment": {}, "shell": "/bin/sh", "umask": 0o22,
    }  # fmt: skip
    return int(box.client.submit(submission)["first"])


def part(box: DaemonFixture, job: int, rank: int) -> list[str]:
    return box.stoker("logs", "--part", str(rank), str(job)).stdout.splitlines()


def test_all_parts_have_the_cluster_configuration_and_stop_at_one_epoch(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    g, h = machines(cluster)
    add(box, g, h)
    job = submit_parts(box, PARTS)
    until(lambda: journal(box, "TrainingBegan"))
    urgent = int(box.submit("-w", "g", *ONE, "--priority", "9", "--wrap", "hostname"))
    until(lambda: part(box, job, 1)[2:] == ["3"])
    (g.home / "go").touch()
    assert box.end_of(urgent)["result"] == 0
    logs = [Path(box.job(job)["log"]).parent / f"{job}.out{end}" for end in ("", ".1")]
    workers = [f"{g.address}:29500", f"{h.address}:29500"]
    for rank, log in enumerate(logs):
        names, config = log.read_text().splitlines()[:2]
        assert names == f"{rank}/2/2 g,h {g.address}:29500"
        tf_config: dict[str, Any] = json.loads(config)
        assert tf_config["cluster"] == {"worker": workers}
        assert tf_config["task"] == {"type": "worker", "index": rank}
    assert done(box, job) == 3
    box.stoker("cancel", job)


ENGINE = """#!/bin/sh
case $1 in
    --version) echo podman version 5.0.0 ;;
    run)
        printf '%s\\n' "$@" >$HOME/arguments
        echo "$STOKER_REPORTS $STOKER_CHECKPOINT_DIR $PYTHONPATH $(cat made)"
        echo checkpoint >$HOME/.stoker/checkpoints/$JOB_UUID/model
        ;;
esac
"""


def test_a_remote_container_has_the_paths_of_its_node(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    g, _ = machines(cluster)
    g.tool("podman", ENGINE)
    add(box, g)
    box.script("made", "sent\n")
    (box.user / "data").mkdir()
    options = ("-w", "g", *ONE, "--epochs", "1", "--image", "py")
    job = int(box.submit(*options, "--mount", f"{box.user}/data:/data", "--wrap", "hostname"))
    end = box.end_of(job)
    unique = end["training"]["uuid"]
    assert end["result"] == 0, box.output(job)
    assert box.output(job) == f"/stoker/reports /snapshots/{unique} /stoker/lib sent\n"
    root = f"{g.home_inside}/.stoker"
    [run] = (g.home / ".stoker/run").iterdir()
    [library_dir] = (g.home / ".stoker/library").iterdir()
    work = f"{root}/work/{run.name}.{job}.0"
    arguments = (g.home / "arguments").read_text()
    for source, target in (
        (f"{root}/run/{run.name}/{job}.0.reports", "/stoker/reports"),
        (f"{root}/checkpoints/{unique}", f"/snapshots/{unique}"),
        (f"{root}/library/{library_dir.name}", "/stoker/lib"),
        (work, work),
        (f"{work}/data", "/data"),
    ):
        assert f"source={source},target={target}" in arguments
    assert f"--workdir={work}\n" in arguments
    assert checkpoints(box, job) == {"model": "checkpoint\n"}


PULLS_NOTHING = """#!/bin/sh
case $1 in
    --version) echo podman version 5.0.0 ;;
    image | pull) exit 1 ;;
esac
"""


def test_kub_02_and_06_a_job_runs_where_its_image_is_and_a_missing_data_directory_is_reported(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster], tmp_path: Path
) -> None:
    box, cluster = daemon_and_cluster
    g, h = machines(cluster)
    g.tool("podman", PULLS_NOTHING)
    h.tool("podman", ENGINE)
    add(box, g, h)
    code = tmp_path / "code"
    code.mkdir()
    (code / "made").write_text("sent\n")
    (box.user / "datasets").mkdir()
    words = (
        "compat", "run-scheduler", "--image_name", "py", "--script_path", "/custom/x.py",
        "--custom_dir", code, "--estimated_memory", "1000",
    )  # fmt: skip
    for past in (["g"], []):  # the next job does not use g at all
        done = box.stoker(*words, "j", env={"HOME": str(box.user)})
        assert done.returncode == 0, done.stderr
        job = int(done.stdout.rpartition("-")[2])
        end = box.end_of(job)
        assert (end["result"], end["nodes"]) == (0, ["h"]), box.output(job)
        assert [attempt["cause"].partition(":")[0] for attempt in end["attempts"][:-1]] == past
        assert "so there is no /data in the container" in box.output(job)
    arguments = (h.home / "arguments").read_text()
    assert ",target=/custom\n" in arguments
    assert f"source={h.home_inside}/.stoker/work/" in arguments
    (h.home / "datasets").mkdir()
    box.end_of(int(box.stoker(*words, "j").stdout.rpartition("-")[2]))
    assert f"source={h.home_inside}/datasets,target=/data\n" in (h.home / "arguments").read_text()


RUN_SCHEDULER = ("compat", "run-scheduler", "--script_path", "/custom/train.py", "--custom_dir")
PLACES = """
import json, os, sys
from kubernetesdlprofile import kubeprofiler

kp = kubeprofiler.KubeProfiler()
from beside import NAME
with open(f"written-{kp.RANK}", "w") as file:
    file.write(os.uname().nodename)
print(NAME, os.path.basename(sys.executable), json.dumps(json.loads(os.environ["TF_CONFIG"])))
"""


def test_kub_04_and_33_a_script_over_ssh_has_its_directory_and_every_part_tf_config(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster], tmp_path: Path
) -> None:
    box, cluster = daemon_and_cluster
    g, h = machines(cluster)
    add(box, g, h)
    code = tmp_path / "elsewhere"
    code.mkdir()
    (code / "train.py").write_text(PLACES)
    (code / "beside.py").write_text("NAME = 'sent'\n")
    words = (*RUN_SCHEDULER, code, "--estimated_memory", "1000")
    one = box.stoker(*words, "one")
    assert one.returncode == 0, one.stderr
    job = int(one.stdout.rpartition("-")[2])
    end = box.end_of(job)
    assert (end["result"], end["nodes"]) == (0, ["g"]), box.output(job)
    name, python, config = box.output(job).split(maxsplit=2)
    assert (name, python[:7]) == ("sent", "python3")
    assert json.loads(config)["task"] == {"type": "worker", "index": 0}
    assert (code / "written-0").read_text() == "g"
    both = box.stoker(*words, "--nodes", "2", "both")
    job = int(both.stdout.rpartition("-")[2])
    assert box.end_of(job)["result"] == 0, box.output(job)
    workers = [f"{g.address}:29500", f"{h.address}:29500"]
    for rank in (0, 1):
        [line] = part(box, job, rank)
        tf_config = json.loads(line.split(maxsplit=2)[2])
        assert tf_config == {
            "cluster": {"worker": workers},
            "task": {"type": "worker", "index": rank},
        }
    assert (code / "written-1").read_text() == "h"
