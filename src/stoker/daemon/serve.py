"""The socket, and the HTTP server behind it, which is loaded when somebody first connects."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

from .. import places

if TYPE_CHECKING:
    from .loop import Loop

BACKLOG = 512


class Server:
    """Listens at once; speaks HTTP from the first connection on."""

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
        loop.poller.watch(self.socket.fileno(), self._first_connection)

    def _first_connection(self) -> None:
        self.loop.poller.unwatch(self.socket.fileno())
        self.thread = threading.Thread(target=self._serve, name="api", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        import uvicorn

        from .api import application
        from .auth import guarded_protocol

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
        self.uvicorn = uvicorn.Server(config)
        self.uvicorn.install_signal_handlers = lambda: None
        self.uvicorn.capture_signals = contextlib.nullcontext
        self.uvicorn.run(sockets=[self.socket])

    def close(self) -> None:
        """Answer what is under way, then be gone from the file system."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        if self.thread is None:
            self.socket.close()
            return
        if self.uvicorn is not None:
            self.uvicorn.should_exit = True
        self.thread.join(timeout=4)


def peer(sock: socket.socket) -> tuple[int, int]:
    """The pid and uid at the other end, as the kernel knows them."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid
