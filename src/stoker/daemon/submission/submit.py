"""Submissions: from a request's words to a spec, ids and facts."""

from __future__ import annotations

import os
from _blake2 import blake2b
from typing import Any

from msgspec import Struct
from msgspec.json import encode
from msgspec.structs import replace

from stoker.core.changes.remotes import NOT_YET
from stoker.core.cluster import DeviceFacts, NodeFacts
from stoker.core.events import Event, JobsSubmitted, NodeJoined, SpecRecorded
from stoker.core.job import Carry, Job, Spec
from stoker.core.launch import BROUGHT
from stoker.core.lifecycle import JobState
from stoker.core.options import Context, Wanted, read
from stoker.core.outlook import MOST
from stoker.core.policy.fit import could_ever
from stoker.core.request import GPU, Request, describe
from stoker.core.selectors import sweep_meant
from stoker.core.state import State
from stoker.core.units import BadValue, format_amount
from stoker.daemon.context import CommandHandler, RequestContext
from stoker.daemon.submission.checks import check_program, whole_where_size_is_unknown
from stoker.daemon.submission.training import (
    NO_GPU,
    check_directories,
    prefer_own,
    within_queue,
    without_gpus,
)
from stoker.daemon.views.job import iso
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema import requests as r

LEAKS = ("TERM", "COLUMNS", "LINES", "TERMCAP", "_", "OLDPWD", "SHLVL")
"""Variables of the terminal, not of the user."""
LONGEST_WORD = (128 << 10) - 1
"""What the kernel lets one word of a command have; a shell line is one."""
BASIC = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG")


def digest(data: bytes) -> str:
    """A content hash."""
    return blake2b(data, digest_size=16).hexdigest()


def submit(desk: RequestContext, body: r.Submit, durable: bool = True) -> CommandHandler:
    """Accept new jobs, all or none. Lines of a feed are answered to nobody: not `durable`."""
    what = body.what
    kinds = [what.line, what.argv, what.script, what.lines]
    if sum(kind is not None for kind in kinds) != 1:
        raise CommandRejected(
            "A submission must contain exactly one of line, argv, script and lines.", "usage"
        )
    _check_text(what)

    def decide(state: State, now: Instant) -> CommandResult:
        if body.key:
            again = desk.store.find_key(body.key)
            if again is not None:
                first, count = again
                array = desk.job_and_spec(first, state)[0].array is not None
                return CommandResult(reply=lambda _: _receipt(first, count, array, [], None))
        try:
            decision = _accept(desk, body, state, now)
            decision.durable = durable
            return decision
        except BadValue as error:
            raise CommandRejected(str(error), "usage") from None

    return decide


def again(like: JobsSubmitted, line: str, state: State, now: Instant) -> CommandResult:
    """Another line that asks for just what an earlier one did, on a machine that is as it was."""
    first = state.rest.next_id
    event = replace(like, at=now.wall, first=first, lines=(line,))
    return CommandResult(
        events=[event], durable=False, reply=lambda _: _receipt(first, 1, False, [], None)
    )


def _check_text(what: r.What) -> None:
    texts = [what.line, what.script, *(what.argv or ()), *(what.lines or ()), *what.args]
    if any(text is not None and "\0" in text for text in texts):
        raise CommandRejected("A command contains a NUL byte.", "usage")
    if any(len(os.fsencode(text)) > LONGEST_WORD for text in texts if text and text != what.script):
        raise CommandRejected(
            "A command has a word of more than 128 KiB; put it into a script.", "usage"
        )
    empty = what.line is not None and not what.line.strip()
    if empty or any(not line.strip() for line in what.lines or ()):
        raise CommandRejected("A command is empty.", "usage")


class PreparedSubmission(Struct):
    """A submission that was read and checked, and is not on record yet."""

    spec: Spec
    hash: str
    wanted: Wanted
    priority: int
    events: list[Event]
    blobs: dict[str, bytes]
    secrets: dict[str, bytes]


