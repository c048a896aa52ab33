"""Questions: the queue, one job, why it waits, the past, the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from stoker.core.explain import how_it_ended, why
from stoker.core.job import Job, Spec
from stoker.core.launch import log_paths
from stoker.core.lifecycle import FINISHED, JobState
from stoker.core.outlook import Span, Told
from stoker.core.policy.order import in_order, in_rows
from stoker.core.state import State
from stoker.daemon.context import CommandHandler, RequestContext, reply_only
from stoker.daemon.nodes.registry import ExecutorRegistry
from stoker.daemon.sweeps.queries import sweep_view
from stoker.daemon.views import array_rows
from stoker.daemon.views.job import estimate_view, gpu_view, iso, job_view, queue_view
from stoker.daemon.views.placement import machines
from stoker.engine import PLANNING, CommandRejected, CommandResult, Instant
from stoker.store.port import JobQuery

PAGE = 1000
MOST = 1_000_000
AT_ONCE = 250
"""Views built in one turn of the loop: a long listing must not hold anybody up."""


class JobFilter(Struct, frozen=True):
    """Which jobs a listing shows."""

    states: list[str]
    user: str
    queue: str
    door: str
    limit: int
    tail: int
    fold: bool = False
    """Sweeps stand for their trials."""
    arrays: bool = False
    """Members of an array that are pending alike, or failed alike, are one row."""


def known_states(states: list[str]) -> list[str]:
    """States by name; refuses what is none."""
    for state in states:
        if state not in JobState.__members__:
            known = ", ".join(JobState.__members__)
            raise CommandRejected(f"There is no state '{state}'; the states are {known}.", "usage")
    return states


def choose(
    desk: RequestContext, words: list[str], wanted: JobFilter, general: Callable[[], dict[str, Any]]
) -> CommandHandler:
    """The ids that a listing shows, how many there are besides, and `general` facts."""

    def decide(state: State, now: Instant) -> CommandResult:
        narrowed = bool(wanted.states or wanted.user or wanted.queue or wanted.door)
        most = MOST if narrowed else wanted.limit
        fold = wanted.fold and not words
        arrays = wanted.arrays and not words
        if arrays and not narrowed:
            rows = _current_rows(state, most, fold)
        else:
            chosen = desk.resolve(words, state) if words else _current(state, most, fold)
            if narrowed:
                chosen = [id for id in chosen if _matches(*desk.job_and_spec(id, state), wanted)]
            jobs = [state.jobs[id] for id in chosen] if arrays else []
            rows = array_rows.rows(jobs) if arrays else [[id] for id in chosen]
        total = sum(map(len, rows))
        if not (narrowed or words):
            total = state.live + len(state.unseen) - (_folded(state) if fold else 0)
        rows = rows[: wanted.limit]
        more = max(total - sum(map(len, rows)), 0)
        members = {row[0]: array_rows.summary(row, state) for row in rows if len(row) > 1}
        sweeps = [sweep_view(desk, state, state.sweeps[id], now) for id in state.boards
                  if fold and state.sweeps[id].open]  # fmt: skip
        return reply_only(
            {"ids": [row[0] for row in rows], "members": members, "more": more,
             "counts": counts(state), "now": iso(now.wall), "sweeps": sweeps, **general()}
        )  # fmt: skip

    return decide


def _matches(job: Job, spec: Spec, wanted: JobFilter) -> bool:
    return (
        (not wanted.states or job.state.value in wanted.states)
        and (not wanted.user or job.user == wanted.user)
        and (not wanted.queue or spec.queue == wanted.queue)
        and (not wanted.door or spec.door == wanted.door)
    )


def views(desk: RequestContext, ids: list[int], tail: int) -> CommandHandler:
    """Some jobs, whole, with their estimates if there is a forecast."""

    def decide(state: State, now: Instant) -> CommandResult:
        shown = []
        for id in ids:
            job, spec = desk.job_and_spec(id, state)
            view = job_view(job, spec, state, now, desk.logs, tail, desk.live)
            if uploads := _uploads(desk, job):
                view |= {"uploads": uploads, "reason_text": _upload_text(uploads)}
            view.update(_estimate(desk.foreseen(id, state, now)))
            shown.append(view)
        return reply_only(shown)

    return decide


def _estimate(told: Told | None) -> dict[str, Any]:
    """Show an estimate with its two moments by themselves, for columns of lists."""
    if told is None:
        return {}
    found = estimate_view(told)
    start, end = found["start"] or {}, found["end"] or {}
    return {
        "expected_start": start.get("likely"), "expected_end": end.get("likely"), "foreseen": found,
    }  # fmt: skip


def _uploads(desk: RequestContext, job: Job) -> list[dict[str, Any]]:
    return desk.uploads(job) if job.state is JobState.CONFIGURING else []


def _upload_text(uploads: list[dict[str, Any]]) -> str:
    return "; ".join(each["text"] for each in uploads)


def _folded(state: State) -> int:
    """How many jobs of the listing are shown as part of their sweeps."""
    sweeps = (state.sweeps[id] for id in state.boards)
    unseen = sum(state.jobs[id].params is not None for id in state.unseen)
    return sum(sweep.unfinished for sweep in sweeps) + unseen


def _current(state: State, limit: int, fold: bool = False) -> list[int]:
    """Running first, then waiting in the order they would start, then unseen failures, newest
    first.
    """
    if fold and state.sweeps:
        hidden = state.sweeps
        running = sorted(id for id, job in state.running.items() if job.params is None)
        unseen = [id for id in state.unseen if state.jobs[id].params is None]
    else:
        hidden, running, unseen = {}, sorted(state.running), list(state.unseen)
    ready = [job.id for job in in_order(state.line, state.jobs, limit, hidden)]
    waiting: list[int] = []
    if len(ready) < limit:
        for id, job in state.jobs.items():
            if hidden and job.params is not None:
                continue
            if job.state is JobState.PENDING and id not in state.line:
                waiting.append(id)
                if len(waiting) >= limit:
                    break
    failed = sorted((state.jobs[id].ended_at or 0.0, id) for id in unseen)
    return [*running, *ready, *waiting, *(id for _, id in reversed(failed))]


def _current_rows(state: State, limit: int, fold: bool) -> list[list[int]]:
    """Return the same as `_current` by rows, members of arrays together."""
    hidden = state.sweeps if fold else {}
    shown = [job for job in state.running.values() if not hidden or job.params is None]
    ready = in_rows(state.line, state.jobs, limit, hidden)
    blocked: list[Job] = []
    if state.live - len(state.running) > len(state.line):
        blocked = [
            job
            for id, job in state.jobs.items()
            if job.state is JobState.PENDING
            and id not in state.line
            and not (hidden and job.params is not None)
        ]
    failed = [state.jobs[id] for id in state.unseen]
    failed = [job for job in failed if not hidden or job.params is None]
    failed.sort(key=lambda job: (job.ended_at or 0.0, job.id), reverse=True)
    first = [[job.id] for job in sorted(shown, key=lambda job: job.id)]
    return [*first, *ready, *array_rows.rows(blocked), *array_rows.rows(failed)]


def counts(state: State) -> dict[str, int]:
    """How many jobs stand where."""
    found: dict[str, int] = {}
    for job in state.running.values():
        found[job.state.value] = found.get(job.state.value, 0) + 1
    pending = state.live - len(state.running)
    if pending:
        found["PENDING"] = pending
    for id in state.unseen:
        name = state.jobs[id].state.value
        found[name] = found.get(name, 0) + 1
    return found


def explain(desk: RequestContext, word: str) -> CommandHandler:
    """Why a job is pending or in its current state."""

    def decide(state: State, now: Instant) -> CommandResult:
        id = desk.resolve_one(word, state)
        job, _ = desk.job_and_spec(id, state)
        found = {"id": job.id, "label": job.label, "state": job.state.value, "name": job.name}
        if id not in state.jobs:
            text = how_it_ended(job)
            return reply_only({**found, "reason": None, "text": text, "nodes": [], "ahead": []})
        failing = desk.faults.sentence(PLANNING) if desk.faults is not None else None
        if failing is not None and job.state is JobState.PENDING:
            # The explanation asks the same code that fails.
            text = f"no job is started because of an internal error: {failing}"
            unknown: dict[str, Any] = {"nodes": [], "ahead": []}
            return reply_only({**found, "reason": "PlanningFailed", "text": text, **unknown})

        def ends(other: Job) -> Span | None:
            told = desk.foreseen(other.id, state, now)
            return told.end if told is not None else None

        answer = why(state, job, now.wall, now.boot, ends)
        return reply_only(
            {
                **found,
                "reason": answer.reason,
                "text": _upload_text(_uploads(desk, job)) or answer.text,
                "position": answer.position,
                "ahead": list(answer.ahead),
                "coming": list(answer.coming),
                "standing": to_builtins(answer.standing),
                "before": to_builtins(answer.before),
                "unblocks": list(answer.unblocks),
                "room": list(answer.room),
                "expected_start": None,
                "expected_end": None,
                **_estimate(desk.foreseen(id, state, now)),
                "nodes": [
                    {
                        "node": view.node,
                        "fits_empty": view.fits_empty,
                        "constraints": [
                            {
                                "name": c.name,
                                "needs": c.needs,
                                "free": c.free,
                                "text": c.text,
                                "details": list(c.details),
                            }
                            for c in view.constraints
                        ],
                    }
                    for view in answer.nodes
                ],
            }
        )

    return decide


class LogFiles(Struct, frozen=True):
    """Where the output of one attempt is."""

    job: int
    attempt: int
    out: str
    err: str | None


def log_of(desk: RequestContext, word: str, attempt: int | None, part: int) -> CommandHandler:
    """Return the files of the first job that a selector means, of its last attempt unless said."""

    def decide(state: State, now: Instant) -> CommandResult:
        job, spec = desk.job_and_spec(desk.resolve_one(word, state), state)
        number = _last_begun(job) if attempt is None else attempt
        node = _node_of(job, part) or desk.node
        out, err = log_paths(replace(job, attempt=number), spec, node, desk.logs, part)
        return reply_only(LogFiles(job.id, number, out, err))

    return decide


def _node_of(job: Job, part: int) -> str | None:
    """Return where a part of a job runs, or ran."""
    names = machines(job)
    if part and part >= len(names):
        has = f"{len(names)} parts, counted from 0" if len(names) > 1 else "one part only"
        raise CommandRejected(f"Job {job.label} has {has}.", "not_found")
    return names[part] if names else None


def _last_begun(job: Job) -> int:
    """Return the attempt whose log is worth reading: the last that began, unless none has."""
    waits = job.state is JobState.PENDING and bool(job.past)
    return job.past[-1].attempt if waits else job.attempt


def attempt_over(id: int, attempt: int, fleet: ExecutorRegistry) -> CommandHandler:
    """Whether an attempt can write no more; if it can, let its output be copied here quickly."""

    def decide(state: State, now: Instant) -> CommandResult:
        job = state.jobs.get(id)
        over = job is None or job.finished or job.attempt > attempt
        if not over:
            fleet.follow(id)
        return reply_only(over)

    return decide


def metrics_of(desk: RequestContext, word: str) -> CommandHandler:
    """Return id, label and attempt of the one job that a selector means."""

    def decide(state: State, now: Instant) -> CommandResult:
        job, _ = desk.job_and_spec(desk.resolve_one(word, state), state)
        count = len(desk.resolve([word], state))
        if count > 1:
            text = f"'{word}' selects {count} jobs; name one of them, such as {job.label}."
            raise CommandRejected(text, "usage")
        return reply_only((job.id, job.label, job.attempt))

    return decide


def history(desk: RequestContext, words: list[str], wanted: JobQuery) -> CommandHandler:
    """Finished jobs, oldest first."""

    def decide(state: State, now: Instant) -> CommandResult:
        if words:
            ids = desk.resolve(words, state)
            rows = [desk.job_and_spec(id, state) for id in ids[: wanted.limit]]
            return reply_only(
                {"jobs": [job_view(j, s, state, now, desk.logs) for j, s in rows], "more": 0}
            )
        if wanted.door in state.rest.cleared:
            wanted.since = max(wanted.since or 0.0, state.rest.cleared[wanted.door])
        shown = desk.store.past(wanted)
        more = desk.store.count_past(wanted) - len(shown)
        return reply_only(
            {
                "jobs": [job_view(each.job, each.spec, None, now, desk.logs) for each in shown],
                "more": more,
            }
        )

    return decide


def valid_states(states: list[str]) -> list[str] | None:
    """Finished states by name, or none given."""
    known = {state.value for state in FINISHED}
    for state in states:
        if state not in known:
            raise CommandRejected(
                f"'{state}' is not a finished state; one of {', '.join(sorted(known))}.", "usage"
            )
    return states or None


Figures = Callable[[str], dict[str, dict[str, Any]]]
"""The last figures of a machine's GPUs, by UUID."""


def gpus(figures: Figures, notes: Callable[[], list[str]]) -> CommandHandler:
    """Every GPU with its use."""

    def decide(state: State, now: Instant) -> CommandResult:
        shown = []
        for node in state.cluster.nodes.values():
            use = figures(node.name)
            for device in node.types.get("gpu", ()):
                view = gpu_view(node, device, state, use.get(device.facts.uuid or "", {}))
                for each in view["jobs"]:
                    started = state.jobs[each["id"]].started_boot
                    each["elapsed"] = round(now.boot - started, 3) if started is not None else None
                shown.append(view)
        machines = list(dict.fromkeys([*state.cluster.nodes, *state.rest.remotes]))
        note = "; ".join(notes()) or None
        return reply_only({"gpus": shown, "machines": machines, "note": note})

    return decide


def queues(desk: RequestContext) -> CommandHandler:
    """The named queues."""

    def decide(state: State, now: Instant) -> CommandResult:
        shown = [queue_view(queue, state) for queue in state.rest.queues.values()]
        return reply_only({"queues": shown})

    return decide
