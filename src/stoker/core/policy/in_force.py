"""The policies that queues go by now."""

from __future__ import annotations

from collections.abc import Collection
from math import inf, log2

from stoker.core.policy.rules import AUTO, NAMES, USUAL, Gaps, Policy, policy
from stoker.core.rest import Rest


class InForce:
    """What was chosen for each queue and what that comes to, worked out once."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._found: dict[str, Policy] = {}
        self._gaps: dict[str, Gaps] = {}
        self._plain: dict[str, bool] = {}
        self._reluctance: float | None = None

    def of(self, queue: str) -> Policy:
        """What a queue goes by."""
        found = self._found.get(queue)
        if found is None:
            found = self._found[queue] = self._look(queue)
        return found

    def _look(self, queue: str) -> Policy:
        name, parameters = self._rest.policies.get(queue) or self._rest.policies.get("*", ("", {}))
        if name == AUTO and queue not in self._rest.reporting:
            return USUAL
        return _named(name, parameters)

    def gaps(self, queue: str) -> Gaps:
        """Who may start there although somebody before cannot."""
        found = self._gaps.get(queue)
        if found is None:
            defined = self._rest.queues.get(queue)
            strict = defined is not None and defined.strict
            found = self._gaps[queue] = Gaps.NOBODY if strict else self.of(queue).gaps
        return found

    def holds(self, queue: str, overdue: bool, limited: bool) -> bool:
        """Whether nobody behind may delay one that has no room there."""
        gaps = self.gaps(queue)
        if gaps is Gaps.OVERDUE:  # one with a limit cannot count on others making room in time
            return overdue or limited
        return gaps is not Gaps.ANYBODY

    def ends_matter(self, queues: Collection[str]) -> bool:
        """Whether it counts for somebody who waits there when those are over who run."""
        waiting = {Gaps.EASY, Gaps.CONSERVATIVE}
        if len(queues) > 1:  # one who waits in order holds up those of other queues
            waiting.add(Gaps.NOBODY)
        return any(self.gaps(queue) in waiting for queue in queues)

    def only_machines_count(self, queue: str) -> bool:
        """Whether it depends on machines alone who starts there."""
        found = self._plain.get(queue)
        if found is None:
            defined = self._rest.queues.get(queue)
            limits = (defined.max_running, defined.max_gpus) if defined is not None else ()
            passing = self.gaps(queue) in (Gaps.ANYBODY, Gaps.OVERDUE)
            found = self._plain[queue] = passing and not any(limit is not None for limit in limits)
        return found

    @property
    def reluctance(self) -> float:
        """So much further back everybody stands who stops for an equal, in doublings."""
        if self._reluctance is None:
            named = (_named(*each) for each in self._rest.policies.values())
            steps = [log2(rules.hysteresis) for rules in named if rules.preempts]
            self._reluctance = min(steps, default=inf)
        return self._reluctance

    def forget(self) -> None:
        """Some queue goes by another policy, or is defined otherwise, from now on."""
        self._found.clear()
        self._gaps.clear()
        self._plain.clear()
        self._reluctance = None


def _named(name: str, parameters: dict[str, float]) -> Policy:
    return policy(name, parameters) if name in NAMES else USUAL
