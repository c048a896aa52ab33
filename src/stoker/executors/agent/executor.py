"""Attempts on a machine over SSH: ordered through its agent, found again after any silence.

An attempt goes through these phases, and every one of them survives the loss of the connection:
what it takes along is sent, it is ordered, it runs, it is over and its logs and files come back.
Only then is its end told to the core, and only when that is on record is it forgotten there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from stoker.core.events import (
    AttemptLost,
    Event,
    ProcessExited,
    ProcessStarted,
    StartCalledOff,
    StartFailed,
)
from stoker.core.instructions import EndAttempt, SignalAttempt, StartProcess
from stoker.core.job import Job, Spec
from stoker.core.launch import Launch, carrying
from stoker.core.lifecycle import JobState
from stoker.core.text import printable
from stoker.executors.agent import result_collector as fetching
from stoker.executors.agent import start_command as orders
from stoker.executors.agent.attempt import Key, RemoteAttempt, key_of, word_of
from stoker.executors.agent.control_files import STOP, STOP_AT, ControlFiles
from stoker.executors.agent.prerequisites import Prerequisites
from stoker.executors.agent.reconciliation import Reconciliation
from stoker.executors.agent.result_collector import Host, ResultCollector, result_kind
from stoker.executors.agent.session.framing import ProtocolError, number
from stoker.executors.agent.session.reconnecting import ReconnectingSession
from stoker.executors.agent.session.remote_shell import RemoteShell
from stoker.executors.agent.transfer.log_mirror import LogMirror
from stoker.executors.agent.transfer.snapshot import DirectorySnapshot
from stoker.executors.agent.transfer.staging import AttemptWorkspace
from stoker.executors.agent.transfer.upload_progress import UploadProgress
from stoker.executors.agent.transfer.uploads import SnapshotCache, TreeUploads
from stoker.executors.linux.thread_pool import TransferPool
from stoker.executors.reactor import Reactor
from stoker.executors.ssh.address import Address

LOOK, CHECK = 1.0, 20.0
"""Seconds between looks at attempts whose end nobody will tell us; at the others."""
LAST_LOOKS = 3
"""Looks at an attempt that a full disk leaves undecided before it is started elsewhere."""
SHORTAGE = 10.0
"""Seconds before a start is tried again that failed for want of room."""
LONGEST_MEASUREMENT = 512 << 10
"""Bytes that a node may report about itself at once."""
LONGEST_REASON = 2000
"""Characters of a reason or a note that is journalled."""
MAX_PID, MAX_PORT, MAX_CODE, MAX_LEFT = (1 << 31) - 1, (1 << 16) - 1, 255, 1 << 22
"""The largest numbers that a node may send: processes, ports, exit codes, processes left over."""


class Watcher(Protocol):
    """Who puts machines together to a fleet."""

    def reached(self, machine: AgentExecutor) -> None:
        """It answers, and everything that ran there is accounted for."""

    def silent(self, machine: AgentExecutor, why: str) -> None:
        """It does not answer."""

    def measured(self, machine: AgentExecutor, text: bytes) -> None:
        """What it has and how busy it is."""

    def ready(self, machine: AgentExecutor, key: Key, port: int) -> None:
        """A part waits for the others."""

    def heard(self, key: Key, part: int | None, data: bytes, offset: int) -> None:
        """This was added to an attempt's report, at this place in it."""

    def left_there(self, machine: AgentExecutor, key: Key) -> None:
        """Its checkpoints could not be carried: it can go on there only."""

    def strays(self, name: str) -> list[Key]:
        """Attempts that were given up while it was silent, and must not go on there."""

    def known(self, key: Key) -> bool:
        """Whether this attempt may still matter to the core."""

    def superseded(self, key: Key) -> bool:
        """Whether the core has given this attempt up."""

    def next_id(self) -> int:
        """Return the id of the next job: the journal knows of none from it on."""


