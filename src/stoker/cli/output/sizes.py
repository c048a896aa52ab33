"""Memory sizes as text; the API counts MiB."""

from __future__ import annotations

GIB = 1024


def exact(mib: int) -> str:
    """Return `2 GiB`, or `2047 MiB` if it is not a whole number of GiB."""
    return f"{mib // GIB} GiB" if mib and mib % GIB == 0 else f"{mib} MiB"


def rounded(mib: int) -> str:
    """Return a rounded size for tables: `38G`, `1.5G`, `300M`."""
    if mib < GIB:
        return f"{mib}M"
    return f"{round(mib / GIB, 1 if mib < 10 * GIB else None):g}G"
