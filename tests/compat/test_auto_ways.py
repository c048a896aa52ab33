"""The ways to an `auto` server, and everybody who is not let in."""

import contextlib
import fcntl
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from compat.auto_env import AutoEnv, open_auto_env
from e2e.daemon_fixture import until
from e2e.other_users import as_user
from ssh.client import generate_key, ssh_program
from ssh.namespace import Namespace
from stoker import places
from stoker.client.client import Client
from stoker.client.errors import StokerError
from stoker.client.tcp_endpoint import Endpoint, read_token
from stoker.compat.auto import known_servers as remembered
from stoker.compat.auto.tunnel import FIND_SERVERS_SCRIPT
from stoker.daemon.http.listeners import MAX_CONNECTIONS

pytestmark = pytest.mark.e2e
ROOT_ONLY = pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
NOBODY = 65534
ELSEWHERE = "10.99.88.77"
"""An address that only a network of the test's own has."""


@pytest.fixture(scope="module")
def bound() -> Iterator[AutoEnv]:
    """A server that other machines could reach, were 127.0.0.2 not this one too."""
    with open_auto_env() as env:
        yield env.serve("--gpus", 0, 1, "--port", 0, "--bind", "127.0.0.2")


@pytest.fixture
def visitor() -> Iterator[AutoEnv]:
    """A home on what could be another machine."""
    with open_auto_env() as env:
        yield env


def fingerprint(here: AutoEnv) -> str:
    """What the server said to pin."""
    return until(lambda: here.out.read_text().partition("auto trust ")[2].split()[1:])[0]


def trust(
    here: AutoEnv, visitor: AutoEnv, pin: str = "", token: str = ""
) -> "subprocess.CompletedProcess[str]":
    """What the server said to type."""
    where = f"127.0.0.2:{here.port}"
    return visitor.auto("trust", where, pin or fingerprint(here), input=f"{token or here.token}\n")


# ------------------------------------------------------------------------------------ TLS


def test_a_server_that_is_trusted_once_is_reached_by_tls(bound: AutoEnv, visitor: AutoEnv) -> None:
    done = trust(bound, visitor)
    assert done.returncode == 0, done.stderr
    words = ("--ip", "127.0.0.2", "--port", bound.port)
    said = visitor.auto(*words, "run", "-c", "pwd; echo $STOKER_HOME $VISITOR", "-n", 2)
    assert said.stdout.startswith("Task id: "), said.stderr
    id = said.stdout.split()[-1]
    assert visitor.auto(*words, "wait", id).returncode == 0
    # The directory and the environment are those of the server, not of the visitor.
    assert visitor.ok(*words, "logs", id) == f"{bound.user}\n{bound.base}/home\n"
    assert f"{id} " in visitor.ok(*words, "history")
    visitor.refused(*words, "run", "-c", "pwd", "--chdir", "here", code=2)
    visitor.refused(*words, "run", "-c", "pwd", "--chdir", "/not/there", code=2)
    (kept,) = (visitor.base / "home" / "state").rglob("trusted.json")
    assert kept.stat().st_mode & 0o077 == 0
    assert visitor.auto("trust", "--forget", f"127.0.0.2:{bound.port}").returncode == 0
    visitor.refused(*words, "status", code=4)


def test_another_certificate_is_refused_and_the_token_not_shown(
    bound: AutoEnv, visitor: AutoEnv
) -> None:
    done = trust(bound, visitor, pin="sha256:" + "0" * 64)
    assert done.returncode == 5
    assert "another certificate" in done.stderr
    assert not list((visitor.base / "home").rglob("trusted.json"))


def test_another_token_is_refused(bound: AutoEnv, visitor: AutoEnv) -> None:
    done = trust(bound, visitor, token="x" * 43)
    assert done.returncode == 5
    assert "token" in done.stderr
    assert not list((visitor.base / "home").rglob("trusted.json"))


@pytest.mark.parametrize("text", ["[]", '{"127.0.0.2:1": 7}', '{"a:1": {}}', "\0", ""])
def test_a_damaged_list_of_trusted_servers_is_reported_and_kept(
    visitor: AutoEnv, text: str
) -> None:
    path = visitor.base / "home" / "state" / places.machine_id() / "trusted.json"
    path.parent.mkdir(mode=0o700, parents=True)
    path.write_text(text)
    for words in (("status",), ("trust", "--forget", "127.0.0.2:1")):
        assert str(path) in visitor.refused(*words, code=1)
    assert path.read_text() == text


def test_servers_that_are_trusted_at_once_are_all_kept(visitor: AutoEnv, monkeypatch: Any) -> None:
    monkeypatch.setenv("STOKER_HOME", visitor.env["STOKER_HOME"])
    places.secure_dir(places.state_dir())
    Path(f"{remembered.path()}.new").write_text("left behind by one that was killed, and longer")
    names = [f"127.0.0.2:{number}" for number in range(1, 41)]
    entry = {"fingerprint": "sha256:", "token": "x"}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: remembered._update_entry(name, entry), names))
    kept = json.loads(Path(remembered.path()).read_text())
    assert sorted(kept) == sorted(names)


