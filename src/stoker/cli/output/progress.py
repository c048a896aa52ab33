"""A progress line on stderr while a command waits; on terminals only, never with --json."""

from __future__ import annotations

import _thread
import time

from stoker.cli import output
from stoker.client.errors import StokerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from stoker.client.client import Client
    from stoker.client.reconnect import Target

INTERVAL_SECONDS = 1.0
"""Between two updates, and before the first: a short wait shows nothing."""
STARTING = ("PENDING", "CONFIGURING", "QUEUED")


class Progress:
    """Redraws a line while a block runs.

    `describe` gets the seconds since the start and returns the line; an empty one is not drawn,
    None ends the progress. `_thread` and not `threading`, whose import would slow every command.
    """

    def __init__(self, describe: Callable[[float], str | None]) -> None:
        self._describe = describe
        self._running, self._ended = _thread.allocate_lock(), _thread.allocate_lock()
        self._is_shown = False

    def __enter__(self) -> Self:
        if output.is_terminal(2) and not output.wants_json:
            self._is_shown = True
            self._running.acquire()
            self._ended.acquire()
            _thread.start_new_thread(self._run, ())
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop and clear the line; may be repeated."""
        if self._is_shown:
            self._is_shown = False
            self._running.release()
            self._ended.acquire()

    def _run(self) -> None:
        began, drawn = time.monotonic(), False
        try:
            while not self._running.acquire(timeout=INTERVAL_SECONDS):
                text = self._describe(time.monotonic() - began)
                if text is None:
                    return
                if text or drawn:
                    output.show_progress(text)
                    drawn = True
        except StokerError:
            pass  # the command itself reports the error
        finally:
            if drawn:
                output.show_progress("")
            self._ended.release()


def elapsed(doing: str) -> Progress:
    """Show the activity and its duration if it takes more than a second."""
    return Progress(lambda seconds: f"{doing}, {seconds:.0f} s")


def upload(client: Client, label: str) -> Progress:
    """Show the progress of a job's upload until the job starts."""

    def describe(_: float) -> str | None:
        view = client.jobs([label], limit=1)["jobs"][0]
        if view["state"] not in STARTING:
            return None
        return f"job {label}: {view['reason_text']}" if view.get("uploads") else ""

    return Progress(describe)


class AfterProgress:
    """An output target that ends a progress line before the first byte."""

    def __init__(self, target: Target, progress: Progress) -> None:
        self._target, self._progress = target, progress

    def write(self, data: bytes) -> int:
        """Write bytes."""
        self._progress.end()
        return self._target.write(data)

    def flush(self) -> None:
        """Make them visible."""
        self._target.flush()
