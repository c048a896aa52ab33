"""Jobs on machines over SSH, as a user sees them."""

import re

from e2e.daemon_fixture import DaemonFixture, until
from ssh.moves import HOLD, add, let_go, on
from ssh.ssh_cluster import SshCluster


def test_a_job_takes_its_directory_along_and_what_it_wrote_comes_back(
    field: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = field
    add(box, cluster.a)
    (box.user / "hello.txt").write_text("hello\n")
    job = on(box, cluster.a, "cat hello.txt; hostname; echo new > made.txt; exit 3")
    assert box.end_of(job)["result"] == 3
    assert box.output(job) == "hello\na\n"
    assert (box.user / "made.txt").read_text() == "new\n"


def test_bash_with_its_bashrc_and_none_of_its_noise(
    field: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = field
    (cluster.a.home / ".bashrc").write_text(
        "echo welcome; greet() { echo hello $1; }; export CUDA_VISIBLE_DEVICES=7; oops\n"
    )
    add(box, cluster.a)
    job = on(
        box, cluster.a, "greet you$CUDA_VISIBLE_DEVICES; echo bad >&2; exit 7", "-o", "o", "-e", "e"
    )
    assert box.end_of(job)["result"] == 7
    assert (box.user / "o").read_text() == "hello you\n"
    assert (box.user / "e").read_text() == "bad\n"


def test_a_cancelled_job_ends_with_all_its_processes(
    field: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = field
    add(box, cluster.a)
    job = on(box, cluster.a, "(sleep 300 & sleep 300); sleep 300")
    until(lambda: len(cluster.a.pids("sleep 300")) >= 2)
    box.stoker("cancel", str(job))
    assert box.end_of(job)["state"] == "CANCELLED"
    assert cluster.a.pids("sleep 300") == []


def test_the_time_limit_of_a_running_job_can_be_changed(
    field: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = field
    add(box, cluster.a)
    job = on(box, cluster.a, "sleep 300", "--time", "1h")
    until(lambda: cluster.a.pids("sleep 300"))
    assert box.stoker("edit", str(job), "--time", "2h").returncode == 0
    assert box.job(job)["time_limit"] == 7200
    box.stoker("edit", str(job), "--time", "1s")
    assert box.end_of(job)["state"] == "TIMEOUT"
    assert cluster.a.pids("sleep 300") == []


def test_why_and_show_say_how_far_the_upload_of_its_files_is(
    field: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = field
    slow = cluster.machine("slow", hide=("rsync",))
    slow.tool("tar", f'#!/bin/sh\n{HOLD}\nexec /bin/tar "$@"\n')
    add(box, slow)
    with open(box.user / "data", "wb") as file:
        file.truncate(24_000_000)  # more than the pipes on the way hold
    job = on(box, slow, "wc -c < data")
    told = re.compile(r"CONFIGURING: sending [1-9]\d* of 24 MB to slow")
    until(lambda: told.search(box.stoker("why", str(job)).stdout))
    assert told.search(box.stoker("show", str(job)).stdout)
    (upload,) = box.job(job)["uploads"]
    assert (upload["node"], upload["total_bytes"]) == ("slow", 24_000_000)
    assert 0 < upload["sent_bytes"] < 24_000_000
    let_go(slow)
    assert box.end_of(job)["result"] == 0
    assert "uploads" not in box.job(job)
    assert box.output(job) == "24000000\n"


def test_a_job_that_is_cancelled_has_its_own_output_and_nothing_else(
    field: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = field
    add(box, cluster.a)
    job = on(box, cluster.a, "echo begun; sleep 300", "-e", "err")
    until(lambda: cluster.a.pids("sleep 300"))
    box.stoker("cancel", str(job))
    assert box.end_of(job)["state"] == "CANCELLED"
    assert box.output(job) == "begun\n"
    assert (box.user / "err").read_text() == ""


def test_a_job_outlives_the_daemon_and_the_connection(
    field: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = field
    add(box, cluster.a)
    job = on(
        box, cluster.a, "echo one; until [ -e $HOME/go ]; do sleep 0.05; done; echo two; exit 5"
    )
    until(lambda: box.job(job)["state"] == "RUNNING")
    box.crash()
    box.up()
    (cluster.a.home / "go").touch()
    assert box.end_of(job)["result"] == 5
    assert box.output(job) == "one\ntwo\n"


def test_a_silent_machine_keeps_its_job_and_the_job_its_end(
    field: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = field
    add(box, cluster.a)
    job = on(
        box, cluster.a, "echo one; until [ -e $HOME/go ]; do sleep 0.05; done; echo two; exit 5"
    )
    until(lambda: box.job(job)["state"] == "RUNNING")
    cluster.a.kill_connections()
    (cluster.a.home / "go").touch()
    assert box.end_of(job)["result"] == 5
    assert box.output(job) == "one\ntwo\n"


def test_signals(field: tuple[DaemonFixture, SshCluster]) -> None:
    box, cluster = field
    add(box, cluster.a)
    (box.user / "t.sh").write_text(
        "trap 'echo usr; exit 9' USR1\necho up\nwhile :; do sleep 0.05; done\n"
    )
    job = on(box, cluster.a, "sh t.sh")
    box.stoker("nodes")
    until(lambda: box.job(job)["state"] == "RUNNING" and box.output(job) == "up\n")
    box.stoker("kill", "-s", "USR1", str(job))
    assert box.end_of(job)["result"] == 9


def test_what_a_job_leaves_behind_is_ended_with_it(field: tuple[DaemonFixture, SshCluster]) -> None:
    box, cluster = field
    add(box, cluster.a)
    job = on(box, cluster.a, "setsid -f sleep 304 >/dev/null 2>&1; echo done")
    end = box.end_of(job)
    assert end["result"] == 0
    assert cluster.a.pids("sleep 304") == []
    assert "behind" in end["termination_note"]


def test_a_slurm_script_finds_its_tools_on_a_node(field: tuple[DaemonFixture, SshCluster]) -> None:
    box, cluster = field
    add(box, cluster.a)
    (box.user / "tasks.sh").write_text(
        "#!/bin/sh\n#SBATCH -n 2 -o logs/%x.out\n"
        "srun -l sh -c 'echo $SLURM_PROCID of $SLURM_NTASKS on $SLURMD_NODENAME'\n"
        "scontrol show hostnames\n"
    )
    job = box.submit("--nodelist", cluster.a.name, "tasks.sh")
    assert box.end_of(job)["state"] == "COMPLETED"
    lines = (box.user / "logs/tasks.sh.out").read_text().splitlines()
    assert sorted(lines) == [
        f"0: 0 of 2 on {cluster.a.name}", f"1: 1 of 2 on {cluster.a.name}", cluster.a.name
    ]  # fmt: skip
