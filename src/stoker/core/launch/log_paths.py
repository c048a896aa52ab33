"""Paths with Slurm's patterns: log files, and the directory of results."""

from __future__ import annotations

import re

from msgspec.structs import replace

from stoker.core.model.job import Job
from stoker.core.model.spec import FileTransfer, Spec


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
    """Return a path with Slurm's %j %A %a %x %u %N %t %% filled in, below the job's directory."""
    if rank and "%t" not in pattern and "%N" not in pattern:
        pattern += f".{rank}"  # parts never share a file
    filled = _fill_pattern(pattern, job, spec, node, rank)
    return filled if filled.startswith("/") else f"{spec.directory}/{filled}"


def _fill_pattern(pattern: str, job: Job, spec: Spec, node: str, rank: int) -> str:
    values = {
        "j": str(job.id),
        "A": str(job.array or job.id),
        "a": str(job.index if job.index is not None else 0),
        "x": job.name.replace("/", "_"),
        "u": spec.user,
        "N": node,
        "t": str(rank),
        "%": "%",
    }
    return re.sub("%(.)", lambda match: values.get(match[1], match[0]), pattern, flags=re.DOTALL)
