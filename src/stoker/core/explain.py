"""Why a job waits, per machine and per constraint, and when it may start. As data."""

from __future__ import annotations

from msgspec import Struct

from stoker.core.admission import dependency_standing
from stoker.core.changes.remotes import NOT_YET
from stoker.core.cluster import SLIVER, Device, Node
from stoker.core.dependency import Standing as Dependent
from stoker.core.estimate import estimate, hardware
from stoker.core.explain_order import FEW, Ahead, Standing, before, room, standing
from stoker.core.explain_start import Ends, unblocks
from stoker.core.foreign import in_words
from stoker.core.job import Job, Progress
from stoker.core.lifecycle import JobState
from stoker.core.policy.fit import could_ever, fit, offered, suits, wants
from stoker.core.policy.order import in_order
from stoker.core.policy.place import place
from stoker.core.request import GPU, MEMORY, GpuAsk, Request, describe
from stoker.core.state import State
from stoker.core.units import THOUSAND, format_amount, format_duration

AHEAD = 500
"""How many pending jobs are looked through for the position of one."""


class Constraint(Struct, frozen=True):
    """One thing that a machine lacks for a job now."""

    name: str
    needs: str
    free: str
    text: str
    details: tuple[str, ...] = ()
    """Device by device, what is in the way."""


class NodeView(Struct, frozen=True):
    """What stands in the way on one machine."""

    node: str
    fits_empty: bool
    constraints: tuple[Constraint, ...]


class Why(Struct, frozen=True):
    """The whole answer."""

    reason: str | None
    text: str
    position: int | None = None
    ahead: tuple[str, ...] = ()
    nodes: tuple[NodeView, ...] = ()
    coming: tuple[str, ...] = ()
    """Who makes room for it, and when."""
    standing: Standing | None = None
    """Where it stands in line, and by what."""
    before: tuple[Ahead, ...] = ()
    """The first few of those who are ahead, each with the reason."""
    unblocks: tuple[str, ...] = ()
    """What would let it start."""
    room: tuple[str, ...] = ()
    """Of one that runs: for whom it makes room, or might have to."""


def reason(state: State, job: Job, now: float) -> tuple[str | None, str | None]:
    """The short reason, Slurm's word and a phrase; cheap enough for every row of a list."""
    if job.state is not JobState.PENDING:
        return _not_running(state, job, now)
    how, others, wake = dependency_standing(state, job, now)
    listed = ", ".join(str(other) for other in others[:5])
    if how is Dependent.NEVER:
        return (
            "DependencyNeverSatisfied",
            f"job {listed} cannot end in the state that the dependency requires",
        )
    if how is Dependent.OPEN and wake is not None:
        return "Dependency", f"begins {format_duration(wake - now)} from now, after job {listed}"
    if how is Dependent.OPEN:
        return "Dependency", f"waits for job{'s' * (len(others) > 1)} {listed}"
    if job.held:
        return "JobHeldUser", f"held; stoker release {job.label}"
    if job.begin_at is not None:
        wait = format_duration(max(job.begin_at - now, 0))
        if job.attempt and job.note:
            return "BeginTime", f"tries again in {wait}: {job.note}"
        what = "tries again" if job.attempt else "begins"
        return "BeginTime", f"{what} in {wait}"
    found = state.line.where.get(job.id)
    if found is None:
        return "Priority", "waiting for its turn"
    limit = state.limit_reached(found)
    if limit:
        return ("JobArrayTaskLimit" if found.array else "QOSMaxJobsLimit"), limit
    request = state.request(job, found)
    if request.nodes and not any(_is_there(state, name) for name in request.nodes):
        gone = ", ".join(request.nodes)
        return "ReqNodeNotAvail", f"{gone} was removed; stoker edit {job.label} -w NODE"
    if state.rest.away and (told := _out_of_reach(state, request, now)):
        return "NodeUnreachable", told
    if place(state.cluster, request) is not None:
        return "Priority", "the free devices are reserved for a job ahead of it"
    first = state.line.first(state.jobs, state.limit_reached)
    if first is job or first is None:
        return "Resources", f"needs {describe(request)}"
    return "Priority", f"behind job {first.label}"


def _is_there(state: State, name: str) -> bool:
    return name in state.cluster.nodes or name in state.rest.remotes


def silent_since(state: State, job: Job) -> dict[str, float]:
    """The machines of a running job that do not answer, and since when."""
    if not state.rest.away or job.placement is None:
        return {}
    found = ((part.node, state.rest.away.get(part.node)) for part in job.placement.parts)
    return {name: away.since for name, away in found if away is not None and away.why != NOT_YET}


def _out_of_reach(state: State, request: Request, now: float) -> str | None:
    """What is to be said of a job if too few of the machines that could ever do it answer."""
    able = [node.name for node in state.cluster.nodes.values() if could_ever(node, request) is None]
    away = state.rest.away
    silent = [name for name in able if name in away and away[name].why != NOT_YET]
    if not silent or len(able) - len(silent) >= request.machines:
        return None
    since = min(away[name].since for name in silent)
    listed = ", ".join(silent[:3]) + (" and others" if len(silent) > 3 else "")
    return f"waits for {listed}, unreachable for {format_duration(max(now - since, 0))}"


