"""A checkpoint that another user has planted is passed over: to load it is to execute it."""

import os
from pathlib import Path

import pytest

from stoker.training.runtime import checkpoints

OTHER = 12345


class Owners:
    """Says that files belong to other users, without having to be root."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, me: int) -> None:
        self.of: dict[str, int] = {}
        real = os.lstat

        def lstat(path: str) -> os.stat_result:
            found = list(real(path))
            found[4] = self.of.get(str(path), me)
            return os.stat_result(found)

        monkeypatch.setattr("stoker.training.runtime.checkpoints.os.lstat", lstat)
        monkeypatch.setattr("stoker.training.runtime.checkpoints.os.geteuid", lambda: me)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a checkpoint of ours and a newer one."""
    for age, name in enumerate(("ours.pt", "newer.pt")):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (age, age))
    return tmp_path


@pytest.mark.parametrize("me", [1000, 0])
def test_a_newer_checkpoint_of_another_user_is_passed_over(
    place: Path, monkeypatch: pytest.MonkeyPatch, me: int
) -> None:
    owners = Owners(monkeypatch, me)
    assert checkpoints.newest(str(place)) == str(place / "newer.pt")
    place.chmod(0o777)
    owners.of[str(place / "newer.pt")] = OTHER
    assert checkpoints.newest(str(place)) == str(place / "ours.pt")
    owners.of[str(place / "newer.pt")] = 0
    assert checkpoints.newest(str(place)) == str(place / "newer.pt"), "root may do anything anyway"


def test_numbered_checkpoints_of_another_user_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners = Owners(monkeypatch, 1000)
    for number in (1, 2):
        path = tmp_path / "lightning_logs" / f"version_{number}" / "checkpoints"
        path.mkdir(parents=True)
        (path / "epoch=1.ckpt").write_bytes(b"x")
    owners.of[str(tmp_path / "lightning_logs" / "version_2")] = OTHER
    found = checkpoints.last_version(str(tmp_path))
    assert found is not None
    assert found[0] == 1


def test_root_on_a_network_file_system_finds_its_own(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners = Owners(monkeypatch, 0)
    for name in ("ours.pt", "newer.pt"):
        owners.of[str(place / name)] = 65534  # what a server makes of root
    place.chmod(0o755)
    assert checkpoints.newest(str(place)) == str(place / "newer.pt")
    place.chmod(0o777)
    assert checkpoints.newest(str(place)) is None
