"""Show and choose the scheduling policies of queues."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import asdict

from stoker.core.events import Event, PolicyChosen
from stoker.core.model.units import BadValue
from stoker.core.policies.parameters import parameters_of, read_parameters
from stoker.core.policies.policy import (
    ABOUT_AUTO,
    AUTO,
    DEFAULT_POLICY,
    PLANNER,
    POLICIES,
    Policy,
    policy,
)
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext, reply_only
from stoker.daemon.views.format import iso
from stoker.engine import CommandResult, Instant
from stoker.schema import requests as r
from stoker.schema.queue import ChosenPolicy, PolicyChange, PolicyList, PolicyView, QueuePolicy

ALL_QUEUES = "*"
"""Stands for every queue without a policy of its own."""
DEFAULT_QUEUE = "default"
"""The queue of jobs that name none."""


def show(state: State, now: Instant) -> CommandResult:
    """Return the policy of each queue, and all policies."""
    pending = Counter(job_class.queue for job_class in state.pending.class_of.values())
    queues = [queue_view(state, name, pending[name]) for name in known_queues(state)]
    others = queue_view(state, ALL_QUEUES, 0)
    return reply_only(PolicyList(queues=[*queues, others], policies=list_policies()))


def list_policies() -> list[PolicyView]:
    """Return all policies, the automatic choice first."""
    auto = PolicyView(name=AUTO, about=ABOUT_AUTO, parameters=_parameters(PLANNER))
    return [auto] + [
        PolicyView(name=rules.name, about=rules.about, parameters=_parameters(rules))
        for rules in POLICIES.values()
    ]


def known_queues(state: State) -> list[str]:
    """Return the queues that are defined, have jobs, or have a policy of their own."""
    used = {spec.queue for spec in state.specs.values()}
    names = {DEFAULT_QUEUE, *state.record.queues, *used, *state.record.policies} - {ALL_QUEUES}
    return sorted(names, key=lambda name: (name != DEFAULT_QUEUE, name))


def queue_view(state: State, queue: str, pending: int) -> QueuePolicy:
    """Return the policy of a queue, and why it has it."""
    defined = state.record.queues.get(queue)
    return QueuePolicy(
        queue=queue,
        **asdict(_chosen(state, queue)),
        strict=defined is not None and defined.strict,
        waiting=pending,
        running=state.quotas.queue_running.get(queue, 0),
    )


def _chosen(state: State, queue: str) -> ChosenPolicy:
    """Return the policy chosen for a queue, the policy that it results in, and its parameters."""
    policies = state.record.policies
    chosen, changed = policies.get(queue) or policies.get(ALL_QUEUES, (DEFAULT_POLICY.name, {}))
    if chosen == AUTO and queue == ALL_QUEUES:
        rules, name, about = policy(AUTO, changed), AUTO, ABOUT_AUTO
    else:
        rules = state.policy_of(queue)
        name, about = rules.name, rules.about
    return ChosenPolicy(
        own=queue in state.record.policies,
        chosen=chosen,
        policy=name,
        since=iso(_since(state, queue)),
        about=about,
        why=_auto_reason(state, queue) if chosen == AUTO and queue != ALL_QUEUES else None,
        parameters=_parameters(rules),
        changed=dict(changed),
    )


def _since(state: State, queue: str) -> float | None:
    """Return when the policy was chosen; without one of its own, also when it was reset."""
    since = state.record.policies_since
    times = [since[name] for name in (queue, ALL_QUEUES) if name in since]
    return since.get(queue) if queue in state.record.policies else max(times, default=None)


def _auto_reason(state: State, queue: str) -> str:
    """Return why the automatic choice for a queue is what it is."""
    if queue in state.record.queues_with_progress:
        return f"{PLANNER.name}, because a job has reported epochs"
    return f"{DEFAULT_POLICY.name} until a job reports epochs"


def _parameters(rules: Policy) -> dict[str, float]:
    return {name: getattr(rules, name) for name in parameters_of(rules)}


def summary(state: State) -> str:
    """Return the policy of all queues, and the queues with a policy of their own, as text."""
    policies = state.record.policies
    general = policies.get(ALL_QUEUES, (DEFAULT_POLICY.name, {}))[0]
    own = [f"{queue}: {name}" for queue, (name, _) in policies.items() if queue != ALL_QUEUES]
    return "; ".join([general, *own])


def choose(context: RequestContext, body: r.Policy, state: State, now: Instant) -> CommandResult:
    """Set the policy of a queue; without a name, reset it to that of all queues."""
    parameters = _read_parameters(body)
    queue = body.queue
    # A reset of all queues chooses what a new state directory starts with.
    chosen = body.name or (AUTO if queue == ALL_QUEUES else "")
    setting = (chosen, parameters) if chosen else None
    before, same = _chosen(state, queue), state.record.policies.get(queue) == setting
    events: list[Event] = []
    if not same:
        events = [PolicyChosen(at=now.wall, queue=queue, name=chosen, parameters=parameters)]

    def reply(after: State) -> PolicyChange:
        own = [name for name in after.record.policies if name != ALL_QUEUES]
        others = own if queue == ALL_QUEUES else []
        return PolicyChange(
            queue=queue,
            before=before,
            after=_chosen(after, queue),
            changed=not same,
            waiting=_reordered(after, queue, others),
            preempts=_preempts(after, queue),
            kept=others,
            known=queue == ALL_QUEUES or _is_known(after, queue),
        )

    return CommandResult(events=events, reply=reply)


def _reordered(state: State, queue: str, others: list[str]) -> int:
    """Return how many pending jobs the policy reorders."""
    return sum(
        job_class.queue == queue if queue != ALL_QUEUES else job_class.queue not in others
        for job_class in state.pending.class_of.values()
    )


def _preempts(state: State, queue: str) -> bool:
    """Return True if a running job may be preempted by one of equal priority."""
    if queue != ALL_QUEUES:
        return state.policy_of(queue).preempts
    own = state.record.policies
    return any(state.policy_of(name).preempts for name in known_queues(state) if name not in own)


def _is_known(state: State, queue: str) -> bool:
    used = any(spec.queue == queue for spec in state.specs.values())
    return used or queue == DEFAULT_QUEUE or queue in state.record.queues


def _read_parameters(body: r.Policy) -> dict[str, float]:
    """Return the parameters as numbers; raise BadValue for an unknown policy or parameter."""
    if not body.name:
        if body.parameters:
            raise BadValue(
                "Name the policy that the parameters belong to, such as planner quantum=20m."
            )
        return {}
    return read_parameters(body.name, body.parameters)
