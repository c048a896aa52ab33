"""Results and local changes of the same files: nothing is lost, and conflicts are reported."""

import os

import pytest

from e2e.daemon_fixture import DaemonFixture
from ssh.node_actions import HOLD, add, all_of, release_jobs, submit_to
from ssh.ssh_cluster import SshCluster

DaemonAndCluster = tuple[DaemonFixture, SshCluster]


@pytest.mark.parametrize("restart", [False, True])
def test_a_file_edited_locally_while_the_job_runs_is_not_overwritten(
    daemon_and_cluster: DaemonAndCluster, restart: bool
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    (box.user / "train.py").write_text("old\n")
    (box.user / "log").write_text("old\n")
    job = submit_to(box, cluster.a, f"{HOLD}; echo its >>train.py; echo its >>log; cat train.py")
    box.becomes(job, "RUNNING")
    (box.user / "train.py").write_text("mine\n")
    if restart:
        box.crash()
        box.up()
    release_jobs(cluster.a)
    end = box.end_of(job)
    assert end["result"] == 0
    assert (
        end["termination_note"]
        == f"train.py was changed locally; the job's version is train.py.{job}"
    )
    assert (box.user / "train.py").read_text() == "mine\n"
    assert (box.user / f"train.py.{job}").read_text() == "old\nits\n"
    assert (box.user / "log").read_text() == "old\nits\n"


def test_tasks_on_several_nodes_that_write_one_file_keep_all_versions(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    add(box, *all_of(cluster))
    line = f"{HOLD}; echo row $STOKER_ARRAY_INDEX >>r.csv"
    names = [machine.name for machine in all_of(cluster)]
    tasks = [
        int(box.submit("-w", name, "--array", str(number), "--wrap", line))
        for number, name in enumerate(names)
    ]
    for number, task in enumerate(tasks):
        box.becomes(f"{task}_{number}", "RUNNING")
    release_jobs(*all_of(cluster))
    for number, task in enumerate(tasks):
        assert box.end_of(f"{task}_{number}")["result"] == 0
    rows = {path.name: path.read_text() for path in box.user.glob("r.csv*")}
    assert sorted(rows.values()) == ["row 0\n", "row 1\n", "row 2\n"]
    labels = {f"{task}_{number}": f"row {number}\n" for number, task in enumerate(tasks)}
    del rows["r.csv"]
    assert all(text == labels[name.removeprefix("r.csv.")] for name, text in rows.items())


@pytest.mark.parametrize("size", [1, 3 << 20])
def test_modes_links_and_directories_of_results_are_kept(
    daemon_and_cluster: DaemonAndCluster, size: int
) -> None:
    box, cluster = daemon_and_cluster
    machine = cluster.machine("tar", hide=("rsync",))
    add(box, cluster.a, machine)
    for name, mode in (("plain", 0o644), ("shared", 0o664), ("tool", 0o755)):
        (box.user / name).write_text(name)
        (box.user / name).chmod(mode)
    line = (
        f"umask 022; head -c {size} /dev/zero >big; mv plain moved; cp -p shared copied; "
        'echo >>tool; mkdir -p empty/inside; ln -s "$PWD/big" absolute; ln -s /etc outside; '
        "mkdir sub; ln -s $(pwd -P)/big sub/deep"
    )
    for machine_used in (cluster.a, machine):
        job = submit_to(
            box, machine_used, line, "--bring-into", str(box.user / "res%%" / "%N" / "%a-%j")
        )
        end = box.end_of(job)
        assert end["result"] == 0, box.output(job)
        assert (
            end["termination_note"]
            == "the link outside points outside the job directory and was not "
            "fetched"
        )
        into = box.user / "res%" / machine_used.name / f"0-{job}"
        modes = {path.name: path.stat().st_mode & 0o777 for path in into.iterdir()}
        assert modes == {
            "absolute": 0o644, "big": 0o644, "moved": 0o644, "copied": 0o664, "tool": 0o755,
            "empty": 0o755, "sub": 0o755,
        }  # fmt: skip
        assert os.readlink(into / "absolute") == "big"
        assert os.readlink(into / "sub" / "deep") == "../big"
        assert (into / "empty" / "inside").is_dir()