class AgentExecutor:
    """Runs attempts on one machine over SSH."""

    def __init__(
        self,
        name: str,
        address: Address,
        shared: bool,
        control: str,
        notes: str,
        install: str,
        poller: Reactor,
        surveys: SnapshotCache,
        watcher: Watcher,
        secret: Callable[[str], bytes | None],
        blob: Callable[[str], bytes | None],
        grace: float = 10.0,
    ) -> None:
        self.name, self.address, self.shared, self.notes = name, address, shared, notes
        self.watcher, self.grace, self.secret, self.blob = watcher, grace, secret, blob
        self.facts: list[Event] = []
        self.attempts: dict[Key, RemoteAttempt] = {}
        self.settled: list[Key] = []
        self.home: str | None = None
        self.bash = True
        self.worker = TransferPool(poller)
        self.connection = ReconnectingSession(address, control, install, poller, self)
        self.travel = TreeUploads(self.connection, self.worker, surveys)
        self.words = ControlFiles(self.connection)
        self.provisions = Prerequisites(self.connection, self.worker, self.travel, shared)
        host = Host(name, install, shared)
        self.fetching = ResultCollector(
            host, self.connection, self.worker, self.travel, self.attempts, self._ended,
            lambda attempt, data, at: watcher.heard(attempt.key, attempt.part, data, at),
        )  # fmt: skip
        self.reunion = self._reunion()
        self.returned = False
        """Whether everything that ran here is accounted for since the connection was made."""
        self.measure_at: float | None = None
        self._measuring = False
        """Whether a measurement was asked for that has not arrived."""
        self._measure: list[str] = []
        """The lines of it that have."""
        self._measured_bytes = 0
        self._scripts: set[str] = set()
        self._look_at = self._check_at = 0.0

    # -- wishes -------------------------------------------------------------------------

    def start(
        self, wish: StartProcess, launch: Launch, part: int | None = None, gate: int = 0
    ) -> None:
        """Start an attempt, at most once ever; with a gate, only when all parts are ready."""
        key = (wish.job, wish.attempt)
        mirror = LogMirror(launch.out, launch.err, self._note(key))
        try:
            mirror.open(launch.umask)
        except OSError as error:
            self._fail(key, part, f"cannot start: {error}")
            return
        owner = self._owner(launch.label, key, part, launch.umask, time.time())
        saved = launch.checkpoints if self.provisions.travels(launch) else None
        attempt = RemoteAttempt(
            key, mirror, launch.carry, launch.directory, owner, part, saved, launch, gate
        )
        self.attempts[key] = attempt
        if not self.connection.up:
            self._call_off(attempt, f"the connection to {self.name} was lost")
        elif self.shared or not launch.carry.send:
            self._take_script(attempt, launch.directory if self.shared else "empty")
        else:
            self.travel.want(
                launch.directory,
                launch.carry,
                launch.since,
                lambda tree, why, again: self._travelled(attempt, tree, why, again),
            )

    def transfer(self, key: Key) -> UploadProgress | None:
        """The upload of an attempt's files, while it is under way."""
        attempt = self.attempts.get(key)
        if attempt is None or attempt.ordered or attempt.launch is None:
            return None
        return self.travel.transfer(attempt.launch.directory, attempt.launch.carry)

    def _owner(
        self, label: str, key: Key, part: int | None, umask: int, since: float
    ) -> AttemptWorkspace:
        place = f"{self.fetching.host.install}.{word_of(key)}"
        return AttemptWorkspace(
            label=label,
            attempt=key[1],
            since=since,
            work=f"/{self.connection.root}/work/{place}",
            stage=place if part is None else f"{place}.{part}",
            umask=umask,
        )

    def _waits(self, attempt: RemoteAttempt) -> bool:
        return self.attempts.get(attempt.key) is attempt and not attempt.ordered

    def _travelled(
        self, attempt: RemoteAttempt, tree: DirectorySnapshot | None, why: str, again: bool
    ) -> None:
        if not self._waits(attempt):
            return
        if tree is not None:
            attempt.owner = replace(attempt.owner, since=tree.at)
            self._take_script(attempt, f"tree {tree.id}")
        elif again:
            self._call_off(attempt, why, delay=SHORTAGE)
        else:
            self._gone(attempt)
            self._fail(attempt.key, attempt.part, f"cannot send the job's files: {why}")

    def _take_script(self, attempt: RemoteAttempt, where: str) -> None:
        """See that the machine has its script, if it is one."""
        script = attempt.launch.script if attempt.launch is not None else None
        if script is None or script in self._scripts:
            self._provide(attempt, where)
            return
        text = self.blob(script)
        if text is None:
            self._gone(attempt)
            why = "cannot start: the job's script is no longer stored; submit the job again"
            self._fail(attempt.key, attempt.part, why)
            return

        def stored(words: list[str]) -> None:
            if words[0] == "done":
                self._scripts.add(script)
            if not self._waits(attempt):
                return
            if words[0] == "done":
                self._provide(attempt, where)
            else:
                self._call_off(attempt, f"no space left on {self.name}", delay=SHORTAGE)

        self.connection.ask(stored, "store", f"scripts/{script}", os.fsdecode(text))

    def _provide(self, attempt: RemoteAttempt, where: str) -> None:
        """See that the machine has what else it needs."""
        assert attempt.launch is not None

        def provided(shelf: str | None, why: str, again: bool) -> None:
            if not self._waits(attempt):
                return
            if not why:
                self._order(attempt, where, shelf)
            elif again:
                self._call_off(attempt, why, delay=SHORTAGE)
            else:
                self._gone(attempt)
                self._fail(attempt.key, attempt.part, why)

        self.provisions.want(attempt.launch, provided)

    def _order(self, attempt: RemoteAttempt, where: str, shelf: str | None) -> None:
        launch, way = attempt.launch, self.travel.way
        assert launch is not None
        if attempt.ending:
            self._call_off(attempt, "cancelled before the start request was sent")
            return
        if way is None:
            self._call_off(attempt, f"{self.name} has not reported its home directory yet")
            return
        work = f"{way.root}/work/{self.connection.install}.{attempt.word}"
        launch = self.provisions.localized(launch, way, work, shelf)
        if launch.container is not None:
            launch = self.provisions.contained(launch, way, shelf, self.grace)
        try:
            values = orders.variables(launch, self.secret)
        except KeyError as error:
            self._gone(attempt)
            self._fail(attempt.key, attempt.part, f"cannot start: {error.args[0]}")
            return
        scripts = f"{self.home}/{self.connection.root}/scripts"
        brings = "nothing" if self.shared else result_kind(launch.carry)
        attempt.ordered = attempt.heard = True
        attempt.asked_at = time.monotonic()
        attempt.launch = None
        self.connection.ask(
            None, "start", attempt.word, where, "apart" if launch.err else "joined",
            "line" if launch.line else "words",
            str(attempt.gate), brings, str(round(self.grace)), f"{launch.umask:o}",
            str(len(values)), *values, *orders.command(launch, scripts, self.bash),
        )  # fmt: skip

    def go(self, key: Key, names: dict[str, str]) -> None:
        """All parts are ready."""
        attempt = self.attempts.get(key)
        if attempt is not None:
            pairs = [f"{name}={value}" for name, value in names.items()]
            self.connection.ask(None, "go", attempt.word, *pairs)

    def release(self, key: Key) -> None:
        """It will not go: some other part is missing."""
        attempt = self.attempts.get(key)
        if attempt is None:
            return
        if not attempt.ordered:
            self._call_off(attempt, "another part of the job could not be started")
        else:
            self.connection.ask(None, "release", attempt.word)

    def end(self, wish: EndAttempt) -> None:
        """End the whole tree: TERM now, KILL after the grace."""
        attempt = self.attempts.get((wish.job, wish.attempt))
        if attempt is None or attempt.over is not None:
            return
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        latest = now if wish.at_once else now + self.grace
        attempt.kill_at = min(attempt.kill_at or latest, latest)
        attempt.ending, attempt.at_once = True, attempt.at_once or wish.at_once
        attempt.told = self.connection.up
        if not attempt.ordered:
            self._call_off(attempt, "cancelled before the start request was sent")
            return
        if attempt.gate:
            self.connection.ask(None, "release", attempt.word)
        self._terminate(attempt)
        self.tick(now)

    def _terminate(self, attempt: RemoteAttempt) -> None:
        for each in (signal.SIGCONT, signal.SIGTERM):  # a stopped process hears nothing
            self._signal(attempt.key, each)

    def signal(self, wish: SignalAttempt) -> None:
        """Pass a signal on."""
        self._signal((wish.job, wish.attempt), wish.signal, "gently" if wish.if_caught else "")

    def suspend(self, job: int, attempt: int) -> None:
        """Stop the tree in place."""
        self._signal((job, attempt), signal.SIGSTOP)

    def resume(self, job: int, attempt: int) -> None:
        """Let the tree go on."""
        self._signal((job, attempt), signal.SIGCONT)

    def _signal(self, key: Key, number: int, how: str = "") -> None:
        attempt = self.attempts.get(key)
        if attempt is not None and attempt.ordered:
            self.connection.ask(None, "signal", str(int(number)), attempt.word, how)

    def ask_to_stop(self, key: Key, why: str) -> None:
        """Have an attempt's library find the wish to stop."""
        self.words.leave(self.attempts.get(key), STOP, why)

    def name_stop(self, key: Key, epoch: int) -> None:
        """Tell a part before which epoch all of them stop."""
        self.words.leave(self.attempts.get(key), STOP_AT, str(epoch))

    def adopt(
        self,
        job: Job,
        part: int | None,
        logs: tuple[str, str | None],
        spec: Spec,
        checkpoints: str,
    ) -> None:
        """Look after an attempt that an earlier driver ordered, once there is a connection."""
        key = (job.id, job.attempt)
        mirror = LogMirror(*logs, self._note(key))
        mirror.resume()
        carry = carrying(job, spec, self.name, part or 0)
        # When its directory was looked at is not on record: it was at work soon after.
        since = job.started_at if job.started_at is not None else job.submitted_at
        owner = self._owner(job.label, key, part, spec.umask, since)
        named = spec.training is not None and spec.training.snapshots is not None
        saved = None if named and self.shared else checkpoints
        attempt = RemoteAttempt(
            key, mirror, carry, spec.directory, owner, part, saved, ordered=True
        )
        attempt.began = job.pid is not None
        attempt.gate = 1 if part is not None else 0
        attempt.ending = job.state is JobState.COMPLETING
        self.attempts[key] = attempt

    # -- the connection -----------------------------------------------------------------

    def up(self) -> None:
        """The agent answers: find out how everything stands before anything else is done."""
        self.travel.forget()
        self._scripts.clear()
        self.provisions.forget()
        self.returned = False
        for attempt in self.attempts.values():
            attempt.heard, attempt.told, attempt.looks = False, False, 0
            attempt.left = {}
        self._measuring = False
        self._ask_to_measure()
        self.reunion = self._reunion()
        self.reunion.end(self.watcher.strays(self.name))

    def _reunion(self) -> Reconciliation:
        def known(key: Key) -> bool:
            return key in self.attempts or self.watcher.known(key)

        def tell(fact: Event) -> None:
            self.facts.append(fact)

        return Reconciliation(
            self.connection, self.worker, known, self.watcher.superseded, self.watcher.next_id,
            tell, self._look_at_all,
        )  # fmt: skip

    def _look_at_all(self) -> None:
        self._look([each for each in self.attempts.values() if each.ordered], self._accounted)

    def _accounted(self) -> None:
        self.returned = True
        self._tell_reached()

    def _tell_reached(self) -> None:
        if self.returned and self.home is not None and self.connection.up:
            self.watcher.reached(self)

    def ended_strays(self) -> tuple[Key, ...]:
        """What was killed on return."""
        ended, self.reunion.ended = self.reunion.ended, ()
        return ended

    def down(self, why: str) -> None:
        """Jobs go on there, for all we know; those not ordered yet go elsewhere."""
        self.returned, self.home = False, None
        self.travel.lost()
        self.fetching.lost()
        for attempt in list(self.attempts.values()):
            if not attempt.ordered:
                self._call_off(attempt, f"the connection to {self.name} was lost")
        self.watcher.silent(self, why)

    def news(self, words: list[str]) -> None:
        """Take news from the agent: how attempts fare, and what it measured."""
        match words:
            case ["fact", *line]:
                self._take_measured(" ".join(line))
            case ["facts"] if self._measuring:
                self._measuring = False
                text, self._measure = "\n".join(self._measure), []
                self.watcher.measured(self, os.fsencode(text))
                self._tell_reached()
            case ["facts"]:
                pass  # nothing was asked
            case [what, word, *rest]:
                self._told(what, word, rest)
            case _:
                raise ProtocolError(f"an unknown notification: {words[0][:40]!a}")

    def _take_measured(self, line: str) -> None:
        if not self._measuring:
            return
        self._measured_bytes += len(line) + 1
        if self._measured_bytes > LONGEST_MEASUREMENT:
            raise ProtocolError(f"a node report of more than {LONGEST_MEASUREMENT} bytes")
        self._measure.append(line)

    def know(self, home: str, tools: frozenset[str]) -> None:
        """What the machine said about itself that matters for starting things on it."""
        first = self.home is None
        self.home, self.bash = home, "bash" in tools
        root = f"{home}/{self.connection.root}"
        self.travel.way = RemoteShell(self.address, self.connection.control, root, "rsync" in tools)
        if first:
            self.fetching.way_known()
            self._tell_reached()

    # -- how attempts fare --------------------------------------------------------------

    def _told(self, what: str, word: str, rest: list[str]) -> None:
        key = key_of(word)
        attempt = self.attempts.get(key) if key is not None else None
        if attempt is None or not attempt.ordered:
            return
        rest = [each for each in rest if each]  # records of exits are padded with blanks
        match what, rest:
            case "exited", [code, *more]:
                self._exited(attempt, number(code, MAX_CODE), more)
            case _ if attempt.over is not None:
                pass  # its end is being fetched: what was said before that is out of date
            case "busy", _:
                attempt.looks = 0
            case "started" | "running", [pid, *_]:
                self._started(attempt, number(pid, MAX_PID))
            case "ready", [port, *_]:
                self.watcher.ready(self, attempt.key, number(port, MAX_PORT))
            case "failed", _:
                self._failed(attempt, " ".join(rest))
            case _:
                self._not_running(attempt, what)

    def _not_running(self, attempt: RemoteAttempt, what: str) -> None:
        """Neither does it run, nor is there a record of its exit."""
        match what:
            case "released":
                self._call_off(attempt, "the job was not started")
            case "void":  # what keeps it from beginning stays there
                self._call_off(attempt, "the job was not started", keep=True)
            case "free":
                self._never_came(attempt)
            case "late":  # what is there is not ours
                self._lose(attempt, "another daemon claimed the attempt", keep=True)
            case "rebooted":
                self.fetching.salvage(attempt, f"{self.name} restarted")
            case "gone":
                self.fetching.salvage(attempt, "the process ended without an exit record")
            case "undecided":
                attempt.looks += 1
                attempt.heard = False
                if attempt.looks >= LAST_LOOKS:
                    why = f"no space left on {self.name}"
                    self._call_off(attempt, why, delay=SHORTAGE, keep=True)
            case _:
                raise ProtocolError(f"an unknown attempt state: {what[:40]!a}")

    def _exited(self, attempt: RemoteAttempt, code: int, more: list[str]) -> None:
        """It has ended; fetch what it left, unless that is being done."""
        if attempt.lost is not None:  # its record was found after all
            attempt.lost = attempt.over = None
        written = more[0] if more else fetching.NOTHING
        left = number(more[1], MAX_LEFT) if len(more) > 1 else 0
        saved = [fetching.SAVED] if fetching.SAVED in more else []
        self.fetching.fetch(attempt, [str(code), written, str(left), *saved])

    def _never_came(self, attempt: RemoteAttempt) -> None:
        """The machine knows nothing of it. A claim that we took stays: its order may yet come."""
        if attempt.began or attempt.pid is not None:
            self._lose(attempt, f"{self.name} no longer has a record of the attempt")
        else:
            self._call_off(attempt, "the job was not started", keep=True)

    def _started(self, attempt: RemoteAttempt, pid: int) -> None:
        attempt.looks = 0
        if attempt.pid is None:
            attempt.pid = pid
            boot = time.clock_gettime(time.CLOCK_BOOTTIME)
            job, number = attempt.key
            self.facts.append(
                ProcessStarted(
                    at=time.time(), job=job, attempt=number, pid=pid, boot=boot, part=attempt.part
                )
            )
        self.words.repeat(attempt)
        if not attempt.ending or attempt.over is not None:
            return
        if not attempt.told:
            # It was to be ended while nobody could tell it: its grace begins now.
            attempt.told = True
            boot = time.clock_gettime(time.CLOCK_BOOTTIME)
            attempt.kill_at = boot if attempt.at_once else boot + self.grace
            self._terminate(attempt)
        elif attempt.heard:
            self._terminate(attempt)  # cancelled between the order and the start

    def _failed(self, attempt: RemoteAttempt, why: str) -> None:
        if "no space left" in why:
            self._call_off(attempt, why, delay=SHORTAGE)
        elif "no longer in" in why:
            self.travel.forget()
            self._call_off(attempt, why, delay=LOOK)
        else:
            self._gone(attempt)
            self.settled.append(attempt.key)
            self._fail(attempt.key, attempt.part, why)

    def _fail(self, key: Key, part: int | None, why: str) -> None:
        self.facts.append(
            StartFailed(at=time.time(), job=key[0], attempt=key[1], why=_stored(why), part=part)
        )

    def _call_off(
        self, attempt: RemoteAttempt, why: str, delay: float = 0.0, keep: bool = False
    ) -> None:
        """Not started; `keep` what the machine has on record of it."""
        self._gone(attempt)
        if attempt.ordered and not keep:
            self.settled.append(attempt.key)
        else:
            attempt.mirror.forget()
        job, number = attempt.key
        self.facts.append(
            StartCalledOff(at=time.time(), job=job, attempt=number, why=_stored(why), delay=delay)
        )

    def _lose(self, attempt: RemoteAttempt, why: str, keep: bool = False) -> None:
        """It ended, and how is not known; `keep` what the machine has on record of it."""
        self._gone(attempt)
        if not keep:
            self.settled.append(attempt.key)
        else:
            attempt.mirror.forget()
        job, number = attempt.key
        self.facts.append(
            AttemptLost(
                at=time.time(), job=job, attempt=number, why=_stored(why), part=attempt.part
            )
        )

    def _gone(self, attempt: RemoteAttempt) -> None:
        self.attempts.pop(attempt.key, None)
        self.fetching.followed.pop(attempt.key[0], None)

    def _ended(self, attempt: RemoteAttempt, trouble: str | None, remark: str | None) -> None:
        """All that there was of it is here, or at least its end."""
        if attempt.ahead:
            self.watcher.left_there(self, attempt.key)
        if attempt.lost is not None:
            self._lose(attempt, "; ".join(filter(None, (attempt.lost, trouble, remark))))
            return
        assert attempt.over is not None
        code, left = int(attempt.over[0]), int(attempt.over[2])
        self._gone(attempt)
        self.settled.append(attempt.key)
        killer = code - 128 if 128 < code <= 128 + 64 else None
        note = trouble or ("killed after the grace period" if attempt.killed else None)
        if left and note is None:
            note = f"left {left} process{'es' * (left > 1)} behind, ended with the job"
        note = "; ".join(filter(None, (note, remark))) or None
        self.facts.append(
            ProcessExited(
                at=time.time(), job=attempt.key[0], attempt=attempt.key[1],
                code=None if killer else code, signal=killer, note=note and _stored(note),
                part=attempt.part,
            )
        )  # fmt: skip

    # -- time ---------------------------------------------------------------------------

    def tick(self, boot: float) -> float | None:
        """Do what is due; seconds until the next time."""
        waits = [self.connection.tick()]
        if self.connection.up:
            waits += [self._kill(boot), self._watch(), self.fetching.tick()]
            waits.append(self._look_at_machine())
        known = [wait for wait in waits if wait is not None]
        return min(known) if known else None

    def _kill(self, boot: float) -> float | None:
        waits = []
        for attempt in self.attempts.values():
            if attempt.kill_at is None or attempt.over is not None:
                continue
            if boot >= attempt.kill_at:
                attempt.killed = True
                attempt.kill_at = boot + LOOK  # again, should something have been born meanwhile
                self._signal(attempt.key, signal.SIGKILL)
            waits.append(attempt.kill_at - boot)
        return min(waits) if waits else None

    def _watch(self) -> float | None:
        """Look at attempts now and then.

        The ends of those that an earlier connection's agent started are told to nobody. The
        others' are, unless the shell that waits for one is killed. One that was ordered a moment
        ago is left alone: a look would take its claim before its own shell does.
        """
        living = [each for each in self.attempts.values() if each.ordered and each.over is None]
        if not living or not self.returned:
            return None
        now = time.monotonic()
        silent = [each for each in living if not each.heard]
        if now >= self._check_at:
            self._look_at, self._check_at = now + LOOK, now + CHECK
            self._look([each for each in living if each.asked_at < now - CHECK], lambda: None)
        elif silent and now >= self._look_at:
            self._look_at = now + LOOK
            self._look(silent, lambda: None)
        return (min(self._look_at, self._check_at) if silent else self._check_at) - now

    def _look(self, attempts: list[RemoteAttempt], then: Callable[[], None]) -> None:
        def looked(words: list[str]) -> None:
            if words[0] == "done":
                then()
            elif len(words) > 1:
                self._told(words[0], words[1], words[2:])

        if attempts:
            words = [attempt.word for attempt in attempts]
            self.connection.ask(looked, "look", *words, lines=len(words) + 1)
        else:
            then()

    def follow(self, job: int) -> None:
        """Copy this job's output quickly for a while."""
        self.fetching.follow(job)

    def _look_at_machine(self) -> float | None:
        if self.measure_at is None:
            return None
        wait = self.measure_at - time.monotonic()
        if wait > 0:
            return wait
        self.measure_at = None
        self._ask_to_measure()
        return None

    def _ask_to_measure(self) -> None:
        if not self._measuring:
            self._measuring, self._measure, self._measured_bytes = True, [], 0
        self.connection.ask(None, "measure")

    # -- the end ------------------------------------------------------------------------

    def _note(self, key: Key) -> str:
        return f"{self.notes}/{self.name}.{word_of(key)}"

    def settle(self, keys: list[Key]) -> None:
        """These ends are on disk: what proved them may go."""
        for key in keys:
            with contextlib.suppress(OSError):
                os.unlink(self._note(key))
        if keys:
            self.connection.ask(None, "forget", *map(word_of, keys))

    def close(self) -> None:
        """Leave everything there as it is."""
        self.connection.close()
        self.worker.close()


def _stored(text: str) -> str:
    """A reason as it is journalled: a node may have written part of it."""
    return printable(text, LONGEST_REASON)
