"""Comparison of early stopping rules in virtual time on the same trials and GPUs."""

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from heapq import heappop, heappush

from benchmarks.curves import STEPS, LearningCurve, Params, TrialPool
from stoker.core import events as e
from stoker.core.handlers import apply
from stoker.core.model.resources import DeviceFacts, GpuRequest, NodeFacts, ResourceRequest
from stoker.core.model.spec import Spec
from stoker.core.model.sweep import EarlyStoppingRule, Sweep
from stoker.core.planner.early_stopping import early_stopping_events
from stoker.core.planner.planner import plan
from stoker.core.state.state import State
from stoker.sweep.definition.rungs import rungs
from stoker.sweep.values import canonical

GPUS = 8


@dataclass
class TrialRun:
    """One trial and its run."""

    params: Params
    curve: LearningCurve
    began: float
    steps: int = 0
    """Steps done."""
    looks: list[int] = field(default_factory=list)
    """Remaining steps at which the rule decides."""
    stopped: bool = False

    def moment(self, step: int) -> float:
        """Return the time at which a step is done."""
        return self.began + step * self.curve.seconds


class StoppingRule(ABC):
    """Chooses the next trial, and decides which trials to stop."""

    name: str
    looks: tuple[int, ...] = ()
    """Steps at which trials may be stopped."""

    def point(self, pool: TrialPool, number: int) -> tuple[Params, LearningCurve]:
        """Return the next trial; the same for all rules without their own sampler."""
        return pool[number]

    @abstractmethod
    def begins(self, number: int, params: Params, at: float) -> None:
        """Record the start of a trial."""

    @abstractmethod
    def stops(self, number: int, step: int, value: float, at: float) -> bool:
        """Return True if a trial is stopped at this step."""

    @abstractmethod
    def ends(self, number: int, value: float, stopped: bool, at: float) -> None:
        """Record the end of a trial."""


def run_trials(
    way: StoppingRule, pool: TrialPool, seconds: float, gpus: int = GPUS
) -> list[TrialRun]:
    """Run trials on some GPUs for a time; return all started trials."""
    runs: list[TrialRun] = []
    coming: list[tuple[float, int, int]] = []
    """Heap of (time, trial number, step)."""

    def begin(at: float) -> None:
        number = len(runs)
        params, curve = way.point(pool, number)
        runs.append(TrialRun(params, curve, at, looks=[*way.looks, STEPS]))
        way.begins(number, params, at)
        look_forward(number)

    def look_forward(number: int) -> None:
        run = runs[number]
        step = run.looks.pop(0)
        heappush(coming, (run.moment(step), number, step))

    for _ in range(gpus):
        begin(0.0)
    while coming[0][0] <= seconds:
        at, number, step = heappop(coming)
        run = runs[number]
        run.steps, value = step, run.curve.reported(step)
        run.stopped = step < STEPS and way.stops(number, step, value, at)
        if run.stopped or step == STEPS:
            way.ends(number, value, run.stopped, at)
            begin(at)
        else:
            look_forward(number)
    for _, number, _ in coming:  # trials that run at the end of the time
        run = runs[number]
        run.steps = min(int((seconds - run.began) / run.curve.seconds), STEPS)
    return runs


class NoStopping(StoppingRule):
    """No stopping: every trial is trained to its end."""

    name = "random search"

    def begins(self, number: int, params: Params, at: float) -> None:
        pass

    def stops(self, number: int, step: int, value: float, at: float) -> bool:
        return False

    def ends(self, number: int, value: float, stopped: bool, at: float) -> None:
        pass


