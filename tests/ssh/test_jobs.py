"""Jobs on SSH nodes, as a user sees them."""

import re

from e2e.daemon_fixture import DaemonFixture, until
from ssh.node_actions import HOLD, add, release_jobs, submit_to
from ssh.ssh_cluster import SshCluster


def test_a_job_has_its_directory_and_its_results_are_fetched(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    (box.user / "hello.txt").write_text("hello\n")
    job = submit_to(box, cluster.a, "cat hello.txt; hostname; echo new > made.txt; exit 3")
    assert box.end_of(job)["result"] == 3
    assert box.output(job) == "hello\na\n"
    assert (box.user / "made.txt").read_text() == "new\n"


def test_a_job_has_the_environment_of_bashrc_and_none_of_its_output(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    (cluster.a.home / ".bashrc").write_text(
        "echo welcome; greet() { echo hello $1; }; export CUDA_VISIBLE_DEVICES=7; oops\n"
    )
    add(box, cluster.a)
    job = submit_to(
        box, cluster.a, "greet you$CUDA_VISIBLE_DEVICES; echo bad >&2; exit 7", "-o", "o", "-e", "e"
    )
    assert box.end_of(job)["result"] == 7
    assert (box.user / "o").read_text() == "hello you\n"
    assert (box.user / "e").read_text() == "bad\n"


def test_a_cancelled_job_ends_with_all_its_processes(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    job = submit_to(box, cluster.a, "(sleep 300 & sleep 300); sleep 300")
    until(lambda: len(cluster.a.pids("sleep 300")) >= 2)
    box.stoker("cancel", str(job))
    assert box.end_of(job)["state"] == "CANCELLED"
    assert cluster.a.pids("sleep 300") == []


def test_the_time_limit_of_a_running_job_can_be_changed(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    job = submit_to(box, cluster.a, "sleep 300", "--time", "1h")
    until(lambda: cluster.a.pids("sleep 300"))
    assert box.stoker("edit", str(job), "--time", "2h").returncode == 0
    assert box.job(job)["time_limit"] == 7200
    box.stoker("edit", str(job), "--time", "1s")
    assert box.end_of(job)["state"] == "TIMEOUT"
    assert cluster.a.pids("sleep 300") == []


def test_why_and_show_print_the_progress_of_the_upload(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    slow = cluster.machine("slow", hide=("rsync",))
    slow.tool("tar", f'#!/bin/sh\n{HOLD}\nexec /bin/tar "$@"\n')
    add(box, slow)
    with open(box.user / "data", "wb") as file:
        file.truncate(24_000_000)  # more than the pipes in between can buffer
    job = submit_to(box, slow, "wc -c < data")
    progress = re.compile(r"CONFIGURING: sending [1-9]\d* of 24 MB to slow")
    until(lambda: progress.search(box.stoker("why", str(job)).stdout))
    assert progress.search(box.stoker("show", str(job)).stdout)
    (upload,) = box.job(job)["uploads"]
    assert (upload["node"], upload["total_bytes"]) == ("slow", 24_000_000)
    assert 0 < upload["sent_bytes"] < 24_000_000
    release_jobs(slow)
    assert box.end_of(job)["result"] == 0
    assert "uploads" not in box.job(job)
    assert box.output(job) == "24000000\n"


def test_the_log_of_a_cancelled_job_has_only_its_own_output(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    job = submit_to(box, cluster.a, "echo begun; sleep 300", "-e", "err")
    until(lambda: cluster.a.pids("sleep 300"))
    box.stoker("cancel", str(job))
    assert box.end_of(job)["state"] == "CANCELLED"
    assert box.output(job) == "begun\n"
    assert (box.user / "err").read_text() == ""


def test_a_job_outlives_the_daemon_and_the_connection(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    job = submit_to(
        box, cluster.a, "echo one; until [ -e $HOME/go ]; do sleep 0.05; done; echo two; exit 5"
    )
    until(lambda: box.job(job)["state"] == "RUNNING")
    box.crash()
    box.up()
    (cluster.a.home / "go").touch()
    assert box.end_of(job)["result"] == 5
    assert box.output(job) == "one\ntwo\n"


def test_a_job_on_an_unreachable_node_continues_and_its_exit_is_reported_later(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    job = submit_to(
        box, cluster.a, "echo one; until [ -e $HOME/go ]; do sleep 0.05; done; echo two; exit 5"
    )
    until(lambda: box.job(job)["state"] == "RUNNING")
    cluster.a.kill_connections()
    (cluster.a.home / "go").touch()
    assert box.end_of(job)["result"] == 5
    assert box.output(job) == "one\ntwo\n"


def test_signals_reach_a_remote_job(daemon_and_cluster: tuple[DaemonFixture, SshCluster]) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    (box.user / "t.sh").write_text(
        "trap 'echo usr; exit 9' USR1\necho up\nwhile :; do sleep 0.05; done\n"
    )
    job = submit_to(box, cluster.a, "sh t.sh")
    box.stoker("nodes")
    until(lambda: box.job(job)["state"] == "RUNNING" and box.output(job) == "up\n")
    box.stoker("kill", "-s", "USR1", str(job))
    assert box.end_of(job)["result"] == 9


def test_detached_processes_are_ended_with_their_job(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    job = submit_to(box, cluster.a, "setsid -f sleep 304 >/dev/null 2>&1; echo done")
    end = box.end_of(job)
    assert end["result"] == 0
    assert cluster.a.pids("sleep 304") == []
    assert "behind" in end["termination_note"]


def test_a_slurm_script_finds_its_tools_on_a_node(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
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
