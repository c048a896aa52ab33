"""Stop signals as input of a select loop."""

from __future__ import annotations

import os
import signal


def stop_signal_fd(*numbers: int) -> int:
    """Return a descriptor from which the numbers of these signals can be read."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in numbers:
        # `nohup` and background shells ignore some of these on purpose.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    return read_end