class StokerRule(StoppingRule):
    """The rule of stoker: the real core, driven by events."""

    def __init__(self, name: str, rule: EarlyStoppingRule) -> None:
        self.name, self.rule = name, rule
        self.looks = tuple(int(step) for step in rule.rungs)
        self.state, self.issued = State(), 0
        cards = tuple(DeviceFacts(name=str(n), index=n) for n in range(GPUS))
        self._tell(e.NodeJoined(at=0.0, facts=NodeFacts(name="box", types={"gpu": cards})))
        spec = Spec(  # noqa: S604 - a name of one, nothing is run
            kind="line", user="ada", directory="/", shell="sh", name="train", environment="none",
            request=ResourceRequest(gpus=GpuRequest(amount=1000)),
        )  # fmt: skip
        self._tell(e.SpecRecorded(at=0.0, hash="spec", spec=spec))
        sweep = Sweep(
            id=1, name="train", user="ada", identity="", definition="", method="random",
            created_at=0.0, metric="error", asks=True, rule=rule,
        )  # fmt: skip
        self._tell(e.SweepDefined(at=0.0, sweep=sweep))

    def _tell(self, event: e.Event) -> None:
        apply(self.state, event)

    def begins(self, number: int, params: Params, at: float) -> None:
        trial, first = (canonical(params), "train"), self.state.record.next_id
        self._tell(
            e.JobsSubmitted(at=at, first=first, count=1, spec="spec", sweep=1, trials=(trial,))
        )
        planned = []
        for event in plan(self.state, at, at):
            self._tell(event)
            planned.append(event.job)
        assert planned == [number + 2], "one GPU was free, for this one"
        self._tell(e.ProcessStarted(at=at, job=number + 2, attempt=0, pid=1, boot=at))

    def stops(self, number: int, step: int, value: float, at: float) -> bool:
        self._tell(
            e.TrialMeasured(
                at=at, job=number + 2, attempt=0, step=step, rung=self.looks.index(step),
                value=None if math.isnan(value) else value,
            )
        )  # fmt: skip
        decided = list(early_stopping_events(self.state, at))
        for event in decided:
            self._tell(event)
        return bool(decided)

    def ends(self, number: int, value: float, stopped: bool, at: float) -> None:
        known = None if math.isnan(value) else value
        self._tell(e.TrialMeasured(at=at, job=number + 2, attempt=0, value=known, final=True))
        self._tell(e.ProcessExited(at=at, job=number + 2, attempt=0, code=0))


class OptunaRule(StoppingRule):
    """A pruner of Optuna."""

    def __init__(self, name: str, pruner: object, looks: tuple[int, ...]) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.name, self.looks = name, looks
        self.study = optuna.create_study(study_name=name, pruner=pruner)  # type: ignore[arg-type]
        self.trials: dict[int, optuna.Trial] = {}

    def begins(self, number: int, params: Params, at: float) -> None:
        self.trials[number] = self.study.ask()

    def stops(self, number: int, step: int, value: float, at: float) -> bool:
        self.trials[number].report(value, step)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of numpy, about trials without values
            return self.trials[number].should_prune()

    def ends(self, number: int, value: float, stopped: bool, at: float) -> None:
        from optuna.trial import TrialState

        trial = self.trials.pop(number)
        if stopped:
            self.study.tell(trial, state=TrialState.PRUNED)
        elif math.isnan(value):
            self.study.tell(trial, state=TrialState.FAIL)
        else:
            self.study.tell(trial, value)


class StokerTpeRule(StokerRule):
    """The rule of stoker with trials sampled by Optuna's TPE."""

    def __init__(self, name: str, rule: EarlyStoppingRule, pool: TrialPool) -> None:
        import optuna

        from stoker.sweep.sampling.optuna_study import Study

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        super().__init__(name, rule)
        metric = {"name": "error", "goal": "minimize"}
        self.study = Study({**pool.definition, "method": "tpe", "metric": metric})
        self.asked: list[Params] = []

    def point(self, pool: TrialPool, number: int) -> tuple[Params, LearningCurve]:
        ((params,), _) = self.study.ask(1)
        self.asked.append(params)
        self.study.tell({"trial": number, "params": params, "state": "running"})
        return params, pool.curve(params)

    def ends(self, number: int, value: float, stopped: bool, at: float) -> None:
        super().ends(number, value, stopped, at)
        state = "pruned" if stopped else "complete"
        known = (
            {"value": None, "state": "fail"}
            if math.isnan(value)
            else {"value": value, "state": state}
        )
        self.study.tell({"trial": number, "params": self.asked[number], **known})


# ---------------------------------------------------------------------------- the rules


def halving(first: int, brackets: int = 1) -> EarlyStoppingRule:
    """Return successive halving from this step."""
    steps = rungs({"kind": "asha", "min": first, "eta": 3, "max": STEPS})
    return EarlyStoppingRule("halving", tuple(steps), eta=3.0, brackets=brackets)


def median_rule(first: int, trials: int) -> EarlyStoppingRule:
    """Return the median rule."""
    steps = rungs({"kind": "median", "min": first, "every": 1})
    return EarlyStoppingRule("median", tuple(step for step in steps if step < STEPS), trials=trials)


# -------------------------------------------------------------------------------- results


def best_so_far(runs: list[TrialRun], moments: list[float]) -> list[float]:
    """Return, per time, the true value of the trial that looks best so far."""
    reports = sorted(
        (run.moment(step), run.curve.reported(step), run.curve.really(step))
        for run in runs
        for step in range(1, run.steps + 1)
        if not math.isnan(run.curve.really(step))
    )
    found: list[float] = []
    seen = really = math.inf
    at = 0
    for moment in moments:
        while at < len(reports) and reports[at][0] <= moment:
            if reports[at][1] < seen:
                _, seen, really = reports[at]
            at += 1
        found.append(really)
    return found
