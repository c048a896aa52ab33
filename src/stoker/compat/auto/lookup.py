"""Look up many tasks by id in few requests, ignoring unknown ids."""

from __future__ import annotations

from stoker.client.errors import StokerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.client.client import Client

IDS_PER_REQUEST = 500


def find_tasks(client: Client, ids: list[int]) -> dict[int, dict[str, Any]]:
    """Return the jobs with these ids, without unknown ids."""
    try:
        return _fetch_views(client, ids)
    except StokerError as error:
        if error.code != "not_found":
            raise
    newest = _newest_id(client)
    return _fetch_views(client, [id for id in ids if 0 < id <= newest])


def _fetch_views(client: Client, ids: list[int]) -> dict[int, dict[str, Any]]:
    views: dict[int, dict[str, Any]] = {}
    for start in range(0, len(ids), IDS_PER_REQUEST):
        # As a range of one: the id of an array alone selects all its members.
        selectors = [f"{id}-{id}" for id in ids[start : start + IDS_PER_REQUEST]]
        views |= {
            view["id"]: view for view in client.jobs(selectors, limit=IDS_PER_REQUEST)["jobs"]
        }
    return views


def _newest_id(client: Client) -> int:
    """Return the highest id; ids are consecutive and never reused."""
    try:
        last = client.jobs(["last"], limit=1)
    except StokerError as error:
        if error.code != "not_found":
            raise
        return 0
    return int(last["jobs"][0]["id"]) + int(last["more"])
