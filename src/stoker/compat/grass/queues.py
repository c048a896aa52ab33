"""Shared by the verbs: find a queue, and translate errors of the daemon."""

from __future__ import annotations

from stoker import wire
from stoker.client.errors import StokerError, UsageError
from stoker.compat.grass.resources import POOLS, QUEUE_PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.client.client import Client
    from stoker.compat.arguments import Arguments

NAME = "grass"
"""`client` of jobs submitted with this command."""


def only_queue(args: Arguments, verb: str) -> str:
    """Return the only word, which must be a queue."""
    if len(args.words) != 1:
        raise UsageError(f"grass {verb} takes the name of one queue: grass {verb} q1")
    return args.words[0]


def reject_words(args: Arguments, verb: str) -> None:
    """Reject the words of a verb that takes none."""
    if args.words:
        raise UsageError(f"grass {verb} takes no {args.words[0]!r}. See: grass {verb} --help")


def find_queue(client: Client, name: str) -> dict[str, Any]:
    """Return the view of a queue."""
    queues: list[dict[str, Any]] = client.queues()["queues"]
    for queue in queues:
        if queue["name"] == name:
            return queue
    names = ", ".join(str(queue["name"]) for queue in queues[:10])
    advice = (
        f"There are: {names}." if names else "Create it: grass create-queue NAME --json {gpu:4}"
    )
    raise UsageError(f"Cannot find {name}: the queue does not exist. {advice}")


def translate_error(error: StokerError) -> StokerError:
    """Return an error of the daemon with grass type names and exit code 2 for invalid input."""
    text = error.message
    for pool in POOLS:
        text = text.replace(QUEUE_PREFIX + pool, pool)
    is_usage_error = error.code in {"usage", "impossible", "not_found"}
    return StokerError(text, wire.EXIT_USAGE if is_usage_error else error.exit_code, error.code)
