"""Show fair share between users, and set the weights of users and groups."""

from __future__ import annotations

from collections import Counter
from math import isfinite

from stoker.core.events import Event, ShareSet
from stoker.core.model.limits import EACH_USER, Share
from stoker.core.model.units import BadValue
from stoker.core.policies.fair_share import CurrentUsage
from stoker.core.state.limits import HOUR_SECONDS
from stoker.core.state.reranking import fair_share_penalties
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext, reply_only
from stoker.daemon.handlers.limits import find_subject, subject_text
from stoker.daemon.handlers.policies import known_queues
from stoker.engine import CommandResult, Instant
from stoker.schema import requests as r
from stoker.schema.shares import GroupShare, ShareChange, ShareList, ShareView

MIN_USAGE_SECONDS = 1.0
"""GPU-seconds below which a user without jobs is not listed: usage never decays to zero."""


def show(state: State, now: Instant) -> CommandResult:
    """Return the users of fair share, those that use the most first, and the weights of groups."""
    record, usage = state.record, state.usage
    pending = Counter(state.jobs[id].user for id in state.pending.class_of)
    named = {share.subject.name for share in record.shares.values() if share.subject.type == "user"}
    recent = {user for user in usage.decayed if usage.usage_of(user, now.wall) >= MIN_USAGE_SECONDS}
    running = {job.user for job in state.running.values()}
    users = sorted({*pending, *running, *recent, *named})
    active = sorted({*state.pending.fair_share_users, *usage.current})
    penalties = fair_share_penalties(state, active, now.wall) if active else {}
    used = {user: usage.usage_of(user, now.wall) for user in users}
    weights = {user: record.weight_of(user) for user in users}
    total, total_weight = sum(used.values()), sum(weight for weight, _ in weights.values())
    views = [
        ShareView(
            user=user, weight=weights[user][0], source=_source(state, weights[user][1]),
            part=round(weights[user][0] / total_weight, 4),
            usage=round(used[user] / HOUR_SECONDS, 3),
            usage_part=round(used[user] / total, 4) if total else 0.0,
            gpus=usage.current.get(user, CurrentUsage()).gpus, pending=pending[user],
            penalty=penalties.get(user, 0.0),
        )
        for user in sorted(users, key=lambda user: (-used[user], user))
    ]  # fmt: skip
    groups = [
        GroupShare(group=share.subject.name, weight=share.weight)
        for share in record.shares.values()
        if share.subject.type == "group"
    ]
    queues = [queue for queue in known_queues(state) if state.policy_of(queue).fair]
    return reply_only(ShareList(shares=views, groups=groups, queues=queues))


def _source(state: State, key: str) -> str | None:
    share = state.record.shares.get(key)
    return subject_text(share.subject) if share is not None else None


def change(context: RequestContext, body: r.SetShare, state: State, now: Instant) -> CommandResult:
    """Set the weight of a user or of each member of a group; None: as without it."""
    context.require_admin("set shares")
    subject = find_subject(context, body.subject)
    if subject.type == "queue" or subject.name == EACH_USER:
        raise BadValue("Users and groups have shares: stoker share ana 2, stoker share @vision 3")
    if body.weight is not None and not isfinite(body.weight):
        raise BadValue("A weight is a number from 0.01 to 1000.")
    wanted = Share(subject, body.weight) if body.weight is not None else None
    events: list[Event] = []
    if state.record.shares.get(subject.key) != wanted:
        events = [
            *(context.groups_of_users(state, now.wall) if subject.type == "group" else ()),
            ShareSet(at=now.wall, subject=subject, weight=body.weight),
        ]
    reply = ShareChange(subject=subject_text(subject), weight=body.weight, changed=bool(events))
    return CommandResult(events=events, reply=lambda _: reply)
