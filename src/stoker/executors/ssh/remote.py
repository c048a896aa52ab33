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

from msgspec import Struct

from stoker.core.events import (
    AttemptLost,
    AttemptsFound,
    Event,
    ProcessExited,
    ProcessStarted,
    StartCalledOff,
    StartFailed,
)
from stoker.core.instructions import EndAttempt, SignalAttempt, StartProcess
from stoker.core.job import Carry, Job, Spec
from stoker.core.launch import Launch, filled_in
from stoker.core.lifecycle import JobState
from stoker.executors.ssh import results
from stoker.executors.ssh.address import Address
from stoker.executors.ssh.carry import Way
from stoker.executors.ssh.connection import Connection
from stoker.executors.ssh.link import Poller
from stoker.executors.ssh.mirror import Mirror, pieces
from stoker.executors.ssh.travel import Surveys, Travel
from stoker.executors.ssh.worker import Worker

LOOK = 1.0
"""Seconds between looks at attempts whose end nobody will tell us."""
COPY, COPY_FOLLOWED = 2.0, 0.2
"""Seconds between copies of logs; while somebody follows one."""
FOLLOWED = 3.0
"""Seconds for which somebody who has just read a log is taken to go on reading."""
PIECE = 1 << 18
"""Bytes of a log, or of results, that go over the agent's own line at a time."""
LONGEST_LIST = 1 << 26
LAST_LOOKS = 3
"""An attempt without a process may be about to write its end down: look again so often."""
SHORTAGE = 10.0
"""Seconds before a start is tried again that failed for want of room."""

Key = tuple[int, int]


class Attempt(Struct):
    """An attempt that this executor looks after."""

    key: Key
    mirror: Mirror
    carry: Carry
    directory: str
    part: int | None = None
    launch: Launch | None = None
    """What is to be started; nothing any more once it has been ordered."""
    gate: int = 0
    ordered: bool = False
    heard: bool = False
    """Whether this connection's agent will tell us when it ends."""
    pid: int | None = None
    over: list[str] | None = None
    """How it ended; what it left is being fetched."""
    ending: bool = False
    kill_at: float | None = None
    killed: bool = False
    looks: int = 0

    @property
    def word(self) -> str:
        """What the agent calls it."""
        return f"{self.key[0]}.{self.key[1]}"


class Watcher(Protocol):
    """Who puts machines together to a fleet."""

    def reached(self, machine: RemoteExecutor) -> None:
        """It answers, and everything that ran there is accounted for."""

    def silent(self, machine: RemoteExecutor, why: str) -> None:
        """It does not answer."""

    def measured(self, machine: RemoteExecutor, text: bytes) -> None:
        """What it has and how busy it is."""

    def ready(self, machine: RemoteExecutor, key: Key, port: int) -> None:
        """A part waits for the others."""

    def strays(self, name: str) -> list[Key]:
        """Attempts that were given up while it was silent, and must not go on there."""

    def known(self, key: Key) -> bool:
        """Whether this attempt may still matter to the core."""


