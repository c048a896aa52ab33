"""The API at a TCP port: for clients with the token only."""

import asyncio
import contextlib
import errno
import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Run
from e2e.daemon_fixture import DaemonFixture
from stoker import wire
from stoker.client.client import Client
from stoker.client.errors import StokerError
from stoker.client.tcp_endpoint import Endpoint, parse
from stoker.core.model.units import BadValue
from stoker.daemon.http import credentials
from stoker.daemon.http import listeners as listen
from stoker.daemon.listen_address import split
from stoker.engine import CommandRejected

pytestmark = pytest.mark.e2e


@pytest.fixture
def leftovers() -> Iterator[list[Path]]:
    """Directories outside the home that are removed after the last process has ended."""
    found: list[Path] = []
    yield found
    for path in found:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def idle_home(leftovers: list[Path], home: Path, stoker: Run) -> DaemonFixture:
    """A home without a running daemon."""
    box = DaemonFixture(home, stoker)
    leftovers.append(box.run_dir)
    return box


@pytest.fixture
def box(idle_home: DaemonFixture) -> DaemonFixture:
    """A daemon without a port."""
    return idle_home.start()


def token(box: DaemonFixture) -> str:
    return (box.state / "token").read_text()


def status(port: int, head: str) -> bytes:
    """Return the status line of the reply to a request."""
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.sendall(head.encode())
        return sock.recv(65536).partition(b"\r\n")[0]


def opened(box: DaemonFixture, address: str = "127.0.0.1:0", tls: bool = False) -> int:
    """Open a port; return its number."""
    return int(box.client.listen(address, tls=tls)["address"].rpartition(":")[2])


def test_a_port_is_opened_and_closed_while_the_daemon_runs(box: DaemonFixture) -> None:
    port = opened(box)
    client = Client(Endpoint("127.0.0.1", port, token(box)))
    assert client.daemon()["pid"] == box.pid
    assert client.submit({"what": {"line": "true"}, "directory": "/"})["first"] == 1
    assert opened(box, f"127.0.0.1:{port}") == port, "the same again is the same"
    box.client.unlisten(f"127.0.0.1:{port}")
    with pytest.raises(StokerError, match="No daemon answers"):
        client.daemon()
    with pytest.raises(StokerError, match="Nothing listens"):
        box.client.unlisten(f"127.0.0.1:{port}")


def test_the_status_has_the_address_but_not_the_token(box: DaemonFixture) -> None:
    port = opened(box)
    done = box.stoker("daemon", "status", "--json")
    (listener,) = json.loads(done.stdout)["listeners"]
    assert listener["address"] == f"127.0.0.1:{port}"
    assert listener["token_file"] == str(box.state / "token")
    assert (listener["tls"], listener["fingerprint"]) == (False, None)
    assert token(box) not in done.stdout


def test_the_token_is_long_private_and_stays_the_same(box: DaemonFixture) -> None:
    opened(box)
    first = token(box)
    assert len(first) >= 43
    assert stat.S_IMODE((box.state / "token").stat().st_mode) == 0o600
    box.stoker("daemon", "restart", check=True)
    opened(box)
    assert token(box) == first


def test_a_token_that_others_can_read_is_not_used(box: DaemonFixture) -> None:
    opened(box)
    (box.state / "token").chmod(0o644)
    with pytest.raises(StokerError, match="can be read by other users"):
        opened(box)


@pytest.mark.parametrize("spoil", [b"\xff" * 50, b"short", None])
def test_a_malformed_token_is_reported(tmp_path: Path, spoil: bytes | None) -> None:
    path = tmp_path / "token"
    if spoil is None:
        path.mkdir(mode=0o700)
    else:
        path.write_bytes(spoil)
        path.chmod(0o600)
    with pytest.raises(BadValue, match=str(path)):
        credentials.load_token(str(tmp_path))


def test_a_closed_port_serves_no_client(box: DaemonFixture) -> None:
    port = opened(box)
    head = f"GET /v1/queues HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token(box)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.sendall(head.encode())
        reply = b""
        while not reply.endswith(b'{"queues":[]}'):
            reply += sock.recv(65536)
        box.client.unlisten(f"127.0.0.1:{port}")
        with contextlib.suppress(ConnectionError):
            sock.sendall(head.encode())
            assert sock.recv(65536) == b""


