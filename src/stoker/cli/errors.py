"""Runs a command's function and turns what goes wrong into one sentence and an exit code."""

from __future__ import annotations

import os
import sys

from stoker import wire
from stoker.terminal import FilteredStream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def run_command(run: Callable[[], int], program: str, asked_for_json: bool = False) -> int:
    """Run one command and return its exit code; only our own bugs get a traceback.

    All that it prints goes through a filter, so that no name or message steers the terminal.
    """
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _filtered(sys.stdout, _coloured), _filtered(sys.stderr)
    try:
        return _guarded(run, program, asked_for_json)
    finally:
        sys.stdout, sys.stderr = streams


def _filtered(stream: Any, coloured: Callable[[], bool] = lambda: False) -> Any:
    """Return the stream behind the filter, None for one that is closed."""
    return None if stream is None else FilteredStream(stream, coloured)


def _coloured() -> bool:
    from stoker.cli.output.colour import wanted

    return wanted()


def _guarded(run: Callable[[], int], program: str, asked_for_json: bool) -> int:
    try:
        code = run()
        if sys.stdout is not None:  # closed by whoever started us
            sys.stdout.flush()
    except KeyboardInterrupt:
        code = wire.EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has what it wanted. Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = wire.EXIT_OK
    except Exception as error:  # noqa: BLE001 - our own bugs are raised again in there
        code = _explain(error, program, asked_for_json)
    return code


def _explain(error: Exception, program: str, asked_for_json: bool) -> int:
    from stoker.cli import output
    from stoker.client.errors import StokerError
    from stoker.places import UnsafeDirectory, is_disk_full, trouble

    if isinstance(error, UnsafeDirectory):
        error = StokerError(str(error), error.exit_code, error.code)
    elif isinstance(error, OSError):
        full = is_disk_full(error)
        exit_code = wire.EXIT_DISK_FULL if full else wire.EXIT_FAILED
        error = StokerError(trouble(error), exit_code, "no_room" if full else "failed")
    if not isinstance(error, StokerError):
        raise error
    if output.wants_json or asked_for_json:
        output.emit({"error": error.as_dict()})
        sys.stdout.flush()
    else:
        output.say(f"{program}: {error.message}")
    return error.exit_code
