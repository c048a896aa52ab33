"""How a batch hears that it is to stop."""

from __future__ import annotations

import signal


def listen_for_signals(woken: int) -> None:
    """Have the numbers of signals written to a descriptor; go on when the terminal is gone."""
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGTERM):
        # `nohup` and background shells ignore some of these on purpose.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
