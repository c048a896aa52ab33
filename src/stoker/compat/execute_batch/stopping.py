"""Signal handling of a batch."""

from __future__ import annotations

import signal


def write_signals_to(woken: int) -> None:
    """Write the numbers of stop signals to a descriptor; ignore SIGHUP."""
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGTERM):
        # `nohup` and background shells ignore some of these on purpose.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
