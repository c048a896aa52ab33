"""POST /jobs: check a submission, give it ids, and record it as events."""

from __future__ import annotations

import os

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.events import Event, JobsSubmitted, NodeJoined
from stoker.core.explain.forecast import MAX_PENDING_JOBS
from stoker.core.model.job import Job
from stoker.core.model.resources import GPU, DeviceFacts, NodeFacts, ResourceRequest
from stoker.core.model.spec import Spec
from stoker.core.model.units import BadValue
from stoker.core.options.submit import ParseContext, ParsedOptions, parse_options
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext, content_hash, record_spec, reply_only
from stoker.daemon.selectors import selected_sweep
from stoker.daemon.submission.checks import (
    check_command,
    check_job_limits,
    check_pending_limits,
    check_program,
    check_queue_limits,
    check_satisfiable,
    check_targets,
    check_user_options,
    unreachable_warnings,
    whole_gpus_if_sizes_unknown,
)
from stoker.daemon.submission.environment import build_environment, uses_placeholders
from stoker.daemon.submission.spec import build_spec
from stoker.daemon.submission.training import (
    NO_GPU,
    keep_user_settings,
    limit_to_queue,
    with_default_limit,
    without_gpus,
)
from stoker.daemon.views.format import iso
from stoker.engine import CommandResult, Instant
from stoker.schema import requests as r
from stoker.schema.job import SubmitReply


def submit_jobs(
    context: RequestContext, body: r.Submit, state: State, now: Instant, durable: bool = True
) -> CommandResult:
    """Accept all jobs of a submission or none.

    Without `durable`, the reply does not wait for the journal: `feed` submits its lines so.
    """
    check_command(body.what)
    body = replace(body, key=context.own_key(body.key))
    submitted = context.store.find_key(body.key) if body.key else None
    if submitted is not None:
        first, count = submitted
        array = context.job_and_spec(first, state)[0].array is not None
        return reply_only(_receipt(first, count, array, []))
    result = _build_result(context, body, state, now)
    result.durable = durable
    return result


def resubmit_line(like: JobsSubmitted, line: str, state: State, now: Instant) -> CommandResult:
    """Submit another line with the options of an earlier one, without checking them again."""
    first = state.record.next_id
    event = replace(like, at=now.wall, first=first, lines=(line,))
    return CommandResult(
        events=[event], durable=False, reply=lambda _: _receipt(first, 1, False, [])
    )


class PreparedSubmission(Struct):
    """A submission that is parsed and checked, but not recorded."""

    spec: Spec
    hash: str
    wanted: ParsedOptions
    priority: int
    events: list[Event]
    blobs: dict[str, bytes]
    secrets: dict[str, bytes]


def prepare(
    context: RequestContext, body: r.Submit, state: State, now: Instant
) -> PreparedSubmission:
    """Parse and check a submission; raise BadValue or CommandRejected if it is not acceptable."""
    if context.is_system and body.own_environment:
        raise BadValue("The daemon of all users has no environment for jobs: send your own.")
    wanted = parse_options(body.options, option_context(context, state, now))
    given = {**os.environ, **body.environment} if body.own_environment else body.environment
    environment = build_environment(given, wanted, context.is_system)
    keep_user_settings(wanted, environment)
    check_user_options(context, wanted.fields)
    wanted.request, warnings = whole_gpus_if_sizes_unknown(wanted.request, state)
    wanted.warnings += warnings
    gpus = wanted.request.gpus
    names_gpus = gpus is not None and bool(
        gpus.fixed_share or (gpus.required and wanted.fields.get("feed"))
    )
    if wanted.fields.get("pty") or names_gpus:
        # The terminal, and GPUs that are named one by one, belong to the local node.
        wanted.request = replace(wanted.request, nodes=(context.node,))
    if not wanted.fields.get("verbatim"):
        wanted.fields["fill"] = uses_placeholders(environment, wanted.request) or None
    env_hash = content_hash(environment)
    blobs: dict[str, bytes] = {}
    spec = build_spec(context, body, wanted, env_hash, blobs)
    argv = tuple(body.what.argv or ())
    if not context.is_system:
        wanted.warnings += check_program(argv, spec, environment, state, context.container_engine)
    if wanted.needs_no_gpu and (without := without_gpus(state, spec)) is not None:
        wanted.request, spec = without, replace(spec, request=without)
        wanted.warnings.append(NO_GPU)
    declared = _declare_named_gpus(context, wanted.request, state, now)
    if not declared:
        effective = state.effective_request(Job(0, "", "", "", 0.0), spec)
        check_satisfiable(state, effective)
        if state.record.unreachable:
            wanted.warnings += unreachable_warnings(state, effective)
    check_queue_limits(state, spec)
    wanted.warnings += check_targets(context, spec)
    limits = context.limits_of(spec, state)
    spec, notes = with_default_limit(limit_to_queue(state, spec, limits), limits)
    wanted.warnings += notes
    check_job_limits(spec, limits)
    hash, recorded = record_spec(state, spec, now.wall)
    queue = state.record.queues.get(spec.queue)
    if spec.queue != "default" and queue is None:
        wanted.warnings.append(f"queue '{spec.queue}' is not defined, so it has no limits")
    usual = queue.priority if queue else 0
    context.check_priority(wanted.priority, usual)
    priority = wanted.priority if wanted.priority is not None else usual
    depends_on = sorted(spec.dependency.jobs()) if spec.dependency is not None else []
    events = [*declared, *context.restore_jobs(depends_on, state, now.wall), *recorded]
    events += context.group_events(spec.uid, state, now.wall)
    return PreparedSubmission(spec, hash, wanted, priority, events, blobs, {env_hash: environment})


