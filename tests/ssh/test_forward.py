"""`stoker ui --on MACHINE`, over a real ssh."""

import http.client
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from conftest import Run
from e2e.daemon_fixture import DaemonFixture, until
from ssh.client import generate_key
from ssh.ssh_host import SSHD

pytestmark = [pytest.mark.e2e, pytest.mark.needs("sshd", "ssh", "ssh-keygen")]


def free_port() -> int:
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def answers(port: int) -> bool:
    with closing(socket.socket()) as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def machine(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An sshd of this user on loopback, which `ssh machine` reaches."""
    Path("/run/sshd").mkdir(exist_ok=True)
    key = tmp_path / "key"
    generate_key(key)
    (tmp_path / "keys").write_text(Path(f"{key}.pub").read_text())
    port = free_port()
    (tmp_path / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {key}\nStrictModes no\nUsePAM no\n"
        f"AuthorizedKeysFile {tmp_path}/keys\nPidFile none\nSetEnv STOKER_HOME={home}\n"
        "PermitRootLogin yes\n"
    )
    (tmp_path / "ssh_config").write_text(
        f"Host machine\n HostName 127.0.0.1\n Port {port}\n IdentityFile {key}\n"
        " StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n"
    )
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {tmp_path}/ssh_config "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    server = subprocess.Popen([SSHD, "-D", "-f", tmp_path / "sshd_config"])
    until(lambda: answers(port))
    yield "machine"
    server.terminate()
    server.wait(20)


def test_the_page_of_another_machine_is_at_a_port_of_this_one(
    machine: str, home: Path, stoker: Run
) -> None:
    box = DaemonFixture(home, stoker).start()
    process = box.popen("ui", "--on", machine, "--print")
    try:
        assert process.stdout is not None
        link = process.stdout.readline().decode().strip()
        address, _, code = link.removeprefix("http://").partition("/#c=")
        with closing(http.client.HTTPConnection(address, timeout=30)) as connection:
            connection.request("GET", "/v1/daemon")
            reply = connection.getresponse()
            reply.read()
            assert reply.status == 401, "a forwarded port needs a session"
        with closing(http.client.HTTPConnection(address, timeout=30)) as connection:
            connection.request("POST", "/v1/sessions/open", json.dumps({"code": code}))
            reply = connection.getresponse()
            reply.read()
            cookie = reply.headers["Set-Cookie"].partition(";")[0]
            connection.request("GET", "/v1/daemon", headers={"Cookie": cookie})
            assert json.loads(connection.getresponse().read())["pid"] == box.pid
        assert box.client.daemon()["listeners"] == [], "no port is opened there"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in (0, 130)
    finally:
        process.kill()
        process.communicate()


def test_a_machine_without_a_daemon_is_reported(machine: str, home: Path, stoker: Run) -> None:
    done = stoker("ui", "--on", machine, "--print")
    assert (done.returncode, "no running daemon" in done.stderr) == (4, True), done.stderr