def _not_running(state: State, job: Job, now: float) -> tuple[str | None, str | None]:
    """What keeps a placed job from running: its node's own queue, or a node that is silent."""
    silent = silent_since(state, job)
    if not silent and job.state is JobState.QUEUED and job.placement is not None:
        name = f" as {job.external_id}" if job.external_id else ""
        return "Queued", f"waits in the queue of {job.placement.node}{name}"
    if not silent:
        return None, None
    told = [
        f"{name} has been unreachable for {format_duration(max(now - since, 0))}"
        f" ({state.rest.away[name].why})"
        for name, since in silent.items()
    ]
    return "NodeUnreachable", "; ".join(told)


def why(state: State, job: Job, at: float, boot: float, ends: Ends) -> Why:
    """Everything there is to say about why a job is where it is."""
    code, phrase = reason(state, job, at)
    if job.state is not JobState.PENDING:
        text = _not_waiting(job, phrase, list(silent_since(state, job)))
        return Why(code, text, room=room(state, job, at, boot) if job.holding else ())
    spec = state.spec(job)
    request = state.effective(job, spec)
    nodes = _nodes(state, request, boot)
    coming = _coming(state, job, at)
    lacking = {GPU if each.name == "gpus" else each.name for v in nodes for each in v.constraints}
    opens = unblocks(state, job, lacking, at, boot, ends)
    if code not in ("Resources", "Priority", "NodeUnreachable") or job.id not in state.line:
        return Why(reason=code, text=phrase or "", nodes=nodes, coming=coming, unblocks=opens)
    line = in_order(state.line, state.jobs, AHEAD)
    position = next((n for n, each in enumerate(line, 1) if each.id == job.id), None)
    others = line[: position - 1] if position else line
    ahead = tuple(each.label for each in others) if position else ()
    text = f"needs {describe(request)}"
    said = [constraint.text for view in nodes for constraint in view.constraints]
    if said:
        text += "; " + "; ".join(said[:4])
    elif code == "Priority":
        text += f"; {phrase}"
    if ahead:
        text += f"; {len(ahead)} ahead of it"
    place_in_line = standing(state, job, position, at)
    first = before(state, job, others[:FEW], at)
    return Why(
        code, text, position, ahead[:50], nodes, coming, place_in_line, first, opens,
    )  # fmt: skip


def _coming(state: State, job: Job, at: float) -> tuple[str, ...]:
    """Who stops for this job, and when that should be."""
    told = []
    for other in sorted(state.running.values(), key=lambda other: other.id):
        progress = other.progress
        if progress is None or progress.stop is None or progress.stop.by != job.id:
            continue
        told.append(f"job {other.label} {_making_room(state, other, progress, at)}")
    return tuple(told)


def _making_room(state: State, job: Job, progress: Progress, at: float) -> str:
    """How a job stands that was asked to stop for another."""
    if job.state is JobState.COMPLETING:
        return "is ending"
    if progress.stop is not None and progress.stop.ignored:
        return "was asked to stop for this job but has not stopped"
    if job.state is JobState.SUSPENDED:
        return "is paused; it stops for this job when it is resumed"
    if not progress.listening:
        return "was asked to stop for this job"
    text, when = "stops for this job at the end of its epoch", "about"
    if job.placement is not None and hardware(state.cluster, job.placement)[0] > 1:
        # Its processes must agree where they stop: too late for this epoch, if few steps are left.
        text, when = f"{text}, or of the next", "at the earliest in about"
    likely = estimate(state.rest.families, state.cluster, job, state.spec(job), at)
    if likely.epoch_seconds is not None and progress.counted_at is not None:
        left = likely.epoch_seconds - max(at - progress.counted_at, 0.0)
        text += f", {when} {_roughly(left)}" if left > 0 else ", any moment"
    return text


