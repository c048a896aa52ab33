"""A short text about the scheduling state, for the log entry of an internal error."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from stoker.core.cluster import Node, Placement
from stoker.core.job import Job
from stoker.core.policy.order import in_order
from stoker.core.state import State

MAX_JOBS = 20
MAX_NODES = 20
MAX_LENGTH = 8000
"""Characters. An excerpt has no commands and no environments, so that a log can be shown."""


def excerpt(state: State) -> str:
    """Return nodes with their free devices, running jobs and the head of the queue."""
    lines: list[str] = []
    try:
        lines += _lines(state)
    except Exception as error:  # noqa: BLE001 - the state is what the error has left of it
        lines.append(f"(the rest cannot be read: {error!r})")
    return "\n".join(lines)[:MAX_LENGTH]


def _lines(state: State) -> Iterator[str]:
    rest = state.rest
    yield (
        f"{len(state.jobs)} jobs in memory, {len(state.running)} running, "
        f"{len(state.line)} ready, next id {rest.next_id}, policies {rest.policies}"
    )
    for node in islice(state.cluster.nodes.values(), MAX_NODES):
        yield f"node {node.name}: {_devices(node)}"
    for id, placement in islice(state.promises.items(), MAX_JOBS):
        yield f"kept for job {id}: {_placement(placement)}"
    for job in islice(state.running.values(), MAX_JOBS):
        where = _placement(job.placement) if job.placement is not None else "nothing"
        yield f"{job.state.value} {_job(state, job)} holds {where}"
    for job in in_order(state.line, state.jobs, MAX_JOBS):
        yield f"ready {_job(state, job)} asks for {state.effective(job, state.spec(job))}"


def _job(state: State, job: Job) -> str:
    spec = state.spec(job)
    return (
        f"job {job.id} attempt {job.attempt} priority {job.priority} queue {spec.queue} "
        f"limit {spec.limit}"
    )


def _devices(node: Node) -> str:
    marks = [f"closed ({node.closed})"] if node.closed is not None else []
    for device in node.devices():
        of = [f"{device.free}/{device.facts.capacity} free"]
        of += ["gone"] if device.gone else []
        of += ["drained"] if device.drained is not None else []
        of += ["foreign use"] if device.stranger is not None else []
        marks.append(f"{device.type}:{device.name} {' '.join(of)}")
    return ", ".join(marks)


def _placement(placement: Placement) -> str:
    return " + ".join(
        f"{part.node}({', '.join(f'{t.type}:{t.device}={t.amount}' for t in part.takes)})"
        for part in placement.parts
    )
