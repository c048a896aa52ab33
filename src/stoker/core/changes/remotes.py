"""Machines over SSH: they come, fall silent, return and go."""

from __future__ import annotations

from stoker.core import events as e
from stoker.core.changes import lessons
from stoker.core.changes.attempts import conclude, current, ended_on_purpose, part_over
from stoker.core.instructions import Instruction
from stoker.core.job import Job, PartEnd
from stoker.core.lifecycle import JobState
from stoker.core.rest import Away
from stoker.core.retry import Verdict
from stoker.core.standings import readmit, readmit_for_nodes
from stoker.core.state import State, held_on

Wishes = list[Instruction]

NOT_YET = "it has not been reached yet"


def on_start(state: State, event: e.DaemonStarted, rebooted: bool) -> None:
    """A new driver has not reached anybody yet. What runs there knows nothing of its restart."""
    rest = state.rest
    rest.closed = {}
    for name in rest.remotes:
        before = rest.away.get(name)
        if before is None:
            rest.away[name] = Away(event.at, event.clock, NOT_YET)
        elif rebooted and before.boot is not None:
            rest.away[name] = Away(before.since, _on_new_clock(event, before.since), before.why)
    if rebooted:
        for job in state.running.values():
            if job.placement is not None and job.placement.node in rest.remotes:
                _keep_time(job, event)
                state.touched.add(job.id)
    state.mark_devices()


def _on_new_clock(event: e.DaemonStarted, at: float) -> float:
    """A moment before a reboot, by the boot clock after it. The wall clock may have been set."""
    return event.clock - max(event.at - at, 0.0)


def _keep_time(job: Job, event: e.DaemonStarted) -> None:
    """A limit goes on as if the boot clock had not begun anew."""
    before, began = job.started_boot, job.started_at
    job.started_boot = event.clock if began is None else _on_new_clock(event, began)
    if job.paused_boot is not None and before is not None:
        job.paused_boot += job.started_boot - before
    if job.progress is not None and before is not None:
        job.progress = job.progress.later(job.started_boot - before)


def on_node_added(state: State, event: e.NodeAdded) -> Wishes:
    """One more machine, or another address of one; what it has it says when it is reached."""
    before = state.rest.remotes.get(event.name)
    state.rest.remotes[event.name] = event
    moved = before is None or before.address != event.address
    if moved:
        state.rest.closed.pop(event.name, None)
    if moved and event.name not in state.rest.away:
        state.rest.away[event.name] = Away(event.at, None, NOT_YET)
    _changed(state)
    return []


def on_node_removed(state: State, event: e.NodeRemoved) -> Wishes:
    """One machine fewer. Nothing runs there any more, but for parts of gangs that are given up."""
    rest = state.rest
    first = next(iter(rest.nodes), None)
    for known in (rest.remotes, rest.nodes, rest.away, rest.closed, rest.others, rest.strays):
        known.pop(event.name, None)
    for marks in (rest.drained, rest.strangers):
        for key in [key for key in marks if key.startswith(f"{event.name}/")]:
            del marks[key]
    _forget_lacking(state, event.name)
    state.cluster.leave(event.name, held_on(state.running.values(), event.name))
    if event.name == first:
        state.rejoin_first()
    readmit_for_nodes(state, event.at)
    _changed(state)
    return []


def _forget_lacking(state: State, node: str) -> bool:
    """Look at a node again for images that it lacked; True if there were any."""
    known = [
        image for image, nodes in state.rest.lacking.items() if nodes.pop(node, None) is not None
    ]
    for image in known:
        if not state.rest.lacking[image]:
            del state.rest.lacking[image]
    return bool(known)


def on_node_reached(state: State, event: e.NodeReached) -> Wishes:
    """It takes jobs again."""
    state.rest.away.pop(event.node, None)
    if _forget_lacking(state, event.node):
        readmit(state, None, event.at)
    left = [key for key in state.rest.strays.get(event.node, ()) if key not in event.ended]
    state.rest.strays.pop(event.node, None)
    if left:
        state.rest.strays[event.node] = tuple(left)
    _changed(state)
    return []


def on_node_unreachable(state: State, event: e.NodeUnreachable) -> Wishes:
    """Nothing new goes there. What runs there keeps what it holds."""
    if event.node not in state.rest.remotes:
        return []  # removed a moment ago
    before = state.rest.away.get(event.node)
    since, boot = (before.since, before.boot) if before else (event.at, event.boot)
    state.rest.away[event.node] = Away(since, event.boot if boot is None else boot, event.why)
    _changed(state)
    return []


def on_node_closed(state: State, event: e.NodeClosed) -> Wishes:
    """Nothing new goes there until there is room again."""
    if event.node not in state.rest.remotes:
        return []
    state.rest.closed.pop(event.node, None)
    if event.why is not None:
        state.rest.closed[event.node] = event.why
    _changed(state)
    return []


def on_node_measured(state: State, event: e.NodeMeasured) -> Wishes:
    """Others use more or less of it than before."""
    state.rest.others.pop(event.node, None)
    if event.node in state.rest.nodes and (event.cpus or event.memory):
        state.rest.others[event.node] = (event.cpus, event.memory)
    _changed(state)
    return []


def on_attempt_abandoned(state: State, event: e.AttemptAbandoned) -> Wishes:
    """Its owner would rather have it run twice than not at all."""
    job = current(state, event.job, event.attempt)
    if job is None or job.placement is None:
        return []
    strays, stray = state.rest.strays.get(event.node, ()), (event.job, event.attempt)
    if stray not in strays:
        state.rest.strays[event.node] = (*strays, stray)
    _changed(state)
    machine = state.rest.remotes.get(event.node)
    if machine is None or not machine.shared:
        lessons.work_lost(job)
    if job.placement.more:
        parts = [part.node for part in job.placement.parts]
        return part_over(state, job, PartEnd(parts.index(event.node), away=True), event.at)
    why = f"lost: {event.node} was unreachable"
    verdict = ended_on_purpose(job) or Verdict(JobState.NODE_FAIL, why, again=True)
    return conclude(state, job, verdict, event.at)


def _changed(state: State) -> None:
    state.mark_devices()
    state.line.stirred = True
    state.rest_changed = True
