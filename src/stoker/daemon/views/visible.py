"""What a user of a system daemon sees of the jobs, sweeps and alarms of others."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET
from msgspec.structs import replace

from stoker.core import events as e
from stoker.core.model.job import Job
from stoker.core.model.spec import Spec
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext
from stoker.daemon.rights import Access
from stoker.daemon.views.job import job_view
from stoker.engine import Instant
from stoker.schema.alarm import AlarmView
from stoker.schema.job import JobView
from stoker.schema.sweep import SweepView

PUBLIC_FIELDS = (
    "id", "label", "name", "user", "state", "state_code", "reason", "reason_text", "queue",
    "priority", "request", "array_index", "sweep", "node", "nodes", "unreachable",
    "unreachable_since", "devices", "gpu_uuids", "attempt", "submitted_at", "started_at",
    "ended_at", "begin_at", "deadline_at", "expected_start", "expected_end", "foreseen", "elapsed",
    "time_limit", "time_left", "result", "restartable", "dismissed", "members",
)  # fmt: skip
"""What everyone sees of a job: label, name, user, resources, state and times."""


def visible_view(
    context: RequestContext, job: Job, spec: Spec, state: State | None, now: Instant, tail: int = 0
) -> JobView[str]:
    """Return as much of a job as the caller may see."""
    view = job_view(job, spec, state, now, context.logs, tail, context.live)
    return limit_job(view, context.access(spec.uid))


def limit_job(view: JobView[str], access: Access) -> JobView[str]:
    """Return a view without what this access does not include."""
    if access is Access.ALL:
        return view
    if access is Access.DETAILS:
        alarms = view.alarms and [replace(alarm, evidence="") for alarm in view.alarms]
        return replace(view, tail=UNSET, attach=UNSET, hook=UNSET, log_bytes=0, alarms=alarms)
    return JobView(**{name: getattr(view, name) for name in PUBLIC_FIELDS})


def limit_sweep(view: SweepView[str], access: Access) -> SweepView[str]:
    """Return a sweep without its results and parameters, unless this access includes them."""
    if access >= Access.DETAILS:
        return view
    return replace(view, metric=None, best=None, note=None)


def limit_alarms(
    context: RequestContext, alarms: Iterable[AlarmView], state: State
) -> list[AlarmView]:
    """Return alarms without what is known of the processes of other users' jobs."""
    return [
        alarm if alarm.job is None or _sees_all(context, alarm.job, state)
        else replace(alarm, evidence="", action="")
        for alarm in alarms
    ]  # fmt: skip


def sees_event(context: RequestContext, event: e.Event, state: State) -> bool:
    """Return whether the caller may see an event: those of its jobs; administrators see all."""
    if context.is_admin:
        return True
    match event:
        case e.JobsSubmitted(spec=hash):
            spec = state.specs.get(hash)
            return spec is not None and _is_visible(context, spec.uid)
        case e.SpecRecorded(spec=spec) | e.JobLoaded(spec=spec):
            return _is_visible(context, spec.uid)
        case e.SweepDefined(sweep=sweep):
            return _is_visible(context, sweep.uid)
        case e.SweepChanged(sweep=id):
            return id in state.sweeps and _is_visible(context, state.sweeps[id].uid)
        case e.AlarmRaised(alarm=alarm):
            return alarm.job is not None and _sees_all(context, alarm.job, state)
        case e.JobEvent(job=id):
            return _sees_all(context, id, state)
    return False


def _sees_all(context: RequestContext, id: int, state: State) -> bool:
    if context.caller is None:
        return True
    job = state.jobs.get(id)
    if job is not None:
        return _is_visible(context, state.spec(job).uid)
    stored = context.load_finished(id)
    return stored is not None and _is_visible(context, stored[1].uid)


def _is_visible(context: RequestContext, owner: int | None) -> bool:
    return context.access(owner) is Access.ALL
