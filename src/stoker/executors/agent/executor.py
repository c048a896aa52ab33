"""AgentExecutor: attempts on one node through its agent, found again after any disconnect.

The end of an attempt is reported when its output and files have arrived, and the node forgets it
only when that end is on disk here.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from stoker.core.events import Event
from stoker.core.launch.launch import Launch, transfer_of
from stoker.core.model.job import JobState
from stoker.executors.agent.attempt import EndRequest, Phase, RemoteAttempt
from stoker.executors.agent.attempt_ends import AttemptEnds
from stoker.executors.agent.attempt_states import AttemptStates
from stoker.executors.agent.control_files import ControlFiles
from stoker.executors.agent.node_readings import AgentReading, NodeReadings
from stoker.executors.agent.prerequisites import Prerequisites
from stoker.executors.agent.reconciliation import Reconciliation
from stoker.executors.agent.result_collector import Host, ResultCollector
from stoker.executors.agent.session.reconnecting import ReconnectingSession
from stoker.executors.agent.session.remote_shell import RemoteShell
from stoker.executors.agent.session.transport import Transport
from stoker.executors.agent.starts import Starts
from stoker.executors.agent.transfer.log_mirror import LogMirror
from stoker.executors.agent.transfer.staging import AttemptWorkspace
from stoker.executors.agent.transfer.uploads import SnapshotCache, TreeUploads
from stoker.executors.linux.log_file import empty_logs
from stoker.executors.linux.thread_pool import TransferPool
from stoker.executors.port import (
    AttemptId,
    AttemptRecords,
    Barrier,
    Capability,
    Executor,
    ExecutorSink,
    RecoverableAttempt,
    Upload,
)
from stoker.executors.reactor import Reactor


class AgentEnvironment(Struct, frozen=True):
    """What all agent executors of a daemon share."""

    install: str
    """Identifies the attempts of this state on any node."""
    notes: str
    """The directory of the positions in mirrored logs."""
    reactor: Reactor
    secret: Callable[[str], bytes | None]
    """Returns a stored environment."""
    blob: Callable[[str], bytes | None]
    """Returns a stored script."""
    parse_reading: Callable[[bytes], AgentReading]
    """Parses what an agent measured."""
    grace: float = 10.0
    """Seconds between TERM and KILL."""
    snapshots: SnapshotCache = field(default_factory=SnapshotCache)


class AgentExecutor(Executor):
    """Runs attempts on one node through its agent."""

    def __init__(
        self,
        name: str,
        transport: Transport,
        environment: AgentEnvironment,
        records: AttemptRecords,
        shares_files: bool = False,
    ) -> None:
        """`shares_files`: the node sees the files of this one, so nothing is uploaded."""
        self.name, self.transport, self.environment = name, transport, environment
        self.records, self.shares_files = records, shares_files
        self.grace = environment.grace
        self.attempts: dict[AttemptId, RemoteAttempt] = {}
        self.pool = TransferPool(environment.reactor)
        self.connection = ReconnectingSession(
            transport, environment.install, environment.reactor, self
        )
        self.ends, self.states = AttemptEnds(self), self._new_states()
        self.uploads = TreeUploads(self.connection, self.pool, environment.snapshots)
        self.control_files = ControlFiles(self.connection)
        prerequisites = Prerequisites(self.connection, self.pool, self.uploads, shares_files)
        self.collector = ResultCollector(
            Host(name, environment.install, shares_files), self.connection, self.pool,
            self.uploads, self.attempts, self.ends.on_collected, self._on_report_data,
            self.states.poll_soon,
        )  # fmt: skip
        self.starts = Starts(self, prerequisites)
        self.readings = NodeReadings(self.connection, environment.parse_reading, records)
        self.reconciliation = self._new_reconciliation()
        self.is_reconciled = False
        """Whether all attempts on the node are accounted for since the connection was made."""
        self.end_reason: str | None = None
        """Why the node has ended for good, by the decision of another scheduler."""
        self._is_reported_up = False
        self._sink: ExecutorSink | None = None

    @property
    def capabilities(self) -> Capability:
        """Everything but multi-node starts; files are shared with some nodes."""
        shared = Capability.SHARED_FILES if self.shares_files else Capability(0)
        return shared | (
            Capability.BIND_DEVICES
            | Capability.SUSPEND
            | Capability.SIGNAL
            | Capability.CONTROL_FILES
            | Capability.REPORTS
            | Capability.BARRIER
        )

    @property
    def address(self) -> str:
        """The host name by which the node is reached."""
        return self.transport.host

    @property
    def sink(self) -> ExecutorSink:
        """Where everything is reported."""
        assert self._sink is not None
        return self._sink

    def open(self, sink: ExecutorSink) -> None:
        """Connect, and report to this sink."""
        self._sink = sink
        self.connection.open()

    # -- instructions -------------------------------------------------------------------

    def start(self, launch: Launch, barrier: Barrier | None = None) -> None:
        """Start an attempt, at most once ever; with a barrier, when it is released."""
        id, part = launch.id, barrier.rank if barrier is not None else None
        mirror = LogMirror(launch.out, launch.err, self.ends.note_path(id))
        if launch.spec.truncate_output:
            empty_logs(launch.out, launch.err)
        try:
            mirror.open(launch.spec.umask)
        except OSError as error:
            self.ends.fail(id, part, f"cannot start: {error}")
            return
        workspace = self._workspace(launch.label, id, part, launch.spec.umask, time.time())
        checkpoints = (
            launch.checkpoints if self.starts.prerequisites.copies_checkpoints(launch) else None
        )
        attempt = RemoteAttempt(
            id, mirror, launch.transfer, launch.directory, workspace, part, checkpoints, launch,
            barrier.timeout if barrier is not None else 0,
        )  # fmt: skip
        self.attempts[id] = attempt
        if self.connection.is_up:
            self.starts.begin(attempt)
        else:
            self.ends.cancel(attempt, f"the connection to {self.name} was lost")

    def send_start(self, attempt: RemoteAttempt, launch: Launch, *words: str) -> None:
        """Send a start request."""
        self.connection.request(None, "start", *words)

    def upload_progress(self, attempt: AttemptId) -> Upload | None:
        """Return the upload of an attempt's files while it is under way."""
        known = self.attempts.get(attempt)
        if known is None or known.is_ordered or known.launch is None:
            return None
        return self.uploads.progress(known.launch.directory, known.launch.transfer)

    def _workspace(
        self, label: str, attempt: AttemptId, part: int | None, umask: int, since: float
    ) -> AttemptWorkspace:
        name = f"{self.environment.install}.{attempt}"
        return AttemptWorkspace(
            label=label,
            attempt=attempt.attempt,
            since=since,
            work=f"/{self.connection.root}/work/{name}",
            stage=name if part is None else f"{name}.{part}",
            umask=umask,
        )

    def release(self, attempt: AttemptId, rank: int, environment: Mapping[str, str] | None) -> None:
        """Let a part that waits at its barrier run; without an environment, give it up."""
        known = self.attempts.get(attempt)
        if known is None:
            return
        if environment is not None:
            pairs = [f"{name}={value}" for name, value in environment.items()]
            self.connection.request(None, "pass_barrier", known.word, *pairs)
        elif known.is_ordered:
            self.connection.request(None, "cancel_start", known.word)
        else:
            self.ends.cancel(known, "another part of the job could not be started")

    def terminate(self, attempt: AttemptId, grace: float) -> None:
        """Terminate the whole tree: TERM now, KILL after `grace` seconds."""
        known = self.attempts.get(attempt)
        if known is None or known.is_collecting:
            return
        now, at_once = time.clock_gettime(time.CLOCK_BOOTTIME), grace <= 0
        end = known.end = known.end or EndRequest()
        latest = now if at_once else now + grace
        end.kill_at = min(end.kill_at or latest, latest)
        end.at_once, end.is_sent = end.at_once or at_once, self.connection.is_up
        if not known.is_ordered:
            self.ends.cancel(known, "cancelled before the start request was sent")
            return
        if known.barrier_timeout:
            self.connection.request(None, "cancel_start", known.word)
        self.send_term(known)
        self.states.check()

    def send_term(self, attempt: RemoteAttempt) -> None:
        for number in (signal.SIGCONT, signal.SIGTERM):  # a stopped process handles no signal
            self.signal(attempt.id, number)

    def signal(
        self,
        attempt: AttemptId,
        number: int,
        only_if_handled: bool = False,
        to_script: bool = False,
    ) -> None:
        """Send a signal to the processes of an attempt."""
        known = self.attempts.get(attempt)
        if known is not None and known.is_ordered:
            how = "only-if-handled" if only_if_handled or to_script else ""
            self.connection.request(None, "signal", str(int(number)), known.word, how)

    def suspend(self, attempt: AttemptId) -> None:
        """Stop all processes in place."""
        self.signal(attempt, signal.SIGSTOP)

    def resume(self, attempt: AttemptId) -> None:
        """Let suspended processes continue."""
        self.signal(attempt, signal.SIGCONT)

    def abandon(self, attempt: AttemptId) -> None:
        """Connect again: reconciliation terminates attempts that the core gave up."""
        self.connection.reset()

    def send_control(self, attempt: AttemptId, rank: int, name: str, text: str) -> None:
        """Write a control file for the part of an attempt with this rank."""
        known = self.attempts.get(attempt)
        if known is not None and (known.part or 0) == rank:
            self.control_files.set(known, name, text)

    def recover(self, attempts: Sequence[RecoverableAttempt]) -> None:
        """Look after attempts of an earlier daemon as soon as there is a connection."""
        for attempt in attempts:
            self._recover(attempt)
        self.states.poll_soon()
        self.ends.remove_old_notes()

    def _recover(self, recoverable: RecoverableAttempt) -> None:
        job, spec, part, id = (
            recoverable.job, recoverable.spec, recoverable.rank, recoverable.id
        )  # fmt: skip
        mirror = LogMirror(recoverable.out, recoverable.err, self.ends.note_path(id))
        read_at = mirror.resume()
        if read_at is None:  # the note is lost: it was read before the attempt was started
            read_at = job.started_at if job.started_at is not None else job.submitted_at
        workspace = self._workspace(job.label, id, part, spec.umask, read_at)
        named = spec.training is not None and spec.training.snapshots is not None
        self.attempts[id] = RemoteAttempt(
            id, mirror, transfer_of(job, spec, self.name, part or 0), spec.directory, workspace,
            part, None if named and self.shares_files else recoverable.checkpoints,
            barrier_timeout=1 if part is not None else 0,
            phase=Phase.ORDERED,
            end=EndRequest() if job.state is JobState.COMPLETING else None,
            has_run=job.pid is not None,
        )  # fmt: skip

    # -- the connection -----------------------------------------------------------------

    def on_up(self) -> None:
        """Find out the state of everything before anything else is done."""
        self.uploads.forget_trees()
        self.starts.forget()
        self.is_reconciled = self._is_reported_up = False
        for attempt in self.attempts.values():
            attempt.is_observed, attempt.undecided_polls = False, 0
            attempt.sent_control_files = {}
            if attempt.end is not None:
                attempt.end.is_sent = False
        self.readings.restart()
        self.states.check.request(0.0)
        self.reconciliation = self._new_reconciliation()
        self.reconciliation.start(self.records.abandoned_attempts(self.name))

    def _new_states(self) -> AttemptStates:
        return AttemptStates(self)

    def _new_reconciliation(self) -> Reconciliation:
        def is_known(attempt: AttemptId) -> bool:
            return attempt in self.attempts or self.records.is_expected(attempt)

        return Reconciliation(
            self.connection, self.pool, is_known, self.records, self.report, self._poll_all
        )

    def _poll_all(self) -> None:
        def on_polled() -> None:
            self.is_reconciled = True
            self.states.check.request(0.0)
            self._report_up()

        self.states.poll([each for each in self.attempts.values() if each.is_ordered], on_polled)

    def _report_up(self) -> None:
        """Report the node as up once its attempts and its home directory are known."""
        is_known = self.is_reconciled and self.readings.home is not None
        if is_known and self.connection.is_up and not self._is_reported_up:
            self._is_reported_up = True
            self.sink.node_up(self.reconciliation.ended)

    def on_down(self, why: str) -> None:
        """Cancel starts that were not sent; attempts on the node may continue."""
        self.is_reconciled = False
        self.readings.forget()
        self.uploads.on_disconnect()
        self.collector.on_disconnect()
        for attempt in list(self.attempts.values()):
            if not attempt.is_ordered:
                self.ends.cancel(attempt, f"the connection to {self.name} was lost")
        self.sink.node_down(why)

    def on_notification(self, words: list[str]) -> None:
        """Handle what the agent reports by itself: states of attempts, and measurements."""
        if words[0] == "reading":
            self.readings.add_line(" ".join(words[1:]))
        elif words == ["reading-end"]:
            self._on_reading()
        else:
            self.states.on_notification(words)

    def _on_reading(self) -> None:
        is_first = self.readings.home is None
        reading = self.readings.finish(self.sink)
        if reading is None:
            return
        root = f"{reading.home}/{self.connection.root}"
        self.uploads.shell = RemoteShell(self.transport, root, "rsync" in reading.tools)
        if is_first:
            self.collector.on_shell_known()
        self.report_reading(reading)
        self._report_up()

    def report_reading(self, reading: AgentReading) -> None:
        """Report a measurement of the node."""
        self.sink.node_reading(reading)

    def _on_report_data(self, attempt: RemoteAttempt, data: bytes, offset: int) -> None:
        self.sink.report_data(attempt.id, attempt.part, offset, data)

    # -- ends of attempts ---------------------------------------------------------------

    def has_attempts(self) -> bool:
        """Return whether it looks after any attempt."""
        return bool(self.attempts)

    def report(self, event: Event) -> None:
        """Report what became of an attempt."""
        self.sink.event(event)

    # -- the daemon ---------------------------------------------------------------------

    def acknowledge(self, attempts: Sequence[AttemptId]) -> None:
        """Let the node forget attempts: their ends are on disk."""
        self.ends.acknowledge(attempts)

    def follow_log(self, job: int) -> None:
        """Copy the output of a job more often for a while."""
        self.collector.follow(job)

    def refresh(self) -> None:
        """Measure the node now, or try to reach it."""
        self.readings.measure_soon()
        self.connection.reconnect_now()

    def close(self) -> None:
        """Close the connection; attempts on the node continue."""
        self.connection.close()
        self.readings.forget()
        self.states.check.cancel()
        self.pool.close()
