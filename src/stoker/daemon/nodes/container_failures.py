"""Marks exits of containers that their node could not run, so that another node is tried."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core.events import Event, ProcessExited
from stoker.core.state.state import State
from stoker.daemon.views.placement import open_logs
from stoker.executors.launch.container import CANNOT_RUN_HERE
from stoker.executors.linux.oom import last_line

ENGINE_FAILED = 125
"""The exit code of a container that was not run."""
MAX_TEXT_LENGTH = 500


def mark_container_failures(events: list[Event], state: State, logs: str) -> list[Event]:
    """Return the events; exits name what the node lacks, if the end of the log does."""
    return [_marked(event, state, logs) for event in events]


def _marked(event: Event, state: State, logs: str) -> Event:
    if not isinstance(event, ProcessExited) or event.code != ENGINE_FAILED:
        return event
    job = state.jobs.get(event.job)
    if job is None or job.attempt != event.attempt or job.placement is None:
        return event
    spec, rank = state.spec(job), event.part or 0
    if spec.container is None:
        return event
    paths = open_logs(job, spec, job.placement.parts[rank].node, logs, rank)
    lacks = last_line(CANNOT_RUN_HERE, *paths)
    return event if lacks is None else replace(event, lacks=lacks[:MAX_TEXT_LENGTH])
