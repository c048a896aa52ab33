"""The probe process: `read` on a line of stdin, a reading on a line of stdout.

Run as `python -m stoker.probes.probe_main`. A driver can block its caller forever, beyond the
reach of SIGKILL; so only this process calls it, and the daemon can abandon it.
"""

from __future__ import annotations

import os
import signal
import time

import msgspec

from stoker.probes import amd
from stoker.probes.gpu_reading import Reading, merge
from stoker.probes.nvidia import Nvml

_READ_TIMEOUT_SECONDS = 120
"""After this time a read that hangs ends this process, in case the daemon is gone."""

_OUTDATED_SECONDS = 60.0
"""How often a library that does not match the driver is loaded again, in a new process."""


def main() -> None:
    """Answer requests until the daemon closes its end."""
    started_at, nvml = time.monotonic(), Nvml()
    # The default action ends the process even inside a C call that never returns.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    partial = b""
    while data := os.read(0, 4096):
        *lines, partial = (partial + data).split(b"\n")
        for line in lines:
            if line.strip() == b"read":
                signal.alarm(_READ_TIMEOUT_SECONDS)
                reading = read(nvml)
                signal.alarm(0)
                _write(msgspec.json.encode(reading) + b"\n")
        if nvml.outdated and time.monotonic() - started_at > _OUTDATED_SECONDS:
            return  # the daemon starts another process, which loads the library again


def read(nvml: Nvml) -> Reading:
    """Read all GPUs of this node."""
    try:
        return merge(nvml.read(), amd.read())
    except Exception as error:  # noqa: BLE001 - the daemon always gets an answer
        return Reading(error=f"the GPUs cannot be read: {type(error).__name__}: {error}")


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        os._exit(0)  # the daemon is gone
