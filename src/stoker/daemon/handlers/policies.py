"""By what queues are worked off: shown, and chosen while everything goes on."""

from __future__ import annotations

from collections import Counter
from typing import Any

from stoker.core.events import Event, PolicyChosen
from stoker.core.policy.parameters import counts_for, read_parameters
from stoker.core.policy.rules import ABOUT_AUTO, AUTO, PLANNER, POLICIES, USUAL, Policy, policy
from stoker.core.state import State
from stoker.core.units import BadValue
from stoker.daemon.context import CommandHandler, RequestContext, reply_only
from stoker.daemon.views.job import iso
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema import requests as r

ALL = "*"
"""Every queue for which nothing else is said."""
DEFAULT = "default"
"""Where jobs go that name no queue."""

# -- looking --------------------------------------------------------------------------------


def shown(desk: RequestContext) -> CommandHandler:
    """What each queue goes by, and what else there is."""

    def decide(state: State, now: Instant) -> CommandResult:
        waiting = Counter(found.queue for found in state.line.where.values())
        queues = [queue_view(state, name, waiting[name]) for name in known_queues(state)]
        others = queue_view(state, ALL, 0)
        return reply_only({"queues": [*queues, others], "policies": listed()})

    return decide


def listed() -> list[dict[str, Any]]:
    """All policies, the one that chooses by itself first."""
    found = [{"name": AUTO, "about": ABOUT_AUTO, "parameters": _figures(PLANNER)}]
    return found + [
        {"name": each.name, "about": each.about, "parameters": _figures(each)}
        for each in POLICIES.values()
    ]


def known_queues(state: State) -> list[str]:
    """Queues that are defined, have jobs, or have a policy of their own."""
    used = {spec.queue for spec in state.specs.values()}
    names = {DEFAULT, *state.rest.queues, *used, *state.rest.policies} - {ALL}
    return sorted(names, key=lambda name: (name != DEFAULT, name))


def queue_view(state: State, queue: str, waiting: int) -> dict[str, Any]:
    """What a queue goes by now, and why."""
    defined = state.rest.queues.get(queue)
    return {
        "queue": queue,
        **_chosen(state, queue),
        "strict": defined is not None and defined.strict,
        "waiting": waiting,
        "running": state.queue_running.get(queue, 0),
    }


def _chosen(state: State, queue: str) -> dict[str, Any]:
    """The policy that was chosen for a queue, the one it comes to, and its parameters."""
    said, changed = state.rest.policies.get(queue) or state.rest.policies.get(ALL, (USUAL.name, {}))
    if said == AUTO and queue == ALL:
        rules, name, about = policy(AUTO, changed), AUTO, ABOUT_AUTO
    else:
        rules = state.policy(queue)
        name, about = rules.name, rules.about
    return {
        "own": queue in state.rest.policies,
        "chosen": said,
        "policy": name,
        "since": iso(_since(state, queue)),
        "about": about,
        "why": _why(state, queue) if said == AUTO and queue != ALL else None,
        "parameters": _figures(rules),
        "changed": dict(changed),
    }


def _since(state: State, queue: str) -> float | None:
    """When that was chosen; of a queue without a policy of its own, also when it gave one up."""
    known = state.rest.policies_since
    told = [known[name] for name in (queue, ALL) if name in known]
    return known.get(queue) if queue in state.rest.policies else max(told, default=None)


def _why(state: State, queue: str) -> str:
    """Why a queue that chooses by itself goes by what it does."""
    if queue in state.rest.reporting:
        return f"{PLANNER.name}, because a job has reported epochs"
    return f"{USUAL.name} until a job reports epochs"


def _figures(rules: Policy) -> dict[str, float]:
    return {name: getattr(rules, name) for name in counts_for(rules)}


def summary(state: State) -> str:
    """In a few words: what all queues go by, and those that go by something else."""
    policies = state.rest.policies
    usual = policies.get(ALL, (USUAL.name, {}))[0]
    own = [f"{queue}: {said}" for queue, (said, _) in policies.items() if queue != ALL]
    return "; ".join([usual, *own])


# -- choosing -------------------------------------------------------------------------------


def choose(desk: RequestContext, body: r.Policy) -> CommandHandler:
    """Have a queue go by something else from now on; without a name, by what all others do."""

    def decide(state: State, now: Instant) -> CommandResult:
        try:
            parameters = _checked(body)
        except BadValue as error:
            raise CommandRejected(str(error), "usage") from None
        queue = body.queue
        chosen = body.name or (AUTO if queue == ALL else "")  # reset: as in a new home
        wanted = (chosen, parameters) if chosen else None
        before, same = _chosen(state, queue), state.rest.policies.get(queue) == wanted
        facts: list[Event] = []
        if not same:
            facts = [PolicyChosen(at=now.wall, queue=queue, name=chosen, parameters=parameters)]

        def reply(after: State) -> dict[str, Any]:
            others = [name for name in after.rest.policies if name != ALL] if queue == ALL else []
            return {
                "queue": queue,
                "before": before,
                "after": _chosen(after, queue),
                "changed": not same,
                "waiting": _waiting(after, queue, others),
                "preempts": _preempts(after, queue),
                "kept": others,
                "known": queue == ALL or _is_known(after, queue),
            }

        return CommandResult(events=facts, reply=reply)

    return decide


def _waiting(state: State, queue: str, others: list[str]) -> int:
    """How many ready jobs stand anew."""
    return sum(
        found.queue == queue if queue != ALL else found.queue not in others
        for found in state.line.where.values()
    )


def _preempts(state: State, queue: str) -> bool:
    """Whether those who run may have to make room for others of equal priority."""
    if queue != ALL:
        return state.policy(queue).preempts
    own = state.rest.policies
    return any(state.policy(name).preempts for name in known_queues(state) if name not in own)


def _is_known(state: State, queue: str) -> bool:
    used = any(spec.queue == queue for spec in state.specs.values())
    return used or queue == DEFAULT or queue in state.rest.queues


def _checked(body: r.Policy) -> dict[str, float]:
    """The parameters in seconds and numbers; raises BadValue, also for a name that is none."""
    if not body.name:
        if body.parameters:
            raise BadValue(
                "Name the policy that the parameters belong to, such as planner quantum=20m."
            )
        return {}
    return read_parameters(body.name, body.parameters)
