"""The reservation of GPUs across users."""

import fcntl
import os
import stat
from pathlib import Path

import pytest

from stoker.executors.holds import Holds

A, B = "GPU-a", "GPU-b"


class Other(Holds):
    """The daemon of somebody else: the same code under another uid."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.uid = os.getuid() + 1


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "gpus")


def test_what_one_user_holds_another_does_not_get(place: str) -> None:
    mine, theirs = Holds(place), Other(place)
    assert mine.take((1, 0), (A,)) is None
    assert A in (theirs.take((1, 0), (A, B)) or "")
    assert theirs.take((1, 0), (B,)) is None
    mine.drop((1, 0))
    assert theirs.take((2, 0), (A,)) is None
    assert mine.holder(A) is not None


def test_a_refusal_holds_nothing(place: str) -> None:
    mine, theirs = Holds(place), Other(place)
    assert mine.take((1, 0), (B,)) is None
    assert theirs.take((1, 0), (A, B)) is not None
    mine.drop((1, 0))
    assert mine.take((2, 0), (A, B)) is None


def test_one_users_jobs_may_share_a_gpu(place: str) -> None:
    mine = Holds(place)
    assert mine.take((1, 0), (A,)) is None
    assert mine.take((2, 0), (A,)) is None
    mine.drop((1, 0))
    assert Other(place).take((1, 0), (A,)) is not None


def test_a_hold_lasts_as_long_as_an_heir_of_it_lives(place: str) -> None:
    mine, theirs = Holds(place), Other(place)
    assert mine.take((1, 0), (A,)) is None
    heir = os.open(mine.paths((A,))[0], os.O_RDWR)
    fcntl.flock(heir, fcntl.LOCK_SH)
    mine.drop((1, 0))
    assert theirs.take((1, 0), (A,)) is not None
    os.close(heir)
    assert theirs.take((1, 0), (A,)) is None


def test_others_can_see_a_hold_whatever_the_umask_is(place: str) -> None:
    old = os.umask(0o077)
    try:
        mine = Holds(place)
        assert mine.take((1, 0), (A,)) is None
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(place).st_mode) == 0o1777
    for path in Path(place).iterdir():
        assert path.stat().st_mode & 0o044 == 0o044, path


def test_a_directory_that_somebody_could_play_tricks_in_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "gpus").mkdir(mode=0o777)
    mine = Holds(str(tmp_path / "gpus"))
    assert mine.take((1, 0), (A,)) is None
    assert mine.paths((A,)) == []
    assert os.listdir(tmp_path / "gpus") == []
