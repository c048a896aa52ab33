"""Marks exits of containers that their node could not run at all, so that another one is tried."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core.events import Event, ProcessExited
from stoker.core.launch import log_paths
from stoker.core.state import State
from stoker.executors.launch.container import CANNOT_RUN_HERE
from stoker.executors.linux.oom import last_line

ENGINE_FAILED = 125
"""The exit code of a container that was not run."""
MOST_TEXT = 500


def mark_container_failures(facts: list[Event], state: State, logs: str) -> list[Event]:
    """Return the events; exits say what the node lacks, if the end of the log does."""
    return [_marked(fact, state, logs) for fact in facts]


def _marked(fact: Event, state: State, logs: str) -> Event:
    if not isinstance(fact, ProcessExited) or fact.code != ENGINE_FAILED:
        return fact
    job = state.jobs.get(fact.job)
    if job is None or job.attempt != fact.attempt or job.placement is None:
        return fact
    spec, rank = state.spec(job), fact.part or 0
    if spec.container is None:
        return fact
    paths = log_paths(job, spec, job.placement.parts[rank].node, logs, rank)
    lacks = last_line(CANNOT_RUN_HERE, *paths)
    return fact if lacks is None else replace(fact, lacks=lacks[:MOST_TEXT])