def prepare(desk: RequestContext, body: r.Submit, state: State, now: Instant) -> PreparedSubmission:
    """Read and check what is asked for, and for whom; raises what is wrong with it."""
    wanted = read(body.options, context(desk, state, now))
    environment = _environment(body.environment, wanted)
    prefer_own(wanted, environment)
    wanted.request, note = whole_where_size_is_unknown(wanted.request, state)
    wanted.warnings += note
    ask = wanted.request.gpus
    named = ask is not None and bool(ask.share or (ask.only and wanted.fields.get("feed")))
    if wanted.fields.get("pty") or named:
        # Its terminal, and devices that were named one by one, are those of this machine.
        wanted.request = replace(wanted.request, nodes=(desk.node,))
    if not wanted.fields.get("verbatim"):
        wanted.fields["fill"] = _names_devices(environment, wanted.request) or None
    env_hash = digest(environment)
    blobs: dict[str, bytes] = {}
    spec = _spec(desk, body, wanted, env_hash, blobs)
    argv = tuple(body.what.argv or ())
    wanted.warnings += check_program(argv, spec, environment, state, desk.engine)
    if wanted.needs_no_gpu and (without := without_gpus(state, spec)) is not None:
        wanted.request, spec = without, replace(spec, request=without)
        wanted.warnings.append(NO_GPU)
    taken_on_trust = _taken_on_trust(desk, wanted.request, state, now)
    if not taken_on_trust:
        effective = state.effective(Job(0, "", "", "", 0.0), spec)
        check_possible(state, effective)
        if state.rest.away:
            wanted.warnings += reach_warnings(state, effective)
    check_limits(state, spec)
    spec = within_queue(state, spec)
    hash = digest(encode(spec))
    if spec.queue != "default" and spec.queue not in state.rest.queues:
        wanted.warnings.append(f"queue '{spec.queue}' is not defined, so it has no limits")
    queue = state.rest.queues.get(spec.queue)
    priority = wanted.priority if wanted.priority is not None else queue.priority if queue else 0
    events: list[Event] = [*taken_on_trust, *_needed(desk, spec, state, now)]
    if hash not in state.specs:
        events.append(SpecRecorded(at=now.wall, hash=hash, spec=spec))
    return PreparedSubmission(spec, hash, wanted, priority, events, blobs, {env_hash: environment})


def _accept(desk: RequestContext, body: r.Submit, state: State, now: Instant) -> CommandResult:
    ready = prepare(desk, body, state, now)
    wanted = ready.wanted
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
    first = state.rest.next_id
    if body.dry_run:
        return CommandResult(
            reply=lambda state: _dry(desk, state, ready.spec, now, wanted.warnings, count)
        )
    events = [
        *ready.events,
        JobsSubmitted(
            at=now.wall, first=first, count=count, spec=ready.hash, key=body.key, lines=lines,
            argv=tuple(body.what.argv) if body.what.argv is not None else None,
            indexes=indexes, priority=ready.priority, held=wanted.held, begin_at=wanted.begin_at,
        ),
    ]  # fmt: skip
    alerts, desk.alerts = desk.alerts, []
    wanted.warnings += alerts
    return CommandResult(
        events=events,
        blobs=ready.blobs,
        secrets=ready.secrets,
        key=(body.key, first, count) if body.key else None,
        reply=lambda _: _receipt(first, count, indexes is not None, wanted.warnings, None),
    )


def _taken_on_trust(
    desk: RequestContext, request: Request, state: State, now: Instant
) -> list[Event]:
    """Devices named one by one, by hand, that this machine is not known to have: now it is."""
    ask = request.gpus
    if ask is None or ask.share is None or not ask.despite_strangers:
        return []
    facts = state.rest.nodes[desk.node]
    devices = state.cluster.nodes[desk.node].types.get(GPU, [])
    missing = [
        DeviceFacts(name, index=int(name) if name.isdecimal() else None)
        for name in ask.only
        if not any(device.answers_to(name) for device in devices if not device.gone)
    ]
    if not missing:
        return []
    types = {**facts.types, GPU: (*facts.types.get(GPU, ()), *missing)}
    return [NodeJoined(at=now.wall, facts=NodeFacts(facts.name, types))]


def _needed(desk: RequestContext, spec: Spec, state: State, now: Instant) -> list[Event]:
    """Jobs that this one waits for and that have left memory come back to it."""
    if spec.dependency is None:
        return []
    return desk.restore_jobs(sorted(spec.dependency.jobs()), state, now.wall)


