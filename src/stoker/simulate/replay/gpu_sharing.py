"""GpuSharing: which jobs hold which GPUs, while jobs may share them."""

from __future__ import annotations

from stoker.core.model.resources import GPU, Placement


class GpuSharing:
    """Jobs by GPU."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], list[int]] = {}
        """Job ids per (node, GPU)."""

    def join(self, id: int, placement: Placement) -> list[int]:
        """Add a job; return the jobs that share a GPU from now on, itself included."""
        sharers: dict[int, None] = {}
        for gpu in _gpus(placement):
            jobs = self._jobs.setdefault(gpu, [])
            jobs.append(id)
            if len(jobs) > 1:
                sharers.update(dict.fromkeys(jobs))
        return list(sharers)

    def leave(self, id: int, placement: Placement) -> list[int]:
        """Remove a job; return the jobs that shared a GPU with it."""
        sharers: dict[int, None] = {}
        for gpu in _gpus(placement):
            self._jobs[gpu].remove(id)
            sharers.update(dict.fromkeys(self._jobs[gpu]))
        return list(sharers)

    def neighbours(self, id: int, placement: Placement) -> set[int]:
        """Return the other jobs on the GPUs of a job."""
        return {job for gpu in _gpus(placement) for job in self._jobs[gpu]} - {id}


def _gpus(placement: Placement) -> list[tuple[str, str]]:
    return [(part.node, name) for part in placement.parts for name in part.names(GPU)]
