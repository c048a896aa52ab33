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
    from stoker.daemon.loop import Loop

BACKLOG = 512


class Server:
    """Listens at once; what comes in waits until HTTP is loaded."""

    def __init__(self, loop: Loop, mode: str) -> None:
        self.loop, self.mode = loop, mode
        self.path = places.socket_path()
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
        self.thread: threading.Thread | None = None
        self.uvicorn: Any = None
        if mode == "feed":
            loop.poller.watch(self.socket.fileno(), self.start)
        else:
            self.start()  # whoever started a daemon is about to talk to it

    def start(self) -> None:
        """Load the HTTP server, in a thread of its own."""
        self.loop.poller.unwatch(self.socket.fileno())
        self.thread = threading.Thread(target=self._serve, name="api", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        import uvicorn

        from stoker.daemon.api import application
        from stoker.daemon.auth import guarded_protocol

        config = uvicorn.Config(
            application(self.loop, self.mode),
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
        self.uvicorn = quiet_server(config)
        self.uvicorn.run(sockets=[self.socket])

    def close(self) -> None:
        """Answer what is under way, then be gone from the file system."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        if self.thread is None:
            self.socket.close()
            return
        if self.uvicorn is not None:
            self.uvicorn.end()
        self.thread.join(timeout=4)


def quiet_server(config: Any) -> Any:
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
                await self.over.wait()

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
