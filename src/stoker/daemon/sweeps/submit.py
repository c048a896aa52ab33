"""POST /sweeps: create a sweep, or resume a known one with the trials that it still needs."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import islice
from typing import Any

from msgspec.json import encode
from msgspec.structs import replace

from stoker.core.events import (
    Event,
    JobEdited,
    JobReleased,
    JobRetried,
    JobsSubmitted,
    SpecRecorded,
    SweepDefined,
    TrialsLoaded,
)
from stoker.core.model.job import JobState
from stoker.core.model.spec import JobCommand, MetricsSource, Spec
from stoker.core.model.sweep import CANCELLED, FAILED, EarlyStoppingRule, Sweep, Trial, trial_status
from stoker.core.model.units import BadValue
from stoker.core.state.state import State
from stoker.daemon.context import CommandHandler, RequestContext, content_hash, reply_only
from stoker.daemon.submission.checks import check_pending_limits
from stoker.daemon.submission.submit import PreparedSubmission, prepare
from stoker.daemon.sweeps.stored import StoredSweep, trial_command
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema import requests as r
from stoker.schema.sweep import SweepReply
from stoker.sweep.definition.definition import InvalidSweep, check
from stoker.sweep.definition.rungs import rungs
from stoker.sweep.definition.template import command_of
from stoker.sweep.sampling import samplers

MAX_TRIALS = 100_000
"""Trials that are submitted at once; larger spaces need a number of samples."""
NO_METRIC_SOURCE = (
    "In this version the daemon of all users reads no files of its users: report the metric from"
    " the script with the training library, not by a pattern or a file."
)
REQUIRED_MODULES = {"tpe": ("optuna",), "gp": ("optuna", "scipy", "torch")}
ADAPTIVE_METHODS = frozenset(REQUIRED_MODULES)
"""Methods that choose trials by the results of earlier ones."""


def handle_submit_sweep(context: RequestContext, body: r.Sweep) -> CommandHandler:
    """Create a sweep, or resume a known one: only missing and failed trials run.

    This call generates all trials and may take long; the handler that it returns is fast.
    """
    try:
        definition = check(body.definition)
        on_demand = definition["method"] in ADAPTIVE_METHODS or _is_unbounded(definition)
        points = [] if on_demand else _all_points(definition)
        trials = dict(trial_command(definition, params) for params in points)
    except (BadValue, InvalidSweep) as error:
        raise CommandRejected(str(error), "usage") from None
    required = REQUIRED_MODULES.get(definition["method"], ())
    missing = [name for name in required if find_spec(name) is None]
    if missing:
        extra = "gp" if definition["method"] == "gp" else "optuna"
        raise CommandRejected(
            f"The method {definition['method']} needs {' and '.join(missing)}, which the daemon's"
            f" Python does not have. Install it: pip install 'stoker[{extra}]'",
            "usage",
        )

    body = replace(body, key=context.own_key(body.key))

    def handle(state: State, now: Instant) -> CommandResult:
        submitted = context.store.find_key(body.key) if body.key else None
        if submitted is not None:
            return CommandResult(reply=lambda after: _receipt(after.sweeps[submitted[0]], 0, 0, []))
        try:
            return _Submission(context, body, definition, on_demand, trials, state, now).result()
        except InvalidSweep as error:
            raise BadValue(str(error)) from None

    return handle


class _Submission:
    """One request, compared with the sweep of the same identity if there is one."""

    def __init__(
        self, context: RequestContext, body: r.Sweep, definition: dict[str, Any],
        on_demand: bool, wanted: dict[str, JobCommand], state: State, now: Instant,
    ) -> None:  # fmt: skip
        self.context, self.body, self.definition = context, body, definition
        self.on_demand, self.wanted = on_demand, wanted
        self.state, self.now = state, now
        self.prepared = prepare(context, self._job_submission(), state, now)
        self.identity = _identity(self.prepared.spec, definition)
        self.known = None if body.new else _find_known(state, self.identity, context.uid)
        self.trials = context.trials(self.known, state) if self.known is not None else []

    def _job_submission(self) -> r.Submit:
        """Return the submission that all trials have in common, with an example command."""
        body, definition = self.body, self.definition
        first = command_of(definition, self._example_point())
        what = r.What(line=first) if isinstance(first, str) else r.What(argv=first)
        options = {"name": definition["name"], **body.options}
        if "array" in options:
            raise BadValue("--array cannot be combined with a sweep.")
        return r.Submit(
            what=what, directory=body.directory, shell=body.shell, options=options,
            environment=body.environment, own_environment=body.own_environment, umask=body.umask,
        )  # fmt: skip

    def _example_point(self) -> dict[str, Any]:
        definition = self.definition
        if definition["method"] in ADAPTIVE_METHODS:
            definition = {**definition, "method": "random"}
        point = next(samplers.sequence(definition, 0), None)
        if point is None:
            raise BadValue("The sweep has no trials: its parameters have no values.")
        return point

    def result(self) -> CommandResult:
        """Return the events that define the sweep and submit or requeue trials."""
        prepared, known, state, now = self.prepared, self.known, self.state, self.now
        spec = _with_metric_source(prepared, self.definition)
        if spec.source is not None and self.context.is_system:
            raise BadValue(NO_METRIC_SOURCE)
        existing = {trial.params for trial in self.trials}
        missing = [trial for trial in self.wanted.items() if trial[0] not in existing]
        requeued = [
            trial
            for trial in self.trials
            if trial_status(trial.state, trial.score) in (FAILED, CANCELLED)
            and (self.on_demand or trial.params in self.wanted)
        ]
        if known is not None and known.redefined(self._target()).target_reached:
            missing, requeued = [], []
            prepared.wanted.warnings.append("its target has already been reached")
        limits = self.context.limits_of(spec, state)
        check_pending_limits(state, limits, len(missing) + len(requeued))
        stored = StoredSweep(self.definition, spec, content_hash(encode(spec)))
        sweep = self._sweep(stored, len(existing) + len(missing))
        if self.body.dry_run:
            commands = [_command_text(command) for _, command in missing[:10]]
            receipt = _receipt(sweep, len(missing), len(requeued), prepared.wanted.warnings)
            receipt.sweep, receipt.commands = None, commands
            return reply_only(receipt)
        events = [event for event in prepared.events if type(event) is not SpecRecorded]
        if stored.hash not in state.specs and (missing or requeued):
            events.append(SpecRecorded(at=now.wall, hash=stored.hash, spec=spec))
        if known is not None and known.id not in state.boards:
            events.append(TrialsLoaded(at=now.wall, sweep=known.id, trials=tuple(self.trials)))
        events.append(SweepDefined(at=now.wall, sweep=sweep))
        first = state.record.next_id + (known is None)
        if missing:
            events.append(self._submitted(sweep.id, first, stored.hash, missing))
        events += self._requeued(requeued, stored.hash)
        events += self._released()
        return CommandResult(
            events=events,
            blobs={**prepared.blobs, sweep.definition: encode(stored)},
            secrets=prepared.secrets,
            key=(self.body.key, sweep.id, 1) if self.body.key else None,
            reply=lambda after: _receipt(
                after.sweeps[sweep.id], len(missing), len(requeued), prepared.wanted.warnings
            ),
        )

    def _target(self) -> Sweep:
        """Return a sweep with the target of this request, to compare the best trial with."""
        metric = self.definition["metric"] or {}
        return Sweep(
            id=0, name="", user="", identity="", definition="", method="", created_at=0.0,
            target=metric.get("target"), maximize=metric.get("goal") == "maximize",
        )  # fmt: skip

    def _sweep(self, stored: StoredSweep, trials: int) -> Sweep:
        definition, metric = self.definition, self.definition["metric"]
        total = definition["samples"] if self.on_demand else trials
        return Sweep(
            id=self.known.id if self.known is not None else self.state.record.next_id,
            name=definition["name"], user=self.context.submitter, identity=self.identity,
            definition=content_hash(encode(stored)), method=definition["method"],
            created_at=self.now.wall, metric=metric["name"] if metric else None,
            maximize=metric is not None and metric["goal"] == "maximize",
            best_of=metric is not None and metric["summary"] == "best",
            target=metric["target"] if metric else None, rule=_stopping_rule(definition["stop"]),
            total=total, asks=self.on_demand, max_running=self._max_running(),
            priority=self._priority(),
            held=self.prepared.wanted.held, uid=self.context.uid,
        )  # fmt: skip

    def _max_running(self) -> int | None:
        """Return how many trials may run at a time; by default as in the known sweep."""
        given: int | None = self.definition["max_running"]
        return self.known.max_running if given is None and self.known is not None else given

    def _priority(self) -> int:
        if self.known is None or self.prepared.wanted.priority is not None:
            return self.prepared.priority
        return self.known.priority

    def _submitted(
        self, sweep: int, first: int, spec: str, trials: list[tuple[str, JobCommand]]
    ) -> Event:
        wanted = self.prepared.wanted
        return JobsSubmitted(
            at=self.now.wall, first=first, count=len(trials), spec=spec, key=self.body.key,
            priority=self._priority(), held=wanted.held, begin_at=wanted.begin_at,
            sweep=sweep, trials=tuple(trials),
        )  # fmt: skip

    def _released(self) -> list[Event]:
        """Release the trials of a held sweep that is submitted again."""
        if self.known is None or not self.known.held or self.prepared.wanted.held:
            return []
        jobs = [self.state.jobs[t.job] for t in self.trials if t.job in self.state.jobs]
        held = [job.id for job in jobs if job.held and job.state is JobState.PENDING]
        return [JobReleased(at=self.now.wall, job=id) for id in held]

    def _requeued(self, trials: list[Trial], spec: str) -> list[Event]:
        """Requeue failed trials with the options of this request, which may fix their failure."""
        at, begin = self.now.wall, self.prepared.wanted.begin_at
        events = self.context.restore_jobs([trial.job for trial in trials], self.state, at)
        for trial in trials:
            events.append(JobRetried(at=at, job=trial.job))
            job, _ = self.context.job_and_spec(trial.job, self.state)
            if job.spec != spec:
                edited = JobEdited(
                    at=at, job=job.id, spec=spec, name=job.name, priority=self._priority(),
                    begin_at=begin,
                )  # fmt: skip
                events.append(edited)
        return events


def _receipt(sweep: Sweep, added: int, retried: int, warnings: list[str]) -> SweepReply:
    return SweepReply(
        sweep=sweep.id, label=str(sweep.id), name=sweep.name, added=added, retried=retried,
        total=sweep.total, counts=dict(sweep.counts), warnings=warnings,
    )  # fmt: skip


def _stopping_rule(stop: dict[str, Any] | None) -> EarlyStoppingRule | None:
    """Return the early-stopping rule of a definition."""
    if stop is None:
        return None
    steps = tuple(rungs(stop))
    if stop["kind"] == "median":
        return EarlyStoppingRule("median", steps, trials=stop["trials"])
    brackets = min(stop["brackets"], len(steps))
    return EarlyStoppingRule("halving", steps, eta=float(stop["eta"]), brackets=max(brackets, 1))


def _identity(spec: Spec, definition: dict[str, Any]) -> str:
    """Return a hash that is equal for requests of the same sweep, whatever values they add."""
    metric = definition["metric"] or {}
    names = sorted(definition["parameters"]) or sorted(definition["points"][0])
    parts = [
        spec.user, spec.directory, definition["name"], definition.get("command"),
        definition.get("line"), names, metric.get("name"), metric.get("goal"), definition["stop"],
    ]  # fmt: skip
    return content_hash(encode(parts))


def _find_known(state: State, identity: str, uid: int | None) -> Sweep | None:
    sweeps = [
        sweep for sweep in state.sweeps.values() if sweep.identity == identity and sweep.uid == uid
    ]
    return sweeps[-1] if sweeps else None


def _is_unbounded(definition: dict[str, Any]) -> bool:
    return definition["method"] in ("random", "sobol") and definition["samples"] is None


def _all_points(definition: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parameters of all trials, each once, in order."""
    samples = definition["samples"]
    if samples is not None and samples > MAX_TRIALS:
        raise BadValue(f"{samples} trials are too many; the maximum is {MAX_TRIALS}.")
    limit = MAX_TRIALS + 1 if samples is None else samples
    points = list(islice(samplers.new_points(definition, 0, lambda _: False), limit))
    if len(points) > MAX_TRIALS:
        raise BadValue(
            f"There are more than {MAX_TRIALS} combinations; limit the number of trials:"
            " --samples 1000 --method random."
        )
    return points


def _with_metric_source(prepared: PreparedSubmission, definition: dict[str, Any]) -> Spec:
    """Return the spec with the place where the metric of the trials is read."""
    metric = definition["metric"]
    source = metric["source"] if metric else {"kind": "report"}
    if source["kind"] == "report":
        return prepared.spec
    text = source["pattern"] if source["kind"] == "log" else source["path"]
    return replace(prepared.spec, source=MetricsSource(source["kind"], text, metric["name"]))


def _command_text(command: JobCommand) -> str:
    from shlex import join

    return command if isinstance(command, str) else join(command or ())