def test_every_request_must_show_the_token(box: DaemonFixture) -> None:
    port = opened(box)
    host = "HTTP/1.1\r\nHost: x\r\n"
    right = f"Authorization: Bearer {token(box)}\r\n"
    assert status(port, f"GET /v1/daemon {host}\r\n") == b"HTTP/1.1 401 Unauthorized"
    assert b" 401 " in status(port, f"GET /v1/daemon {host}Authorization: Bearer x\r\n\r\n")
    assert b" 401 " in status(port, f"GET /v1/daemon {host}{right}{right}\r\n")
    assert b" 401 " in status(port, f"OPTIONS /v1/jobs {host}Origin: http://evil\r\n\r\n")
    assert b" 401 " in status(port, f"GET /nowhere {host}\r\n")
    assert b" 200 " in status(port, f"GET /v1/daemon {host}{right}\r\n")
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        # A connection must show the token with every request.
        sock.sendall(f"GET /v1/queues {host}{right}\r\n".encode())
        reply = b""
        while not reply.endswith(b'{"queues":[]}'):
            reply += sock.recv(65536)
        assert b" 200 " in reply
        sock.sendall(f"GET /v1/queues {host}\r\n".encode())
        assert b" 401 " in sock.recv(65536)


def test_an_unauthenticated_client_is_rejected_before_its_request_is_read(
    box: DaemonFixture,
) -> None:
    port = opened(box)
    size = wire.MAX_BODY_BYTES
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.sendall(head.encode())
        reply = b""
        while piece := sock.recv(65536):  # it closes the connection without reading the body
            reply += piece
    assert b" 401 " in reply
    assert b"access-control" not in reply.lower()


def test_a_tcp_client_cannot_open_ports(box: DaemonFixture) -> None:
    port = opened(box)
    client = Client(Endpoint("127.0.0.1", port, token(box)))
    with pytest.raises(StokerError, match="over the socket of this host") as error:
        client.listen("127.0.0.1:0")
    assert error.value.exit_code == wire.EXIT_PERMISSION
    with pytest.raises(StokerError, match="over the socket of this host"):
        client.unlisten(f"127.0.0.1:{port}")


@pytest.mark.needs("openssl")
def test_tls_is_pinned_by_the_certificate(box: DaemonFixture) -> None:
    view = box.client.listen("127.0.0.1:0", tls=True)
    port = int(view["address"].rpartition(":")[2])
    client = Client(parse(f"tls://127.0.0.1:{port}", token(box), view["fingerprint"]))
    assert client.daemon()["pid"] == box.pid
    assert stat.S_IMODE((box.state / "tls.key").stat().st_mode) == 0o600
    wrong = view["fingerprint"][:-1] + ("0" if view["fingerprint"][-1] != "0" else "1")
    with pytest.raises(StokerError, match="another certificate"):
        Client(parse(f"tls://127.0.0.1:{port}", token(box), wrong)).daemon()
    with pytest.raises(StokerError, match="requires a token"):
        Client(parse(f"tls://127.0.0.1:{port}", "x" * 43, view["fingerprint"])).daemon()
    with contextlib.suppress(ConnectionError):
        assert b"HTTP" not in status(port, "GET /v1/daemon HTTP/1.1\r\nHost: x\r\n\r\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", port), 10) as raw,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(raw)


def test_other_machines_are_served_with_tls_only(box: DaemonFixture) -> None:
    for address in ("0.0.0.0:0", "192.0.2.1:0", "[::]:0"):
        with pytest.raises(StokerError, match="only TLS") as error:
            box.client.listen(address)
        assert error.value.exit_code == wire.EXIT_USAGE
    assert box.client.daemon()["listeners"] == []


