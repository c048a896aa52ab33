"""Many tasks by their ids, in few requests; an id that is none does not spoil the others."""

from __future__ import annotations

from stoker.client.errors import StokerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.client.client import Client

AT_ONCE = 500


def known(client: Client, ids: list[int]) -> dict[int, dict[str, Any]]:
    """Return those of the ids that mean a job, with the job."""
    try:
        return _views(client, ids)
    except StokerError as error:
        if error.code != "not_found":
            raise
    newest = _newest(client)
    return _views(client, [id for id in ids if 0 < id <= newest])


def _views(client: Client, ids: list[int]) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for start in range(0, len(ids), AT_ONCE):
        # As a range of one: the id alone of an array would mean all its members.
        some = [f"{id}-{id}" for id in ids[start : start + AT_ONCE]]
        found |= {view["id"]: view for view in client.jobs(some, limit=AT_ONCE)["jobs"]}
    return found


def _newest(client: Client) -> int:
    """Return the highest id so far; ids are given one after the other, and never taken back."""
    try:
        last = client.jobs(["last"], limit=1)
    except StokerError as error:
        if error.code != "not_found":
            raise
        return 0
    return int(last["jobs"][0]["id"]) + int(last["more"])
