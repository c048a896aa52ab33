"""Constants shared by client and daemon: API version, headers, exit codes, error codes.

Imported by every command before anything else, so it imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

JsonObject = dict[str, "Any"]
"""An object of the HTTP API as plain JSON: a request, a reply, or a view in a reply."""

API_MAJOR = 1
API_MINOR = 0
API_VERSION = f"{API_MAJOR}.{API_MINOR}"
"""Major: incompatible. Minor: additions; one minor version of difference works."""

STORE_OPTION_VARIABLE = "STOKER_DB_SAID"
"""The variable that passes the value of `daemon start --db` to the daemon."""

RLIMIT_LOCKS = 10
"""A resource limit without effect. Its value marks the processes of one attempt."""

PREFIX = "/v1"
HEADER_VERSION = "Stoker-Version"
HEADER_API = "Stoker-Api"
MAX_BODY_BYTES = 256 * 1024 * 1024
"""Largest request body; 100,000 long command lines fit several times."""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_UNREACHABLE = 4
EXIT_PERMISSION = 5
EXIT_IMPOSSIBLE = 6
EXIT_DISK_FULL = 7
EXIT_STILL_RUNNING = 101
EXIT_TIME_LIMIT = 124
EXIT_INTERRUPTED = 130

ERRORS: dict[str, tuple[int, int]] = {
    "failed": (409, EXIT_FAILED),
    "usage": (400, EXIT_USAGE),
    "not_found": (404, EXIT_NOT_FOUND),
    "permission": (403, EXIT_PERMISSION),
    "impossible": (422, EXIT_IMPOSSIBLE),
    "queue_full": (429, EXIT_FAILED),
    "too_large": (413, EXIT_USAGE),
    "unavailable": (503, EXIT_UNREACHABLE),
    "disk_full": (503, EXIT_DISK_FULL),
    "stopping": (503, EXIT_UNREACHABLE),
}
"""Error code -> (HTTP status, exit code of the command)."""

FINISHED = frozenset(
    ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "DEADLINE")
)
"""Final job states."""


def is_ipv4(host: str) -> bool:
    """Return True for an IPv4 address with all four numbers."""
    from _socket import AF_INET, inet_pton

    try:
        return bool(inet_pton(AF_INET, host))
    except OSError:
        return False


def is_loopback(host: str) -> bool:
    """Return True for a loopback address, which other hosts cannot reach."""
    return host in {"localhost", "::1"} or (host.startswith("127.") and is_ipv4(host))
