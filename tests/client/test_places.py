import os
import pwd
from pathlib import Path

import pytest

from e2e.other_users import as_user
from stoker import places


def test_stoker_home_moves_everything_together(home: Path) -> None:
    state = home / "state" / places.machine_id()
    assert places.config_paths() == [str(home / "config.toml")]
    assert places.state_dir() == str(state)
    assert places.logs_dir() == str(state / "logs")
    assert places.socket_path() == str(home / "run" / "daemon.sock")


def test_without_stoker_home_the_xdg_directories_are_used(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STOKER_HOME")
    user = os.environ["HOME"]
    assert places.config_paths()[-1] == f"{user}/.config/stoker/config.toml"
    assert places.state_dir().startswith(f"{user}/.local/state/stoker/")
    assert places.socket_path() == os.environ["XDG_RUNTIME_DIR"] + "/stoker/daemon.sock"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert places.socket_path() == f"/tmp/stoker-{os.getuid()}/daemon.sock"


def test_a_socket_path_that_is_too_long_is_replaced_by_a_unique_short_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = set()
    for letter in "ab":
        monkeypatch.setenv("STOKER_HOME", str(home / (letter * 100)))
        paths.add(places.socket_path())
    assert len(paths) == 2
    assert all(len(path) < 60 for path in paths)


def test_the_machine_id_is_stable() -> None:
    assert places.machine_id() == places.machine_id()
    assert len(places.machine_id()) >= 8
    int(places.machine_id(), 16)


def test_a_secure_directory_is_made_private(home: Path) -> None:
    path = places.secure_dir(str(home / "a" / "b"))
    assert os.stat(path).st_mode & 0o777 == 0o700
    assert places.secure_dir(path) == path


def test_a_directory_that_others_can_change_is_rejected(home: Path) -> None:
    (home / "open").mkdir()
    (home / "open").chmod(0o777)
    with pytest.raises(places.UnsafeDirectory, match="chmod 700"):
        places.secure_dir(str(home / "open"))


def test_a_directory_of_another_user_is_rejected(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = places.secure_dir(str(home / "mine"))
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    with pytest.raises(places.UnsafeDirectory, match="not to you"):
        places.secure_dir(path)


def test_a_file_in_place_of_the_directory_is_rejected(home: Path) -> None:
    (home / "file").touch()
    with pytest.raises(places.UnsafeDirectory, match="not a directory"):
        places.secure_dir(str(home / "file"))


def test_a_home_of_another_user_is_rejected_also_for_root(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = pwd.getpwuid(os.getuid()).pw_name
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    with pytest.raises(places.UnsafeDirectory, match=f"belongs to {owner}, not to you"):
        places.home()


def test_a_home_that_does_not_exist_yet_is_accepted(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_HOME", str(home / "new"))
    assert places.home() == str(home / "new")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_home_without_access_is_rejected(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "closed").mkdir(mode=0o700)
    monkeypatch.setenv("STOKER_HOME", str(home / "closed" / "inner"))

    def read_home() -> str:
        try:
            return str(places.home())
        except places.UnsafeDirectory as error:
            return str(error)

    assert as_user(4242, read_home).startswith("You have no access to STOKER_HOME=")
