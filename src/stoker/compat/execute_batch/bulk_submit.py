"""Submit many jobs concurrently, because the daemon writes them to disk together."""

from __future__ import annotations

from stoker.client.errors import StokerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stoker.client.client import Client


def submit_all(client: Client, submissions: Sequence[dict[str, Any]]) -> list[int | StokerError]:
    """Return the job id or the error of each submission."""

    def submit(submission: dict[str, Any]) -> int | StokerError:
        try:
            return int(client.submit(submission)["first"])
        except StokerError as error:
            return error

    if len(submissions) == 1:
        return [submit(submissions[0])]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(submissions)) as pool:
        return list(pool.map(submit, submissions))
