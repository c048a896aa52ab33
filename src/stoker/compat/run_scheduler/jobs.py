"""Finds the jobs of this door: by their full id, as scripts see it, or by the number alone."""

from __future__ import annotations

from stoker import wire
from stoker.cli.output import clean
from stoker.cli.session import has_state
from stoker.client.client import Client, connect
from stoker.client.errors import StokerError, UsageError
from stoker.compat.run_scheduler import NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def client() -> Client | None:
    """Return a client of the daemon; None where nothing was ever queued."""
    return connect() if has_state() else None


def no_such(word: str) -> StokerError:
    """Return the error for an id that means no job of ours."""
    text = f"There is no job {clean(word)} of run-scheduler. To list jobs: scheduler-state"
    return StokerError(text, wire.EXIT_NOT_FOUND, "not_found")


def only_word(words: list[str], program: str) -> str:
    """Return the one id that a command is about."""
    if len(words) > 1:
        raise UsageError(f"Only one job can be given: {program} {clean(words[0])}")
    if not words:
        raise UsageError(f"No job given. Usage: {program} JOB_ID. To list jobs: scheduler-state")
    return words[0]


def found(client: Client | None, word: str) -> dict[str, Any]:
    """Return the job that an id means; never one that came in another way."""
    number = word.rpartition("-")[2]
    if client is None or not (number.isascii() and number.isdecimal() and len(number) <= 12):
        raise no_such(word)
    try:
        view: dict[str, Any] = client.jobs([number])["jobs"][0]
    except StokerError as error:
        if error.code != "not_found":
            raise
        raise no_such(word) from None
    if view["client"] != NAME or (word != number and unique(view) != word):
        raise no_such(word)
    return view


def unique(view: dict[str, Any]) -> str:
    """Return a job's full id."""
    return str(view["training"]["uuid"])
