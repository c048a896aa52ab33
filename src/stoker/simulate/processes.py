"""Modelled processes and the machine they run on, which outlives any driver."""

from __future__ import annotations

import signal as signals
from collections.abc import Callable

from msgspec import Struct

from stoker.engine import Moment
from stoker.simulate.world import World

Key = tuple[int, int]
"""A job and the number of its attempt."""
Hear = Callable[["Report"], None]


class Model(Struct, frozen=True, kw_only=True):
    """How a process behaves."""

    seconds: float = 10.0
    code: int = 0
    signal: int | None = None
    memory: str | None = None
    """`host` or `cuda`: it ends for want of memory."""
    ignores_term: bool = False
    """Only KILL ends it before its time."""
    cannot_start: str | None = None
    taken: str | None = None
    """Somebody else holds its device at the last moment."""


class Report(Struct, frozen=True, kw_only=True):
    """What the keeper says about an attempt."""

    what: str
    """`started`, `exited`, `failed` or `late`."""
    key: Key
    when: Moment
    pid: int = 0
    why: str = ""
    code: int | None = None
    signal: int | None = None
    memory: str | None = None


class Claim(Struct):
    """The file by which an attempt is started once: who made it, and what it says."""

    pid: int | None = None
    started: Moment | None = None
    end: Report | None = None
    failed: str | None = None
    taken: bool = False


class Process(Struct):
    """A process that exists."""

    key: Key
    model: Model
    left: float
    """Seconds of work left when it last began to run."""
    running_since: float | None
    life: int = 0
    """Grows with each pause, so that an end planned before it does not come."""


class Machine:
    """Claims, processes and exit records. A driver that crashes leaves all of it standing."""

    def __init__(self, world: World, behaviour: Callable[[int, int], Model]) -> None:
        self.world, self.behaviour = world, behaviour
        self.claims: dict[Key, Claim] = {}
        self.processes: dict[Key, Process] = {}
        self.records: dict[Key, Report] = {}
        """Ends on disk, which survive a restart of the machine."""
        self.started: list[Key] = []
        """Every start there ever was, in order: the proof of what ran, and how often."""
        self.hear: Hear | None = None
        """The driver that listens now; reports to a dead one are lost."""

    # -- what the keeper does -----------------------------------------------------------

    def start(self, key: Key, asked_by: Hear) -> None:
        """Claim an attempt and start it, unless somebody was first."""
        model = self.behaviour(*key)
        if key in self.claims:
            asked_by(Report(what="late", key=key, when=self.world.moment()))
            return
        claim = self.claims[key] = Claim()
        if model.cannot_start is not None:
            claim.failed = model.cannot_start
            now = self.world.moment()
            self._say(Report(what="failed", key=key, when=now, why=model.cannot_start))
            return
        self.started.append(key)
        claim.pid, claim.started = len(self.started) + 100, self.world.moment()
        process = Process(key, model, model.seconds, None)
        self.processes[key] = process
        self._say(Report(what="started", key=key, when=claim.started, pid=claim.pid))
        self._go_on(process)

    def take_claim(self, key: Key) -> bool:
        """Make sure that nobody starts an attempt any more; False when somebody was first."""
        if key in self.claims:
            return False
        self.claims[key] = Claim(taken=True)
        return True

    def signal(self, key: Key, number: int) -> None:
        """Send a signal to an attempt's processes."""
        process = self.processes.get(key)
        if process is None:
            return
        if number == signals.SIGSTOP:
            self._stop(process)
        elif number == signals.SIGCONT:
            self._go_on(process)
        elif number == signals.SIGKILL or (
            number in (signals.SIGTERM, signals.SIGINT)
            and not process.model.ignores_term
            and process.running_since is not None
        ):
            self._over(process, signal=number)

    def restart(self, keeps_records: bool = True) -> None:
        """Power off and on: processes and claims are gone, records on disk may not be."""
        self.world.reboot()
        self.processes.clear()
        self.claims.clear()
        if not keeps_records:
            self.records.clear()

    # -- the course of a process --------------------------------------------------------

    def _go_on(self, process: Process) -> None:
        if process.running_since is not None:
            return
        process.running_since = self.world.time
        life = process.life
        self.world.after(process.left, lambda: self._natural_end(process, life))

    def _stop(self, process: Process) -> None:
        if process.running_since is not None:
            process.left -= self.world.time - process.running_since
            process.running_since = None
            process.life += 1

    def _natural_end(self, process: Process, life: int) -> None:
        if self.processes.get(process.key) is process and process.life == life:
            model = process.model
            code = None if model.signal else model.code
            self._over(process, code=code, signal=model.signal, memory=model.memory)

    def _over(
        self,
        process: Process,
        code: int | None = None,
        signal: int | None = None,
        memory: str | None = None,
    ) -> None:
        key = process.key
        del self.processes[key]
        end = Report(
            what="exited", key=key, when=self.world.moment(), code=code, signal=signal,
            memory=memory,
        )  # fmt: skip
        self.claims[key].end = self.records[key] = end
        self._say(end)

    def _say(self, report: Report) -> None:
        if self.hear is not None:
            self.hear(report)
