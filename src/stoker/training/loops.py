"""How a loop over a generator was left."""

from __future__ import annotations

import sys

GENERATOR = 0x20
"""Python's mark on the code of one (inspect.CO_GENERATOR)."""


def by_choice() -> bool:
    """Called by a generator that is being closed: whether by `break` or `return`, not by an error.

    Python does not tell. But a loop that is left by choice drops its iterator in an instruction
    for just that, while an error stands at the instruction that raised it.
    """
    try:
        from opcode import opname

        frame = sys._getframe(2)  # noqa: SLF001 - there is no other way to ask
        while frame.f_code.co_flags & GENERATOR and frame.f_back is not None:
            frame = frame.f_back  # progress bars and the like: it is their user who left
        if frame.f_lasti < 0:
            return False
        return opname[frame.f_code.co_code[frame.f_lasti]] in ("POP_TOP", "POP_ITER")
    except Exception:  # noqa: BLE001 - another Python: then it is not known
        return False