def _build_result(
    context: RequestContext, body: r.Submit, state: State, now: Instant
) -> CommandResult:
    prepared = prepare(context, body, state, now)
    wanted = prepared.wanted
    count, indexes, lines = 1, wanted.indexes, None
    if body.what.lines is not None:
        if indexes is not None:
            raise BadValue("--array and --each-line cannot be combined.")
        count, lines = len(body.what.lines), tuple(body.what.lines)
    elif body.what.line is not None:
        lines = (body.what.line,)
    if indexes is not None:
        count = len(indexes)
        if lines is not None:
            lines = lines * count
    first = state.record.next_id
    check_pending_limits(state, context.limits_of(prepared.spec, state), count)
    if body.dry_run:
        return CommandResult(
            reply=lambda after: _dry_run_reply(
                context, after, prepared.spec, now, wanted.warnings, count
            )
        )
    events = [
        *prepared.events,
        JobsSubmitted(
            at=now.wall, first=first, count=count, spec=prepared.hash, key=body.key, lines=lines,
            argv=tuple(body.what.argv) if body.what.argv is not None else None,
            indexes=indexes, priority=prepared.priority, held=wanted.held,
            begin_at=wanted.begin_at,
        ),
    ]  # fmt: skip
    wanted.warnings += context.take_alerts()
    return CommandResult(
        events=events,
        blobs=prepared.blobs,
        secrets=prepared.secrets,
        key=(body.key, first, count) if body.key else None,
        reply=lambda _: _receipt(first, count, indexes is not None, wanted.warnings),
    )


def _declare_named_gpus(
    context: RequestContext, request: ResourceRequest, state: State, now: Instant
) -> list[Event]:
    """Return the event that adds unknown GPUs which the user named, with a share, to this node."""
    gpus = request.gpus
    if gpus is None or gpus.fixed_share is None or not gpus.ignore_foreign_use:
        return []
    facts = state.record.nodes[context.node]
    devices = state.cluster.nodes[context.node].types.get(GPU, [])
    missing = [
        DeviceFacts(name, index=int(name) if name.isdecimal() else None)
        for name in gpus.required
        if not any(device.answers_to(name) for device in devices if not device.removed)
    ]
    if not missing:
        return []
    types = {**facts.types, GPU: (*facts.types.get(GPU, ()), *missing)}
    return [NodeJoined(at=now.wall, facts=NodeFacts(facts.name, types))]


def option_context(context: RequestContext, state: State, now: Instant) -> ParseContext:
    """Return the lookups of other jobs that parsing options needs."""

    def singleton(name: str) -> list[int]:
        return [
            id
            for id, job in state.jobs.items()
            if not job.finished and job.name == name and context.is_own(state.spec(job))
        ]

    def resolve(selector: str) -> list[int]:
        # A sweep as a whole includes the trials that are not submitted yet.
        sweep = selected_sweep(selector, state, context.uid)
        return [sweep] if sweep is not None else context.resolve([selector], state)

    return ParseContext(now.wall, resolve, singleton)


def _receipt(first: int, count: int, array: bool, warnings: list[str]) -> SubmitReply:
    last = first + count - 1
    label = str(first) if count == 1 or array else f"{first}-{last}"
    return SubmitReply(first=first, last=last, count=count, label=label, warnings=warnings)


def _dry_run_reply(
    context: RequestContext, state: State, spec: Spec, now: Instant, warnings: list[str], count: int
) -> SubmitReply:
    """Return when and where the job would start, without recording anything."""
    from stoker.core.placement.placer import find_placement

    start, placement = None, None
    if spec.dependency is None and not len(state.pending):
        placement = find_placement(
            state.cluster, state.effective_request(Job(0, "", "", "", 0.0), spec)
        )
    if placement is not None:
        start = iso(now.wall)
    elif 0 < len(state.pending) <= MAX_PENDING_JOBS:
        # The job would be behind all pending jobs; if one has no estimate, neither has this one.
        forecasts = (context.forecast(id, state, now) for id in state.pending.class_of)
        starts = [
            forecast.start.likely if forecast and forecast.start else None for forecast in forecasts
        ]
        latest = max((start for start in starts if start is not None), default=None)
        start = iso(latest) if None not in starts else None
    return SubmitReply(
        first=None, last=None, count=count, label=None, warnings=warnings, expected_start=start,
        nodes=[part.node for part in placement.parts] if placement is not None else [],
    )  # fmt: skip
