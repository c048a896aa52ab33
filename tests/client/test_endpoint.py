"""A wrong STOKER_SERVER is one sentence that says what is wrong with it."""

import socket
from pathlib import Path

import pytest

from stoker.main import main

Captured = pytest.CaptureFixture[str]
BAD = ["x", "127.0.0.1:25647", "http://127.0.0.1:25647", "tcp://", "tcp://127.0.0.1",
       "tcp://127.0.0.1:0", "tcp://127.0.0.1:65536", "tcp://127.0.0.1:1e3", "tcp://127.0.0.1:\u0661",
       "tcp://::1:5", "tcp://[::1:5", "tcp://[127.0.0.1]:5"]  # fmt: skip


@pytest.mark.parametrize("url", BAD)
def test_a_malformed_address_is_said_before_a_missing_token(
    url: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("STOKER_SERVER", url)
    assert main(["submit", "true"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"stoker: STOKER_SERVER={url!r} is not the address of a server; ")
    assert error.count("\n") == 1
    assert not any(home.iterdir()), "no daemon is started"


def test_a_missing_token_says_where_to_put_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("STOKER_SERVER", "tcp://127.0.0.1:25647")
    assert main([]) == 5
    assert "Set STOKER_TOKEN_FILE to a copy of the server's token." in capsys.readouterr().err


def test_a_port_without_a_daemon_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    (home / "token").write_text("secret")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        monkeypatch.setenv("STOKER_SERVER", f"tcp://127.0.0.1:{port}")
        monkeypatch.setenv("STOKER_TOKEN_FILE", str(home / "token"))
        assert main(["submit", "true"]) == 4
    assert capsys.readouterr().err == (
        f"stoker: No daemon answers at 127.0.0.1:{port} (Connection refused). "
        "Check STOKER_SERVER, and that the daemon there listens.\n"
    )
