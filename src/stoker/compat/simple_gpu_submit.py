"""simple_gpu_submit: append a script to a queue file as one line, which is one job."""

from __future__ import annotations

import os
import stat
import sys

from stoker.client.errors import StokerError, UsageError
from stoker.compat.simple_gpu_scheduler.record import encode

HELP = """\
  simple_gpu_submit gpu.queue train.sh
  simple_gpu_submit gpu.queue - < train.sh

Appends the script to the queue file of a running

  tail -f -n 0 gpu.queue | simple_gpu_scheduler --gpus 0,1,2

as one line, in one write, so that it is one job on one GPU and is never mixed with lines of other
writers. It runs in the directory of the scheduler, with the program of its #! line or $SHELL. The
file must exist (touch gpu.queue): lines appended before `tail -f -n 0` are not run."""
MAX_LINE_BYTES = 1 << 20
"""Maximum bytes of a line of the scheduler."""


def main(argv: list[str]) -> int:
    """Append one script to a queue file."""
    if len(argv) != 2:
        raise UsageError(
            "A queue file and a script are required: simple_gpu_submit gpu.queue job.sh"
        )
    queue, script = argv
    for word in argv:
        if word.startswith("-") and word != "-":
            raise UsageError(f"There is no option {word}. See: simple_gpu_submit --help")
    name = "stdin" if script == "-" else os.path.basename(script)
    append_line(queue, _script_line(name, _read(script)))
    return 0


def _read(path: str) -> bytes:
    name = "stdin" if path == "-" else path
    if path == "-" and sys.stdin is None:
        raise UsageError("stdin is closed. Type: simple_gpu_submit gpu.queue - < job.sh")
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as file:
            return file.read(MAX_LINE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}.") from None


def _script_line(name: str, data: bytes) -> bytes:
    """Return the line of a script; raise UsageError if the scheduler cannot run it."""
    if not data.strip():
        raise UsageError(f"{name} is empty; nothing was queued.")
    if b"\0" in data:
        raise UsageError(
            f"{name} contains a NUL byte: it is not a script. Queue a command instead."
        )
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{name} is not valid UTF-8; nothing was queued.") from None
    if name.endswith(".py") and not text.startswith("#!"):
        raise UsageError(
            f"{name} has no #! line, so a shell would run it. Add one, or queue: python {name}"
        )
    line = encode(name, text).encode() + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise UsageError(f"{name} is too long: as one line it may have 1 MiB. Queue: sh {name}")
    return line


def append_line(queue: str, line: bytes) -> None:
    """Append a line to the queue file in one write."""
    import fcntl

    try:
        # O_NONBLOCK: opening a pipe must not block.
        fd = os.open(queue, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UsageError(
            f"{queue} does not exist. Create it and start its scheduler first: touch {queue}; "
            f"tail -f -n 0 {queue} | simple_gpu_scheduler --gpus 0"
        ) from None
    except OSError as error:
        raise UsageError(f"{queue} cannot be written: {error.strerror}.") from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise UsageError(f"{queue} is not a regular file, so nothing was queued.")
        # On a local disk one appending write is atomic. The lock serialises
        # other writers on NFS, and protects the check of the last byte.
        fcntl.flock(fd, fcntl.LOCK_EX)
        size = os.fstat(fd).st_size
        unfinished = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        data = b"\n" + line if unfinished else line
        if os.write(fd, data) != len(data):
            # Truncating would make `tail -f` start over and run old lines twice.
            raise StokerError(
                f"The disk is full: {queue} ends with a part of the script, which the scheduler "
                "will not run."
            )
    except OSError as error:
        raise StokerError(f"{queue} cannot be written: {error.strerror}.") from None
    finally:
        os.close(fd)
