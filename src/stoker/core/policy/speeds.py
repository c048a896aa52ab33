"""How long each job needs on each model of GPU that it could have, and in whose company."""

from __future__ import annotations

from msgspec import Struct

from stoker.core.estimate import NO_GPU, Family, company, epoch_on, family_of, restart_cost
from stoker.core.job import Job
from stoker.core.policy import match
from stoker.core.policy.rank import left_of
from stoker.core.request import GPU, Request
from stoker.core.state import State
from stoker.core.units import THOUSAND

COMPANY = 0.9
"""What is taken to be left of its speed beside one of whom nothing is known: worth a try."""


class Pace(Struct, frozen=True):
    """What is to be expected of one job."""

    family: str
    gpus: int
    seconds: dict[str, float]
    """From now to its end, by model."""
    restart: float
    """Seconds that it loses when it is stopped and goes on."""


class Speeds:
    """All that is known of that at one moment."""

    def __init__(self, state: State, at: float) -> None:
        self.state, self.at = state, at
        self.supply: dict[str, float] = {}
        """GPUs by model."""
        for node in state.cluster.nodes.values():
            for card in node.types.get(GPU, ()):
                if node.closed is None and card.drained is None and not card.gone:
                    model = card.facts.model or NO_GPU
                    self.supply[model] = self.supply.get(model, 0.0) + 1.0
        families = state.rest.families.values()
        self.typical = match.usual(known for each in families for known in _by_gpus(each))
        self.gpus = sum(self.supply.values())
        self._ratios: dict[tuple[str, int, tuple[str, ...]], dict[str, float]] = {}

    def of(self, job: Job, request: Request) -> Pace:
        """How long a job needs from now on."""
        state, spec = self.state, self.state.spec(job)
        left = left_of(state.known(job), self.at).seconds
        name, ask = family_of(job, spec), request.gpus
        family = state.rest.families.get(name) or Family()
        cost = restart_cost(family)
        if ask is None or not ask.amount:
            return Pace(name, 0, {NO_GPU: left}, cost)
        gpus, kinds = -(-ask.amount // THOUSAND) * request.machines, ask.kinds
        ratios = self._ratios.get((name, gpus, kinds))
        if ratios is None:
            ratios = self._ratios[name, gpus, kinds] = self._compare(family, gpus, kinds)
        return Pace(name, gpus, {model: left * each for model, each in ratios.items()}, cost)

    def _compare(self, family: Family, gpus: int, kinds: tuple[str, ...]) -> dict[str, float]:
        """How long it takes on each model that will do; where it is measured to be fastest, 1.0."""
        models = [
            model
            for model in self.supply
            if not kinds or any(kind in model.lower() for kind in kinds)
        ]
        known = {each.model for each in family.paces if each.model in models}
        measured = {
            model: epoch for model in sorted(known) if (epoch := epoch_on(family, gpus, model)[0])
        }
        ratios = match.expected(measured, self.typical, models)
        ratios = ratios or {model: self.typical.get(model, 1.0) for model in models}
        least = min(measured.values(), default=min(ratios.values(), default=1.0))
        return {model: each / least for model, each in ratios.items()}

    def share(self, mine: str, other: str, model: str) -> float:
        """What is left of the speed of one family beside another."""
        family = self.state.rest.families.get(mine)
        found = family.beside.get(company(model, other)) if family is not None else None
        return COMPANY if found is None else found


def _by_gpus(family: Family) -> list[dict[str, float]]:
    """Seconds by model, apart for each number of GPUs."""
    if not family.compared:
        return []
    found: dict[int, dict[str, float]] = {}
    for pace in family.paces:
        found.setdefault(pace.gpus, {})[pace.model] = pace.epoch
    return list(found.values())
