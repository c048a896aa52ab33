"""HttpServer: the Unix socket, and uvicorn behind it in a thread of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

from stoker import places

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from starlette.types import ASGIApp

    from stoker.daemon.http.auth import TcpAuth, UserPeer
    from stoker.daemon.http.listeners import TcpListeners
    from stoker.executors.reactor import Reactor

    AppFactory = Callable[[TcpListeners], ASGIApp]
    """Called by the API thread, so that it imports the routes and not the daemon's thread."""

BACKLOG = 512
SHUTDOWN_SECONDS = 2
JOIN_SECONDS = 4


class HttpServer:
    """Listens at once; connections wait in the backlog until HTTP is loaded."""

    def __init__(
        self,
        reactor: Reactor,
        app_factory: AppFactory,
        on_close: Callable[[], None],
        addresses: Sequence[str] = (),
        lazy: bool = False,
        metrics_addresses: Sequence[str] = (),
    ) -> None:
        """Listen on the socket and on TCP `addresses`; `lazy` loads HTTP at the first connection.

        `on_close` is called first when the server is closed.
        """
        self._reactor, self._app_factory, self._on_close = reactor, app_factory, on_close
        self._listeners: TcpListeners | None = None
        self.path = places.socket_path()
        self._bind()
        self._thread: threading.Thread | None = None
        self._uvicorn: Any = None
        self._waiting: list[tuple[socket.socket, UserPeer]] = []
        """Connections of users that came while HTTP was being loaded."""
        self._take_soon: Callable[[socket.socket, UserPeer], None] | None = None
        self._lock = threading.Lock()
        """Held while either is changed."""
        if addresses or metrics_addresses:
            self._listen(addresses, metrics_addresses)
        if lazy:
            reactor.add_reader(self.socket.fileno(), self.start)
        else:
            reactor.call_later(0.0, self.start)  # after the daemon has reported that it is ready

    def _bind(self) -> None:
        """Listen on a new socket file."""
        places.secure_dir(os.path.dirname(self.path))
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)  # the state lock excludes another daemon
        old = os.umask(0o177)
        try:
            self.socket.bind(self.path)
        finally:
            os.umask(old)
        self.socket.listen(BACKLOG)
        self._file = os.stat(self.path)

    @property
    def is_in_place(self) -> bool:
        """Whether the path of the socket leads to this server."""
        return places.leads_to(self.path, self._file)

    def listen_again(self) -> bool:
        """Create the socket file again after it was deleted; False while HTTP is being loaded."""
        old = self.socket
        if self._thread is None:
            self._reactor.remove_reader(old.fileno())
            self._bind()
            self._reactor.add_reader(self.socket.fileno(), self.start)
            old.close()
            return True
        if self._uvicorn is None or not self._uvicorn.is_serving:
            return False
        self._bind()
        self._uvicorn.listen_on(self.socket)
        return True

    def _listen(self, addresses: Sequence[str], metrics_addresses: Sequence[str]) -> None:
        """Open TCP ports before anything else, so that a port in use is reported at once."""
        from stoker.daemon.http.listeners import TcpListeners

        self._listeners = TcpListeners(places.state_dir())
        try:
            for address in addresses:
                self._listeners.add(address)
            for address in metrics_addresses:
                self._listeners.add_metrics(address)
        except BaseException:
            self._listeners.close()
            os.unlink(self.path)
            raise

    def start(self) -> None:
        """Load and run HTTP in a thread of its own."""
        if self._thread is not None:
            return
        self._reactor.remove_reader(self.socket.fileno())
        self._thread = threading.Thread(target=self._serve, name="api", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        import uvicorn

        from stoker.daemon.http.auth import PEER, TCP_AUTH, AuthenticatedProtocol
        from stoker.daemon.http.listeners import TcpListeners

        listeners = self._listeners = self._listeners or TcpListeners(places.state_dir())
        config = uvicorn.Config(
            self._app_factory(listeners),
            http=AuthenticatedProtocol,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            backlog=BACKLOG,
        )

        def tcp_protocol(auth: TcpAuth) -> Any:
            state = self._uvicorn.server_state
            return config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=state, app_state={TCP_AUTH: auth}
            )

        def user_protocol(peer: UserPeer) -> Any:
            state = self._uvicorn.server_state
            return config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=state, app_state={PEER: peer}
            )

        def begin() -> None:
            listeners.begin(tcp_protocol)
            self._begin_to_take(user_protocol)

        self._uvicorn = event_driven_uvicorn(config, begin, listeners.close)
        self._uvicorn.run(sockets=[self.socket])

    # -- connections of a system daemon's users -------------------------------------------

    def take(self, sock: socket.socket, peer: UserPeer) -> None:
        """Serve a connection that the gate has accepted; called by the daemon's thread."""
        with self._lock:
            if self._take_soon is None:
                self._waiting.append((sock, peer))
                return
        self._take_soon(sock, peer)

    def _begin_to_take(self, protocol: Callable[[UserPeer], Any]) -> None:
        """Serve the connections that wait, and later ones at once; called by the API thread."""
        import asyncio

        event_loop = asyncio.get_running_loop()
        tasks: set[asyncio.Task[None]] = set()

        async def serve(sock: socket.socket, peer: UserPeer) -> None:
            try:
                await event_loop.connect_accepted_socket(lambda: protocol(peer), sock)
            except OSError:
                sock.close()
                peer.close()

        def begin(sock: socket.socket, peer: UserPeer) -> None:
            task = event_loop.create_task(serve(sock, peer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        def take_soon(sock: socket.socket, peer: UserPeer) -> None:
            event_loop.call_soon_threadsafe(begin, sock, peer)

        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._take_soon = take_soon
        for sock, peer in waiting:
            begin(sock, peer)

    def close(self) -> None:
        """Send the replies that are under way, then remove the socket."""
        self._on_close()
        if self.is_in_place:  # not the socket of a later daemon
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
        if self._thread is None:
            self.socket.close()
            return
        if self._uvicorn is not None:
            self._uvicorn.stop()
        self._thread.join(timeout=JOIN_SECONDS)


def event_driven_uvicorn(
    config: Any, on_start: Callable[[], None], on_stop: Callable[[], None]
) -> Any:
    """Return a uvicorn server that sleeps between requests; uvicorn itself wakes at 10 Hz."""
    import asyncio

    import uvicorn

    class EventDrivenUvicorn(uvicorn.Server):
        """Leaves signals to the daemon, and stops on an event."""

        def __init__(self) -> None:
            super().__init__(config)
            self._stopped = asyncio.Event()
            self._event_loop: asyncio.AbstractEventLoop | None = None

        @property
        def is_serving(self) -> bool:
            return self._event_loop is not None

        def capture_signals(self) -> Any:
            return contextlib.nullcontext()

        async def main_loop(self) -> None:
            self._event_loop = asyncio.get_running_loop()
            if not self.should_exit:
                on_start()
                await self._stopped.wait()
            on_stop()

        def listen_on(self, sock: socket.socket) -> None:
            """Accept connections from another socket instead; called by the daemon's thread."""
            assert self._event_loop is not None
            asyncio.run_coroutine_threadsafe(self._replace_listener(sock), self._event_loop)

        async def _replace_listener(self, sock: socket.socket) -> None:
            old = self.servers
            await self.startup(sockets=[sock])
            for server in old:
                server.close()

        def stop(self) -> None:
            self.should_exit = True
            if self._event_loop is not None:
                self._event_loop.call_soon_threadsafe(self._stopped.set)

    return EventDrivenUvicorn()