def context(desk: RequestContext, state: State, now: Instant) -> Context:
    """What reading options needs to know of the other jobs."""

    def singleton(name: str) -> list[int]:
        return [
            id
            for id, job in state.jobs.items()
            if not job.finished and job.name == name and job.user == desk.user
        ]

    def resolve(word: str) -> list[int]:
        sweep = sweep_meant(word, state)  # all of it, also the trials that it does not have yet
        return [sweep] if sweep is not None else desk.resolve([word], state)

    return Context(now.wall, resolve, singleton)


def _receipt(
    first: int, count: int, array: bool, warnings: list[str], start: str | None
) -> dict[str, Any]:
    last = first + count - 1
    label = str(first) if count == 1 or array else f"{first}-{last}"
    return {
        "first": first, "last": last, "count": count, "label": label,
        "warnings": warnings, "expected_start": start,
    }  # fmt: skip


def _dry(
    desk: RequestContext, state: State, spec: Spec, now: Instant, warnings: list[str], count: int
) -> dict[str, Any]:
    """What would happen: nothing is stored."""
    from stoker.core.policy.place import place

    start, where = None, None
    if spec.dependency is None and not len(state.line):
        where = place(state.cluster, state.effective(Job(0, "", "", "", 0.0), spec))
    if where is not None:
        start = iso(now.wall)
    elif 0 < len(state.line) <= MOST:
        told = (desk.foreseen(id, state, now) for id in state.line.where)
        known = [each.start.likely if each and each.start else None for each in told]
        latest = max((each for each in known if each is not None), default=None)
        start = iso(latest) if None not in known else None  # behind all that are pending
    return {
        "first": None, "last": None, "count": count, "label": None,
        "warnings": warnings, "expected_start": start,
        "nodes": [part.node for part in where.parts] if where is not None else [],
    }  # fmt: skip


def _spec(
    desk: RequestContext, body: r.Submit, wanted: Wanted, environment: str, blobs: dict[str, bytes]
) -> Spec:
    what = body.what
    kind = "argv" if what.argv is not None else "line"
    script = None
    name = ""
    if what.script is not None:
        text = what.script.encode()
        kind = "script" if text.startswith(b"#!") else "shell-script"
        script = digest(text)
        blobs[script] = text
        name = os.path.basename(what.script_name or "") or "script"
    fields = dict(wanted.fields)
    directory = os.path.join(body.directory, fields.pop("directory", None) or ".")
    if not os.path.isdir(directory):
        raise BadValue(f"The directory {directory} does not exist.")
    check_sent(os.path.normpath(directory), fields.get("carry"))
    check_directories(fields)
    spec = Spec(
        kind=kind, user=desk.user, directory=os.path.normpath(directory), shell=body.shell,
        environment=environment, request=wanted.request, name=name, umask=body.umask,
        script=script, script_name=what.script_name, args=tuple(what.args),
    )  # fmt: skip
    fields["name"] = fields.get("name") or name
    return replace(spec, **{key: value for key, value in fields.items() if value is not None})


def check_sent(directory: str, carry: Carry | None) -> None:
    """Refuse to send what is not there; only later would that be found out."""
    for path in carry.send if carry is not None else ():
        if not os.path.lexists(os.path.join(directory, path)):
            raise BadValue(f"There is no '{path}' in {directory} for --send.")


def _environment(given: dict[str, str], wanted: Wanted) -> bytes:
    """The job's environment, as it will be handed over: NAME=VALUE with zeros between."""
    export = wanted.export.strip()
    values = dict(given)
    if export.upper() == "NONE":
        values = {name: text for name, text in given.items() if name in BASIC}
    elif export.upper() not in ("ALL", ""):
        names = [part for part in export.split(",") if part]
        values = {} if "ALL" not in names else dict(given)
        for part in names:
            name, equals, text = part.partition("=")
            if equals:
                values[name] = text
            elif name in given:
                values[name] = given[name]
        for name in BASIC:
            if name in given:
                values.setdefault(name, given[name])
    for name in list(values):
        leaks = name in LEAKS and not (name == "TERM" and wanted.fields.get("pty"))
        if leaks or (name.startswith("STOKER_") and name != "STOKER_HOME"):
            del values[name]
    values.setdefault("PYTHONUNBUFFERED", "1")
    values.update(wanted.set_env)
    for name, text in values.items():
        if not name or "=" in name or "\0" in name or "\0" in text:
            raise BadValue(f"The environment variable '{name}' cannot be passed to the job.")
    return b"\0".join(
        os.fsencode(name) + b"=" + os.fsencode(text) for name, text in sorted(values.items())
    )