class RemoteExecutor:
    """Runs attempts on one machine over SSH."""

    def __init__(
        self,
        name: str,
        address: Address,
        shared: bool,
        control: str,
        notes: str,
        install: str,
        poller: Poller,
        surveys: Surveys,
        watcher: Watcher,
        secret: Callable[[str], bytes | None],
        blob: Callable[[str], bytes | None],
        grace: float = 10.0,
    ) -> None:
        self.name, self.address, self.shared, self.notes = name, address, shared, notes
        self.install, self.watcher, self.grace = install, watcher, grace
        self.secret, self.blob = secret, blob
        self.facts: list[Event] = []
        self.attempts: dict[Key, Attempt] = {}
        self.settled: list[Key] = []
        self.home: str | None = None
        self.bash = True
        self.worker = Worker(poller)
        self.connection = Connection(address, control, install, poller, self)
        self.travel = Travel(self.connection, self.worker, surveys)
        self.returned = False
        """Whether everything that ran here is accounted for since the connection was made."""
        self.measure_at: float | None = None
        self.followed: dict[int, float] = {}
        self._ended_strays: tuple[Key, ...] = ()
        self._scripts: set[str] = set()
        self._copying = False
        self._copy_at = self._look_at = 0.0

    # -- wishes -------------------------------------------------------------------------

    def start(
        self, wish: StartProcess, launch: Launch, part: int | None = None, gate: int = 0
    ) -> None:
        """Start an attempt, at most once ever; with a gate, only when all parts are ready."""
        key = (wish.job, wish.attempt)
        mirror = Mirror(launch.out, launch.err)
        try:
            mirror.open(launch.umask)
            self._note(key, mirror)
        except OSError as error:
            self._fail(key, part, f"cannot start: {error}")
            return
        attempt = Attempt(key, mirror, launch.carry, launch.directory, part, launch, gate)
        self.attempts[key] = attempt
        if not self.connection.up:
            self._call_off(attempt, f"the connection to {self.name} was lost")
        elif self.shared or not launch.carry.send:
            self._order(attempt, launch.directory if self.shared else "empty")
        else:
            self.travel.want(
                launch.directory,
                launch.carry,
                lambda tree, why: self._travelled(attempt, tree, why),
            )

    def _travelled(self, attempt: Attempt, tree: str | None, why: str | None) -> None:
        if self.attempts.get(attempt.key) is not attempt or attempt.ordered:
            return
        if tree is not None:
            self._order(attempt, f"tree {tree}")
        elif self.connection.up:
            self._gone(attempt)
            self._fail(attempt.key, attempt.part, f"cannot send its files: {why}")

    def _order(self, attempt: Attempt, where: str) -> None:
        launch = attempt.launch
        assert launch is not None
        if attempt.ending:
            self._call_off(attempt, "cancelled before it was sent")
            return
        try:
            words = self._words(launch)
            assignments = [*self._asked(launch), *self._extra(launch)]
        except KeyError as error:
            self._gone(attempt)
            self._fail(attempt.key, attempt.part, f"cannot start: {error.args[0]}")
            return
        brings = "nothing" if self.shared else results.kind(launch.carry)
        attempt.ordered = attempt.heard = True
        attempt.launch = None
        self.connection.ask(
            None, "start", attempt.word, where, "apart" if launch.err else "joined",
            "line" if launch.line else "words", "yes" if launch.gpus else "no",
            str(attempt.gate), brings, str(round(self.grace)), f"{launch.umask:o}",
            str(len(assignments)), *assignments, *words,
        )  # fmt: skip

    def _words(self, launch: Launch) -> tuple[str, ...]:
        if launch.line:
            return launch.argv[-1:]
        if launch.script is None:
            return launch.argv
        if launch.script not in self._scripts:
            text = self.blob(launch.script)
            if text is None:
                raise KeyError("its script is no longer stored")
            self.connection.ask(None, "store", f"scripts/{launch.script}", os.fsdecode(text))
            self._scripts.add(launch.script)
        theirs = f"{self.home}/{self.connection.root}/scripts/{launch.script}"
        at = next(n for n, word in enumerate(launch.argv) if word.endswith(launch.script))
        shell = () if at == 0 else ("bash" if self.bash else "sh",)
        return (*shell, theirs, *launch.argv[at + 1 :])

    def _asked(self, launch: Launch) -> list[str]:
        if not launch.asked:
            return []
        values = self.secret(launch.environment)
        if values is None:
            raise KeyError("its environment is no longer stored; submit it again")
        lines = (os.fsdecode(line) for line in values.split(b"\0") if line)
        return [
            filled_in(line, launch.fill) if launch.fill else line
            for line in lines
            if line.partition("=")[0] in launch.asked
        ]

    def _extra(self, launch: Launch) -> list[str]:
        # The point marks the end: no other attempt's token begins with this one's.
        extra = launch.extra | {"STOKER_TOKEN": f"{launch.extra['STOKER_TOKEN']}."}
        return [f"{name}={value}" for name, value in extra.items()]

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
            self._call_off(attempt, "another part could not be started")
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
        attempt.ending = True
        if not attempt.ordered:
            self._call_off(attempt, "cancelled before it was sent")
            return
        if attempt.gate:
            self.connection.ask(None, "release", attempt.word)
        self._terminate(attempt)
        self.tick(now)

    def _terminate(self, attempt: Attempt) -> None:
        for number in (signal.SIGCONT, signal.SIGTERM):  # a stopped process hears nothing
            self._signal(attempt.key, number)

    def signal(self, wish: SignalAttempt) -> None:
        """Pass a signal on."""
        self._signal((wish.job, wish.attempt), wish.signal)

    def suspend(self, job: int, attempt: int) -> None:
        """Stop the tree in place."""
        self._signal((job, attempt), signal.SIGSTOP)

    def resume(self, job: int, attempt: int) -> None:
        """Let the tree go on."""
        self._signal((job, attempt), signal.SIGCONT)

    def _signal(self, key: Key, number: int) -> None:
        attempt = self.attempts.get(key)
        if attempt is not None and attempt.ordered:
            self.connection.ask(None, "signal", str(int(number)), attempt.word)

    def adopt(self, job: Job, part: int | None, logs: tuple[str, str | None], spec: Spec) -> None:
        """Look after an attempt that an earlier driver ordered, once there is a connection."""
        key = (job.id, job.attempt)
        mirror = Mirror(*logs)
        mirror.out_base, mirror.err_base = self._noted(key)
        mirror.resume()
        attempt = Attempt(key, mirror, spec.carry, spec.directory, part, ordered=True)
        attempt.gate = 1 if part is not None else 0
        attempt.ending = job.state is JobState.COMPLETING
        self.attempts[key] = attempt

    # -- the connection -----------------------------------------------------------------

    def up(self) -> None:
        """The agent answers: find out how everything stands before anything else is done."""
        self.travel.forget()
        self._scripts.clear()
        self.returned, self._copying = False, False
        for attempt in self.attempts.values():
            attempt.heard, attempt.looks = False, 0
        self.connection.ask(None, "measure")
        self._end_strays(self.watcher.strays(self.name), ())

    def _end_strays(self, left: list[Key], ended: tuple[Key, ...]) -> None:
        """What was restarted elsewhere meanwhile must be over before anybody counts on us."""
        if not left:
            self._ended_strays = ended
            self._look_around()
            return
        key, *rest = left
        word = f"{key[0]}.{key[1]}"
        self.connection.ask(None, "signal", str(int(signal.SIGKILL)), word)
        running: list[str] = []

        def looked(words: list[str]) -> None:
            if words[0] != "done":
                running.append(words[0])
            elif running == ["running"]:
                self.worker.do(lambda: time.sleep(0.1), lambda _: again())
            else:
                self.connection.ask(None, "forget", word)
                self._end_strays(rest, (*ended, key))

        def again() -> None:
            if self.connection.up and not self.returned:
                self._end_strays(left, ended)

        self.connection.ask(looked, "look", word)

    def _look_around(self) -> None:
        found: list[Key] = []

        def listed(words: list[str]) -> None:
            if words[0] == "key":
                job, _, number = words[1].partition(".")
                if job.isdecimal() and number.isdecimal():
                    found.append((int(job), int(number)))
            elif words[0] == "done":
                self._leftovers([key for key in found if key not in self.attempts])
                self._look(self._everybody, self._accounted)

        self.connection.ask(listed, "keys")

    @property
    def _everybody(self) -> list[Attempt]:
        return [each for each in self.attempts.values() if each.ordered]

    def _leftovers(self, keys: list[Key]) -> None:
        """Attempts that the machine knows of and we do not look after."""
        over = [key for key in keys if not self.watcher.known(key)]
        if over:
            self._look_at_strangers(over)

    def _look_at_strangers(self, keys: list[Key]) -> None:
        def looked(words: list[str]) -> None:
            if words[0] in ("done", "free", "ready"):
                return
            job, _, number = words[1].partition(".")
            if words[0] == "running":
                # The journal has lost it. It goes on, and its number is never used again.
                self.facts.append(AttemptsFound(at=time.time(), job=int(job), attempt=int(number)))
            else:
                self.connection.ask(None, "forget", words[1])

        words = [f"{job}.{attempt}" for job, attempt in keys]
        self.connection.ask(looked, "look", *words)

    def _accounted(self) -> None:
        self.returned = True
        self._tell_reached()

    def _tell_reached(self) -> None:
        if self.returned and self.home is not None and self.connection.up:
            self.watcher.reached(self)

    def ended_strays(self) -> tuple[Key, ...]:
        """What was killed on return."""
        ended, self._ended_strays = self._ended_strays, ()
        return ended

    def down(self, why: str) -> None:
        """Jobs go on there, for all we know; those not ordered yet go elsewhere."""
        self.returned, self.home = False, None
        self.travel.lost()
        for attempt in list(self.attempts.values()):
            if not attempt.ordered:
                self._call_off(attempt, f"the connection to {self.name} was lost")
            attempt.over = None  # whatever was being fetched is fetched again
        self.watcher.silent(self, why)

    def news(self, words: list[str]) -> None:
        """The agent tells of its own accord how attempts fare."""
        if words[0] == "facts":
            self.connection.fetch(self._measured, "pull", "facts", "0", str(1 << 20))
        elif words[0] == "unmeasured":
            self.measure_at = time.monotonic() + SHORTAGE
        elif len(words) > 1:
            self._told(words)

    def _measured(self, text: bytes) -> None:
        self.watcher.measured(self, text)
        self._tell_reached()

    def know(self, home: str, tools: frozenset[str]) -> None:
        """What the machine said about itself that matters for starting things on it."""
        first = self.home is None
        self.home, self.bash = home, "bash" in tools
        root = f"{home}/{self.connection.root}"
        self.travel.way = Way(self.address, self.connection.control, root, "rsync" in tools)
        if first:
            self._tell_reached()

    # -- how attempts fare --------------------------------------------------------------

    def _told(self, words: list[str]) -> None:
        what, word, *rest = words
        job, _, number = word.partition(".")
        attempt = self.attempts.get((int(job), int(number))) if number.isdecimal() else None
        if attempt is None:
            return
        match what:
            case "started" | "running":
                self._started(attempt, int(rest[0]))
            case "ready":
                self.watcher.ready(self, attempt.key, int(rest[0]) if rest[0] else 0)
            case "exited":
                self._exited(attempt, rest)
            case "failed":
                self._failed(attempt, " ".join(rest))
            case "released" | "free":
                self._call_off(attempt, "it was not started", keep=what == "free")
            case "late":
                self._lose(attempt, "another daemon claimed it")
            case "rebooted":
                self._lose(attempt, f"{self.name} restarted")
            case "gone":
                attempt.looks += 1
                if attempt.looks >= LAST_LOOKS:
                    self._lose(attempt, "its process ended without a record")

    def _started(self, attempt: Attempt, pid: int) -> None:
        if attempt.pid is None:
            attempt.pid = pid
            boot = time.clock_gettime(time.CLOCK_BOOTTIME)
            job, number = attempt.key
            self.facts.append(
                ProcessStarted(
                    at=time.time(), job=job, attempt=number, pid=pid, boot=boot, part=attempt.part
                )
            )
        if attempt.ending and not attempt.heard:
            self._repeat_end(attempt)
        elif attempt.ending:
            self._terminate(attempt)  # cancelled between the order and the start

    def _repeat_end(self, attempt: Attempt) -> None:
        """It was to be ended before the connection was lost, and has not heard of it, perhaps."""
        if attempt.kill_at is None:
            attempt.kill_at = time.clock_gettime(time.CLOCK_BOOTTIME) + self.grace
            self._terminate(attempt)

    def _failed(self, attempt: Attempt, why: str) -> None:
        self._gone(attempt)
        self.settled.append(attempt.key)
        if "no space left" in why:
            job, number = attempt.key
            self.facts.append(
                StartCalledOff(at=time.time(), job=job, attempt=number, why=why, delay=SHORTAGE)
            )
        else:
            self._fail(attempt.key, attempt.part, why)

    def _fail(self, key: Key, part: int | None, why: str) -> None:
        self.facts.append(
            StartFailed(at=time.time(), job=key[0], attempt=key[1], why=why, part=part)
        )

    def _call_off(self, attempt: Attempt, why: str, keep: bool = False) -> None:
        """Not started. A claim that we took stays, since an order may still be under way."""
        self._gone(attempt)
        if attempt.ordered and not keep:
            self.settled.append(attempt.key)
        job, number = attempt.key
        self.facts.append(StartCalledOff(at=time.time(), job=job, attempt=number, why=why))

    def _lose(self, attempt: Attempt, why: str) -> None:
        self._gone(attempt)
        self.settled.append(attempt.key)
        job, number = attempt.key
        self.facts.append(
            AttemptLost(at=time.time(), job=job, attempt=number, why=why, part=attempt.part)
        )

    def _gone(self, attempt: Attempt) -> None:
        self.attempts.pop(attempt.key, None)
        self.followed.pop(attempt.key[0], None)

    # -- what comes back ----------------------------------------------------------------

    def _exited(self, attempt: Attempt, how: list[str]) -> None:
        """It is over: fetch the rest of its logs and what it wrote."""
        if attempt.over is not None:
            return
        attempt.over = how
        paths = results.named(attempt.carry) if not self.shared else ()
        self.connection.fetch(
            lambda bulk: self._collected(attempt, bulk), "collect", str(PIECE), attempt.word,
            *attempt.mirror.offsets, *paths,
        )  # fmt: skip

    def _collected(self, attempt: Attempt, bulk: bytes) -> None:
        if attempt.over is None:
            return
        found = pieces(bulk)
        logs = [piece for piece in found if piece[1] != "tar"]
        trouble = self._copy(logs)
        if trouble is None and any(len(data) >= PIECE for _, _, data in logs):
            self.connection.fetch(
                lambda bulk: self._more_logs(attempt, found, bulk),
                "grown", str(PIECE), attempt.word, *attempt.mirror.offsets,
            )  # fmt: skip
            return
        self._bring(attempt, found, trouble)

    def _more_logs(
        self, attempt: Attempt, first: list[tuple[str, str, bytes]], bulk: bytes
    ) -> None:
        if attempt.over is None:
            return
        logs = pieces(bulk)
        trouble = self._copy(logs)
        if trouble is None and any(len(data) >= PIECE for _, _, data in logs):
            self.connection.fetch(
                lambda bulk: self._more_logs(attempt, first, bulk),
                "grown", str(PIECE), attempt.word, *attempt.mirror.offsets,
            )  # fmt: skip
            return
        self._bring(attempt, first, trouble)

    def _bring(
        self, attempt: Attempt, found: list[tuple[str, str, bytes]], trouble: str | None
    ) -> None:
        assert attempt.over is not None
        tar = next((data for _, what, data in found if what == "tar"), None)
        wrote = len(attempt.over) > 1 and attempt.over[1] != "0"
        way = self.travel.way
        if tar is None or not wrote or way is None:
            self._finish(attempt, trouble)
            return
        what, directory = attempt.carry, attempt.directory
        work = f"{self.install}.{attempt.word}"

        def brought(result: Exception | None) -> None:
            self._brought(attempt, result, trouble)

        def listed(names: bytes) -> None:
            self.worker.do(lambda: results.bring(way, work, names, what, directory), brought)

        if tar:
            self.worker.do(lambda: results.unpack(tar, what, directory), brought)
        else:
            self.connection.fetch(listed, "pull", f"{attempt.word}.list", "0", str(LONGEST_LIST))

    def _brought(self, attempt: Attempt, result: Exception | None, trouble: str | None) -> None:
        if attempt.over is None or self.attempts.get(attempt.key) is not attempt:
            return  # the connection was lost meanwhile: all of it comes again
        if result is not None:
            work = f"~/{self.connection.root}/work/{self.install}.{attempt.word}"
            trouble = f"its files are still on {self.name} in {work}: {result}"
            self._finish(attempt, trouble, keep=True)
            return
        self._finish(attempt, trouble)

    def _finish(self, attempt: Attempt, trouble: str | None, keep: bool = False) -> None:
        assert attempt.over is not None
        code = int(attempt.over[0])
        left = int(attempt.over[2]) if len(attempt.over) > 2 else 0
        self._gone(attempt)
        if not keep:
            self.settled.append(attempt.key)
        number = code - 128 if 128 < code <= 128 + 64 else None
        note = trouble or ("killed after its grace" if attempt.killed else None)
        if left and note is None:
            note = f"left {left} process{'es' * (left > 1)} behind, ended with it"
        self.facts.append(
            ProcessExited(
                at=time.time(), job=attempt.key[0], attempt=attempt.key[1],
                code=None if number else code, signal=number, note=note, part=attempt.part,
            )
        )  # fmt: skip

    def _copy(self, logs: list[tuple[str, str, bytes]]) -> str | None:
        for word, stream, data in logs:
            job, _, number = word.partition(".")
            attempt = self.attempts.get((int(job), int(number)))
            if attempt is not None:
                try:
                    attempt.mirror.add(stream, data)
                except OSError as error:
                    return f"its log is not complete: {error.strerror}"
        return None

    # -- time ---------------------------------------------------------------------------

    def tick(self, boot: float) -> float | None:
        """Do what is due; seconds until the next time."""
        waits = [self.connection.tick()]
        if self.connection.up:
            waits += [self._kill(boot), self._watch_silent_ones(), self._copy_logs()]
            waits.append(self._measure())
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

    def _watch_silent_ones(self) -> float | None:
        """Ends of attempts that an earlier connection's agent started are told to nobody."""
        silent = [
            each
            for each in self.attempts.values()
            if each.ordered and not each.heard and each.over is None
        ]
        if not silent or not self.returned:
            return None
        now = time.monotonic()
        if now < self._look_at:
            return self._look_at - now
        self._look_at = now + LOOK
        self._look(silent, lambda: None)
        return LOOK

    def _look(self, attempts: list[Attempt], then: Callable[[], None]) -> None:
        def looked(words: list[str]) -> None:
            if words[0] == "done":
                then()
            else:
                self._told(words)

        if attempts:
            self.connection.ask(looked, "look", *(attempt.word for attempt in attempts))
        else:
            then()

    def _copy_logs(self) -> float | None:
        running = [each for each in self.attempts.values() if each.pid and each.over is None]
        if not running or self._copying:
            return None
        now = time.monotonic()
        eager = any(self.followed.get(each.key[0], 0.0) > now for each in running)
        pause = COPY_FOLLOWED if eager else COPY
        due = self._copy_at + pause
        if now < due:
            return due - now
        self._copying, self._copy_at = True, now
        words = [word for each in running for word in (each.word, *each.mirror.offsets)]
        self.connection.fetch(self._copied, "grown", str(PIECE), *words)
        return pause

    def _copied(self, bulk: bytes) -> None:
        self._copying = False
        found = pieces(bulk)
        self._copy(found)
        if any(len(data) >= PIECE for _, _, data in found):
            self._copy_at = 0.0  # there is more where that came from

    def follow(self, job: int) -> bool:
        """Somebody reads this job's log as it grows; whether that is news. From any thread."""
        if not any(key[0] == job for key in list(self.attempts)):
            return False
        now = time.monotonic()
        news = self.followed.get(job, 0.0) < now
        self.followed[job] = now + FOLLOWED
        return news

    def _measure(self) -> float | None:
        if self.measure_at is None:
            return None
        wait = self.measure_at - time.monotonic()
        if wait > 0:
            return wait
        self.measure_at = None
        self.connection.ask(None, "measure")
        return None

    # -- small notes of our own -----------------------------------------------------------

    def _note(self, key: Key, mirror: Mirror) -> None:
        """Remember what was in a log before, where that was anything."""
        if mirror.out_base or mirror.err_base:
            with open(f"{self.notes}/{key[0]}.{key[1]}", "w") as file:
                file.write(f"{mirror.out_base} {mirror.err_base}")

    def _noted(self, key: Key) -> tuple[int, int]:
        try:
            with open(f"{self.notes}/{key[0]}.{key[1]}") as file:
                out, err = file.read().split()
                return int(out), int(err)
        except (OSError, ValueError):
            return 0, 0

    def settle(self, keys: list[Key]) -> None:
        """These ends are on disk: what proved them may go."""
        if not keys:
            return
        for job, attempt in keys:
            with contextlib.suppress(OSError):
                os.unlink(f"{self.notes}/{job}.{attempt}")
        self.connection.ask(None, "forget", *(f"{job}.{attempt}" for job, attempt in keys))

    def close(self) -> None:
        """Leave everything there as it is."""
        self.connection.close()
        self.worker.close()
