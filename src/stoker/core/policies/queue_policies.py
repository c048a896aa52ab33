"""Which policy each queue uses, and what follows from it."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from math import inf, log2

from stoker.core.events import QueueDefined
from stoker.core.policies.policy import AUTO, DEFAULT_POLICY, NAMES, BackfillMode, Policy, policy


class QueuePolicies:
    """The policies of all queues, resolved once.

    Derived from: chosen policies, queue definitions, queues with progress.
    Invalidated by: `invalidate()`, after any of these changed.
    """

    def __init__(
        self,
        policies: Mapping[str, tuple[str, dict[str, float]]],
        queues: Mapping[str, QueueDefined],
        reporting: Container[str],
    ) -> None:
        """`reporting` holds the queues in which some job reported epochs."""
        self._policies, self._queues, self._reporting = policies, queues, reporting
        self._by_queue: dict[str, Policy] = {}
        self.invalidate()

    def for_queue(self, queue: str) -> Policy:
        """Return the policy of a queue."""
        if queue not in self._by_queue:
            name, parameters = self._policies.get(queue) or self._policies.get("*", ("", {}))
            is_unmeasured = name == AUTO and queue not in self._reporting
            self._by_queue[queue] = DEFAULT_POLICY if is_unmeasured else _named(name, parameters)
        return self._by_queue[queue]

    def backfill_mode(self, queue: str) -> BackfillMode:
        """Return which jobs of a queue may start ahead of a blocked one."""
        defined = self._queues.get(queue)
        is_strict = defined is not None and defined.strict
        return BackfillMode.STRICT if is_strict else self.for_queue(queue).backfill

    def is_protected(self, queue: str, is_overdue: bool, has_time_limit: bool) -> bool:
        """Whether a blocked job of this queue is protected: later jobs must not delay it."""
        mode = self.backfill_mode(queue)
        # A job with a time limit cannot rely on preemption in time.
        if mode is BackfillMode.OVERDUE_ONLY:
            return is_overdue or has_time_limit
        return mode is not BackfillMode.UNRESTRICTED

    def uses_release_times(self, queues: Collection[str]) -> bool:
        """Whether release times of running jobs matter to a pending job of these queues."""
        modes = {BackfillMode.EASY, BackfillMode.CONSERVATIVE}
        if len(queues) > 1:  # a strict queue's head delays jobs of other queues
            modes.add(BackfillMode.STRICT)
        return any(self.backfill_mode(queue) in modes for queue in queues)

    def invalidate(self) -> None:
        """Resolve everything again, since a policy or a queue changed."""
        self._by_queue.clear()
        policies = (_named(*chosen) for chosen in self._policies.values())
        steps = (log2(policy.hysteresis) for policy in policies if policy.preempts)
        self.min_hysteresis = min(steps, default=inf)
        """The smallest rank difference of preemptor and victim in any queue, in doublings."""


def _named(name: str, parameters: dict[str, float]) -> Policy:
    return policy(name, parameters) if name in NAMES else DEFAULT_POLICY
