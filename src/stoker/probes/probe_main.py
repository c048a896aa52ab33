"""The process that talks to GPU drivers: `read` in on one line, a reading out on the next.

Run as `python -m stoker.probes.probe_main`. A driver can hang whoever asks it, for ever and beyond
the reach of kill -9; so it is this process that asks, and the daemon can walk away from it.
"""

from __future__ import annotations

import os
import signal
import time

from stoker.probes import amd, nvidia
from stoker.probes.gpu_reading import Reading, encode, merge

_GIVE_UP = 120
"""Seconds after which a hung read ends this process, in case nobody is left to end it."""

_OUTDATED = 60.0
"""A library that does not fit the driver is tried anew, in a new process, this often (s)."""


def read() -> Reading:
    """Look at all GPUs of this machine."""
    return merge(nvidia.read(), amd.read())


def main() -> None:
    """Answer requests until the daemon closes its end."""
    born = time.monotonic()
    # The default action ends the process even inside a C call that never returns.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    pending = b""
    while data := os.read(0, 4096):
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            if line.strip() == b"read":
                signal.alarm(_GIVE_UP)
                answer = _safe_read()
                signal.alarm(0)
                _write(encode(answer) + b"\n")
        if nvidia.outdated() and time.monotonic() - born > _OUTDATED:
            return  # the daemon starts another, which loads the library afresh


def _safe_read() -> Reading:
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - whatever a driver does, the daemon gets an answer
        return Reading(error=f"the GPUs cannot be read: {type(error).__name__}: {error}")


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        os._exit(0)  # the daemon has gone; nobody reads our last words
