"""Handlers of rules of notifications: `stoker notify TARGET --when 'sweep 17 done'`."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core.events import NotifyRuleAdded, NotifyRuleRemoved
from stoker.core.model.notification import FREE, Condition, NotifyRule, parse_condition
from stoker.core.options.notify import MAIL
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext
from stoker.daemon.notifications.entries import free_gpus
from stoker.daemon.selectors import selected_sweep
from stoker.daemon.submission.checks import check_mail_address, unknown_target
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema import requests as r
from stoker.schema.notification import RuleView

MAX_RULES = 200


def add(
    context: RequestContext, body: r.AddNotifyRule, state: State, now: Instant
) -> CommandResult:
    """Add a rule."""
    target = body.target
    if "@" in target:
        target = MAIL + target
        check_mail_address(context, target)
    elif target not in context.notify_targets():
        raise CommandRejected(unknown_target(target, context), "not_found")
    condition, selector = parse_condition(body.when)
    if selector:
        condition = _about(context, condition, selector, state)
    known = state.record.notify_rules
    same = next((x for x in known.values() if _is_same(x, target, condition, context.uid)), None)
    if same is None and len(known) >= MAX_RULES:
        raise CommandRejected(
            f"There are {MAX_RULES} rules already; remove one: stoker notify remove ID.", "failed"
        )
    rule = same or NotifyRule(
        id=state.record.last_notify_rule + 1, target=target, when=" ".join(body.when.split()),
        condition=condition, user=context.submitter, uid=context.uid,
    )  # fmt: skip
    events = [
        NotifyRuleRemoved(at=now.wall, id=old.id)
        for old in known.values() if _is_over(context, old.condition, state)
    ]  # fmt: skip
    free = sorted(free_gpus(state)) if condition.event == FREE else []
    note = f"free now: {', '.join(free[:8])}" if free else None
    added = [] if same is not None else [NotifyRuleAdded(at=now.wall, rule=rule)]
    return CommandResult([*events, *added], lambda _: _view(rule, note))


def _is_same(rule: NotifyRule, target: str, condition: Condition, uid: int | None) -> bool:
    return (rule.target, rule.condition, rule.uid) == (target, condition, uid)


def _about(context: RequestContext, condition: Condition, selector: str, state: State) -> Condition:
    """Return a condition about the unfinished job, array or sweep that a selector names."""
    sweep = selected_sweep(selector, state, context.uid)
    ids = context.resolve([selector], state) if sweep is None else []
    arrays = {context.job_and_spec(id, state)[0].array for id in ids}
    if sweep is not None:
        found = replace(condition, array=sweep)
    elif len(ids) == 1:
        found = replace(condition, job=ids[0])
    elif len(arrays) == 1 and (array := arrays.pop()) is not None:
        found = replace(condition, array=array)
    else:
        raise CommandRejected(f"'{selector}' names several jobs; name one, or an array.", "usage")
    owner = state.sweeps[sweep].uid if sweep is not None else _uid(context, ids[0], state)
    context.require_management(owner, f"'{selector}' belongs to another user")
    if _is_over(context, found, state):
        raise CommandRejected(f"{selector} has ended already.", "failed")
    return found


def _uid(context: RequestContext, id: int, state: State) -> int | None:
    return context.job_and_spec(id, state)[1].uid


def _is_over(context: RequestContext, condition: Condition, state: State) -> bool:
    """Return whether the job, array or sweep of a condition has ended."""
    if condition.job is not None:
        job = state.jobs.get(condition.job)
        return job is None or job.finished
    if condition.array is None:
        return False
    sweep = state.sweeps.get(condition.array)
    if sweep is not None:
        return not sweep.is_open
    return all(
        (job := state.jobs.get(id)) is None or job.finished
        for id in context.store.members(condition.array)
    )


def remove(context: RequestContext, id: str, state: State, now: Instant) -> CommandResult:
    """Remove a rule."""
    rule = state.record.notify_rules.get(int(id)) if id.isdecimal() else None
    if rule is None or not context.may_manage(rule.uid):
        raise CommandRejected(f"There is no rule {id[:20]}; see stoker notify list.", "not_found")
    view = _view(rule)
    return CommandResult([NotifyRuleRemoved(at=now.wall, id=rule.id)], lambda _: view)


def views(context: RequestContext, state: State) -> list[RuleView]:
    """Return the rules that the caller may see, and that can still hold."""
    rules = state.record.notify_rules.values()
    return [
        _view(rule)
        for rule in rules
        if context.may_manage(rule.uid) and not _is_over(context, rule.condition, state)
    ]


def _view(rule: NotifyRule, note: str | None = None) -> RuleView:
    target = rule.target.removeprefix(MAIL)
    return RuleView(id=rule.id, target=target, when=rule.when, user=rule.user, note=note)
