"""Acts: what users of a system daemon have changed, recorded with each commit and listed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from stoker.core import events as e
from stoker.core.state.state import State
from stoker.daemon.context import CommandHandler, RequestContext, reply_only
from stoker.daemon.rights import Caller
from stoker.daemon.views.format import iso
from stoker.engine import CommandResult, Instant
from stoker.schema.act import ActView

EVENTS_PER_TURN = 20_000
"""Events among which acts are looked for in one turn of the daemon: a few milliseconds."""
SUBMISSIONS = e.JobsSubmitted | e.SweepDefined
MAX_WHAT = 500


def recorded(handler: CommandHandler, caller: Caller, verb: str, what: str) -> CommandHandler:
    """Return a handler that also records who has changed something.

    A submission is not recorded twice: its jobs have the uid.
    """

    def handle(state: State, now: Instant) -> CommandResult:
        result = handler(state, now)
        if result.events and not any(isinstance(event, SUBMISSIONS) for event in result.events):
            jobs = {event.job for event in result.events if isinstance(event, e.JobEvent)}
            result.events = [*result.events, _acted(caller, verb, what, jobs, now)]
        return result

    return handle


def record_change(
    caller: Caller, verb: str, what: str, state: State, now: Instant
) -> CommandResult:
    """Record a change of the daemon itself, such as a port, of which there is no event."""
    return CommandResult([_acted(caller, verb, what, (), now)])


def _acted(caller: Caller, verb: str, what: str, jobs: Collection[int], now: Instant) -> e.Acted:
    return e.Acted(
        at=now.wall, uid=caller.uid, user=caller.name, verb=verb,
        jobs=tuple(_ranges(sorted(jobs))), what=what[:MAX_WHAT],
    )  # fmt: skip


def _ranges(ids: Iterable[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for id in ids:
        if ranges and ranges[-1][1] == id - 1:
            ranges[-1] = ranges[-1][0], id
        else:
            ranges.append((id, id))
    return ranges


def acts_before(
    context: RequestContext, before: int | None, seq: Callable[[], int], state: State, now: Instant
) -> CommandResult:
    """Return the acts among the events before a number (None: the last), and the next number.

    Users see what they have done themselves; administrators see all.
    """
    until = seq() if before is None else before - 1
    after = max(until - EVENTS_PER_TURN, 0)
    found = context.store.events_of("Acted", after, until)
    views = [
        _view(event) for _, event in found
        if isinstance(event, e.Acted) and (context.is_admin or event.uid == context.uid)
    ]  # fmt: skip
    return reply_only((views, after + 1 if after else None))


def _view(event: e.Acted) -> ActView:
    return ActView(
        at=iso(event.at) or "", uid=event.uid, user=event.user, verb=event.verb,
        jobs=[list(each) for each in event.jobs], what=event.what,
    )  # fmt: skip


def last_submitter(context: RequestContext, uid: int, state: State, now: Instant) -> CommandResult:
    """Return the name of the user of the last job that a uid has submitted; None without one."""
    first, count = state.record.last_by_uid.get(uid, (0, 0))
    if not count:
        return reply_only(None)
    job = state.jobs.get(first) or context.load_job(first)
    return reply_only(job.user if job is not None else None)
