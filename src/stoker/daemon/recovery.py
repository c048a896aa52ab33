"""recover_state: what a new daemon does before its first turn.

It records its start, finds out what became of attempts that an earlier daemon started, and
removes what is no longer needed.
"""

from __future__ import annotations

import os

from msgspec.structs import asdict

from stoker import __version__
from stoker.core.events import (
    DaemonStarted,
    Event,
    IdsReserved,
    JobHeld,
    NodeJoined,
    NodeRemoved,
    PolicyChosen,
    QueueDefined,
)
from stoker.core.model.job import Job, JobState
from stoker.core.model.resources import NodeFacts
from stoker.core.policies.policy import AUTO
from stoker.core.state.state import State
from stoker.daemon import identity_files, unknown_attempts
from stoker.daemon.control.daemon import Daemon
from stoker.daemon.nodes.configured import configured_node_events
from stoker.daemon.runtime.clock import system_clock
from stoker.daemon.settings import QueueLimits, Settings
from stoker.daemon.sweeps.stored import load_sweep
from stoker.daemon.training.cleanup import expired_checkpoints, remove_in_background
from stoker.executors.local.recovery import discard_old_mark, mark_complete
from stoker.executors.user.executor import UserExecutor
from stoker.probes import host

DAY_SECONDS = 86400


def recover_state(
    daemon: Daemon, term: int, facts: NodeFacts, settings: Settings, run: str
) -> list[str]:
    """Record the start of this daemon, and recover the attempts that are under way.

    Return messages about configured nodes that are ignored.
    """
    state, at = daemon.engine.state, system_clock().wall
    node_events, ignored = configured_node_events(
        state, {**settings.nodes, **settings.clusters}, facts.name, at
    )
    boot = host.boot_id()
    same_boot = state.record.boot in ("", boot)
    lost = _events_after_loss(daemon, at)
    daemon.record(
        [
            DaemonStarted(
                at=at, term=term, boot=boot, pid=os.getpid(), version=__version__,
                clock=system_clock().boot,
            ),
            NodeJoined(at=at, facts=facts),
            # Jobs that earlier versions have queued keep their order.
            *([] if daemon.engine.seq else [PolicyChosen(at=at, queue="*", name=AUTO)]),
            *(
                _queue_defined(at, name, limits) for name, limits in settings.queues.items()
            ),
            *node_events,
            *(NodeRemoved(at=at, name=name) for name in _former_names(state, facts.name)),
            *lost,
        ]
    )  # fmt: skip
    _recover_attempts(daemon, same_boot, run, boot)
    _warn_of_held_jobs(daemon, [event.job for event in lost if isinstance(event, JobHeld)])
    daemon.registry.sync(daemon.engine.state)
    daemon.training.start()
    daemon.notifier.start()
    daemon.store.sync()
    _drop_proofs(daemon)
    mark_complete(run, boot)
    kept = {*environments_in_use(daemon), *identity_files.KEYS}
    daemon.store.purge(at - settings.secrets_days * DAY_SECONDS, kept)
    purge_leftovers(daemon, at)
    return ignored


def _queue_defined(at: float, name: str, limits: QueueLimits) -> QueueDefined:
    """Return the event of a configured queue; the rules of its alarms are read from the file."""
    fields = {key: value for key, value in asdict(limits).items() if key != "alarms"}
    return QueueDefined(at=at, name=name, **fields)


def _recover_attempts(daemon: Daemon, same_boot: bool, run: str, boot: str) -> None:
    local = daemon.local
    if isinstance(local, UserExecutor):  # the processes of the users have the traces of attempts
        _recover_jobs(daemon, list(daemon.engine.state.running.values()), same_boot)
        return
    discard_old_mark(run, boot)
    unknown = unknown_attempts.unknown_attempts(daemon.engine.state, daemon.context, local.recovery)
    known = [job for job in daemon.engine.state.running.values() if job.id not in unknown]
    _recover_jobs(daemon, known, same_boot)
    if unknown:
        local.recovery.decide_now()
        _record_local_events(daemon)
        jobs, alerts = unknown_attempts.recover(
            unknown, lambda: daemon.engine.state, daemon.context, local.recovery, daemon.record
        )
        daemon.store.warnings().extend(alerts)
        _recover_jobs(daemon, jobs, same_boot=True)


def _recover_jobs(daemon: Daemon, jobs: list[Job], same_boot: bool) -> None:
    """Find out what became of the attempts of these jobs on this node."""
    daemon.registry.recover(jobs, node_restarted=not same_boot)
    _record_local_events(daemon)


def _record_local_events(daemon: Daemon) -> None:
    """Enter in the journal what the local executor has found out."""
    while daemon.registry.pending:
        events = daemon.registry.collect(daemon.engine.state)
        daemon.record(daemon.training.enrich_events(events))


def _drop_proofs(daemon: Daemon) -> None:
    """Delete what proved ends that are on disk now."""
    if daemon.engine.has_unrecorded_events:
        return  # their proofs are all there is of them
    daemon.local.drop_proofs(daemon.engine.state.record.next_id)


def _events_after_loss(daemon: Daemon, at: float) -> list[Event]:
    """Reserve ids that the journal may have lost, and hold jobs that may have run since."""
    store, state, next_id = daemon.store, daemon.engine.state, daemon.store.id_floor()
    if store.warnings() or daemon.context.alerts:
        # Not all ids that were given out may be recorded: jobs that ran have logs.
        next_id = max(next_id, _last_logged(f"{daemon.context.directory}/logs") + 1)
    events: list[Event] = []
    if next_id > state.record.next_id:
        events.append(IdsReserved(at=at, next_id=next_id))
    if store.lost_events():
        unfinished = [job.id for job in state.jobs.values() if not job.finished and not job.held]
        events += [JobHeld(at=at, job=id) for id in unfinished]
    return events


def _warn_of_held_jobs(daemon: Daemon, ids: list[int]) -> None:
    """Count the held jobs that are still pending: others turned out to run or to be over."""
    jobs = daemon.engine.state.jobs
    count = sum(id in jobs and jobs[id].state is JobState.PENDING for id in ids)
    if count:
        daemon.store.warnings().append(
            f"{'1 pending job is' if count == 1 else f'{count} pending jobs are'} held, because "
            "the journal may lack recent runs: check the queue, then release or cancel them"
        )


def environments_in_use(daemon: Daemon) -> set[str]:
    """Return the environments of trials that are still to be submitted."""
    unfinished = [sweep for sweep in daemon.engine.state.sweeps.values() if sweep.needs_trials]
    return {load_sweep(daemon.context, sweep).spec.environment for sweep in unfinished}


def purge_leftovers(daemon: Daemon, at: float) -> None:
    """Remove reports and checkpoints of ended training jobs; all ends are on disk now."""
    state, reports = daemon.engine.state, daemon.training.cleanup
    reports.scan(state)
    checkpoints = f"{daemon.context.directory}/checkpoints"
    expired = expired_checkpoints(checkpoints, daemon.local.install, state, daemon.store, at)
    remove_in_background(reports.take_removable() + expired)


def _former_names(state: State, name: str) -> list[str]:
    """Return earlier names of this machine, except those under which jobs still run."""
    record = state.record
    running = {
        part.node
        for job in state.running.values()
        for part in (job.placement.parts if job.placement else ())
    }
    return [former for former in record.nodes if former not in (name, *record.remotes, *running)]


def _last_logged(logs: str) -> int:
    """Return the highest id that has a log: a damaged journal may have lost it."""
    numbers = (name.partition(".")[0] for name in os.listdir(logs))
    return max((int(number) for number in numbers if number.isdigit()), default=0)
