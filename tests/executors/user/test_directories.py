"""The directories of one user, and what a missing claim in them means."""

from pathlib import Path

from stoker.executors.local.recovery import COMPLETE, renew_mark
from stoker.executors.user.directories import NAMES, UserDirectories, read_boot


def test_the_first_directory_of_claims_is_complete_from_its_beginning(tmp_path: Path) -> None:
    UserDirectories(str(tmp_path)).create()
    assert {path.name for path in tmp_path.iterdir()} == set(NAMES)
    assert (tmp_path / "run" / COMPLETE).read_text() == read_boot()
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def test_a_directory_of_claims_that_was_deleted_is_not_complete(tmp_path: Path) -> None:
    (tmp_path / "exits").mkdir()
    UserDirectories(str(tmp_path)).create()
    assert not (tmp_path / "run" / COMPLETE).exists()


def test_a_mark_of_an_earlier_boot_is_renewed_and_none_is_made(tmp_path: Path) -> None:
    renew_mark(str(tmp_path), "now")
    assert not (tmp_path / COMPLETE).exists()
    (tmp_path / COMPLETE).write_text("earlier")
    renew_mark(str(tmp_path), "now")
    assert (tmp_path / COMPLETE).read_text() == "now"