def _names_devices(environment: bytes, request: Request) -> bool:
    """Whether `{gpu}` or another asked-for type in braces stands in the environment."""
    types = [GPU, *(name.removeprefix(BROUGHT) for name, _ in request.named)]
    return any(b"{%s}" % name.encode() in environment for name in types)


def check_limits(state: State, spec: Spec) -> None:
    """Refuse what the job's queue does not take."""
    queue = state.rest.queues.get(spec.queue)
    if queue is None:
        return
    most = queue.max_job_gpus
    if most is not None and spec.request.gpu_amount > most:
        raise CommandRejected(
            f"Queue '{queue.name}' allows a job at most {format_amount(most)} GPUs, not"
            f" {format_amount(spec.request.gpu_amount)}.",
            "impossible",
        )
    if queue.max_waiting is not None:
        waiting = sum(
            job.state is JobState.PENDING and state.spec(job).queue == queue.name
            for job in state.jobs.values()
        )
        if waiting >= queue.max_waiting:
            raise CommandRejected(
                f"Queue '{queue.name}' has {waiting} pending jobs, and its limit is"
                f" {queue.max_waiting}. Try again later.",
                "full",
            )


def check_possible(state: State, request: Request) -> None:
    """Refuse what no machine could ever give, and say what each one lacks."""
    unreached = [name for name in state.rest.remotes if name not in state.cluster.nodes]
    unknown = [
        name for name in request.nodes if name not in state.cluster.nodes and name not in unreached
    ]
    if unknown:
        raise CommandRejected(f"There is no node '{unknown[0]}'; see stoker nodes.", "not_found")
    lacks, able = [], 0
    for node in state.cluster.nodes.values():
        lack = could_ever(node, request)
        if lack is not None:
            if not request.nodes or node.name in request.nodes:
                lacks.append(f"{node.name} {lack}")
            continue
        able += 1
        if able == request.machines:
            return
    if able:
        lacks = [_too_few(able, len(state.cluster.nodes)), *lacks]
    wanted = [name for name in unreached if not request.nodes or name in request.nodes]
    lacks += [f"{name} has not been reached yet ({_silence(state, name)})" for name in wanted]
    known = " by the nodes known so far" if wanted else ""
    lack = "; ".join(lacks) or "there is no node"
    text = f"Cannot be satisfied{known}: {describe(request)} requested; {lack}."
    gpus = any(node.types.get(GPU) for node in state.cluster.nodes.values())
    if request.gpu_amount and not wanted and not gpus:
        text += " To declare devices: stoker daemon restart --gpus 0,1"
    raise CommandRejected(text, "impossible")


def _too_few(able: int, all: int) -> str:
    few = f"only {able} of {all} nodes can run it"
    if able == all:
        few = "there is only one node" if all == 1 else f"there are only {all} nodes"
    return few if able > 1 else f"{few}; add nodes with stoker nodes add"


def _silence(state: State, name: str) -> str:
    away = state.rest.away.get(name)
    return away.why.rstrip(".") if away is not None and away.why != NOT_YET else "just added"


def reach_warnings(state: State, request: Request) -> list[str]:
    """Said where the only machines that could serve do not answer."""
    able = [node for node in state.cluster.nodes.values() if could_ever(node, request) is None]
    silent = [node.name for node in able if node.name in state.rest.away]
    if len(able) - len(silent) >= request.machines:
        return []
    told = "; ".join(f"{name}: {state.rest.away[name].why}" for name in silent[:3])
    return [f"it stays pending for {' and '.join(silent[:3])}, which cannot be reached ({told})"]
