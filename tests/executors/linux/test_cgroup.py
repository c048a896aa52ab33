"""Control groups: created, read, killed and removed; without delegation nothing happens."""

from pathlib import Path

from stoker.executors.linux import cgroup
from stoker.executors.linux.cgroup import Cgroups


def test_without_delegation_there_is_no_group() -> None:
    assert Cgroups(None).create("x.1.0") is None
    assert Cgroups(None).existing("x.1.0") is None


def test_each_attempt_has_a_group_that_the_next_daemon_finds(tmp_path: Path) -> None:
    made = Cgroups(str(tmp_path)).create("x.1.0")
    assert made is not None
    assert Cgroups(str(tmp_path)).existing("x.1.0") == made
    assert Cgroups(str(tmp_path)).create("x.1.0") == made
    cgroup.remove(made)
    assert Cgroups(str(tmp_path)).existing("x.1.0") is None


def test_a_group_is_killed_as_one(tmp_path: Path) -> None:
    assert not cgroup.kill(str(tmp_path / "gone"))
    (tmp_path / "cgroup.kill").write_text("")
    assert cgroup.kill(str(tmp_path))
    assert (tmp_path / "cgroup.kill").read_text() == "1"


def test_a_group_has_its_pids_and_whether_memory_killed_one(tmp_path: Path) -> None:
    assert cgroup.pids(str(tmp_path)) == []
    assert not cgroup.killed_for_memory(str(tmp_path))
    (tmp_path / "cgroup.procs").write_text("7\n8\n")
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n")
    assert cgroup.pids(str(tmp_path)) == [7, 8]
    assert cgroup.killed_for_memory(str(tmp_path))