def test_a_port_in_use_is_reported_also_at_the_start(idle_home: DaemonFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        done = idle_home.stoker("daemon", "start", "--listen", address)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert f"{address} is in use" in done.stderr
    done = idle_home.stoker("daemon", "start", "--listen", address)
    assert done.returncode == 0, done.stderr
    done = idle_home.stoker("daemon", "restart", "--listen", "nonsense")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert idle_home.client.daemon()["listeners"][0]["address"] == address, "it still runs"


def test_the_configuration_names_ports_and_the_command_line_wins(idle_home: DaemonFixture) -> None:
    config = idle_home.home / "config.toml"
    config.write_text('[api]\nlisten = ["127.0.0.1:0", "127.0.0.2:0"]\n')
    idle_home.stoker("daemon", "start", check=True)
    addresses = [each["address"] for each in idle_home.client.daemon()["listeners"]]
    assert [address.partition(":")[0] for address in addresses] == ["127.0.0.1", "127.0.0.2"]
    idle_home.stoker("daemon", "restart", "--listen", "127.0.0.3:0", check=True)
    (listener,) = idle_home.client.daemon()["listeners"]
    assert listener["address"].startswith("127.0.0.3:")
    idle_home.stoker("daemon", "stop", check=True)
    for text in ('listen = "here"', "listen = 7", 'port = "127.0.0.1:1"'):
        config.write_text(f"[api]\n{text}\n")
        done = idle_home.stoker("daemon", "start")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


def test_any_command_can_use_another_daemon(box: DaemonFixture, tmp_path: Path) -> None:
    port = opened(box)
    away = {
        "STOKER_HOME": str(tmp_path),
        "STOKER_SERVER": f"tcp://127.0.0.1:{port}",
        "STOKER_TOKEN_FILE": str(box.state / "token"),
    }
    done = box.stoker("submit", "echo over tcp", env=away)
    assert done.stdout == "1\n", done.stderr
    assert box.stoker("wait", "1", env=away).returncode == 0
    assert box.stoker("logs", "1", env=away).stdout == "over tcp\n"
    assert list(tmp_path.iterdir()) == [], "nothing is started or kept here"
    for name, value, code in (
        ("STOKER_SERVER", "nonsense", 2),
        ("STOKER_SERVER", f"tls://127.0.0.1:{port}", 2),
        ("STOKER_SERVER", "tcp://127.0.0.1:1", 4),
        ("STOKER_TOKEN_FILE", "/nowhere", 5),
    ):
        done = box.stoker("queue", env={**away, name: value})
        assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr


def test_thresholds_are_changed_while_the_daemon_runs(box: DaemonFixture) -> None:
    usual = {"load": 0.1, "memory": 0.1, "processes": True}
    assert box.client.daemon()["thresholds"] == usual
    assert box.client.thresholds(load=0.5) == {**usual, "load": 0.5}
    assert box.client.thresholds(processes=False)["processes"] is False
    with pytest.raises(StokerError):
        box.client.thresholds(load=-1)


# ------------------------------------------------------------------- without a daemon


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("localhost:0", ("127.0.0.1", 0)),
        ("[::1]:5", ("::1", 5)),
        ("0.0.0.0:65535", ("0.0.0.0", 65535)),
    ],
)
def test_addresses_are_read(text: str, meant: tuple[str, int]) -> None:
    assert split(text) == meant


@pytest.mark.parametrize("text", ["", "127.0.0.1", ":80", "host:80", "1.2.3.4:", "1.2.3.4:99999"])
def test_an_invalid_address_is_reported(text: str) -> None:
    with pytest.raises(BadValue, match="type it as 127"):
        split(text)


def test_a_missing_openssl_is_reported(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadValue, match="Install openssl"):
        credentials.load_certificate(str(tmp_path))