@pytest.mark.parametrize(
    "words",
    [(), ("127.0.0.2",), ("127.0.0.2:1",), ("127.0.0.2:1", "sha256:ab"), ("127.0.0.2:1", "md5:1")],
)
def test_a_server_that_cannot_be_trusted_is_reported(
    visitor: AutoEnv, words: "tuple[str, ...]"
) -> None:
    visitor.refused("trust", *words, code=2)


def test_plain_http_gets_nothing_at_the_tls_port(bound: AutoEnv) -> None:
    with socket.create_connection(("127.0.0.2", bound.port), 10) as sock:
        sock.sendall(b"GET /v1/daemon HTTP/1.1\r\nHost: x\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"HTTP" not in sock.recv(65536)
    assert bound.result("echo alive") == "alive\n"


# ---------------------------------------------------------------------------------- token


@pytest.mark.parametrize("header", ["", "Bearer wrong", "Basic {}", "Bearer", "{}", "Bearer {} {}"])
def test_requests_without_the_token_get_no_reply(bound: AutoEnv, header: str) -> None:
    line = f"Authorization: {header.replace('{}', bound.token)}\r\n" if header else ""
    with socket.create_connection(("127.0.0.1", bound.port), 10) as sock:
        sock.sendall(f"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n{line}\r\n".encode())
        reply = sock.recv(65536)
    assert reply.startswith(b"HTTP/1.1 401"), reply
    assert b"stoker" not in reply.lower()


def test_a_wrong_token_is_one_line(bound: AutoEnv) -> None:
    client = Client(Endpoint("127.0.0.1", bound.port, "y" * 43))
    with pytest.raises(StokerError, match="requires a token") as error:
        client.daemon()
    assert error.value.exit_code == 5


@ROOT_ONLY
def test_another_user_cannot_read_the_token(bound: AutoEnv) -> None:
    path = bound.record["token_file"]
    for each in (bound.base, bound.base / "home", bound.base / "home" / "state"):
        each.chmod(0o755)

    def reads() -> str:
        try:
            return read_token(path)
        except StokerError as error:
            return error.message

    said = as_user(NOBODY, reads)
    assert "cannot be read: Permission denied" in said
    assert bound.token not in said


@ROOT_ONLY
def test_a_token_is_not_shown_to_another_users_program(bound: AutoEnv) -> None:
    read, write = os.pipe()
    port_read, port_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        # Somebody who listens where he hopes that a server is looked for.
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        with socket.create_server(("127.0.0.1", 0)) as server:
            os.write(port_write, str(server.getsockname()[1]).encode())
            sock, _ = server.accept()
            sock.settimeout(10)
            with contextlib.suppress(OSError):
                os.write(write, sock.recv(65536))
        os._exit(0)
    os.close(write)
    port = int(os.read(port_read, 20))
    try:
        with pytest.raises(StokerError, match=f"used by user {NOBODY}"):
            Client(Endpoint("127.0.0.1", port, "secret")).daemon()
        assert os.read(read, 65536) == b""
    finally:
        os.waitpid(pid, 0)
        for fd in (read, port_read, port_write):
            os.close(fd)


def test_plain_tcp_never_leaves_this_host() -> None:
    with pytest.raises(StokerError, match="another host"):
        Endpoint("10.0.0.5", 25647, "secret")


def test_garbage_at_the_ports_does_no_harm(bound: AutoEnv) -> None:
    chance = random.Random(7)
    words = [
        b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + bytes(200), b"POST /v1/jobs HTTP/1.1\r\n",
        b"A" * 100_000, b"\r\n" * 5000, b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFF\r\n", b"",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n{",
    ]  # fmt: skip
    words += [chance.randbytes(chance.randrange(1, 3000)) for _ in range(40)]
    for host in ("127.0.0.1", "127.0.0.2"):
        for data in words:
            # It may hang up before all of it is said.
            with (
                contextlib.suppress(ConnectionError),
                socket.create_connection((host, bound.port), 10) as sock,
            ):
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                while piece := sock.recv(65536):
                    assert b"200 OK" not in piece
    assert bound.result("echo alive") == "alive\n"
    log = Path(bound.client.daemon()["log"]).read_text()
    assert "Traceback" not in log


def test_a_full_port_keeps_its_owner_out_no_more_than_a_lost_token(bound: AutoEnv) -> None:
    with contextlib.ExitStack() as strangers:
        for _ in range(MAX_CONNECTIONS + 20):
            strangers.enter_context(socket.create_connection(("127.0.0.1", bound.port), 10))
        token = Path(bound.record["token_file"])
        token.rename(f"{token}.away")
        try:
            assert "Runner Status:" in bound.ok("--port", bound.port, "status")
        finally:
            Path(f"{token}.away").rename(token)


# ------------------------------------------------------------------------------------ ssh


@pytest.mark.needs("flock")
def test_a_server_that_was_killed_is_not_found_from_another_machine(visitor: AutoEnv) -> None:
    path = visitor.base / "home" / "run" / "auto.json"
    path.parent.mkdir(mode=0o700)
    path.write_text('{"port": 1}\n')
    assert visitor.run("sh", "-c", FIND_SERVERS_SCRIPT).stdout == ".\n"
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert visitor.run("sh", "-c", FIND_SERVERS_SCRIPT).stdout == '{"port": 1}\n.\n'


class Elsewhere:
    """A network of its own with an address that is not loopback, and an sshd at it."""

    def __init__(self, base: Path, home: Path) -> None:
        self.base = base
        self.net = Namespace(
            base / "net.log", f"ip link set lo up; ip addr add {ELSEWHERE}/32 dev lo"
        )
        self.enter = self.net.enter("-n")
        for name in ("host", "key"):
            generate_key(base / name)
        (base / "sshd_config").write_text(
            f"Port 2222\nListenAddress {ELSEWHERE}\nHostKey {base}/host\nPidFile none\n"
            f"AuthorizedKeysFile {base}/key.pub\nStrictModes no\nUsePAM no\n"
            f"SetEnv STOKER_HOME={home}\n"
        )
        (base / "config").write_text(
            f"Host {ELSEWHERE}\nPort 2222\nIdentityFile {base}/key\nIdentitiesOnly yes\n"
            f"UserKnownHostsFile {base}/known\nStrictHostKeyChecking accept-new\n"
        )
        ssh_program(base / "bin", base / "config", base / "calls")
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd goes to be harmless
        command = [*self.enter, "/usr/sbin/sshd", "-D", "-e", "-f", str(base / "sshd_config")]
        with (base / "out").open("ab") as out:
            self.sshd = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        probe = [*self.enter, sys.executable, "-c",
                 f"import socket; socket.create_connection(('{ELSEWHERE}', 2222), 5)"]  # fmt: skip
        until(lambda: not subprocess.run(probe, capture_output=True, check=False).returncode)

    def close(self) -> None:
        self.sshd.kill()
        self.sshd.wait(20)
        self.net.close()


@pytest.fixture
def elsewhere(tmp_path: Path, visitor: AutoEnv) -> Iterator[tuple[Elsewhere, AutoEnv]]:
    with open_auto_env() as env:
        tmp_path.chmod(0o700)
        net = Elsewhere(tmp_path, env.base / "home")
        try:
            with env.out.open("ab") as out:
                env.server = subprocess.Popen(
                    [*net.enter, sys.executable, "-m", "stoker.compat.auto", "server",
                     "--gpus", "0", "1"],
                    stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=env.user, env=env.env,
                )  # fmt: skip
            until(lambda: "serving GPU" in env.out.read_text())
            yield net, env
        finally:
            net.close()


@ROOT_ONLY
@pytest.mark.needs("ssh", "/usr/sbin/sshd", "ssh-keygen", "ip", "unshare", "nsenter")
def test_another_machine_is_reached_through_ssh(
    elsewhere: tuple[Elsewhere, AutoEnv], visitor: AutoEnv
) -> None:
    net, there = elsewhere
    visitor.env["PATH"] = f"{net.base}/bin:{visitor.env['PATH']}"
    visitor.env["TMPDIR"] = str(visitor.base)

    def auto(*words: object) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "stoker.compat.auto", "--ip", ELSEWHERE]
        return visitor.run(*net.enter, *command, *words)

    said = auto("run", "-c", "pwd; exit 4", "-n", 2)
    assert said.stdout == "Task id: 1\n", said.stderr
    assert auto("wait", 1).returncode == 4
    assert auto("logs", 1).stdout == f"{there.user}\n"
    assert auto("--port", 25647, "status").stdout.startswith("Runner Status:")
    refused = auto("--port", 1, "status")
    assert (refused.returncode, refused.stderr.count("\n")) == (4, 1)
    assert "no auto server" in refused.stderr.lower()
    assert not list(visitor.base.glob("stoker-auto-*")), "nothing is left behind"
    (net.base / "key.pub").write_text("")
    refused = auto("status")
    assert (refused.returncode, refused.stderr.count("\n")) == (4, 1)
    assert "Permission denied" in refused.stderr


def test_a_host_that_ssh_cannot_reach_is_reported(visitor: AutoEnv) -> None:
    (visitor.base / "bin").mkdir()
    ssh = visitor.base / "bin" / "ssh"
    ssh.write_text("#!/bin/sh\necho 'ssh: no route to host' >&2\nexit 255\n")
    ssh.chmod(0o755)
    visitor.env["PATH"] = f"{visitor.base}/bin:{visitor.env['PATH']}"
    assert "no route to host" in visitor.refused("--ip", "192.0.2.1", "status", code=4)
    for odd in ("-oProxyCommand=x", "a b", " "):
        assert "takes an address" in visitor.refused(f"--ip={odd}", "status", code=2)
