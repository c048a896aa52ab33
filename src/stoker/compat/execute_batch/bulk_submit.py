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
    replies: dict[int, int | StokerError] = {}

    def submit(number: int) -> None:
        try:
            replies[number] = int(client.submit(submissions[number])["first"])
        except StokerError as error:
            replies[number] = error

    if len(submissions) == 1:
        submit(0)
    else:
        from threading import Thread

        threads = [Thread(target=submit, args=(number,)) for number in range(len(submissions))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [replies[number] for number in range(len(submissions))]