@pytest.mark.needs("openssl")
def test_the_certificate_is_created_once(tmp_path: Path) -> None:
    first = credentials.load_certificate(str(tmp_path))
    content = [Path(path).read_bytes() for path in first]
    assert credentials.load_certificate(str(tmp_path)) == first
    assert [Path(path).read_bytes() for path in first] == content
    shown = subprocess.run(
        ["openssl", "x509", "-in", first[0], "-noout", "-fingerprint", "-sha256"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    digits = shown.partition("=")[2].strip().replace(":", "").lower()
    assert credentials.fingerprint(first[0]) == f"sha256:{digits}"


class Silent(asyncio.Protocol):
    """Accepts a connection, sends nothing, and reports its end."""

    def __init__(self, auth: Any) -> None:
        self.auth = auth

    def connection_lost(self, error: Exception | None) -> None:
        self.auth.close()


async def is_closed(port: int) -> bool:
    """Return whether the other side closes a connection without data."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await asyncio.wait_for(reader.read(), 10) == b""
    finally:
        writer.close()


def test_a_silent_unauthenticated_connection_is_closed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(listen, "UNAUTHENTICATED_SECONDS", 0.05)

    async def scenario() -> None:
        port = listen.TcpListener("127.0.0.1:0", False, str(tmp_path), {}, listen.Connections())
        port.begin(Silent)
        assert await is_closed(int(port.address.rpartition(":")[2]))
        port.close()

    asyncio.run(scenario())


@pytest.mark.needs("openssl")
def test_an_unauthenticated_client_cannot_prolong_tls(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(listen, "UNAUTHENTICATED_SECONDS", 0.05)

    def stays_silent(port: int) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", port), 15) as raw,
            context.wrap_socket(raw) as sock,
            contextlib.suppress(ConnectionError),
            socket.socket(fileno=os.dup(sock.fileno())) as below,
        ):
            # Reads below TLS, so that the close notification is never answered.
            below.settimeout(15)
            while below.recv(65536):
                pass

    async def scenario() -> None:
        port = listen.TcpListener("127.0.0.1:0", True, str(tmp_path), {}, listen.Connections())
        port.begin(Silent)
        await asyncio.to_thread(stays_silent, int(port.address.rpartition(":")[2]))
        port.close()

    asyncio.run(scenario())


def test_the_number_of_ports_is_limited(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(listen, "MAX_LISTENERS", 1)
    ports = listen.TcpListeners(str(tmp_path))
    ports.add("127.0.0.1:0")
    with pytest.raises(CommandRejected, match="close one first"):
        ports.add("127.0.0.1:0")
    ports.close()


class ListenFixture:
    """Two ports that share their connections."""

    def __init__(self, state: Path) -> None:
        self.met: list[Any] = []
        self.came = asyncio.Event()
        self.ports = listen.TcpListeners(str(state))
        self.ports.begin(self._protocol)
        self.numbers = [int(self.ports.add("127.0.0.1:0").rpartition(":")[2]) for _ in range(2)]

    def _protocol(self, auth: Any) -> Silent:
        self.met.append(auth)
        self.came.set()
        return Silent(auth)

    async def connect(self, port: int = 0) -> "tuple[asyncio.StreamReader, asyncio.StreamWriter]":
        """Connect, and return when the other side has accepted."""
        self.came.clear()
        found = await asyncio.open_connection("127.0.0.1", self.numbers[port])
        await asyncio.wait_for(self.came.wait(), 10)
        return found


def test_the_oldest_unauthenticated_connection_is_closed_for_a_new_one(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(listen, "MAX_CONNECTIONS", 3)

    async def scenario() -> None:
        stage = ListenFixture(tmp_path)
        links = [await stage.connect(port) for port in (0, 1, 0)]
        stage.met[0].authenticated = True  # authenticated
        links.append(await stage.connect())
        assert await asyncio.wait_for(links[1][0].read(), 10) == b"", "the oldest, at another port"
        assert stage.ports.connections.count == 3
        links += [await stage.connect() for _ in range(20)]
        assert stage.ports.connections.count == 3
        assert not links[0][0].at_eof(), "it is never closed for others"
        for auth in stage.met[-2:]:
            auth.authenticated = True
        refused = await asyncio.open_connection("127.0.0.1", stage.numbers[0])
        assert await asyncio.wait_for(refused[0].read(), 10) == b"", "all have shown the token"
        stage.ports.close()
        for _, writer in [*links, refused]:
            writer.close()

    asyncio.run(scenario())


@pytest.mark.needs("openssl")
def test_a_connection_that_never_begins_tls_is_closed_too(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(listen, "MAX_CONNECTIONS", 2)

    async def scenario() -> None:
        port = listen.TcpListener("127.0.0.1:0", True, str(tmp_path), {}, listen.Connections())
        port.begin(Silent)
        number = int(port.address.rpartition(":")[2])
        links = [await asyncio.open_connection("127.0.0.1", number) for _ in range(5)]
        for reader, _ in links[:3]:
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
        assert port.connections.count == 2
        port.close()
        port.abort_connections()
        for _, writer in links:
            writer.close()

    asyncio.run(scenario())


def test_without_descriptors_a_port_pauses_instead_of_spinning(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(listen, "ACCEPT_PAUSE_SECONDS", 0.05)

    async def scenario() -> None:
        port = listen.TcpListener("127.0.0.1:0", False, str(tmp_path), {}, listen.Connections())
        real, tried = port.socket, 0

        class Short:
            """A socket without free descriptors, for a while."""

            def accept(self) -> Any:
                nonlocal tried
                tried += 1
                if tried <= 3:
                    raise OSError(errno.EMFILE, "too many open files")
                return real.accept()

            def fileno(self) -> int:
                return real.fileno()

            def close(self) -> None:
                real.close()

        came = asyncio.Event()

        def protocol(auth: Any) -> Silent:
            came.set()
            return Silent(auth)

        port.socket = Short()  # type: ignore[assignment]
        port.begin(protocol)
        began = asyncio.get_running_loop().time()
        _, writer = await asyncio.open_connection("127.0.0.1", int(port.address.rpartition(":")[2]))
        await asyncio.wait_for(came.wait(), 10)
        assert asyncio.get_running_loop().time() - began >= 0.15
        assert tried <= 5, "three without success, one with, and a look for more"
        port.close()
        writer.close()

    asyncio.run(scenario())


def test_connections_without_the_token_do_not_block_those_with_it(box: DaemonFixture) -> None:
    port = opened(box)
    client = Client(Endpoint("127.0.0.1", port, token(box)))
    head = f"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token(box)}\r\n\r\n"
    with contextlib.ExitStack() as links:
        reader = links.enter_context(socket.create_connection(("127.0.0.1", port), 10))
        reader.sendall(head.encode())
        assert b" 200 " in reader.recv(65536)
        for _ in range(4):
            for _ in range(100):
                links.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            assert client.daemon()["pid"] == box.pid
        box.client.submit({"what": {"line": "true"}, "directory": "/"})
        data = b""
        while b"JobsSubmitted" not in data:
            data += reader.recv(65536)  # authenticated, so it stays open
            assert data


def test_the_user_of_a_listening_process_is_found() -> None:
    from stoker.client.tcp_endpoint import listening_user

    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        assert listening_user("127.0.0.1", port) == os.getuid()
    assert listening_user("127.0.0.1", port) is None
