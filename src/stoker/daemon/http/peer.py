"""The process at the other end of a Unix socket."""

from __future__ import annotations

import socket
import struct


def peer_credentials(sock: socket.socket) -> tuple[int, int]:
    """Return the pid and uid of the peer, as the kernel knows them."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid
