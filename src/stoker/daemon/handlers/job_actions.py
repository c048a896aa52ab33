"""What owners do to their jobs: one function per verb."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from msgspec.json import encode
from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.cluster import Node
from stoker.core.dependency import Dependency
from stoker.core.explain import silent_since
from stoker.core.job import RANK_STEP, Job, Spec
from stoker.core.lifecycle import HOLDING, UNHAPPY, JobState
from stoker.core.options import parse_signal, read
from stoker.core.selectors import sweep_meant
from stoker.core.state import State
from stoker.core.units import BadValue
from stoker.daemon.context import CommandHandler, RequestContext
from stoker.daemon.http.codec import moment
from stoker.daemon.submission.checks import check_satisfiable, check_upload_paths
from stoker.daemon.submission.spec import content_hash
from stoker.daemon.submission.submit import option_context
from stoker.daemon.submission.training import check_directories, check_epochs
from stoker.daemon.views.job import elapsed
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema import requests as r
from stoker.store.port import JobQuery

Step = Callable[[State, Job, Instant], list[e.Event] | str]
"""The facts for one job, or the sentence why not."""
Whole = Callable[[int, float], e.Event]
"""What it means for a sweep if all of it is meant."""


def _each(
    desk: RequestContext,
    words: list[str],
    step: Step,
    recall: bool = False,
    whole: Whole | None = None,
) -> CommandHandler:
    """Do something to each selected job; those it makes no sense for are said, not failed."""

    def decide(state: State, now: Instant) -> CommandResult:
        if not words:
            raise CommandRejected(
                "No job was named. Use an id, a range, a name, last or all.", "usage"
            )
        meant = _sweeps(words, state) if whole is not None else []
        decision = _act(desk, desk.resolve(words, state), step, state, now, recall, meant)
        if whole is not None:
            decision.events += [whole(sweep, now.wall) for sweep in meant]
        return decision

    return decide


def _sweeps(words: list[str], state: State) -> list[int]:
    """The sweeps that are meant as a whole, also with the trials they do not have yet."""
    if "all" in words:
        return [sweep.id for sweep in state.sweeps.values() if sweep.open]
    parts = [part.strip() for word in words for part in word.split(",")]
    meant = (sweep_meant(part, state) for part in [*words, *parts])
    return list(dict.fromkeys(id for id in meant if id is not None))


def _act(
    desk: RequestContext, ids: list[int], step: Step, state: State, now: Instant, recall: bool,
    sweeps: Sequence[int] = (),
) -> CommandResult:  # fmt: skip
    facts: list[e.Event] = []
    done: list[int] = []
    skipped: list[dict[str, Any]] = []
    boards: dict[int | None, None] = {}
    """Sweeps whose trials come back to memory."""
    for id in ids:
        job, spec = desk.job_and_spec(id, state)
        found = step(state, job, now)
        if isinstance(found, str):
            skipped.append({"id": id, "label": job.label, "why": found})
            continue
        if id not in state.jobs:
            if not recall:
                skipped.append({"id": id, "label": job.label, "why": "it has ended"})
                continue
            facts.append(e.JobRecalled(at=now.wall, job=job, spec=spec))
        boards |= {job.array: None} if job.params is not None and found else {}
        facts += found
        done.append(id)
    facts = [*desk.restore_trials(list(boards), state, now.wall), *facts]

    going = [id for id in sweeps if state.sweeps[id].open]

    def reply(after: State) -> dict[str, Any]:
        jobs = [after.jobs[id] for id in done]
        told = {"done": [_shown(after, job) for job in jobs], "skipped": skipped}
        return told | {"sweeps": going} if sweeps else told

    return CommandResult(events=facts, reply=reply)


def _shown(state: State, job: Job) -> dict[str, Any]:
    """A job to which something was done; and who does not answer and so does not know of it."""
    shown = {"id": job.id, "label": job.label, "state": job.state.value}
    silent = list(silent_since(state, job))
    return shown | {"unreachable": silent} if silent else shown


def _spared(state: State, job: Job, body: r.End) -> str | None:
    """Why a job that was selected is not meant, or None when it is."""
    spec = state.specs.get(job.spec)
    if body.door is not None and (spec is None or spec.door != body.door):
        return f"it was not submitted with {body.door}"
    if body.only == "waiting" and job.holding:
        return "it is running"
    if body.only == "running" and job.state is JobState.PENDING:
        return "it is not running"
    return None


def cancel(desk: RequestContext, body: r.Cancel) -> CommandHandler:
    """Cancel jobs."""

    def step(state: State, job: Job, now: Instant) -> list[e.Event] | str:
        if not job.finished and (why_not := _spared(state, job, body)):
            return why_not
        if job.finished:
            return f"it has already ended ({job.cause or job.state.value.lower()})"
        return [e.JobCancelled(at=now.wall, job=job.id)]

    def whole(sweep: int, at: float) -> e.Event:
        return e.SweepChanged(at=at, sweep=sweep, ended=True)

    narrowed = body.only is not None or body.door is not None
    return _each(desk, body.select, step, whole=None if narrowed else whole)


def kill(desk: RequestContext, body: r.Kill) -> CommandHandler:
    """Send a signal to running jobs; without one, end them at once."""
    try:
        number = parse_signal(body.signal) if body.signal else None
    except BadValue as error:
        raise CommandRejected(str(error), "usage") from None

    def step(state: State, job: Job, now: Instant) -> list[e.Event] | str:
        if not job.finished and (why_not := _spared(state, job, body)):
            return why_not
        if number is None:
            if job.finished:
                return "it has already ended"
            return [e.JobCancelled(at=now.wall, job=job.id, at_once=True)]
        if job.state not in HOLDING:
            return "it is not running"
        return [e.JobSignalled(at=now.wall, job=job.id, signal=number)]

    return _each(desk, body.select, step)


def pause(desk: RequestContext, body: r.Pause) -> CommandHandler:
    """Suspend running jobs."""

    def step(state: State, job: Job, now: Instant) -> list[e.Event] | str:
        if job.state is not JobState.RUNNING:
            return f"it is not running ({job.state.value.lower()}); to keep it from starting: hold"
        return [e.JobPaused(at=now.wall, job=job.id, boot=now.boot)]

    return _each(desk, body.select, step)


def resume(desk: RequestContext, body: r.Resume) -> CommandHandler:
    """Continue suspended jobs."""

    def step(state: State, job: Job, now: Instant) -> list[e.Event] | str:
        if job.state is not JobState.SUSPENDED:
            return f"it is not paused ({job.state.value.lower()})"
        return [e.JobResumed(at=now.wall, job=job.id, boot=now.boot)]

    return _each(desk, body.select, step)


def hold(desk: RequestContext, body: r.Hold) -> CommandHandler:
    """Hold pending jobs."""

    def step(state: State, job: Job, now: Instant) -> list[e.Event] | str:
        if job.state is not JobState.PENDING:
            return f"it is not pending ({job.state.value.lower()})"
        return [] if job.held else [e.JobHeld(at=now.wall, job=job.id)]

    def whole(sweep: int, at: float) -> e.Event:
        return e.SweepChanged(at=at, sweep=sweep, held=True)

    return _each(desk, body.select, step, whole=whole)


def release(desk: RequestContext, body: r.Release) -> CommandHandler:
    """Release held jobs."""

    def step(state: State, job: Job, now: Instant) -> list[e.Event] | str:
        if not job.held or job.state is not JobState.PENDING:
            return "it is not held"
        return [e.JobReleased(at=now.wall, job=job.id)]

    def whole(sweep: int, at: float) -> e.Event:
        return e.SweepChanged(at=at, sweep=sweep, held=False, note="")

    return _each(desk, body.select, step, whole=whole)


def retry(desk: RequestContext, body: r.Retry) -> CommandHandler:
    """Requeue finished jobs."""

    def step(state: State, job: Job, now: Instant) -> list[e.Event] | str:
        if not job.finished:
            return f"it has not ended ({job.state.value.lower()})"
        if body.failed and job.state is JobState.COMPLETED:
            return "it succeeded"
        if job.array in whole and job.state is JobState.COMPLETED:
            return "it succeeded; to requeue it, name it"
        return [e.JobRetried(at=now.wall, job=job.id, same_devices=body.same_gpus)]

    whole: list[int] = []
    """Of these sweeps, only what has not succeeded is meant."""

    def decide(state: State, now: Instant) -> CommandResult:
        if body.select:
            ids = desk.resolve(body.select, state)
            whole[:] = _sweeps(body.select, state)
        elif body.failed:
            ids = _failed(desk, state, body)
        else:
            raise CommandRejected(
                "No job was named. Use an id, a range, a name, last or --failed.", "usage"
            )
        decision = _act(desk, ids, step, state, now, recall=True)
        return CommandResult(reply=lambda _: {"count": len(ids)}) if body.dry_run else decision

    return decide


def _failed(desk: RequestContext, state: State, body: r.Retry) -> list[int]:
    """The failures that were not dismissed, or all of a period; interactive jobs never count."""
    if not (body.all or body.since):
        return sorted(id for id in state.unseen if not state.spec(state.jobs[id]).pty)
    since = moment(body.since, "since")
    states = [each.value for each in UNHAPPY]
    rows = desk.store.past(JobQuery(states=states, since=since, limit=100_000))
    found = {row.job.id: (row.job, row.spec) for row in rows}
    found |= {id: (job, state.spec(job)) for id, job in state.jobs.items()}
    return sorted(
        id
        for id, (job, spec) in found.items()
        if job.state in UNHAPPY and not spec.pty and (job.ended_at or 0.0) >= (since or 0.0)
    )


def seen(desk: RequestContext, body: r.Seen) -> CommandHandler:
    """Dismiss failures; without a selector, all of them."""

    def decide(state: State, now: Instant) -> CommandResult:
        ids = desk.resolve(body.select, state) if body.select else list(state.unseen)
        fresh = tuple(id for id in ids if id in state.unseen)
        shown = [
            {"id": id, "label": state.jobs[id].label, "state": state.jobs[id].state.value}
            for id in fresh
        ]
        facts: list[e.Event] = [e.JobsSeen(at=now.wall, jobs=fresh)] if fresh else []
        return CommandResult(events=facts, reply=lambda _: {"done": shown, "skipped": []})

    return decide


def edit(desk: RequestContext, body: r.Edit) -> CommandHandler:
    """Change what pending jobs request, or the time limit and priority of running ones."""
    fixed = {"array", "export", "env", "pty", "hold"} & set(body.options)
    if fixed:
        raise CommandRejected(f"--{fixed.pop()} cannot be changed after submission.", "usage")
    overdue: list[str] = []
    """Running jobs that have used more than the new time limit."""

    def step(state: State, job: Job, now: Instant) -> list[e.Event] | str:
        if job.finished:
            return f"it has ended ({job.state.value.lower()})"
        if job.state is JobState.COMPLETING:
            return "it is being ended"
        spec = state.spec(job)
        if job.holding:
            return running(state, job, spec, now)
        wanted = read(body.options, option_context(desk, state, now), before=spec)
        fields = {k: v for k, v in wanted.fields.items() if v is not None or k in _CLEARABLE}
        name = fields.pop("name", None) or job.name
        if _leads_to(state, wanted.fields.get("dependency"), job.id):
            raise BadValue("A job cannot depend on itself or on a job that depends on it.")
        changed = replace(spec, request=wanted.request, **fields)
        check_satisfiable(state, state.effective(job, changed))
        check_upload_paths(changed.directory, fields.get("carry"))
        check_directories(fields)
        check_epochs(job, fields, spec.training)
        hash, facts = _recorded(state, changed, now)
        if changed.dependency is not None:
            facts += desk.restore_jobs(sorted(changed.dependency.jobs()), state, now.wall)
        begins = {"begin", "delay"} & set(body.options)
        facts.append(
            e.JobEdited(
                at=now.wall, job=job.id, spec=hash, name=name,
                priority=wanted.priority if wanted.priority is not None else job.priority,
                begin_at=wanted.begin_at if begins else job.begin_at,
            )
        )  # fmt: skip
        return facts

    def running(state: State, job: Job, spec: Spec, now: Instant) -> list[e.Event] | str:
        late = sorted(set(body.options) - _ADJUSTABLE)
        if late:
            return (
                f"it is running and --{late[0].replace('_', '-')} counts only when a job starts; "
                "of a running job, --time and --priority can be changed"
            )
        wanted = read(body.options, option_context(desk, state, now), before=spec)
        limit = wanted.fields.get("limit", spec.limit)
        if "limit" in wanted.fields and limit is not None and (elapsed(job, now) or 0) >= limit:
            overdue.append(job.label)
        hash, facts = _recorded(state, replace(spec, limit=limit), now)
        priority = job.priority if wanted.priority is None else wanted.priority
        edited = e.JobEdited(at=now.wall, job=job.id, spec=hash, name=job.name, priority=priority)
        return [*facts, edited]

    def whole(sweep: int, at: float) -> e.Event:
        priority = body.options.get("priority")
        given = isinstance(priority, int | str) and str(priority).lstrip("-").isdecimal()
        return e.SweepChanged(at=at, sweep=sweep, priority=int(str(priority)) if given else None)

    def decide(state: State, now: Instant) -> CommandResult:
        if not body.options:
            raise CommandRejected(
                "Nothing to change. Name what to change, such as --priority 5.", "usage"
            )
        try:
            decision = _each(desk, body.select, step, whole=whole)(state, now)
        except BadValue as error:
            raise CommandRejected(str(error), "usage") from None
        return CommandResult(reply=lambda _: {"overdue": overdue}) if body.dry_run else decision

    return decide


_ADJUSTABLE = {"time", "priority", "nice"}
"""What can be changed while a job runs."""


def _recorded(state: State, spec: Spec, now: Instant) -> tuple[str, list[e.Event]]:
    """The hash of a spec, and the event that records it unless it is known."""
    hash = content_hash(encode(spec))
    known = hash in state.specs
    return hash, [] if known else [e.SpecRecorded(at=now.wall, hash=hash, spec=spec)]


def _leads_to(state: State, dependency: Dependency | None, id: int) -> bool:
    """Whether waiting for these jobs would end up at this one."""
    todo = list(dependency.jobs()) if dependency else []
    met: set[int] = set()
    while todo:
        other = todo.pop()
        if other == id:
            return True
        job = state.jobs.get(other)
        if other in met or job is None or job.finished:
            continue
        met.add(other)
        further = state.spec(job).dependency
        todo += further.jobs() if further else ()
    return False


_CLEARABLE = {"limit", "dependency", "comment", "group", "on_end", "output", "error"}


def move(desk: RequestContext, body: r.Move) -> CommandHandler:
    """Change the queue position: to the front, the back, or next to another job."""

    def decide(state: State, now: Instant) -> CommandResult:
        ids = desk.resolve(body.select, state) if body.select else []
        if not ids:
            raise CommandRejected("No job was named. Use an id, a range or a name.", "usage")
        waiting = [state.jobs[id] for id in ids if _waits(state, id)]
        skipped = [
            {"id": id, "label": desk.job_and_spec(id, state)[0].label, "why": "it is not pending"}
            for id in ids
            if not _waits(state, id)
        ]
        facts = _moves(desk, body, waiting, state, now) if waiting else []
        shown = [{"id": j.id, "label": j.label, "state": j.state.value} for j in waiting]
        return CommandResult(events=facts, reply=lambda _: {"done": shown, "skipped": skipped})

    return decide


def _waits(state: State, id: int) -> bool:
    job = state.jobs.get(id)
    return job is not None and job.state is JobState.PENDING


def _moves(
    desk: RequestContext, body: r.Move, jobs: list[Job], state: State, now: Instant
) -> list[e.Event]:
    moved = {job.id for job in jobs}
    pending = sorted(
        (
            job
            for job in state.jobs.values()
            if job.state is JobState.PENDING and job.id not in moved
        ),
        key=lambda job: (-job.priority, job.order),
    )
    if body.where in ("before", "after"):
        others = desk.resolve([body.other], state) if body.other else []
        if len(others) != 1 or not _waits(state, others[0]) or others[0] in moved:
            raise CommandRejected(f"'{body.other}' is not another pending job.", "usage")
        at = next(n for n, job in enumerate(pending) if job.id == others[0])
        priority = pending[at].priority
        at += body.where == "after"
    else:
        at = 0 if body.where == "first" else len(pending)
        edge = pending[0 if body.where == "first" else -1] if pending else jobs[0]
        pick = max if body.where == "first" else min
        priority = pick(edge.priority, *(job.priority for job in jobs))
    same = [job for job in pending if job.priority == priority]
    before = pending[at - 1] if at and pending[at - 1] in same else None
    after = pending[at] if at < len(pending) and pending[at] in same else None
    low = before.order if before else (after.order if after else 0) - RANK_STEP * (len(jobs) + 1)
    high = after.order if after else low + RANK_STEP * (len(jobs) + 1)
    gap = (high - low) // (len(jobs) + 1)
    if gap < 1:
        raise CommandRejected(
            "There is no position left between those two jobs; use --first.", "failed"
        )
    return [
        e.JobMoved(at=now.wall, job=job.id, priority=priority, rank=low + gap * n)
        for n, job in enumerate(jobs, 1)
    ]


def drain(desk: RequestContext, body: r.Drain | r.Undrain) -> CommandHandler:
    """Drain devices, or open them again."""
    closing = isinstance(body, r.Drain)

    def decide(state: State, now: Instant) -> CommandResult:
        if not body.devices:
            raise CommandRejected("No device was named. Use a GPU's id, or all.", "usage")
        named: dict[tuple[str, str, str], None] = {}
        for word in body.devices:
            for part in filter(None, word.split(",")):
                named.update(dict.fromkeys(_devices(state, part.strip())))
        devices = tuple(named)
        running = [
            job
            for job in (state.running.values() if closing else ())
            if job.placement is not None
            and any(
                (part.node, take.type, take.device) in named
                for part in job.placement.parts
                for take in part.takes
            )
        ]
        fact: e.Event
        if isinstance(body, r.Drain):
            fact = e.DevicesDrained(at=now.wall, devices=devices, reason=body.reason)
        else:
            fact = e.DevicesUndrained(at=now.wall, devices=devices)
        shown = [f"{node}/{type}:{name}" for node, type, name in devices]
        whole = [node.name for node in state.cluster.nodes.values() if _all_of(node, named)]
        reply = {
            "devices": shown, "machines": whole, "running": [job.id for job in running],
            "labels": [job.label for job in running],
        }  # fmt: skip
        return CommandResult(events=[fact], reply=lambda _: reply)

    return decide


def _all_of(node: Node, named: Container[tuple[str, str, str]]) -> bool:
    """Whether these are all devices that a machine has."""
    there = [(node.name, device.type, device.name) for device in node.devices() if not device.gone]
    return len(there) > 1 and all(device in named for device in there)


def _devices(state: State, word: str) -> list[tuple[str, str, str]]:
    """The devices that a person means; a machine's name means all of it, `a:0` is `a/0`."""
    nodes = state.cluster.nodes
    head, colon, tail = word.partition(":")
    found = state.cluster.find(word)
    if not found and word in nodes:
        found = state.cluster.find(f"{word}/all")
    if not found and colon and head in nodes:
        found = state.cluster.find(f"{head}/{tail}")
    if not found:
        raise CommandRejected(f"There is no device '{word}'; see stoker gpus.", "not_found")
    several = list(dict.fromkeys(node.name for node, _ in found))
    if len(several) > 1 and "/" not in word and word.rpartition(":")[2] != "all":
        choices = " or ".join(f"{name}/{word}" for name in several[:4])
        raise CommandRejected(f"'{word}' is on {len(several)} nodes; write {choices}.", "usage")
    return [(node.name, device.type, device.name) for node, device in found]
