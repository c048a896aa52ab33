"""The socket, and the HTTP server behind it, which `feed` loads only if somebody connects."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

from stoker import places

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stoker.daemon.control.daemon import Daemon
    from stoker.daemon.http.auth import TcpAuth

BACKLOG = 512


class HttpServer:
    """Listens at once; what comes in waits until HTTP is loaded."""

    def __init__(self, loop: Daemon, mode: str, listen: Sequence[str] = ()) -> None:
        self.loop, self.mode = loop, mode
        self.ports: Any = None
        self.path = places.socket_path()
        self._bind()
        self.thread: threading.Thread | None = None
        self.uvicorn: Any = None
        if listen:
            self._listen(listen)
        if mode == "feed":
            loop.poller.add_reader(self.socket.fileno(), self.start)
        else:
            self.start()  # the client that started the daemon is about to connect

    def _bind(self) -> None:
        """Listen on a new socket file."""
        places.secure_dir(os.path.dirname(self.path))
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)  # the lock says that nobody else is using it
        old = os.umask(0o177)
        try:
            self.socket.bind(self.path)
        finally:
            os.umask(old)
        self.socket.listen(BACKLOG)
        self._file = os.stat(self.path)

    @property
    def is_in_place(self) -> bool:
        """Whether clients that go by the path of the socket find this server."""
        try:
            return os.path.samestat(self._file, os.stat(self.path))
        except FileNotFoundError:
            return False

    def listen_again(self) -> bool:
        """Make the socket file again after it was deleted; False while HTTP is being loaded."""
        old = self.socket
        if self.thread is None:
            self.loop.poller.remove_reader(old.fileno())
            self._bind()
            self.loop.poller.add_reader(self.socket.fileno(), self.start)
            old.close()
            return True
        if self.uvicorn is None or self.uvicorn.here is None:
            return False
        self._bind()
        self.uvicorn.listen_on(self.socket)
        return True

    def _listen(self, addresses: Sequence[str]) -> None:
        """Open TCP ports before anything else, so that a port in use is said at once."""
        from stoker.daemon.http.listeners import TcpListeners

        self.ports = TcpListeners(places.state_dir())
        try:
            for address in addresses:
                self.ports.add(address)
        except BaseException:
            self.ports.close()
            os.unlink(self.path)
            raise

    def start(self) -> None:
        """Load the HTTP server, in a thread of its own."""
        self.loop.poller.remove_reader(self.socket.fileno())
        self.thread = threading.Thread(target=self._serve, name="api", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        import uvicorn

        from stoker.daemon.http.auth import ENTRANCE, guarded_protocol
        from stoker.daemon.http.listeners import TcpListeners
        from stoker.daemon.routes.app import application

        ports = self.ports = self.ports or TcpListeners(places.state_dir())
        config = uvicorn.Config(
            application(self.loop, self.mode, ports),
            http=guarded_protocol(),
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=2,
            backlog=BACKLOG,
        )

        def protocol(entrance: TcpAuth) -> Any:
            state = self.uvicorn.server_state
            return config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=state, app_state={ENTRANCE: entrance}
            )

        self.uvicorn = quiet_server(config, lambda: ports.begin(protocol), ports.close)
        self.uvicorn.run(sockets=[self.socket])

    def close(self) -> None:
        """Answer what is under way, then be gone from the file system."""
        self.loop.reject_commands()
        if self.is_in_place:  # not the socket of a daemon that has taken over
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
        if self.thread is None:
            self.socket.close()
            return
        if self.uvicorn is not None:
            self.uvicorn.end()
        self.thread.join(timeout=4)


def quiet_server(config: Any, begin: Callable[[], None], end: Callable[[], None]) -> Any:
    """A uvicorn that sleeps while nobody talks to it (its own looks around ten times a second)."""
    import asyncio

    import uvicorn

    class Quiet(uvicorn.Server):
        """Signals are the loop's business, and its end is an event."""

        def __init__(self) -> None:
            super().__init__(config)
            self.over = asyncio.Event()
            self.here: asyncio.AbstractEventLoop | None = None

        def capture_signals(self) -> Any:
            return contextlib.nullcontext()

        async def main_loop(self) -> None:
            self.here = asyncio.get_running_loop()
            if not self.should_exit:
                begin()
                await self.over.wait()
            end()

        def listen_on(self, sock: socket.socket) -> None:
            """Take connections from another socket instead; called from another thread."""
            assert self.here is not None
            asyncio.run_coroutine_threadsafe(self._replace_listener(sock), self.here)

        async def _replace_listener(self, sock: socket.socket) -> None:
            old = self.servers
            await self.startup(sockets=[sock])
            for server in old:
                server.close()

        def end(self) -> None:
            self.should_exit = True
            if self.here is not None:
                self.here.call_soon_threadsafe(self.over.set)

    return Quiet()


def peer(sock: socket.socket) -> tuple[int, int]:
    """The pid and uid at the other end, as the kernel knows them."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid
