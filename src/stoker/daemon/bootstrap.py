"""build_daemon: the composition root, the only module that constructs the daemon's objects."""

from __future__ import annotations

import logging
import os
import pwd
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker import __version__, places
from stoker.core.events import Event
from stoker.core.explain.forecast import ExpectedNode
from stoker.core.launch.training_env import UID_MARK
from stoker.core.model.job import AttemptId
from stoker.core.model.resources import GPU
from stoker.core.state.state import State
from stoker.daemon import daemon_log
from stoker.daemon.alarms.monitor import AlarmMonitor
from stoker.daemon.context import RequestContext
from stoker.daemon.control.daemon import Daemon
from stoker.daemon.control.dispatcher import InstructionDispatcher
from stoker.daemon.control.hooks import HookRunner
from stoker.daemon.control.job_source import JobSource
from stoker.daemon.control.journal_sync import JournalSync
from stoker.daemon.control.launch_builder import LaunchBuilder
from stoker.daemon.control.publisher import Publisher
from stoker.daemon.gpus.history import GpuHistory
from stoker.daemon.gpus.monitor import GpuMonitor
from stoker.daemon.gpus.recorder import GpuRecorder
from stoker.daemon.http import credentials
from stoker.daemon.http.auth import UserPeer
from stoker.daemon.http.server import HttpServer
from stoker.daemon.identities import Identities
from stoker.daemon.identity_files import restore_files, save_files
from stoker.daemon.metrics.scorer import TrialScorer
from stoker.daemon.multiuser.gate_client import GateClient
from stoker.daemon.node_factories import node_factories
from stoker.daemon.nodes.configured import configured_names
from stoker.daemon.nodes.local_node import build_node_facts, probe_gpus
from stoker.daemon.nodes.registry import ExecutorFactory, ExecutorRegistry
from stoker.daemon.notifications.notifier import Notifier, can_send_mail
from stoker.daemon.paths import DaemonPaths
from stoker.daemon.recovery import environments_in_use, recover_state
from stoker.daemon.runtime.clock import system_clock
from stoker.daemon.runtime.lazy import Lazy
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.daemon.settings import Settings, check_system_settings
from stoker.daemon.settings import load as load_settings
from stoker.daemon.state_files import StateFiles
from stoker.daemon.state_lock import StateLock
from stoker.daemon.state_store import SQLITE, as_shortage, install_id, open_state_store
from stoker.daemon.training.monitor import TrainingMonitor
from stoker.engine import Engine
from stoker.executors.clusters import KINDS
from stoker.executors.launch.paths import ExecutorPaths
from stoker.executors.linux.cgroup import Cgroups
from stoker.executors.linux.gpu_locks import GpuLocks
from stoker.executors.local.executor import LocalExecutor
from stoker.executors.port import RecoverableAttempt
from stoker.executors.report_tokens import ReportAccess, ReportTokens
from stoker.executors.user.executor import UserExecutor
from stoker.faults import FaultTracker
from stoker.probes.gpu_reading import GpuUse, Reading
from stoker.store.port import Store

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from stoker.daemon.clusters.pilot_scaler import PilotScaler
    from stoker.daemon.http.listeners import TcpListeners
    from stoker.daemon.sweeps.controller import SweepController
    from stoker.daemon.workers.forecast_client import ForecastClient

logger = logging.getLogger(__name__)


def build_daemon(
    paths: DaemonPaths,
    gpus: str | None = None,
    resources: str | None = None,
    extra_gpus: Iterable[str] = (),
    job_source: JobSource | None = None,
    db: str | None = None,
    idle_exit: float | None = None,
    gate: GateClient | None = None,
) -> Daemon:
    """Build a daemon that has read the state, probed the machine and recovered what runs.

    With a gate, it is the daemon of all users: their processes run the jobs.
    """
    # Warnings of a daemon in the foreground are shown; `feed` has a progress line to keep whole.
    daemon_log.configure(places.daemon_log(), logging.WARNING if job_source else logging.NOTSET)
    settings = load_settings()
    if gate is not None:
        check_system_settings(settings)
    daemon_log.set_level(settings.log.level)
    declared = f"{paths.state}/declared.json"
    is_given = gpus is not None or resources is not None
    if not is_given:
        gpus, resources = settings.gpus, settings.resources
    is_remembered = gpus is None and resources is None
    if is_remembered:
        options = places.read_options(declared)
        gpus, resources = options.get("gpus"), options.get("resources")
    reading = probe_gpus(os.environ)
    facts = build_node_facts(reading, gpus, resources)  # rejects wrong values before any change
    store, store_name, alerts = open_state_store(paths.state, db, settings)
    if is_given:
        places.write_options(declared, gpus=gpus, resources=resources)
    if store_name != SQLITE:
        restore_files(store, paths.state)
    install = install_id(paths.state)
    run = f"{paths.run}/{install}"
    os.makedirs(run, 0o700, exist_ok=True)
    term = store.acquire_term()
    sockets = os.path.dirname(places.socket_path())
    faults = FaultTracker(system_clock)
    reactor = EpollReactor(faults)
    secret, blob = as_shortage(store.secret), as_shortage(store.blob)
    reports = _report_access(paths.state)
    local: LocalExecutor | UserExecutor
    factories: dict[str, ExecutorFactory] = {}
    if gate is None:
        logs, scripts = places.logs_dir(), paths.scripts
        local = LocalExecutor(
            ExecutorPaths(run, paths.exits, scripts, sockets), install, paths.supervisors, reactor,
            secret, blob, settings.grace, Cgroups.find(), engine=settings.containers.engine,
        )  # fmt: skip
        factories = node_factories(sockets, f"{paths.state}/afar", local, secret, blob, reports)
    else:
        logs, scripts = (f"{settings.multiuser.users_dir}/{UID_MARK}/{name}"
                         for name in ("logs", "scripts"))  # fmt: skip

        def under_way(uid: int) -> list[RecoverableAttempt]:
            return daemon.registry.under_way(uid)

        local = UserExecutor(
            install, reactor, secret, blob, under_way,
            gate.start_executor, gate.release_if_unused, settings.grace,
            GpuLocks(settings.multiuser.locks_dir, is_system=True), settings.containers.engine,
            gate.create_device_group, gate.remove_device_group,
        )  # fmt: skip
    daemon = assemble_daemon(
        store, local, factories, reading, reactor, settings, facts.name, logs, scripts, faults,
        reports.tokens, job_source or JobSource(), store_name, alerts, idle_exit, paths.state,
        settings.identities if gate is not None else None,
    )  # fmt: skip
    extra_gpus = _not_elsewhere(daemon.engine.state, facts.name, extra_gpus)
    if is_remembered:
        # Devices that a feed named exist until their jobs are done.
        extra_gpus = [*extra_gpus, *_named_before(daemon.engine.state, facts.name)]
    facts = build_node_facts(reading, gpus, resources, extra_gpus)
    ignored = recover_state(daemon, term, facts, settings, run)
    daemon.context.alerts.extend([*store.warnings(), *ignored])
    for warning in daemon.context.alerts:
        logger.warning("%s", warning)
    state = daemon.engine.state
    logger.info(
        "started: stoker %s, pid %d, term %d, store %s, jobs recovered: %d, pending: %d",
        __version__, os.getpid(), term, store_name, len(state.running), len(state.pending),
    )  # fmt: skip
    return daemon


def _report_access(state: str) -> ReportAccess:
    """Return what pods need to send training reports over HTTP."""
    certificate = f"{state}/tls.crt"

    def fingerprint() -> str | None:
        return credentials.fingerprint(certificate) if os.path.exists(certificate) else None

    tokens = ReportTokens(lambda: credentials.load_token(state, credentials.REPORT_KEY_NAME))
    return ReportAccess(tokens, fingerprint)


def assemble_daemon(
    store: Store, local: LocalExecutor | UserExecutor, factories: Mapping[str, ExecutorFactory],
    reading: Reading, reactor: EpollReactor, settings: Settings, node: str, logs: str, scripts: str,
    faults: FaultTracker, report_tokens: ReportTokens, job_source: JobSource,
    store_name: str = "", alerts: Iterable[str] = (), idle_exit: float | None = None,
    state_dir: str = "", identities: Identities | None = None,
) -> Daemon:  # fmt: skip
    """Build the parts of the loop, bottom up, around executors and a store.

    `state_dir` has the daemon's own files, by default where `logs` is. `identities` are the users
    of a system daemon.
    """
    engine = Engine(store, system_clock, faults)
    directory = state_dir or os.path.dirname(logs)

    def state() -> State:
        return engine.state

    def on_report_data(attempt: AttemptId, rank: int | None, data: bytes, offset: int) -> None:
        training.on_report_data(attempt, rank, data, offset)

    def on_gpu_reading(
        state: State, node: str, uses: Mapping[str, GpuUse], now: float
    ) -> list[Event]:
        alarms.on_reading(state, node, uses)
        return recorder.record(state, node, uses, now)

    recorder = GpuRecorder(GpuHistory(f"{directory}/gpu-history.json"))
    gpus = GpuMonitor(
        node, reading, local.install, settings.foreign.thresholds, local.gpu_locks, reactor,
        recorder, on_gpu_reading,
    )  # fmt: skip
    launches = LaunchBuilder(state, local.token, node, logs, scripts)
    registry = ExecutorRegistry(
        local, node, local.install, factories, gpus.thresholds, gpus.memory, logs, state,
        launches.build, on_report_data, reactor,
        on_gpu_reading=on_gpu_reading,
    )  # fmt: skip
    training = TrainingMonitor(directory, reactor, registry, state, TrialScorer(state))
    alarms = AlarmMonitor(
        settings.alarms.rules(), node, logs, reactor, training.sample, gpus.memory.current,
        settings.queue_alarms,
    )  # fmt: skip
    sync = JournalSync(store, reactor)
    dispatcher = InstructionDispatcher(
        engine, registry, local.cancel_start, settings.grace, training.stops,
        HookRunner(state, f"{directory}/logs", settings.on_end, settings.on_empty), sync, faults,
    )  # fmt: skip
    scaler = Lazy(lambda: _build_scaler(daemon))
    forecasts = Lazy(lambda: _build_forecasts(daemon, scaler))
    sweeps = Lazy(lambda: _build_sweeps(daemon))
    context = _build_context(
        store, store_name, alerts, local, settings, node, logs, registry, training, gpus,
        forecasts, faults,
    )  # fmt: skip
    context.state_dir, context.identities = directory, identities
    if isinstance(local, UserExecutor):
        context.read_user_file = local.read_file
    notifier = Notifier(
        settings.notify, f"{directory}/notifications.db", state, lambda: engine.seq, context,
        reactor, page_url=settings.api.url,
    )  # fmt: skip
    publisher = _build_publisher(
        engine, registry, scaler, training, gpus, notifier, forecasts, faults
    )
    daemon = Daemon(
        settings, context, engine, reactor, dispatcher, sync, publisher, local, registry, gpus,
        training, alarms, notifier, sweeps, forecasts, faults, report_tokens, job_source,
        idle_exit,
    )  # fmt: skip
    return daemon


def _build_context(
    store: Store, store_name: str, alerts: Iterable[str], local: LocalExecutor | UserExecutor,
    settings: Settings, node: str, logs: str, registry: ExecutorRegistry,
    training: TrainingMonitor, gpus: GpuMonitor, forecasts: Lazy[ForecastClient],
    faults: FaultTracker,
) -> RequestContext:  # fmt: skip
    """Return what handlers of requests need besides the state."""

    def live(job: int) -> dict[str, Any]:
        memory = gpus.memory.current(job)
        return {**training.live(job), **({"memory": max(memory.values())} if memory else {})}

    return RequestContext(
        store, logs, node, _user(), store_name=store_name, alerts=list(alerts),
        container_engine=local.engine, configured_nodes=configured_names, faults=faults,
        notify_targets=lambda: settings.notify, sends_mail=lambda: can_send_mail(settings.notify),
        live=live, uploads=registry.uploads, jobs_being_read=training.metrics.jobs_being_read,
        forecast=lambda *job: forecasts.value.forecast(*job) if forecasts.value else None,
        predicted_jobs=lambda: forecasts.value.jobs if forecasts.value else (),
        forecast_sweep=lambda *sweep: (
            forecasts.value.forecast_sweep(*sweep) if forecasts.value else None
        ),
    )  # fmt: skip


def _build_publisher(
    engine: Engine, registry: ExecutorRegistry, scaler: Lazy[PilotScaler],
    training: TrainingMonitor, gpus: GpuMonitor, notifier: Notifier,
    forecasts: Lazy[ForecastClient], faults: FaultTracker,
) -> Publisher:  # fmt: skip
    """Return what passes committed events on, in this order."""

    def on_cluster_events(events: Sequence[Event]) -> None:
        remotes = engine.state.record.remotes.values()
        if scaler.value is not None or any(added.executor in KINDS for added in remotes):
            scaler.get().on_events(events)

    return Publisher(
        {
            "logging events": daemon_log.log_events,
            "publishing to the nodes": lambda events: registry.on_events(engine.state, events),
            "publishing to the pilots": on_cluster_events,
            "publishing to training reports": training.on_events,
            "publishing to the GPU monitor": lambda _: gpus.on_state(engine.state),
            "publishing to the notifier": notifier.on_events,
            "publishing to eta": lambda events: (
                forecasts.value.on_events(events) if forecasts.value else None
            ),
        },
        faults,
    )


def _build_scaler(daemon: Daemon) -> PilotScaler:
    from stoker.daemon.clusters.pilot_scaler import PilotScaler

    return PilotScaler(
        lambda: daemon.engine.state, daemon.commands.put, daemon.reactor, daemon.local.install,
        system_clock,
    )  # fmt: skip


def _build_forecasts(daemon: Daemon, scaler: Lazy[PilotScaler]) -> ForecastClient:
    from stoker.daemon.workers.forecast_client import ForecastClient

    def expected_nodes() -> list[ExpectedNode]:
        if scaler.value is None:
            return []
        return scaler.value.expected_nodes(daemon.registry.allocation)

    return ForecastClient(daemon.context, daemon.reactor, expected_nodes)


def _build_sweeps(daemon: Daemon) -> SweepController:
    from stoker.daemon.sweeps.controller import SweepController
    from stoker.daemon.workers.sampler_client import SamplerClient

    return SweepController(daemon.context, daemon.commands.put, SamplerClient(daemon.reactor))


def build_http_server(daemon: Daemon, mode: str, addresses: Sequence[str] = ()) -> HttpServer:
    """Serve the API of a daemon on its socket and on TCP ports."""

    def build_app(listeners: TcpListeners) -> ASGIApp:
        from stoker.daemon.routes.app import build_app

        return build_app(daemon, mode, listeners)

    return HttpServer(
        daemon.reactor, build_app, daemon.reject_commands, addresses, lazy=mode == "feed",
        metrics_addresses=daemon.settings.metrics.listen if mode != "feed" else (),
    )  # fmt: skip


def keep_identity(daemon: Daemon, paths: DaemonPaths) -> None:
    """Let a database server have what a daemon on another host needs to continue the state."""
    if daemon.context.store_name != SQLITE:
        credentials.load_token(paths.state, credentials.REPORT_KEY_NAME)  # creates it
        save_files(daemon.store, paths.state, environments_in_use(daemon))


def watch_state(daemon: Daemon, paths: DaemonPaths, lock: StateLock, server: HttpServer) -> None:
    """Have a running daemon create its files again when they are deleted."""
    local = daemon.local
    directories = [paths.run, os.path.dirname(server.path)]
    older = set[int]()
    if isinstance(local, LocalExecutor):
        directories.append(local.paths.run)
        older = local.exit_log.supervisors()

    def restore_exit_log() -> None:
        if isinstance(local, LocalExecutor):
            local.exit_log.restore(older | local.supervisors.pids)

    files = StateFiles(
        paths.state, directories, lock, server, daemon.store, daemon.reactor,
        lambda: daemon.sync.request(0.0), restore_exit_log,
    )  # fmt: skip
    daemon.watch_files(files)


def open_gate(daemon: Daemon, gate: GateClient, server: HttpServer) -> None:
    """Let users connect to a system daemon, and their processes run the jobs."""
    local = daemon.local
    assert isinstance(local, UserExecutor)

    def serve(sock: socket.socket, uid: int, why: str, on_closed: Callable[[], None]) -> None:
        server.take(sock, UserPeer(uid, on_closed, why))

    def needs_process(uid: int) -> bool:
        state = daemon.engine.state
        has_jobs = any(spec.uid == uid for spec in state.specs.values())
        has_sweeps = any(sweep.uid == uid for sweep in state.sweeps.values())
        return has_jobs or has_sweeps or local.has_process(uid)

    gate.open(daemon.reactor, local, serve, needs_process)


def _not_elsewhere(state: State, node: str, names: Iterable[str]) -> list[str]:
    """Leave out the GPUs of other nodes: they are used instead of GPUs declared here."""
    others = {
        device.name
        for other, facts in state.record.nodes.items()
        if other != node
        for device in facts.types.get(GPU, ())
    }
    return [name for name in names if name not in others]


def _named_before(state: State, node: str) -> list[str]:
    """Return the devices that were only named, if unfinished jobs or a queue need them."""
    jobs_need_gpus = any(
        state.spec(job).request.gpu_amount for job in state.jobs.values() if not job.finished
    )
    before = state.record.nodes.get(node)
    declared = before.types.get(GPU, ()) if before else ()
    owned = _not_elsewhere(
        state, node, {name for queue in state.record.queues.values() for name in queue.devices}
    )
    return [
        device.name
        for device in declared
        if device.uuid is None and (jobs_need_gpus or device.name in owned)
    ]


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