def _roughly(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"


def how_it_ended(job: Job) -> str:
    """Return the cause of the end; empty where the state says it all."""
    return "" if job.state is JobState.COMPLETED and job.cause == "done" else job.cause or ""


def _not_waiting(job: Job, silence: str | None, silent: list[str]) -> str:
    if job.finished:
        return how_it_ended(job)
    if silence is None and job.state is JobState.SUSPENDED:
        return f"it is paused; to continue it: stoker resume {job.label}"
    if silence is None:
        return "it is not waiting for anything"
    if not silent:
        return silence
    machines = " and ".join(silent)
    they_answer = f"{machines} {'answers' if len(silent) == 1 else 'answer'}"
    give_up = f"stoker nodes remove {' '.join(silent)} --force"
    if job.state is JobState.COMPLETING:
        return f"{silence}; it ends when {they_answer}. To abandon it now: {give_up}"
    if job.state is JobState.QUEUED:
        standing = "it waits in the queue there, or runs by now"
    elif job.state is not JobState.CONFIGURING:
        standing = "it is assumed to be running there and keeps its resources"
    elif job.placement is not None and job.placement.more:
        standing = f"it is starting; its parts wait for each other until {they_answer}"
    else:
        standing = f"it is starting there; whether it runs is known when {they_answer}"
    return (
        f"{silence}; {standing}. To run it on another node, abandon it with"
        f" {give_up}, then stoker retry {job.label}; or submit with --if-unreachable restart:1h"
    )


def _nodes(state: State, request: Request, boot: float) -> tuple[NodeView, ...]:
    """What each machine says to this; where some were asked for, only these."""
    views = [
        _node_view(state, node, request, boot)
        for name, node in state.cluster.nodes.items()
        if not request.nodes or name in request.nodes
    ]
    for name in state.rest.remotes:
        if name not in state.cluster.nodes and (not request.nodes or name in request.nodes):
            away = state.rest.away.get(name)
            text = f"the resources of {name} are not known yet: {away.why if away else NOT_YET}"
            views.append(NodeView(name, True, (Constraint("reach", "", "", text),)))
    return tuple(views)


def _node_view(state: State, node: Node, request: Request, boot: float) -> NodeView:
    lack = could_ever(node, request)
    if lack is None and node.closed is not None:
        text = f"{node.name} accepts no new jobs: {node.closed}"
        if node.name in state.rest.away:
            text = f"{node.name} is unreachable: {node.closed}"
        found = Constraint("reach", "", "", text)
        return NodeView(node.name, True, (found,))
    if lack is not None:
        found = Constraint("machine", describe(request), "", f"{node.name} {lack}")
        return NodeView(node.name, False, (found,))
    if fit(node, request) is not None:
        return NodeView(node.name, True, ())
    constraints: list[Constraint] = []
    if request.exclusive:
        held = sorted(
            job.label
            for job in state.running.values()
            if job.placement is not None and job.placement.on(node.name) is not None
        )
        text = f"needs {node.name} exclusively; jobs {', '.join(held)} run there"
        constraints.append(Constraint("exclusive", "all", "", text))
    elif request.gpus is not None and request.gpus.amount:
        constraints += _gpu_constraint(state, node, request.gpus, boot)
    for type, amount in wants(request):
        devices = offered(node, request, type)
        free = max((device.left for device in devices), default=0)
        if all(device.facts.capacity == THOUSAND for device in devices):
            free = sum(device.left for device in devices)
        if free < amount:
            shown = (lambda n: f"{n} MiB") if type == MEMORY else format_amount
            text = f"needs {shown(amount)} {type}, {shown(free)} free on {node.name}"
            constraints.append(Constraint(type, shown(amount), shown(free), text))
    return NodeView(node.name, True, tuple(constraints))


def _gpu_constraint(state: State, node: Node, ask: GpuAsk, boot: float) -> list[Constraint]:
    fitting = [device for device in node.types.get(GPU, ()) if suits(device, ask)]
    free = 0
    notes: list[str] = []
    for device in fitting:
        obstacle = _obstacle(state, node, device, ask, boot)
        if obstacle is None:
            free += THOUSAND if ask.beside else device.free
        else:
            notes.append(f"GPU {device.name} {obstacle}")
    if ask.memory is not None and not notes and free >= ask.amount:
        notes.append(f"none has {ask.memory} MiB of its memory left")
    plural = "GPU" if ask.amount <= THOUSAND else "GPUs"
    needs, left = format_amount(ask.amount), format_amount(free)
    text = f"needs {needs} {plural}, {left} free on {node.name}"
    if free >= ask.amount and not notes:
        return []
    return [Constraint("gpus", needs, left, text, tuple(notes))]


def _obstacle(state: State, node: Node, device: Device, ask: GpuAsk, boot: float) -> str | None:
    """What keeps one GPU from serving, in words."""
    if device.drained is not None:
        return f"is drained ({device.drained})" if device.drained else "is drained"
    if device.stranger is not None and not ask.despite_strangers:
        return in_words(device.stranger)
    needed = min(ask.amount, THOUSAND)
    if device.free >= needed and not ask.beside:
        return None
    if ask.beside and device.free == THOUSAND - device.slivers * SLIVER:
        left = device.memory_free - device.stranger_memory
        if ask.memory is None or left >= ask.memory:
            return None
        beside = f", beside {_holders(state, node, device, boot)}" if device.slivers else ""
        return f"has {left} MiB of its memory left, not {ask.memory} MiB{beside}"
    return "is held by " + _holders(state, node, device, boot)


def _holders(state: State, node: Node, device: Device, boot: float) -> str:
    return " and ".join(
        _holder(state, job, boot)
        for job in state.running.values()
        if job.placement is not None
        and (part := job.placement.on(node.name)) is not None
        and any(take.type == GPU and take.device == device.name for take in part.takes)
    )


def _holder(state: State, job: Job, boot: float) -> str:
    limit = state.spec(job).limit
    if limit is None or job.started_boot is None:
        return f"job {job.label}"
    left = job.started_boot + limit + job.slack - boot
    return f"job {job.label} (at most {format_duration(left)} more)"
