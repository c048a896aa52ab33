"""Memory sizes as people read them; the API counts MiB."""

from __future__ import annotations

GIB = 1024


def exact(mib: int) -> str:
    """Return `2 GiB`, or `2047 MiB` where that is not a whole number of GiB."""
    return f"{mib // GIB} GiB" if mib and mib % GIB == 0 else f"{mib} MiB"


def rounded(mib: int) -> str:
    """Return `38G`, `1.5G`, `300M`: for tables, where only the size of the number matters."""
    if mib < GIB:
        return f"{mib}M"
    return f"{round(mib / GIB, 1 if mib < 10 * GIB else None):g}G"
