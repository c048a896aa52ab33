"""A wrong STOKER_SERVER is reported in one line."""

import socket
from pathlib import Path

import pytest

from stoker.main import main

Captured = pytest.CaptureFixture[str]
BAD = ["x", "127.0.0.1:25647", "http://127.0.0.1:25647", "tcp://", "tcp://127.0.0.1",
       "tcp://127.0.0.1:0", "tcp://127.0.0.1:65536", "tcp://127.0.0.1:1e3", "tcp://127.0.0.1:\u0661",
       "tcp://::1:5", "tcp://[::1:5", "tcp://[127.0.0.1]:5"]  # fmt: skip


@pytest.mark.parametrize("url", BAD)
def test_a_malformed_address_is_reported_before_a_missing_token(
    url: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("STOKER_SERVER", url)
    assert main(["submit", "true"]) == 2
    error = capsys.readouterr().err
    assert f"STOKER_SERVER={url!r}" in error
    assert error.count("\n") == 1
    assert not any(home.iterdir()), "no daemon is started"


def test_a_missing_token_says_where_to_put_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("STOKER_SERVER", "tcp://127.0.0.1:25647")
    assert main([]) == 5
    assert "STOKER_TOKEN_FILE" in capsys.readouterr().err


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
    error = capsys.readouterr().err
    assert f"127.0.0.1:{port}" in error
    assert "STOKER_SERVER" in error
