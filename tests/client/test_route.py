"""Commands go to the system daemon of a machine if it has one, and never silently elsewhere."""

import io
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.fake_daemon import FakeDaemon, in_home
from stoker import places
from stoker.api import daemon_client
from stoker.client import route, transport
from stoker.client.client import Client, connect
from stoker.client.errors import (
    DaemonUnreachable,
    PermissionDenied,
    StokerError,
    UsageError,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def user(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The home of a user without variables that choose a daemon; nothing is installed."""
    monkeypatch.delenv("STOKER_HOME")
    monkeypatch.setenv("STOKER_SYSTEM_SOCKET", str(tmp_path / "run/stoker.sock"))
    monkeypatch.setattr(route, "GATE_CONFIG", str(tmp_path / "gate.toml"))
    return home.parent / "user"


@pytest.fixture
def system(user: Path) -> Iterator[FakeDaemon]:
    """A system daemon that answers."""
    daemon = FakeDaemon(Path(places.system_socket()))
    daemon.answers["GET /v1/daemon"] = (200, {"pid": 1})
    yield daemon
    daemon.close()


@pytest.fixture
def own(home: Path, user: Path) -> Iterator[FakeDaemon]:
    """A daemon of the user, with one pending job."""
    daemon = FakeDaemon(Path(places.socket_path()))
    daemon.answers["GET /v1/daemon"] = (200, {"counts": {"PENDING": 1, "COMPLETED": 3}})
    yield daemon
    daemon.close()


def test_without_an_installation_commands_go_to_the_own_daemon(user: Path) -> None:
    client = connect()
    assert client.path == places.socket_path()
    assert client.autostart


def test_commands_go_to_the_system_daemon_and_that_is_said_once(
    system: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert connect().daemon() == {"pid": 1}
    assert "system daemon" in capsys.readouterr().err
    assert connect().path == places.system_socket()
    assert not connect().autostart
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("variable", ["STOKER_HOME", "STOKER_JOB_ID"])
def test_state_of_its_own_and_jobs_of_the_own_daemon_stay_with_it(
    system: FakeDaemon, home: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, str(home))
    assert route.system_socket() is None
    monkeypatch.setenv("STOKER_MODE", "system")
    assert route.system_socket() == places.system_socket()


def test_the_mode_own_never_asks_the_system_daemon(
    system: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_MODE", "own")
    assert connect().path == places.socket_path()
    monkeypatch.setenv("STOKER_MODE", "mine")
    with pytest.raises(UsageError, match="own or system"):
        connect()


def test_an_own_daemon_with_unfinished_jobs_keeps_the_commands(
    system: FakeDaemon, own: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert connect().path == places.socket_path()
    assert "adopt" in capsys.readouterr().err
    own.answers["GET /v1/daemon"] = (200, {"counts": {"COMPLETED": 4}})
    assert connect().path == places.system_socket()
    own.answers["GET /v1/daemon"] = (200, {"counts": {"PENDING": 1}})
    assert connect().path == places.system_socket(), "a choice that was said holds"


def test_where_the_system_daemon_is_down_no_own_daemon_is_started(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(route.GATE_CONFIG).touch()
    with pytest.raises(DaemonUnreachable, match="not running"):
        connect()
    monkeypatch.setenv("STOKER_MODE", "own")
    assert connect().autostart


@pytest.mark.parametrize("is_known", [False, True])
def test_a_socket_that_nothing_listens_at_is_a_system_daemon_that_is_down(
    user: Path, is_known: bool
) -> None:
    path = Path(places.system_socket())
    path.parent.mkdir(mode=0o755)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    if is_known:
        route.choose_system()
    with pytest.raises(DaemonUnreachable, match="system daemon of this machine is not running"):
        connect().daemon()


@pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o755, 4242)])
def test_a_socket_in_a_directory_that_is_not_of_root_alone_is_not_used(
    system: FakeDaemon, mode: int, owner: int
) -> None:
    system.path.parent.chmod(mode)
    os.chown(system.path.parent, owner, -1)
    with pytest.raises(PermissionDenied, match="root"):
        connect()
    assert system.requests == []


def test_the_api_starts_no_daemon_in_the_place_of_a_system_daemon(system: FakeDaemon) -> None:
    client = daemon_client.connect()
    assert client.path == places.system_socket()
    assert not client.autostart
    assert not client.has_crashed
    with pytest.raises(StokerError, match="administrator"):
        route.require_own()


def test_a_late_reply_is_waited_for_and_that_is_said(
    system: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    route.choose_system()
    monkeypatch.setattr(transport, "LATE_SECONDS", 0.01)
    said = threading.Event()

    class Errors(io.StringIO):
        def write(self, text: str) -> int:
            if "waiting for the system daemon" in text:
                said.set()
            return len(text)

    monkeypatch.setattr(sys, "stderr", Errors())
    system.answers["GET /v1/daemon"] = lambda _: (200, {"pid": 1}) if said.wait(30) else None
    assert connect().daemon() == {"pid": 1}


def test_an_own_daemon_is_never_said_to_be_late(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "LATE_SECONDS", 0.0)
    daemon = in_home(home)
    daemon.answers["GET /v1/daemon"] = (200, {"pid": 1})
    assert Client().daemon() == {"pid": 1}
    assert capsys.readouterr().err == ""
    daemon.close()
