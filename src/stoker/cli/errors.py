"""Run a command; turn exceptions into a message and an exit code."""

from __future__ import annotations

import os
import sys

from stoker import wire
from stoker.terminal import FilteredStream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def run_command(run: Callable[[], int], program: str, is_json: bool = False) -> int:
    """Run one command and return its exit code; only bugs cause a traceback.

    Its output is filtered, so that no name or message can control the terminal.
    """
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _filtered(sys.stdout, _is_coloured), _filtered(sys.stderr)
    try:
        code = run()
        if sys.stdout is not None:  # closed by the parent process
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return wire.EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has ended. Otherwise Python would print an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return wire.EXIT_OK
    except Exception as error:  # noqa: BLE001 - _report raises bugs again
        return _report(error, program, is_json)
    finally:
        sys.stdout, sys.stderr = streams


def _filtered(stream: Any, coloured: Callable[[], bool] = lambda: False) -> Any:
    """Return a filtered stream, None for a closed one."""
    return None if stream is None else FilteredStream(stream, coloured)


def _is_coloured() -> bool:
    from stoker.cli.output.colour import is_enabled

    return is_enabled()


def _report(error: Exception, program: str, is_json: bool) -> int:
    from stoker.cli import output
    from stoker.client.errors import PermissionDenied, StokerError
    from stoker.places import UnsafeDirectory, describe_os_error, is_disk_full

    if isinstance(error, UnsafeDirectory):
        error = PermissionDenied(str(error))
    elif isinstance(error, OSError):
        code = "disk_full" if is_disk_full(error) else "failed"
        error = StokerError(describe_os_error(error), code=code)
    if not isinstance(error, StokerError):
        raise error
    if output.wants_json or is_json:
        output.emit({"error": error.as_dict()})
        sys.stdout.flush()
    else:
        output.say(f"{program}: {error.message}")
    return error.exit_code
