"""Find jobs of run-scheduler by full id or by number."""

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
    """Return a client of the daemon; None if there was never one."""
    return connect() if has_state() else None


def no_such_job(word: str) -> StokerError:
    """Return the error for an unknown id."""
    text = f"There is no job {clean(word)} of run-scheduler. To list jobs: scheduler-state"
    return StokerError(text, wire.EXIT_NOT_FOUND, "not_found")


def find_jobs(words: list[str], program: str) -> tuple[Client, list[dict[str, Any]]]:
    """Return a client and the jobs of these ids; each must be a job of run-scheduler."""
    if not words:
        raise UsageError(f"No job given. Usage: {program} JOB_ID. To list jobs: scheduler-state")
    daemon = client()
    if daemon is None:
        raise no_such_job(words[0])
    return daemon, [_find_job(daemon, word) for word in words]


def _find_job(client: Client, word: str) -> dict[str, Any]:
    number = word.rpartition("-")[2]
    if not (number.isascii() and number.isdecimal() and len(number) <= 12):
        raise no_such_job(word)
    try:
        view: dict[str, Any] = client.jobs([number])["jobs"][0]
    except StokerError as error:
        if error.code != "not_found":
            raise
        raise no_such_job(word) from None
    if view["client"] != NAME or (word != number and full_id(view) != word):
        raise no_such_job(word)
    return view


def full_id(view: dict[str, Any]) -> str:
    """Return a job's full id."""
    return str(view["training"]["uuid"])
