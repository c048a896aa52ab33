"""AgentExecutor: attempts on one node through its agent, found again after any disconnect.

The end of an attempt is reported when its output and files have arrived, and the node forgets it
only when that end is on disk here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from stoker.core.events import (
    AttemptLost,
    Event,
    ProcessExited,
    ProcessStarted,
    StartCalledOff,
    StartFailed,
)
from stoker.core.launch import Launch, carrying
from stoker.core.lifecycle import JobState
from stoker.core.text import printable
from stoker.executors.agent.attempt import EndRequest, Phase, RemoteAttempt, parse_attempt
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
from stoker.executors.reactor import Reactor, Timer

POLL_SECONDS, CHECK_SECONDS = 1.0, 20.0
"""Between polls of attempts that the agent does not watch; of all others."""
MAX_REASON_LENGTH = 2000
"""Characters of a reason or a note that is journalled."""


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
        self.uploads = TreeUploads(self.connection, self.pool, environment.snapshots)
        self.control_files = ControlFiles(self.connection)
        prerequisites = Prerequisites(self.connection, self.pool, self.uploads, shares_files)
        self.collector = ResultCollector(
            Host(name, environment.install, shares_files), self.connection, self.pool,
            self.uploads, self.attempts, self._on_collected, self._on_report_data, self.poll_soon,
        )  # fmt: skip
        self.starts = Starts(self, prerequisites)
        self.states = AttemptStates(self)
        self.readings = NodeReadings(self.connection, environment.parse_reading, records)
        self.reconciliation = self._new_reconciliation()
        self.is_reconciled = False
        """Whether all attempts on the node are accounted for since the connection was made."""
        self._is_reported_up = False
        self._sink: ExecutorSink | None = None
        self._unacknowledged: set[AttemptId] = set()
        """Attempts that the node may forget once their ends are on disk."""
        self._poll_at = self._check_at = 0.0
        self._timer = Timer(environment.reactor, self._check_attempts)

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
        mirror = LogMirror(launch.out, launch.err, self._note_path(id))
        try:
            mirror.open(launch.umask)
        except OSError as error:
            self.fail(id, part, f"cannot start: {error}")
            return
        workspace = self._workspace(launch.label, id, part, launch.umask, time.time())
        checkpoints = (
            launch.checkpoints if self.starts.prerequisites.copies_checkpoints(launch) else None
        )
        attempt = RemoteAttempt(
            id, mirror, launch.carry, launch.directory, workspace, part, checkpoints, launch,
            barrier.timeout if barrier is not None else 0,
        )  # fmt: skip
        self.attempts[id] = attempt
        if self.connection.is_up:
            self.starts.begin(attempt)
        else:
            self.cancel(attempt, f"the connection to {self.name} was lost")

    def upload_progress(self, attempt: AttemptId) -> Upload | None:
        """Return the upload of an attempt's files while it is under way."""
        known = self.attempts.get(attempt)
        if known is None or known.is_ordered or known.launch is None:
            return None
        return self.uploads.progress(known.launch.directory, known.launch.carry)

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

    def release(self, attempt: AttemptId, environment: Mapping[str, str] | None) -> None:
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
            self.cancel(known, "another part of the job could not be started")

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
            self.cancel(known, "cancelled before the start request was sent")
            return
        if known.barrier_timeout:
            self.connection.request(None, "cancel_start", known.word)
        self._send_term(known)
        self._timer()

    def _send_term(self, attempt: RemoteAttempt) -> None:
        for number in (signal.SIGCONT, signal.SIGTERM):  # a stopped process handles no signal
            self.signal(attempt.id, number)

    def signal(self, attempt: AttemptId, number: int, only_if_handled: bool = False) -> None:
        """Send a signal to the processes of an attempt."""
        known = self.attempts.get(attempt)
        if known is not None and known.is_ordered:
            how = "only-if-handled" if only_if_handled else ""
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
        self.poll_soon()
        self._remove_old_notes()

    def _remove_old_notes(self) -> None:
        """Remove notes that a daemon left when it was killed before it acknowledged an end."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.environment.notes):
                node, _, word = name.partition(f"{self.name}.")
                attempt = parse_attempt(word) if not node else None
                if attempt is not None and attempt not in self.attempts:
                    os.unlink(self._note_path(attempt))

    def _recover(self, recoverable: RecoverableAttempt) -> None:
        job, spec, part, id = (
            recoverable.job, recoverable.spec, recoverable.rank, recoverable.id
        )  # fmt: skip
        mirror = LogMirror(recoverable.out, recoverable.err, self._note_path(id))
        read_at = mirror.resume()
        if read_at is None:  # the note is lost: it was read before the attempt was started
            read_at = job.started_at if job.started_at is not None else job.submitted_at
        workspace = self._workspace(job.label, id, part, spec.umask, read_at)
        named = spec.training is not None and spec.training.snapshots is not None
        self.attempts[id] = RemoteAttempt(
            id, mirror, carrying(job, spec, self.name, part or 0), spec.directory, workspace,
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
        self._timer.request(0.0)
        self.reconciliation = self._new_reconciliation()
        self.reconciliation.start(self.records.abandoned_attempts(self.name))

    def _new_reconciliation(self) -> Reconciliation:
        def is_known(attempt: AttemptId) -> bool:
            return attempt in self.attempts or self.records.is_expected(attempt)

        return Reconciliation(
            self.connection, self.pool, is_known, self.records, self.report, self._poll_all
        )

    def _poll_all(self) -> None:
        def on_polled() -> None:
            self.is_reconciled = True
            self._timer.request(0.0)
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
                self.cancel(attempt, f"the connection to {self.name} was lost")
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
        self.sink.node_reading(reading)
        self._report_up()

    def _on_report_data(self, attempt: RemoteAttempt, data: bytes, offset: int) -> None:
        self.sink.report_data(attempt.id, attempt.part, offset, data)

    # -- ends of attempts ---------------------------------------------------------------

    def has_attempts(self) -> bool:
        """Return whether it looks after any attempt."""
        return bool(self.attempts)

    def report(self, event: Event) -> None:
        """Report what became of an attempt."""
        self.sink.event(event)

    def fail(self, attempt: AttemptId, part: int | None, why: str) -> None:
        """Report a start that would fail again."""
        job, number = attempt
        self.report(
            StartFailed(at=time.time(), job=job, attempt=number, why=_stored(why), part=part)
        )

    def cancel(
        self, attempt: RemoteAttempt, why: str, delay: float = 0.0, keep: bool = False
    ) -> None:
        """Report a start that did not happen; `keep` what the node has recorded of it."""
        is_recorded = attempt.is_ordered and not keep
        self.forget(attempt)
        self._release_records(attempt, is_recorded)
        job, number = attempt.id
        self.report(
            StartCalledOff(at=time.time(), job=job, attempt=number, why=_stored(why), delay=delay)
        )

    def lose(self, attempt: RemoteAttempt, why: str, keep: bool = False) -> None:
        """Report an end that left no record; `keep` what the node has recorded of it."""
        self.forget(attempt)
        self._release_records(attempt, not keep)
        job, number = attempt.id
        self.report(
            AttemptLost(
                at=time.time(), job=job, attempt=number, why=_stored(why), part=attempt.part
            )
        )

    def _release_records(self, attempt: RemoteAttempt, on_acknowledgement: bool) -> None:
        if on_acknowledgement:
            self.expect_acknowledgement(attempt.id)
        else:
            attempt.mirror.forget()

    def forget(self, attempt: RemoteAttempt) -> None:
        """Look after an attempt no longer."""
        attempt.phase = Phase.DONE
        self.attempts.pop(attempt.id, None)
        self.collector.followed.pop(attempt.id.job, None)

    def on_started(self, attempt: RemoteAttempt, pid: int) -> None:
        """Report the process of an attempt, and send again what was requested for it."""
        attempt.undecided_polls = 0
        if attempt.pid is None:
            attempt.pid, attempt.phase = pid, Phase.RUNNING
            boot = time.clock_gettime(time.CLOCK_BOOTTIME)
            job, number = attempt.id
            self.report(
                ProcessStarted(
                    at=time.time(), job=job, attempt=number, pid=pid, boot=boot, part=attempt.part
                )
            )
        self.control_files.resend(attempt)
        self.collector.on_running()
        end = attempt.end
        if end is None or attempt.is_collecting:
            return
        if not end.is_sent:
            # It was to be terminated while there was no connection: its grace begins now.
            boot = time.clock_gettime(time.CLOCK_BOOTTIME)
            end.is_sent, end.kill_at = True, boot if end.at_once else boot + self.grace
            self._send_term(attempt)
            self._timer.request(0.0)
        elif attempt.is_observed:
            self._send_term(attempt)  # cancelled between the request and the start

    def _on_collected(
        self, attempt: RemoteAttempt, trouble: str | None, remark: str | None
    ) -> None:
        """Report the end of an attempt after its output and files were fetched."""
        if attempt.checkpoints_left:
            self.sink.checkpoints_left_behind(attempt.id)
        if attempt.lost_reason is not None:
            self.lose(attempt, "; ".join(filter(None, (attempt.lost_reason, trouble, remark))))
            return
        assert attempt.outcome is not None
        code, left = int(attempt.outcome[0]), int(attempt.outcome[2])
        self.forget(attempt)
        self.expect_acknowledgement(attempt.id)
        killer = code - 128 if 128 < code <= 128 + 64 else None
        was_killed = attempt.end is not None and attempt.end.was_killed
        note = trouble or ("killed after the grace period" if was_killed else None)
        if left and note is None:
            note = f"left {left} process{'es' * (left > 1)} behind, ended with the job"
        note = "; ".join(filter(None, (note, remark))) or None
        self.report(
            ProcessExited(
                at=time.time(), job=attempt.id.job, attempt=attempt.id.attempt,
                code=None if killer else code, signal=killer, note=note and _stored(note),
                part=attempt.part,
            )
        )  # fmt: skip

    def _note_path(self, attempt: AttemptId) -> str:
        return f"{self.environment.notes}/{self.name}.{attempt}"

    def expect_acknowledgement(self, attempt: AttemptId) -> None:
        """Let the node forget an attempt once its end is acknowledged."""
        self._unacknowledged.add(attempt)

    def acknowledge(self, attempts: Sequence[AttemptId]) -> None:
        """Let the node forget attempts: their ends are on disk."""
        forgotten = [attempt for attempt in attempts if attempt in self._unacknowledged]
        self._unacknowledged.difference_update(forgotten)
        for attempt in forgotten:
            with contextlib.suppress(OSError):
                os.unlink(self._note_path(attempt))
        if forgotten:
            self.connection.request(None, "forget", *map(str, forgotten))

    # -- time ---------------------------------------------------------------------------

    def poll_soon(self) -> None:
        """Poll attempts that the agent may not watch."""
        self._timer.request(POLL_SECONDS)

    def _check_attempts(self) -> float | None:
        """Kill and poll attempts when it is time; return the seconds until then."""
        if not self.connection.is_up:
            return None
        waits = (self._kill_overdue(), self._poll())
        return min((wait for wait in waits if wait is not None), default=None)

    def _kill_overdue(self) -> float | None:
        waits, boot = [], time.clock_gettime(time.CLOCK_BOOTTIME)
        for attempt in self.attempts.values():
            end = attempt.end
            if end is None or end.kill_at is None or attempt.is_collecting:
                continue
            if boot >= end.kill_at:
                end.was_killed = True
                end.kill_at = boot + POLL_SECONDS  # again, for processes that were forked since
                self.signal(attempt.id, signal.SIGKILL)
            waits.append(end.kill_at - boot)
        return min(waits) if waits else None

    def _poll(self) -> float | None:
        """Poll attempts that the agent may not watch; return the seconds to the next poll.

        It does not watch attempts that an earlier connection started, nor those that lost their
        waiting shell. An attempt that was ordered a moment ago is not polled: that would take its
        claim before its own shell does.
        """
        alive = [each for each in self.attempts.values() if each.is_alive]
        if not alive or not self.is_reconciled:
            return None
        now = time.monotonic()
        unobserved = [each for each in alive if not each.is_observed]
        if now >= self._check_at:
            self._poll_at, self._check_at = now + POLL_SECONDS, now + CHECK_SECONDS
            due = [each for each in alive if each.ordered_at < now - CHECK_SECONDS]
            self.states.poll(due, _do_nothing)
        elif unobserved and now >= self._poll_at:
            self._poll_at = now + POLL_SECONDS
            self.states.poll(unobserved, _do_nothing)
        return (min(self._poll_at, self._check_at) if unobserved else self._check_at) - now

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
        self._timer.cancel()
        self.pool.close()


def _do_nothing() -> None:
    """Ignore the end of a poll."""


def _stored(text: str) -> str:
    """Return a reason as it is journalled: a node may have written part of it."""
    return printable(text, MAX_REASON_LENGTH)
