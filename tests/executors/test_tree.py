"""Finding every process of an attempt."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from stoker.executors import tree

MARK = f"test{os.getpid()}.7.0"


@pytest.fixture
def family() -> Iterator[tuple[int, set[int]]]:
    """A leader with a child, a grandchild, and a daemon that went its own way."""
    script = (
        "sleep 60 & (sleep 60 & echo $! ; exec sleep 60) & "
        "setsid sh -c 'echo $$; exec sleep 60' & echo $$; wait"
    )
    leader = subprocess.Popen(
        ["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], tree.TOKEN: MARK},
    )  # fmt: skip
    assert leader.stdout is not None
    pids = {int(leader.stdout.readline()) for _ in range(3)}
    time.sleep(0.1)
    yield leader.pid, pids
    tree.signal_all(tree.members(leader.pid, MARK), signal.SIGKILL)
    leader.wait()
    leader.stdout.close()


def test_members_are_the_session_its_descendants_and_all_bearers(
    family: tuple[int, set[int]],
) -> None:
    leader, pids = family
    found = tree.members(leader, MARK)
    assert pids <= set(found)
    assert len(found) == 5
    assert os.getpid() not in found
    assert tree.group_alive(leader)


def test_whoever_carries_the_token_is_found_by_it_alone(family: tuple[int, set[int]]) -> None:
    _, pids = family
    found = tree.bearers(f"test{os.getpid()}.")
    assert pids <= set(found[MARK])
    assert tree.bearers("nobody-has-this.") == {}


def test_the_dead_are_not_members(family: tuple[int, set[int]]) -> None:
    leader, _ = family
    tree.signal_all(tree.members(leader, MARK), signal.SIGKILL)
    for _ in range(100):
        if not tree.members(leader, MARK):
            break
        time.sleep(0.02)
    assert tree.members(leader, MARK) == []
