"""A sweep as an Optuna study in memory, built from the trials it is sent.

Sweeps are stored in stoker's store. A suggestion is known only once it comes back as a trial; by
the next question all others are forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from hashlib import blake2b
from importlib.util import find_spec
from typing import Any

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from stoker.sweep.sampling.optuna_space import InvalidParameterValue, axes_and_constants
from stoker.sweep.sampling.samplers import new_points
from stoker.sweep.values import canonical

MIN_RESULTS = 10
"""Number of results before the model is used; until then points are quasi-random."""
MAX_TRIES = 8
"""Maximum number of suggestions for one new point."""
MAX_POINTS = 1000
"""Maximum number of points per question."""
STATES = {
    "running": TrialState.RUNNING,
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "fail": TrialState.FAIL,
}


class MissingPackage(Exception):
    """A package is missing; the message says which."""


class Study:
    """Keeps the trials of one sweep and suggests new points."""

    def __init__(self, definition: dict[str, Any]) -> None:
        self.definition = definition
        self.method: str = definition["method"]
        self.seed: int = definition.get("seed") or 0
        if self.method not in {"tpe", "gp"}:
            raise ValueError(f"a sweep with method {self.method} needs no model")
        goal = (definition.get("metric") or {}).get("goal") or "minimize"
        self.direction = StudyDirection[goal.upper()]
        self.axes, self.constants = axes_and_constants(definition["parameters"])
        self.distributions = {name: axis.distribution for name, axis in self.axes.items()}
        self.trials: dict[int, FrozenTrial | None] = {}
        """Each trial for Optuna; None if its parameters do not fit the definition."""
        self.known: set[str] = set()
        """The canonical text of the parameters of all trials."""
        self._changed: set[int] = set()
        self._begin()

    def _begin(self) -> None:
        self._storage = optuna.storages.InMemoryStorage()
        self._study = optuna.create_study(storage=self._storage, direction=self.direction)
        self._study_id = self._storage.get_study_id_from_name(self._study.study_name)
        self._optuna_trials: dict[int, tuple[int, TrialState]] = {}
        """Optuna's id and last state of each trial."""
        self._gp: optuna.samplers.BaseSampler | None = None

    # -- trials -------------------------------------------------------------------------

    def tell(self, entry: dict[str, Any]) -> None:
        """Add or update a trial."""
        if entry["state"] not in STATES:
            raise ValueError(f"{entry['state']!r} is not a trial state")
        trial, frozen = int(entry["trial"]), self._frozen(entry)
        self.known.add(canonical(entry["params"]))
        self.trials[trial] = frozen
        self._changed.add(trial)

    def _catch_up(self) -> None:
        """Update Optuna's trials."""
        over = {trial for trial, (_, state) in self._optuna_trials.items() if state.is_finished()}
        if over & self._changed:  # Optuna cannot change a finished trial
            self._begin()
            self._changed = set(self.trials)
        for trial in sorted(self._changed):
            frozen = self.trials[trial]
            if frozen is None:
                continue
            if trial not in self._optuna_trials:
                id = self._storage.create_new_trial(self._study_id, frozen)
            else:
                id, _ = self._optuna_trials[trial]
                self._finish(id, frozen)
            self._optuna_trials[trial] = (id, frozen.state)
        self._changed.clear()

    def _finish(self, id: int, frozen: FrozenTrial) -> None:
        if not frozen.state.is_finished():
            return
        for step, value in frozen.intermediate_values.items():
            self._storage.set_trial_intermediate_value(id, step, value)
        self._storage.set_trial_state_values(id, frozen.state, frozen.values)

    def _frozen(self, entry: dict[str, Any]) -> FrozenTrial | None:
        """Return a trial for Optuna; None if it is of an older, different definition."""
        try:
            params = {name: axis.inside(entry["params"][name]) for name, axis in self.axes.items()}
        except (InvalidParameterValue, KeyError):
            return None
        state, value = STATES[entry["state"]], entry.get("value")
        if value is not None and not math.isfinite(value):
            value = None
        if state is TrialState.COMPLETE and value is None:
            state = TrialState.FAIL  # it completed without a value
        # Of a stopped trial only its last step and value are used.
        steps = [
            (int(step), seen) for step, seen in entry.get("steps") or () if math.isfinite(seen)
        ]
        if state is TrialState.PRUNED and not steps and value is not None:
            steps = [(0, value)]
        return create_trial(
            state=state,
            value=value if state is TrialState.COMPLETE else None,
            params=params,
            distributions=self.distributions,
            intermediate_values=dict([max(steps)]) if state is TrialState.PRUNED and steps else {},
        )

    # -- points -------------------------------------------------------------------------

    def ask(self, count: int) -> tuple[list[dict[str, Any]], bool]:
        """Return new points; and True if the space has no more."""
        if not 1 <= count <= MAX_POINTS:
            raise ValueError(f"{count} points were requested; 1 to {MAX_POINTS} are allowed")
        self._require()
        self._catch_up()
        taken: set[str] = set()
        spread = new_points(
            {**self.definition, "method": "sobol", "samples": None},
            len(self.known),
            lambda key: key in self.known or key in taken,
        )
        model = self._model()
        points: list[dict[str, Any]] = []
        for _ in range(count):
            point = self._new(model, taken) if model is not None else None
            point = point or next(spread, None)
            if point is None:
                break
            taken.add(canonical(point))
            points.append(point)
        if model is not None:
            model.close()
        return points, len(points) < count

    def _require(self) -> None:
        if self.method != "gp":
            return
        missing = [name for name in ("scipy", "torch") if find_spec(name) is None]
        if missing:
            names = " ".join(missing)
            raise MissingPackage(f"method gp needs {' and '.join(missing)}; pip install {names}")

    def _new(
        self, model: Generator[dict[str, Any], None, None], taken: set[str]
    ) -> dict[str, Any] | None:
        """Return a new point of the model; None if it only suggests known ones."""
        for _ in range(MAX_TRIES):
            point = next(model)
            key = canonical(point)
            if key not in self.known and key not in taken:
                return point
        return None

    def _model(self) -> Generator[dict[str, Any], None, None] | None:
        """Return a generator of suggestions; None with too few results."""
        usable_states = {TrialState.COMPLETE}
        if self.method == "tpe":
            usable_states.add(TrialState.PRUNED)
        results = sum(state in usable_states for _, state in self._optuna_trials.values())
        if results < MIN_RESULTS or not self.axes:
            return None
        self._study.sampler = self._sampler(results)
        return self._suggestions()

    def _suggestions(self) -> Generator[dict[str, Any], None, None]:
        open_trials = []
        try:
            while True:
                # It stays open until all points are suggested, so that the next one differs.
                trial = self._study.ask(self.distributions)
                open_trials.append(trial.number)
                yield self._point(trial.params)
        finally:
            for number in open_trials:
                self._study.tell(number, state=TrialState.FAIL)

    def _point(self, params: dict[str, Any]) -> dict[str, Any]:
        return {
            name: self.axes[name].value(params[name]) if name in self.axes else self.constants[name]
            for name in self.definition["parameters"]
        }

    def _sampler(self, results: int) -> optuna.samplers.BaseSampler:
        """Return the sampler; its seed depends on the known trials, not on this process."""
        text = f"{self.seed} {len(self.trials)} {results}"
        seed = int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "big")
        if self.method == "tpe":
            return optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=MIN_RESULTS, multivariate=True, constant_liar=True
            )
        if self._gp is None:  # its fit continues from the last one
            self._gp = optuna.samplers.GPSampler(seed=seed, n_startup_trials=MIN_RESULTS)
        return self._gp
