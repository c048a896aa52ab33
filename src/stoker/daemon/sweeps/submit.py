"""Sweeps that are asked for: which trials they still need."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.json import decode, encode
from msgspec.structs import replace

from stoker.core.events import (
    Event,
    JobEdited,
    JobReleased,
    JobRetried,
    JobsSubmitted,
    SpecRecorded,
    SweepDefined,
    TrialsRecalled,
)
from stoker.core.job import Command, Source, Spec
from stoker.core.lifecycle import JobState
from stoker.core.state import State
from stoker.core.sweep import (
    CANCELLED,
    FAILED,
    Rule,
    Sweep,
    Trial,
    definition_of,
    word_of,
)
from stoker.core.units import BadValue
from stoker.daemon.context import CommandHandler, RequestContext
from stoker.daemon.submission.spec import content_hash
from stoker.daemon.submission.submit import PreparedSubmission, prepare
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema import requests as r
from stoker.sweep import samplers
from stoker.sweep.definition import InvalidSweep, check
from stoker.sweep.rungs import rungs
from stoker.sweep.template import command_of
from stoker.sweep.values import canonical

MOST_TRIALS = 100_000
"""Trials that are all submitted at the beginning; whoever has more says how many are wanted."""
NEEDS = {"tpe": ("optuna",), "gp": ("optuna", "scipy", "torch")}
THINKING = frozenset(NEEDS)
"""Methods that look at the results so far, and what they need for that."""


class StoredSweep(Struct):
    """What a sweep was asked to be, as it is kept beside the journal."""

    definition: dict[str, Any]
    spec: Spec
    hash: str
    """Under which that spec is on record."""


def submit(desk: RequestContext, body: r.Sweep) -> CommandHandler:
    """Create a sweep, or continue one that is known: only what is missing or failed runs.

    Works out all of its trials, so it may take a while; what it returns is quick.
    """
    try:
        definition = check(body.definition)
    except InvalidSweep as error:
        raise CommandRejected(str(error), "usage") from None

    lacks = [name for name in NEEDS.get(definition["method"], ()) if find_spec(name) is None]
    if lacks:
        extra = "gp" if definition["method"] == "gp" else "optuna"
        raise CommandRejected(
            f"The method {definition['method']} needs {' and '.join(lacks)}, which the daemon's"
            f" Python does not have. Install it: pip install 'stoker[{extra}]'",
            "usage",
        )

    asks = definition["method"] in THINKING or _endless(definition)
    try:
        # All that takes long, and does not depend on what is known, before it is anybody's turn.
        wanted = {} if asks else dict(as_trial(definition, each) for each in _wanted(definition))
    except (BadValue, InvalidSweep) as error:
        raise CommandRejected(str(error), "usage") from None

    def decide(state: State, now: Instant) -> CommandResult:
        again = desk.store.find_key(body.key) if body.key else None
        if again is not None:
            return CommandResult(reply=lambda after: receipt(after.sweeps[again[0]], 0, 0, []))
        try:
            return _Intake(desk, body, definition, asks, wanted, state, now).decision()
        except (BadValue, InvalidSweep) as error:
            raise CommandRejected(str(error), "usage") from None

    return decide


class _Intake:
    """One request, held against what is known."""

    def __init__(
        self, desk: RequestContext, body: r.Sweep, definition: dict[str, Any], asks: bool,
        wanted: dict[str, Command], state: State, now: Instant,
    ) -> None:  # fmt: skip
        self.desk, self.body, self.definition = desk, body, definition
        self.asks, self.wanted = asks, wanted
        self.state, self.now = state, now
        self.ready = prepare(desk, self._like_a_job(), state, now)
        self.identity = _identity(self.ready.spec, definition)
        self.known = None if body.new else _known(state, self.identity)
        self.trials = desk.trials(self.known, state) if self.known is not None else []

    def _like_a_job(self) -> r.Submit:
        """Its trials are submitted like any other job: so is what they have in common."""
        body, definition = self.body, self.definition
        first = command_of(definition, self._example())
        what = r.What(line=first) if isinstance(first, str) else r.What(argv=first)
        options = {"name": definition["name"], **body.options}
        if "array" in options:
            raise BadValue("--array cannot be combined with a sweep.")
        return r.Submit(
            what=what, directory=body.directory, shell=body.shell, options=options,
            environment=body.environment, umask=body.umask,
        )  # fmt: skip

    def _example(self) -> dict[str, Any]:
        definition = self.definition
        if definition["method"] in THINKING:
            definition = {**definition, "method": "random"}
        found = next(samplers.sequence(definition, 0), None)
        if found is None:
            raise BadValue("The sweep has no trials: its parameters have no values.")
        return found

    def decision(self) -> CommandResult:
        """All that follows, as facts."""
        ready, known, state, now = self.ready, self.known, self.state, self.now
        spec = _with_source(ready, self.definition)
        have = {trial.params for trial in self.trials}
        missing = [each for each in self.wanted.items() if each[0] not in have]
        again = [
            trial
            for trial in self.trials
            if word_of(trial.state, trial.score) in (FAILED, CANCELLED)
            and (self.asks or trial.params in self.wanted)
        ]
        if known is not None and definition_of(known, self._goal()).reached:
            missing, again = [], []
            ready.wanted.warnings.append("its target has already been reached")
        kept = StoredSweep(self.definition, spec, content_hash(encode(spec)))
        sweep = self._sweep(kept, len(have) + len(missing))
        if self.body.dry_run:
            shown = [_text(command) for _, command in missing[:10]]
            plan = receipt(sweep, len(missing), len(again), ready.wanted.warnings)
            return CommandResult(reply=lambda _: {**plan, "sweep": None, "commands": shown})
        events = [event for event in ready.events if type(event) is not SpecRecorded]
        if kept.hash not in state.specs and (missing or again):
            events.append(SpecRecorded(at=now.wall, hash=kept.hash, spec=spec))
        if known is not None and known.id not in state.boards:
            events.append(TrialsRecalled(at=now.wall, sweep=known.id, trials=tuple(self.trials)))
        events.append(SweepDefined(at=now.wall, sweep=sweep))
        first = state.rest.next_id + (known is None)
        if missing:
            events.append(self._submitted(sweep.id, first, kept.hash, missing))
        events += self._retried(again, kept.hash)
        events += self._released()
        return CommandResult(
            events=events,
            blobs={**ready.blobs, sweep.definition: encode(kept)},
            secrets=ready.secrets,
            key=(self.body.key, sweep.id, 1) if self.body.key else None,
            reply=lambda after: receipt(
                after.sweeps[sweep.id], len(missing), len(again), ready.wanted.warnings
            ),
        )

    def _goal(self) -> Sweep:
        """What is asked for now, as far as it says when it is enough."""
        metric = self.definition["metric"] or {}
        return Sweep(
            id=0, name="", user="", identity="", definition="", method="", created_at=0.0,
            target=metric.get("target"), maximize=metric.get("goal") == "maximize",
        )  # fmt: skip

    def _sweep(self, kept: StoredSweep, known: int) -> Sweep:
        definition, metric = self.definition, self.definition["metric"]
        total = definition["samples"] if self.asks else known
        return Sweep(
            id=self.known.id if self.known is not None else self.state.rest.next_id,
            name=definition["name"], user=self.desk.user, identity=self.identity,
            definition=content_hash(encode(kept)), method=definition["method"],
            created_at=self.now.wall, metric=metric["name"] if metric else None,
            maximize=metric is not None and metric["goal"] == "maximize",
            best_of=metric is not None and metric["summary"] == "best",
            target=metric["target"] if metric else None, rule=rule_of(definition["stop"]),
            total=total, asks=self.asks, max_running=self._most(), priority=self._priority(),
            held=self.ready.wanted.held,
        )  # fmt: skip

    def _most(self) -> int | None:
        """How many may run at a time; asked for again without a word of it, as before."""
        most: int | None = self.definition["max_running"]
        return self.known.max_running if most is None and self.known is not None else most

    def _priority(self) -> int:
        said = self.known is None or self.ready.wanted.priority is not None
        return self.ready.priority if said or self.known is None else self.known.priority

    def _submitted(
        self, sweep: int, first: int, spec: str, trials: list[tuple[str, Command]]
    ) -> Event:
        wanted = self.ready.wanted
        return JobsSubmitted(
            at=self.now.wall, first=first, count=len(trials), spec=spec, key=self.body.key,
            priority=self._priority(), held=wanted.held, begin_at=wanted.begin_at,
            sweep=sweep, trials=tuple(trials),
        )  # fmt: skip

    def _released(self) -> list[Event]:
        """A sweep that was held and is asked for again is not held any more."""
        if self.known is None or not self.known.held or self.ready.wanted.held:
            return []
        jobs = [self.state.jobs[t.job] for t in self.trials if t.job in self.state.jobs]
        held = [job.id for job in jobs if job.held and job.state is JobState.PENDING]
        return [JobReleased(at=self.now.wall, job=id) for id in held]

    def _retried(self, again: list[Trial], spec: str) -> list[Event]:
        """These run once more, with what is asked for now: that may be why they failed."""
        at, begin = self.now.wall, self.ready.wanted.begin_at
        events = self.desk.restore_jobs([trial.job for trial in again], self.state, at)
        for trial in again:
            events.append(JobRetried(at=at, job=trial.job))
            job, _ = self.desk.job_and_spec(trial.job, self.state)
            if job.spec != spec:
                edited = JobEdited(
                    at=at, job=job.id, spec=spec, name=job.name, priority=self._priority(),
                    begin_at=begin,
                )  # fmt: skip
                events.append(edited)
        return events


def as_trial(definition: dict[str, Any], params: dict[str, Any]) -> tuple[str, Command]:
    """A point of the space as the journal has it."""
    command = command_of(definition, params)
    return canonical(params), command if isinstance(command, str) else tuple(command)


def kept(desk: RequestContext, sweep: Sweep) -> StoredSweep:
    """What it was asked to be."""
    data = desk.store.blob(sweep.definition)
    if data is None:
        raise CommandRejected(f"The definition of sweep {sweep.id} is lost.", "failed")
    return decode(data, type=StoredSweep)


def receipt(sweep: Sweep, added: int, retried: int, warnings: list[str]) -> dict[str, Any]:
    """What whoever asked for it is told."""
    return {
        "sweep": sweep.id, "label": str(sweep.id), "name": sweep.name, "added": added,
        "retried": retried, "total": sweep.total, "counts": dict(sweep.counts),
        "warnings": warnings,
    }  # fmt: skip


def rule_of(stop: dict[str, Any] | None) -> Rule | None:
    """When trials are compared, as the core has it."""
    if stop is None:
        return None
    steps = tuple(rungs(stop))
    if stop["kind"] == "median":
        return Rule("median", steps, trials=stop["trials"])
    brackets = min(stop["brackets"], len(steps))
    return Rule("halving", steps, eta=float(stop["eta"]), brackets=max(brackets, 1))


def _identity(spec: Spec, definition: dict[str, Any]) -> str:
    """What two requests have in common that mean the same sweep: all but values and amounts."""
    metric = definition["metric"] or {}
    names = sorted(definition["parameters"]) or sorted(definition["points"][0])
    told = [
        spec.user, spec.directory, definition["name"], definition.get("command"),
        definition.get("line"), names, metric.get("name"), metric.get("goal"), definition["stop"],
    ]  # fmt: skip
    return content_hash(encode(told))


def _known(state: State, identity: str) -> Sweep | None:
    found = [sweep for sweep in state.sweeps.values() if sweep.identity == identity]
    return found[-1] if found else None


def _endless(definition: dict[str, Any]) -> bool:
    return definition["method"] in ("random", "sobol") and definition["samples"] is None


def _wanted(definition: dict[str, Any]) -> list[dict[str, Any]]:
    """Every trial that is asked for, each once, in order."""
    samples = definition["samples"]
    if samples is not None and samples > MOST_TRIALS:
        raise BadValue(f"{samples} trials are too many; the maximum is {MOST_TRIALS}.")
    most = MOST_TRIALS + 1 if samples is None else samples
    found = list(islice(samplers.fresh(definition, 0, lambda _: False), most))
    if len(found) > MOST_TRIALS:
        raise BadValue(
            f"There are more than {MOST_TRIALS} combinations; limit the number of trials:"
            " --samples 1000 --method random."
        )
    return found


def _with_source(ready: PreparedSubmission, definition: dict[str, Any]) -> Spec:
    """Where the trials' figures are found belongs to what is submitted."""
    metric = definition["metric"]
    source = metric["source"] if metric else {"kind": "report"}
    if source["kind"] == "report":
        return ready.spec
    text = source["pattern"] if source["kind"] == "log" else source["path"]
    return replace(ready.spec, source=Source(source["kind"], text, metric["name"]))


def _text(command: Command) -> str:
    from shlex import join

    return command if isinstance(command, str) else join(command or ())
