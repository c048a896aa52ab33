"""Who may talk to this daemon: its own user, and root."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from stoker.daemon.serve import peer


def guarded_protocol() -> type[H11Protocol]:
    """HTTP whose connections know their caller from the kernel, not from what they say."""

    class Guarded(H11Protocol):
        """Puts the caller's uid where the application finds it."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.client = ("", _caller(transport))

    return Guarded


def _caller(transport: asyncio.Transport) -> int:
    sock = transport.get_extra_info("socket")
    try:
        return peer(sock)[1]
    except OSError:
        return -1


def allowed(uid: int) -> bool:
    """Whether a caller may do anything here."""
    return uid in (os.getuid(), 0)
