"""Preemption that no pending job causes: GPUs whose memory is overcommitted."""

from __future__ import annotations

from stoker.core.model.job import Job
from stoker.core.model.resources import GPU
from stoker.core.running.future_capacity import can_preempt
from stoker.core.state.state import State


def memory_overcommitted(state: State) -> list[Job]:
    """Return one job to stop for each GPU whose memory is not enough for the jobs that share it."""
    victims: dict[int, Job] = {}
    for (node, name), jobs in _jobs_by_gpu(state).items():
        device = state.cluster.nodes[node].by_name[GPU, name]
        is_short = device.memory_free - device.foreign_memory < 0 and not device.removed
        if device.sharers < 2 or not is_short:
            continue
        if any(job.progress is not None and job.progress.stop is not None for job in jobs):
            continue
        candidates = [
            job
            for job in jobs
            if job.id in state.preemptible and job.id not in victims and can_preempt(job)
        ]
        if candidates:
            last = max(candidates, key=lambda job: (-job.priority, job.started_at or 0.0))
            victims[last.id] = last
    return list(victims.values())


def _jobs_by_gpu(state: State) -> dict[tuple[str, str], list[Job]]:
    """Return the jobs that share GPUs by memory, by node and name of the GPU."""
    jobs: dict[tuple[str, str], list[Job]] = {}
    for job in state.sharing.values():
        for part in job.placement.parts if job.placement is not None else ():
            for name in part.names(GPU):
                jobs.setdefault((part.node, name), []).append(job)
    return jobs
