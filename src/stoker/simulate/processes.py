"""Modelled processes and the machines they run on, which outlive any driver."""

from __future__ import annotations

import signal as signals
from collections.abc import Callable

from msgspec import Struct

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
    others: tuple[Model, ...] = ()
    """How its parts on further machines behave, if not like the first; the last for the rest."""

    def part(self, number: int | None) -> Model:
        """The behaviour of one part."""
        return (self, *self.others)[min(number or 0, len(self.others))]


class Report(Struct, frozen=True, kw_only=True):
    """What the keeper says about an attempt."""

    what: str
    """`started`, `exited`, `failed` or `late`."""
    key: Key
    time: float
    """When it happened, whatever clocks say."""
    part: int | None = None
    pid: int = 0
    why: str = ""
    code: int | None = None
    signal: int | None = None
    memory: str | None = None


class Claim(Struct):
    """The file by which an attempt is started once: who made it, and what it says."""

    boot: int
    """Which start of the machine it was made in."""
    part: int | None = None
    pid: int | None = None
    started: float | None = None
    end: Report | None = None
    failed: str | None = None
    taken: bool = False


class Process(Struct):
    """A process that exists."""

    key: Key
    part: int | None
    model: Model
    left: float
    """Seconds of work left when it last began to run."""
    running_since: float | None
    life: int = 0
    """Grows with each pause, so that an end planned before it does not come."""


class Machine:
    """Claims, processes and exit records. A driver that crashes leaves all of it standing."""

    afar = False
    """Whether it is another one than the driver's, whose clocks and restarts it does not share."""

    def __init__(self, world: World, behaviour: Callable[[int, int], Model]) -> None:
        self.world, self.behaviour = world, behaviour
        self.boots = 1
        self.cut = False
        """Whether no driver can reach it."""
        self.claims: dict[Key, Claim] = {}
        self.processes: dict[Key, Process] = {}
        self.records: dict[Key, Report] = {}
        """Ends on disk, which survive a restart of the machine."""
        self.started: list[Key] = []
        """Every start there ever was, in order: the proof of what ran, and how often."""
        self.hear: Hear | None = None
        """The driver that listens now; reports to a dead one are lost."""

    # -- what the keeper does -----------------------------------------------------------

    def start(self, key: Key, asked_by: Hear, part: int | None = None) -> None:
        """Claim an attempt and start it, unless somebody was first."""
        model, now = self.behaviour(*key).part(part), self.world.time
        if key in self.claims:
            asked_by(Report(what="late", key=key, time=now, part=part))
            return
        claim = self.claims[key] = Claim(self.boots, part)
        if model.cannot_start is not None:
            claim.failed = model.cannot_start
            why = model.cannot_start
            self._say(Report(what="failed", key=key, time=now, part=part, why=why))
            return
        self.started.append(key)
        claim.pid, claim.started = len(self.started) + 100, now
        process = Process(key, part, model, model.seconds, None)
        self.processes[key] = process
        self._say(Report(what="started", key=key, time=now, part=part, pid=claim.pid))
        self._go_on(process)

    def take_claim(self, key: Key) -> bool:
        """Make sure that nobody starts an attempt any more; False when somebody was first."""
        if key in self.claims:
            return False
        self.claims[key] = Claim(self.boots, taken=True)
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
        self.boots += 1
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
        self.world.after(process.left, lambda: self._natural_end(process, life), self.afar)

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
            what="exited", key=key, time=self.world.time, part=process.part, code=code,
            signal=signal, memory=memory,
        )  # fmt: skip
        self.claims[key].end = self.records[key] = end
        self._say(end)

    def _say(self, report: Report) -> None:
        if self.hear is not None:
            self.hear(report)


class Remote(Machine):
    """A machine over SSH: its claims are on its disk, and its restart is nobody else's."""

    afar = True

    def restart(self, keeps_records: bool = True) -> None:
        """Power off and on: claims stay, ends that were not on disk yet are unknown."""
        self.boots += 1
        self.processes.clear()
        if not keeps_records:
            self.records.clear()
            for claim in self.claims.values():
                claim.end = None
