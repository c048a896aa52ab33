"""The options --retries, --retry-on and --requeue."""

from __future__ import annotations

import re

from stoker.core.model.spec import Retry
from stoker.core.model.units import BadValue


def parse_retry(limit_text: str | None, on_text: str | None, requeue: bool | None) -> Retry:
    """Parse `--retries 3 --retry-on oom,lost,exit:3` and Slurm's `--requeue`."""
    if limit_text is not None and not (limit_text.isdecimal() and len(limit_text) <= 6):
        raise BadValue(f"--retries '{limit_text}' is not a count; write a whole number.")
    on: list[str] = []
    for typed in filter(None, (w.strip().lower() for w in (on_text or "").split(","))):
        is_code = typed.isdecimal() and len(typed) <= 3
        word = f"exit:{int(typed)}" if is_code else typed
        known = word in ("any", "fail", "oom", "lost", "timeout", "signal")
        if not known and not re.fullmatch(r"exit:\d{1,3}", word):
            raise BadValue(
                f"--retry-on '{word}' is not known; "
                "write any, fail, oom, lost, timeout, signal or an exit code."
            )
        on.append(word)
    if limit_text is not None:
        return Retry(int(limit_text), tuple(on) or ("any",))
    if on:
        return Retry(3, tuple(on))
    return Retry(3, ("lost",)) if requeue else Retry()
