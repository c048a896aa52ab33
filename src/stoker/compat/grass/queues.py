"""What the verbs have in common: finding a queue, and wording what the daemon refuses."""

from __future__ import annotations

from stoker import wire
from stoker.client.client import Client, connect
from stoker.client.errors import StokerError, UsageError
from stoker.compat.grass.resources import BROUGHT, POOLS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "grass"
"""What jobs that came through here carry."""


def client() -> Client:
    """Return a client of the daemon, which is started if need be."""
    return connect()


def found(client: Client, name: str) -> dict[str, Any]:
    """Return a queue as the daemon shows it."""
    queues: list[dict[str, Any]] = client.queues()["queues"]
    for queue in queues:
        if queue["name"] == name:
            return queue
    names = ", ".join(str(queue["name"]) for queue in queues[:10])
    there = f"There are: {names}." if names else "Create it: grass create-queue NAME --json {gpu:4}"
    raise UsageError(f"Cannot find {name}: the queue does not exist. {there}")


def in_our_words(error: StokerError) -> StokerError:
    """Return what the daemon refused as this command says it: bad input is exit code 2."""
    text = error.message
    for pool in POOLS:
        text = text.replace(BROUGHT + pool, pool)
    bad = error.code in {"usage", "impossible", "not_found"}
    return StokerError(text, wire.EXIT_USAGE if bad else error.exit_code, error.code)
