"""Paths with Slurm's patterns: log files, and the directory of results."""

from __future__ import annotations

import re

from msgspec.structs import replace

from stoker.core.model.job import Job
from stoker.core.model.spec import FileTransfer, Spec

MAX_PADDING = 10
"""As in Slurm."""


def log_paths(job: Job, spec: Spec, node: str, logs: str, rank: int = 0) -> tuple[str, str | None]:
    """Return the files of stdout and stderr: by default one per attempt and part."""
    suffix = f".{job.attempt}" if job.attempt else ""
    out = f"{logs}/{job.id}{suffix}.out{f'.{rank}' if rank else ''}"
    if spec.output:
        out = fill_path(spec.output, job, spec, node, rank)
    return out, fill_path(spec.error, job, spec, node, rank) if spec.error else None


def transfer_of(job: Job, spec: Spec, node: str, rank: int = 0) -> FileTransfer:
    """Return the file transfer of an attempt, with its result directory filled in."""
    transfer = spec.transfer
    if transfer.into is None or "%" not in transfer.into:
        return transfer
    return replace(transfer, into=_fill_pattern(transfer.into, job, spec, node, rank))


def fill_path(pattern: str, job: Job, spec: Spec, node: str, rank: int = 0) -> str:
    """Return a path with Slurm's %j, %A and so on filled in, below the job's directory."""
    if rank and "%t" not in pattern and "%N" not in pattern:
        pattern += f".{rank}"  # parts never share a file
    filled = _fill_pattern(pattern, job, spec, node, rank)
    return filled if filled.startswith("/") else f"{spec.directory}/{filled}"


def _fill_pattern(pattern: str, job: Job, spec: Spec, node: str, rank: int) -> str:
    """Fill in %j %J %A %a %x %u %N %n %t %%; `%4a` pads a number with zeros."""
    values = {
        "j": str(job.id),
        "J": str(job.id),
        "A": str(job.array or job.id),
        "a": str(job.index if job.index is not None else 0),
        "x": job.name.replace("/", "_"),
        "u": spec.user,
        "N": node,
        "n": str(rank),
        "t": str(rank),
        "%": "%",
    }

    def fill(match: re.Match[str]) -> str:
        value = values.get(match[2], match[0])
        return value.zfill(min(int(match[1] or 0), MAX_PADDING)) if value.isdecimal() else value

    return re.sub("%([0-9]{0,3})(.)", fill, pattern, flags=re.DOTALL)
