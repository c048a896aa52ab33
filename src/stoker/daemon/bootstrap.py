"""Putting a driver together: places, lock, store, machine, adoption."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import pwd
from collections.abc import Callable, Iterable

from msgspec.structs import asdict

from stoker import __version__, places
from stoker.core.cluster import NodeFacts
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
from stoker.core.job import Job
from stoker.core.launch import log_paths
from stoker.core.lifecycle import JobState
from stoker.core.policy.rules import AUTO
from stoker.core.request import GPU
from stoker.core.state import State
from stoker.daemon import daemon_log
from stoker.daemon import settings as configuration
from stoker.daemon import unknown_attempts as recovered
from stoker.daemon.context import RequestContext
from stoker.daemon.control.daemon import Daemon, JobSource
from stoker.daemon.gpus.monitor import GpuMonitor
from stoker.daemon.nodes.configured import configured_names, configured_node_events
from stoker.daemon.nodes.local_node import DeclaredResources, build_node_facts, probe_gpus
from stoker.daemon.nodes.registry import ExecutorRegistry
from stoker.daemon.paths import DaemonPaths
from stoker.daemon.runtime.clock import system_clock
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.daemon.state_lock import on_shared_file_system
from stoker.daemon.training.cleanup import expired_checkpoints, remove_in_background
from stoker.executors.launch.paths import ExecutorPaths
from stoker.executors.linux.cgroup import Cgroups
from stoker.executors.local.executor import LocalExecutor
from stoker.executors.local.recovery import KEPT
from stoker.faults import FaultTracker
from stoker.probes import host
from stoker.store.port import Store, StoreError, StoreFenced
from stoker.store.select import StoreChoice, moved_warning, open_store, select_store

logger = logging.getLogger(__name__)


def install_id(state: str) -> str:
    """What tells this state's attempts from those of any other, past or present."""
    path = f"{state}/install"
    with contextlib.suppress(FileExistsError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.write(fd, os.urandom(6).hex().encode())
        os.close(fd)
    with open(path) as file:
        return file.read().strip()


def build_daemon(
    kept: DaemonPaths,
    gpus: str | None = None,
    resources: str | None = None,
    extra: Iterable[str] = (),
    feeder: JobSource | None = None,
    db: str | None = None,
) -> Daemon:
    """Assemble a loop that has the state, knows the machine and has adopted what runs."""
    # Warnings of a daemon in the foreground are shown; `feed` has a progress line to keep whole.
    daemon_log.configure(places.daemon_log(), logging.WARNING if feeder else logging.NOTSET)
    config = configuration.load()
    daemon_log.set_level(config.log.level)
    declaration = DeclaredResources(f"{kept.state}/declared.json")
    said = gpus is not None or resources is not None
    if not said:
        gpus, resources = config.gpus, config.resources
    remembers = gpus is None and resources is None
    if remembers:
        gpus, resources = declaration.load()
    reading = probe_gpus(os.environ)
    facts = build_node_facts(
        reading, gpus, resources
    )  # refuses nonsense before anything is touched
    store, place, left = _open_store(kept.state, db, config)
    if said:
        declaration.save(gpus, resources)
    install = install_id(kept.state)
    run = f"{kept.run}/{install}"
    os.makedirs(run, 0o700, exist_ok=True)
    term = store.acquire_term()
    faults = FaultTracker(system_clock)
    poller = EpollReactor(faults)
    executor = LocalExecutor(
        ExecutorPaths(run, kept.exits, kept.scripts, os.path.dirname(places.socket_path())),
        install,
        kept.keepers,
        poller,
        _as_shortage(store.secret),
        _as_shortage(store.blob),
        grace=config.grace,
        cgroups=Cgroups.find(),
        engine=config.containers.engine,
    )
    user = _user()
    watch = GpuMonitor(
        facts.name,
        reading,
        install,
        config.foreign.thresholds,
        executor.holds,
        poller,
    )
    desk = RequestContext(
        store, places.logs_dir(), facts.name, user, place=place, alerts=left,
        engine=executor.commands.engine, configured_nodes=configured_names,
    )  # fmt: skip
    fleet = ExecutorRegistry(
        executor,
        facts.name,
        poller,
        watch.thresholds,
        watch.memory,
        os.path.dirname(places.socket_path()),
        f"{kept.state}/afar",
        desk.logs,
    )
    loop = Daemon(store, executor, poller, desk, config, watch, fleet, kept.scripts, feeder, faults)
    extra = _not_elsewhere(loop.engine.state, facts.name, extra)
    if remembers:
        # Devices that a feed named are there until their jobs are done.
        extra = [*extra, *_remembered(loop.engine.state, facts.name)]
    facts = build_node_facts(reading, gpus, resources, extra)
    unheeded = _take_over(loop, term, facts, config, run)
    desk.alerts = [*left, *store.warnings(), *unheeded]
    for warning in desk.alerts:
        logger.warning("%s", warning)
    state = loop.engine.state
    logger.info(
        "started: stoker %s, pid %d, term %d, store %s, jobs recovered: %d, pending: %d",
        __version__, os.getpid(), term, place, len(state.running), len(state.line),
    )  # fmt: skip
    return loop


def _as_shortage(read: Callable[[str], bytes | None]) -> Callable[[str], bytes | None]:
    """Have a start that the store cannot serve now cancelled and tried again."""

    def reading(hash: str) -> bytes | None:
        try:
            return read(hash)
        except StoreFenced:
            raise
        except StoreError as error:
            raise OSError(errno.EAGAIN, str(error)) from error

    return reading


def _open_store(
    state: str, db: str | None, config: configuration.Settings
) -> tuple[Store, str, list[str]]:
    """The store that was asked for, now or before, what it is called, and what it is not."""
    saved = StoreChoice(f"{state}/store.json")
    choice = select_store(db, config.store.url or None, saved.option, os.environ)
    journal = places.journal_path()
    shared = choice.url is None and on_shared_file_system(state)
    store = open_store(choice, journal, shared, config.store.patience)
    left = moved_warning(choice, saved.last, journal)
    if shared:
        store.warnings().append(f"{state} is on a network file system: commits are slower")
    if db is not None or saved.last != choice.shown:
        saved.option = choice.text if db is not None else saved.option
        saved.last = choice.shown
        saved.save()
    return store, choice.shown, [left] if left else []


def _not_elsewhere(state: State, node: str, names: Iterable[str]) -> list[str]:
    """Leave out the GPUs that other nodes have: those serve instead of declared ones here."""
    others = {
        device.name
        for other, facts in state.rest.nodes.items()
        if other != node
        for device in facts.types.get(GPU, ())
    }
    return [name for name in names if name not in others]


def _remembered(state: State, node: str) -> list[str]:
    """Devices that were only ever named, while unfinished jobs ask for GPUs or a queue has them."""
    wanted = any(
        state.spec(job).request.gpu_amount for job in state.jobs.values() if not job.finished
    )
    before = state.rest.nodes.get(node)
    declared = before.types.get(GPU, ()) if before else ()
    owned = _not_elsewhere(
        state, node, {name for queue in state.rest.queues.values() for name in queue.devices}
    )
    return [
        device.name
        for device in declared
        if device.uuid is None and (wanted or device.name in owned)
    ]


def _take_over(
    loop: Daemon, term: int, facts: NodeFacts, config: configuration.Settings, run: str
) -> list[str]:
    """Tell the journal who drives now, and find out what became of running attempts.

    What cannot be heeded of the configuration is returned, in words.
    """
    state, at = loop.engine.state, system_clock().wall
    machines, unheeded = configured_node_events(state, config.nodes, facts.name, at)
    boot = host.boot_id()
    same_boot = state.rest.boot in ("", boot)
    events: list[Event] = [
        DaemonStarted(
            at=at, term=term, boot=boot, pid=os.getpid(), version=__version__,
            clock=system_clock().boot,
        ),
        NodeJoined(at=at, facts=facts),
        *_for_a_new_home(loop, at),
        *(
            QueueDefined(at=at, name=name, **asdict(limits))
            for name, limits in config.queues.items()
        ),
        *machines,
        *(NodeRemoved(at=at, name=name) for name in _names_of_old(state, facts.name)),
    ]  # fmt: skip
    executor = loop.executor
    lost = _after_a_loss(loop, at)
    loop.record([*events, *lost])
    executor.adoption.logs = lambda job: log_paths(
        job, loop.engine.state.spec(job), facts.name, loop.desk.logs
    )
    _discard_old_mark(f"{run}/{KEPT}", boot)
    unknown = recovered.unknown_attempts(loop.engine.state, loop.desk, executor.adoption)
    _adopt(
        loop,
        [job for job in loop.engine.state.running.values() if job.id not in unknown],
        same_boot,
    )
    if unknown:
        executor.adoption.decide()
        _record(loop)
        jobs, alerts = recovered.recover(
            unknown, lambda: loop.engine.state, loop.desk, executor.adoption, loop.record
        )
        loop.store.warnings().extend(alerts)
        _adopt(loop, jobs, same_boot=True)
    _say_what_is_held(loop, [event.job for event in lost if isinstance(event, JobHeld)])
    loop.fleet.sync(loop.engine.state)
    loop.trainings.start()
    loop.store.sync()
    if not loop.engine.has_unrecorded_events:  # else what proves an end is all there is of it
        unsettled = {f"{job}.{attempt}" for job, attempt in executor.attempts}
        executor.exits.drop({link.pid for link in executor.keepers}, unsettled)
        executor.adoption.sweep(loop.engine.state.rest.next_id)
    with contextlib.suppress(OSError):
        _mark(f"{run}/{KEPT}", boot)
    loop.store.purge(at - config.secrets_days * 86400, _needed(loop))
    _sweep(loop, at)
    return unheeded


def _adopt(loop: Daemon, jobs: list[Job], same_boot: bool) -> None:
    """Find out what became of the attempts of these jobs on this machine."""
    afar = loop.engine.state.rest.remotes
    here = [
        job
        for job in jobs
        if job.placement is not None and any(part.node not in afar for part in job.placement.parts)
    ]
    loop.fleet.gangs.adopt(jobs)
    loop.executor.adopt(here, same_boot)
    loop.executor.tick(system_clock().boot)
    _record(loop)


def _record(loop: Daemon) -> None:
    """Put what the executor has found out into the journal."""
    while loop.executor.facts:
        found, loop.executor.facts = loop.executor.facts, []
        loop.record(loop.trainings.enrich_events(loop.fleet.of_this_machine(found)))


def _after_a_loss(loop: Daemon, at: float) -> list[Event]:
    """Reserve ids that the journal no longer knows, and hold jobs that may have run since."""
    store, state, next_id = loop.store, loop.engine.state, loop.store.id_floor()
    if store.warnings() or loop.desk.alerts:
        # Not all ids that were given out may be on record: those that ran have logs.
        next_id = max(next_id, _last_logged(loop.desk.logs) + 1)
    events: list[Event] = []
    if next_id > state.rest.next_id:
        events.append(IdsReserved(at=at, next_id=next_id))
    if store.lost_events():
        unfinished = [job.id for job in state.jobs.values() if not job.finished and not job.held]
        events += [JobHeld(at=at, job=id) for id in unfinished]
    return events


def _say_what_is_held(loop: Daemon, ids: list[int]) -> None:
    """Of these jobs, some have turned out to run or to be over."""
    jobs = loop.engine.state.jobs
    count = sum(id in jobs and jobs[id].state is JobState.PENDING for id in ids)
    if count:
        loop.store.warnings().append(
            f"{'1 pending job is' if count == 1 else f'{count} pending jobs are'} held, because "
            "the journal may lack recent runs: check the queue, then release or cancel them"
        )


def _mark(path: str, boot: str) -> None:
    """Note that the claims in a run directory are all that were made since this boot."""
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(boot)


def _discard_old_mark(path: str, boot: str) -> None:
    """Without power, claims of the last moment can be lost: they are complete for one boot only."""
    with contextlib.suppress(FileNotFoundError), open(path) as file:
        if file.read() not in ("", boot):  # earlier versions wrote nothing
            os.unlink(path)


def _for_a_new_home(loop: Daemon, at: float) -> list[Event]:
    """Whoever begins today has the planner. What was queued before goes on as it did."""
    return [] if loop.engine.seq else [PolicyChosen(at=at, queue="*", name=AUTO)]


def _needed(loop: Daemon) -> set[str]:
    """Environments of trials that are yet to be thought of."""
    waiting = [sweep for sweep in loop.engine.state.sweeps.values() if sweep.wanting]
    return {loop.sweeps.stored(sweep).spec.environment for sweep in waiting}


def _sweep(loop: Daemon, at: float) -> None:
    """Remove what training jobs have left that are over; only now are all ends on disk."""
    state, reports = loop.engine.state, loop.trainings.cleanup
    reports.scan(state)
    place, install = f"{loop.home}/checkpoints", loop.executor.install
    over = reports.take_removable() + expired_checkpoints(place, install, state, loop.store, at)
    remove_in_background(over)


def _names_of_old(state: State, now: str) -> list[str]:
    """What this machine was called before, unless something has run since then."""
    rest = state.rest
    running = {
        part.node
        for job in state.running.values()
        for part in (job.placement.parts if job.placement else ())
    }
    return [name for name in rest.nodes if name not in (now, *rest.remotes, *running)]


def _last_logged(logs: str) -> int:
    """The highest id that ever had a log: a damaged journal may have forgotten it."""
    numbers = (name.partition(".")[0] for name in os.listdir(logs))
    return max((int(number) for number in numbers if number.isdigit()), default=0)


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
