"""Addresses of nodes, and the OpenSSH command lines for them."""

from __future__ import annotations

import re

from msgspec import Struct

from stoker.core.model.units import BadValue

ALIVE = ("-o", "ServerAliveInterval=3", "-o", "ServerAliveCountMax=2", "-o", "ConnectTimeout=10")
"""A dead connection is noticed within ten seconds; plain ssh would hang for minutes."""
QUIET = (
    "-T",
    "-o",
    "LogLevel=ERROR",
    "-o",
    "BatchMode=yes",
    "-o",
    "StrictHostKeyChecking=accept-new",
)
"""No prompts, no banners; a new host key is stored, a changed one rejected."""


class Address(Struct, frozen=True, omit_defaults=True):
    """`ssh://user@host:port`, with a key where ssh's own configuration has none."""

    host: str
    user: str | None = None
    port: int | None = None
    key: str | None = None

    @property
    def url(self) -> str:
        """Return the address as users write it."""
        user = f"{self.user}@" if self.user else ""
        port = f":{self.port}" if self.port else ""
        return f"ssh://{user}{self.host}{port}"

    def command(self, control: str, *more: str) -> list[str]:
        """Return the ssh command line for this host; `control` is the socket of a connection."""
        port = ("-p", str(self.port)) if self.port else ()
        key = ("-i", self.key, "-o", "IdentitiesOnly=yes") if self.key else ()
        user = ("-l", self.user) if self.user else ()
        return [
            "ssh", *QUIET, *ALIVE, "-S", control, *port, *key, *user, *more,
            "--", self.host,
        ]  # fmt: skip


def parse_address(text: str, key: str | None = None) -> Address:
    """Parse `ssh://me@host:22`, `me@host` or the name of a host in ssh's configuration."""
    match = re.fullmatch(
        r"(?:ssh://)?(?:([\w.+-]+)@)?(\[[0-9A-Fa-f:.%]+\]|[\w.-]+)(?::(\d{1,5}))?/?", text
    )
    if match is None or match[2].startswith("-"):
        raise BadValue(f"invalid node address '{text}'; write ssh://user@host:22.")
    port = int(match[3]) if match[3] else None
    if port is not None and not 0 < port < 65536:
        raise BadValue(f"invalid port in '{text}'; write a number from 1 to 65535.")
    return Address(match[2].strip("[]"), match[1], port, key)
