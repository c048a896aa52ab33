"""A short text about the scheduling state, for the log entry of an internal error."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from stoker.core.cluster.node import Node
from stoker.core.explain.position import MAX_JOBS_AHEAD
from stoker.core.model.job import Job
from stoker.core.queue.pending_queue import first_jobs
from stoker.core.state.state import State


def excerpt(state: State) -> str:
    """Return nodes with their free devices, running jobs and the head of the queue.

    It has no commands and no environments, so that a log can be shared.
    """
    lines: list[str] = []
    try:
        lines += _lines(state)
    except Exception as error:  # noqa: BLE001 - the state is what the error has left of it
        lines.append(f"(the rest cannot be read: {error!r})")
    return "\n".join(lines)


def _lines(state: State) -> Iterator[str]:
    record = state.record
    yield (
        f"{len(state.jobs)} jobs in memory, {len(state.running)} running, "
        f"{len(state.pending)} eligible, next id {record.next_id}, policies {record.policies}"
    )
    for node in islice(state.cluster.nodes.values(), MAX_JOBS_AHEAD):
        yield f"node {node.name}: {_devices(node)}"
    for id, placement in islice(state.memory.nominations.items(), MAX_JOBS_AHEAD):
        yield f"nominated for job {id}: {placement}"
    for job in islice(state.running.values(), MAX_JOBS_AHEAD):
        yield f"{job.state.value} {_job(state, job)} holds {job.placement}"
    for job in first_jobs(state.pending, state.jobs, MAX_JOBS_AHEAD):
        yield f"pending {_job(state, job)} requests {state.effective_request(job, state.spec(job))}"


def _job(state: State, job: Job) -> str:
    spec = state.spec(job)
    return (
        f"job {job.id} attempt {job.attempt} priority {job.priority} queue {spec.queue} "
        f"limit {spec.limit}"
    )


def _devices(node: Node) -> str:
    marks = [] if node.unavailable_reason is None else [f"unavailable ({node.unavailable_reason})"]
    for device in node.devices():
        mark = f"{device.type}:{device.name} {device.unallocated}/{device.facts.capacity} free"
        mark += " removed" * device.removed + " drained" * (device.drained is not None)
        marks.append(mark + " foreign use" * (device.foreign_user is not None))
    return ", ".join(marks)
