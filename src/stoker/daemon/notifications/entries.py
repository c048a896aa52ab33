"""EntryBuilder: events -> messages for targets, in the daemon's thread."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.model.alarm import MARK
from stoker.core.model.job import FAILED_STATES, Job, JobState
from stoker.core.model.notification import (
    ALARM,
    BEFORE_LIMIT,
    EMPTY,
    END,
    FAIL,
    FREE,
    REQUEUE,
    START,
    Condition,
    parse_condition,
)
from stoker.core.model.resources import GPU
from stoker.core.model.spec import Spec
from stoker.core.options.notify import MAIL, limit_shares
from stoker.core.state.state import State
from stoker.core.state.timers import time_limit_end
from stoker.daemon.context import RequestContext
from stoker.daemon.notifications import compose
from stoker.daemon.notifications.message import Message
from stoker.daemon.notifications.outbox import Entry
from stoker.daemon.notifications.schedule import GROUPED, due_time
from stoker.daemon.settings import NotifyTarget
from stoker.daemon.views.gpu import device_state

CHANGES_OF_LIMITS = (e.ProcessStarted, e.JobEdited, e.JobResumed, e.NotifyRuleAdded)
ENDS = (
    e.ProcessExited, e.AttemptLost, e.AttemptAbandoned, e.StartFailed, e.JobCancelled,
    e.DeadlinePassed,
)  # fmt: skip
JOB, TASK, ARRAY = "job", "task", "array"
"""What a message is about: a job, one member of an array, the whole array."""
READ_SECONDS = 10.0
"""How long the message about a sweep waits for metrics that are read from the output."""
MAX_LOGS = 10
"""Messages of one commit that have the end of the output."""


class EntryBuilder:
    """Decides what is sent to which target."""

    def __init__(
        self, targets: Mapping[str, NotifyTarget], context: RequestContext, page_url: str = ""
    ) -> None:
        """`page_url`: the address of the web page, if it has one that is known."""
        self._targets, self._context = targets, context
        self._page_url = page_url.rstrip("/")
        self._configured = [
            (name, parse_condition(text)[0])
            for name, target in targets.items() for text in target.on
        ]  # fmt: skip
        self._witness: dict[int, int] = {}
        """By array: a member that had not ended when it was last looked at."""
        self._free_gpus: frozenset[str] = frozenset()
        self._near: set[str] = set()
        """Keys of messages about time limits of running jobs."""

    def target(self, name: str) -> NotifyTarget | None:
        """Return a target of the configuration, or the one for an e-mail address."""
        if not name.startswith(MAIL):
            return self._targets.get(name)
        mails = (target for target in self._targets.values() if target.kind == "email")
        mail = next(mails, NotifyTarget(kind="email"))
        return replace(mail, to=name.removeprefix(MAIL))

    def note_free_gpus(self, state: State) -> None:
        """Take the GPUs that are free now as known."""
        self._free_gpus = free_gpus(state)

    def entries(self, events: Iterable[e.Event], state: State) -> list[Entry]:
        """Return the messages about committed events."""
        entries: list[Entry] = []
        ended: dict[int, None] = {}
        measured: dict[int, None] = {}
        for event in events:
            if isinstance(event, ENDS):
                ended[event.job] = None
            elif isinstance(event, e.TrialMeasured):
                measured[event.job] = None
            elif isinstance(event, e.ProcessStarted) and not event.part:
                job = state.jobs.get(event.job)
                if job is not None and job.attempt == event.attempt:
                    entries += self._for_start(job, state.spec(job), state)
            elif isinstance(event, e.AlarmRaised):
                entries += self._for_alarm(event, state)
            elif isinstance(event, e.NotifyRuleAdded):
                self.note_free_gpus(state)
        found = [pair for id in ended if (pair := self._find(id, state)) is not None]
        arrays: dict[int, tuple[Job, Spec]] = {}
        for job, spec in found:
            entries += self._for_end(job, spec, state)
            if job.array is not None and job.finished:
                arrays[job.array] = job, spec
        for id in measured:  # its output was read after its sweep had ended
            job_of = state.jobs.get(id)
            if job_of is not None and job_of.finished and job_of.array in state.sweeps:
                arrays.setdefault(job_of.array, (job_of, state.spec(job_of)))
        # Once each, also if several members have ended in this commit.
        for array, (job, spec) in arrays.items():
            entries += self._for_array_end(job, spec, array, state)
        if found and not state.live:
            names = self._recipients(state, EMPTY)
            entries += self._to(names, compose.queue_empty(found[-1][0]))
        return _with_few_logs([*entries, *self._for_free_gpus(state)])

    def _for_start(self, job: Job, spec: Spec, state: State) -> list[Entry]:
        names = self._recipients(state, START, job, spec)
        return self._to(names, compose.job_started(job, spec)) if names else []

    def _for_alarm(self, event: e.AlarmRaised, state: State) -> list[Entry]:
        alarm = event.alarm
        if alarm.action == MARK or alarm.key not in state.record.alarms:
            return []  # it is over, or is advice that comes with the end of its job
        job = state.jobs.get(alarm.job) if alarm.job is not None else None
        spec = state.spec(job) if job is not None else None
        names = self._recipients(state, ALARM, job, spec, alarm.kind)
        return self._to(names, compose.alarm_raised(alarm, state)) if names else []

    def _for_end(self, job: Job, spec: Spec, state: State) -> list[Entry]:
        """Return the messages about a job that has ended, or is repeated."""
        if not job.finished:
            is_repeated = job.state is JobState.PENDING and job.past
            names = self._recipients(state, REQUEUE, job, spec) if is_repeated else {}
            return self._to(names, compose.job_requeued(job, spec)) if names else []
        event = FAIL if job.state in FAILED_STATES else END
        # A member of an array has messages of its own only if that is asked for.
        is_own = job.array is None or "tasks" in compose.events_of(spec)
        names = self._recipients(state, event, job, spec, scope=JOB if is_own else TASK)
        return self._to(names, compose.job_end(job, spec, self._context.logs)) if names else []

    def _for_array_end(self, job: Job, spec: Spec, array: int, state: State) -> list[Entry]:
        """Return the messages about an array or a sweep, at its end."""
        has_recipients = self._recipients(state, FAIL, job, spec, scope=ARRAY)
        if "tasks" in compose.events_of(spec) or not has_recipients:
            return []
        sweep, delay = state.sweeps.get(array), 0.0
        if sweep is not None:
            if sweep.ended_at is None:
                return []
            message = compose.sweep_end(sweep, state, self._context)
            delay = READ_SECONDS if sweep.metric is not None else 0.0
        elif self._has_unfinished(array, spec, state):
            return []
        else:
            message = compose.array_end(job, spec, self._context)
        names = self._recipients(state, message.event, job, spec, scope=ARRAY)
        return self._to(names, message, delay)

    def _find(self, id: int, state: State) -> tuple[Job, Spec] | None:
        job = state.jobs.get(id)
        return (job, state.spec(job)) if job is not None else self._context.load_finished(id)

    def _has_unfinished(self, array: int, spec: Spec, state: State) -> bool:
        """Return whether members of an array have not ended; ids of members are consecutive."""
        witness = self._witness.pop(array, 0)
        for id in (witness, *range(array + spec.array_size - 1, array - 1, -1)):
            job = state.jobs.get(id)
            if job is not None and job.array == array and not job.finished:
                self._witness[array] = id
                return True
        return False

    def _for_free_gpus(self, state: State) -> list[Entry]:
        """Return the messages that a GPU has become free, after a time when none was."""
        if not any(condition.event == FREE for _, condition in self._conditions(state)):
            return []
        before, self._free_gpus = self._free_gpus, free_gpus(state)
        if before or not self._free_gpus:
            return []
        names = self._recipients(state, FREE)
        return self._to(names, compose.gpus_free(sorted(self._free_gpus), time.time()))

    # -- time limits --------------------------------------------------------------------

    def before_limits(self, state: State, boot: float) -> tuple[list[Entry], float | None]:
        """Return messages about jobs that soon reach their limit, and the seconds to the next."""
        entries: list[Entry] = []
        moments: list[float] = []
        near, self._near = self._near, set()
        conditions = (condition for _, condition in self._conditions(state))
        general = {each.seconds for each in conditions if each.event == BEFORE_LIMIT}
        for job in state.running.values():
            spec = state.spec(job)
            end = time_limit_end(state, job) if general or spec.notify else None
            if end is None or spec.limit is None:
                continue
            own = limit_shares(spec.notify, spec.limit)
            # With a shorter limit, it would be sent at the start.
            for seconds in sorted(each for each in general | own.keys() if each < spec.limit):
                if boot < end - seconds:
                    moments.append(end - seconds)
                    continue
                message = compose.limit_near(job, spec, seconds, end - boot)
                self._near.add(message.key)
                if message.key not in near:
                    names = self._recipients(state, BEFORE_LIMIT, job, spec, seconds=seconds)
                    names |= self._recipients(state, own.get(seconds, ""), job, spec)
                    entries += self._to(names, message)
        return entries, min(moments) - boot if moments else None

    # -- targets ------------------------------------------------------------------------

    def _conditions(
        self, state: State, spec: Spec | None = None
    ) -> Iterator[tuple[str, Condition]]:
        """Yield targets and when they are notified; of rules, those of the user of this spec."""
        yield from self._configured
        for rule in state.record.notify_rules.values():
            if spec is None or rule.uid in (None, spec.uid):
                yield rule.target, rule.condition

    def _recipients(
        self, state: State, event: str, job: Job | None = None, spec: Spec | None = None,
        kind: str = "", seconds: int = 0, scope: str = JOB,
    ) -> dict[str, None]:  # fmt: skip
        """Return the targets of a message; `scope` says what it is about."""
        names: dict[str, None] = {}
        if spec is not None and job is not None and scope != TASK:
            kinds = {event, END} if event == FAIL else {event}
            for name, events in spec.notify:
                if kinds & set(events):
                    is_submitter = name == MAIL
                    names[MAIL + job.user if is_submitter else name] = None
        for name, condition in self._conditions(state, spec):
            if condition.matches(event, kind, seconds) and _is_about(condition, job, scope):
                names[name] = None
        return names

    def _to(self, names: Iterable[str], message: Message, delay: float = 0.0) -> list[Entry]:
        message.link, message.host = self._link(message.facts), self._context.node
        return [self._entry(name, message, delay) for name in names]

    def _link(self, facts: Mapping[str, Any]) -> str:
        pages = (("job_id", "j"), ("sweep", "s"))
        paths = (f"/#/{page}/{facts[key]}" for key, page in pages if facts.get(key) is not None)
        return self._page_url + next(paths, "/") if self._page_url else ""

    def _entry(self, name: str, message: Message, delay: float) -> Entry:
        target = self.target(name)
        if target is None or not target.with_logs:
            message = replace(message, log=[])
        digest, quiet = (target.digest, target.quiet) if target is not None else ("", "")
        topic = message.key
        if digest:
            topic = "digest"
        elif message.event in GROUPED:
            topic = message.event
        due = due_time(time.time() + delay, message.event, digest, quiet)
        return Entry(name, message, topic, due)


def _is_about(condition: Condition, job: Job | None, scope: str) -> bool:
    """Return whether a condition is about a job, or about all jobs."""
    if condition.job is not None or scope == TASK:
        return job is not None and job.id == condition.job and scope != ARRAY
    if condition.array is not None or condition.arrays_only:
        array = job.array if job is not None else None
        return array is not None and condition.array in (None, array)
    return True


def free_gpus(state: State) -> frozenset[str]:
    """Return the GPUs on which a job could start now."""
    return frozenset(
        f"{node.name}/{device.name}"
        for node in state.cluster.nodes.values()
        if not (node.on_demand or node.delegated)
        for device in node.types.get(GPU, ())
        if device_state(node, device, device.unallocated < device.facts.capacity) == "free"
    )


def _with_few_logs(entries: list[Entry]) -> list[Entry]:
    for entry in entries[MAX_LOGS:]:
        entry.message = replace(entry.message, log=[])
    return entries
