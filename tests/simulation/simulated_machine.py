"""SimulatedMachine and its processes, which outlive the daemon."""

from __future__ import annotations

import signal as signals
from collections.abc import Callable

from msgspec import Struct

from simulation.training_model import (
    STOPS,
    LaunchInfo,
    Line,
    ReportFiles,
    TrainingModel,
    TrainingRun,
)
from simulation.virtual_clock import VirtualClock

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
    """A foreign process uses its device when it is to start."""
    trains: TrainingModel | None = None
    """It counts epochs and can be asked to stop; its seconds and code are those of the last."""
    others: tuple[Model, ...] = ()
    """How its parts on further machines behave, if not like the first; the last for the rest."""

    def part(self, number: int | None) -> Model:
        """The behaviour of one part."""
        return (self, *self.others)[min(number or 0, len(self.others))]


class Report(Struct, frozen=True, kw_only=True):
    """What the machine reports about an attempt."""

    what: str
    """`ready`, `queued`, `refused`, `started`, `exited`, `failed`, `lost`, `late`, or `line`: there
    is more in its report."""
    key: Key
    time: float
    """When it happened, whatever clocks say."""
    part: int | None = None
    pid: int = 0
    why: str = ""
    code: int | None = None
    signal: int | None = None
    memory: str | None = None
    stopped: bool = False
    external_id: str | None = None
    delay: float = 0.0


class Claim(Struct):
    """The file by which an attempt is started at most once, and what it records."""

    boot: int
    """Which start of the machine it was made in."""
    part: int | None = None
    pid: int | None = None
    started: float | None = None
    end: Report | None = None
    failed: str | None = None
    taken: bool = False
    queued: Report | None = None
    """A cluster has accepted it."""
    refused: Report | None = None
    """A cluster has not, or has dropped it from its queue; or it gave up at its barrier."""
    waits: bool = False
    """It waits at its barrier."""

    def failed_report(self, key: Key, time: float) -> Report | None:
        """What there is to say of a start that failed."""
        if self.failed is None:
            return None
        return Report(what="failed", key=key, time=time, part=self.part, why=self.failed)

    def start_report(self, key: Key) -> Report:
        """What there is to say of a start."""
        assert self.started is not None
        id = self.queued.external_id if self.queued is not None else None
        return Report(
            what="started", key=key, time=self.started, part=self.part, pid=self.pid or 0,
            external_id=id,
        )  # fmt: skip


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
    course: TrainingRun | None = None


class SimulatedMachine:
    """Claims, processes and exit records, which a crash of the daemon does not touch."""

    afar = False
    """Whether it is another machine than the daemon's, with restarts of its own."""

    def __init__(self, world: VirtualClock, behaviour: Callable[[int, int], Model]) -> None:
        self.world, self.behaviour = world, behaviour
        self.boots = 1
        self.cut = False
        """Whether the daemon cannot reach it."""
        self.claims: dict[Key, Claim] = {}
        self.processes: dict[Key, Process] = {}
        self.records: dict[Key, Report] = {}
        """Ends on disk, which survive a restart of the machine."""
        self.started: list[Key] = []
        """Every start there ever was, in order: the proof of what ran, and how often."""
        self.queue: list[Key] = []
        """Attempts that wait for their start; on a cluster only."""
        self.hear: Hear | None = None
        """The executor that is connected; reports to one of a killed daemon are lost."""
        self.reports = ReportFiles()

    # -- starts and signals ------------------------------------------------------------

    def start(self, key: Key, asked_by: Hear, part: int | None = None) -> None:
        """Claim an attempt and start it, unless it is claimed already."""
        if key in self.claims:
            asked_by(Report(what="late", key=key, time=self.world.time, part=part))
            return
        self._spawn(key, Claim(self.boots, part))

    def _spawn(self, key: Key, claim: Claim) -> None:
        part, now = claim.part, self.world.time
        model = self.behaviour(*key).part(part)
        self.claims[key] = claim
        if model.cannot_start is not None:
            claim.failed = model.cannot_start
            self._say(Report(what="failed", key=key, time=now, part=part, why=claim.failed))
            return
        self.started.append(key)
        claim.pid, claim.started = len(self.started) + 100, now
        process = Process(key, part, model, model.seconds, None)
        if model.trains is not None:
            told = self.reports.told.setdefault(key, LaunchInfo())
            process.course = TrainingRun(model.trains, told, now, told.epochs_done)
            process.left = model.trains.warmup
        self.processes[key] = process
        self._say(claim.start_report(key))
        self._go_on(process)

    def wait_at_barrier(self, key: Key, asked_by: Hear, part: int, timeout: float) -> None:
        """Claim an attempt for one part of it, and wait for the others."""
        now, boots = self.world.time, self.boots
        if key in self.claims:
            asked_by(Report(what="late", key=key, time=now, part=part))
            return
        self.claims[key] = Claim(boots, part, waits=True)
        self._say(Report(what="ready", key=key, time=now, part=part, pid=29500))

        def give_up() -> None:
            if self.boots == boots:
                self.give_up(key, "the other parts were not ready in time")

        self.world.after(timeout, give_up, self.afar)

    def pass_barrier(self, key: Key) -> None:
        """Start a part that waits at its barrier."""
        claim = self.claims.get(key)
        if claim is not None and claim.waits and claim.boot == self.boots:
            claim.waits = False
            self._spawn(key, claim)

    def give_up(self, key: Key, why: str) -> None:
        """Never start a part that waits at its barrier."""
        claim = self.claims.get(key)
        if claim is not None and claim.waits:
            claim.waits = False
            claim.refused = Report(
                what="refused", key=key, time=self.world.time, part=claim.part, why=why
            )
            self._say(claim.refused)

    def take_claim(self, key: Key) -> bool:
        """Claim an attempt so that it is never started; False if it is claimed already."""
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
        self.reports.uses.clear()
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
            if process.course is not None:
                self._epoch_begins(process, process.course)
                return
            model = process.model
            code = None if model.signal else model.code
            self._over(process, code=code, signal=model.signal, memory=model.memory)

    def ask_to_stop(self, key: Key) -> None:
        """Ask an attempt to stop at its next safe point."""
        self.reports.stops.add(key)

    def let_go_on(self, key: Key) -> None:
        """Withdraw the request to stop."""
        self.reports.stops.discard(key)

    def _epoch_begins(self, process: Process, course: TrainingRun) -> None:
        """All before it are saved: go on, stop here, fail, or be done."""
        trainee, first, key = course.trainee, not course.spoke, process.key
        if course.failing:
            self._over(process, code=1)
            return
        if first:
            course.spoke = True
            self._line(process, Line("hello", self.world.time))
        gpus = len(course.told.gpus)
        line = Line(
            "start", self.world.time, course.epoch, None if first else trainee.epoch(gpus),
            self.world.time - course.began if first else None,
        )  # fmt: skip
        self._line(process, line)
        if trainee.figures and course.epoch:
            figure = trainee.figure(course.epoch)
            self._line(process, Line("figure", self.world.time, course.epoch, figure=figure))
        if course.epoch >= trainee.epochs:
            self._over(process, code=0)
        elif key in self.reports.stops and not trainee.ignores:
            self._line(process, Line("stopped", self.world.time, course.epoch))
            self._over(process, code=STOPS, stopped=not process.part)
        elif self._has_memory(process, course):
            begun = course.epoch - course.told.epochs_done
            course.failing = trainee.dies_after is not None and begun >= trainee.dies_after
            course.epoch += 1
            process.left = trainee.epoch(gpus) / (2 if course.failing else 1)
            process.running_since, process.life = None, process.life + 1
            self._go_on(process)

    def _has_memory(self, process: Process, course: TrainingRun) -> bool:
        """Use the memory that the epoch needs; if it is too much for all processes, one fails."""
        key, reports = process.key, self.reports
        before, uses = reports.uses.get(key, 0), course.trainee.uses(course.epoch)
        reports.uses[key] = uses
        while crowd := reports.crowd(key):
            fails = self.world.random.choice(crowd)
            reports.short[fails] = before if fails == key else reports.uses[fails]
            self._over(self.processes[fails], code=1, memory="cuda")
            if fails == key:
                return False
        if uses > before:
            self._line(process, Line("memory", self.world.time, uses))
        return True

    def _line(self, process: Process, line: Line) -> None:
        if not process.part:
            self.reports.write(process.key, line)
            self._say(Report(what="line", key=process.key, time=line.time, part=process.part))

    def _over(
        self,
        process: Process,
        code: int | None = None,
        signal: int | None = None,
        memory: str | None = None,
        stopped: bool = False,
    ) -> None:
        key = process.key
        del self.processes[key]
        self.reports.uses.pop(key, None)
        end = Report(
            what="exited", key=key, time=self.world.time, part=process.part, code=code,
            signal=signal, memory=memory, stopped=stopped,
        )  # fmt: skip
        self.claims[key].end = self.records[key] = end
        self._say(end)

    def _say(self, report: Report) -> None:
        if self.hear is not None:
            self.hear(report)


class Remote(SimulatedMachine):
    """Another machine: its claims are on its disk, and its restart is its own."""

    afar = True

    def restart(self, keeps_records: bool = True) -> None:
        """Power off and on: claims stay, ends that were not on disk yet are unknown."""
        self.boots += 1
        self.processes.clear()
        self.reports.uses.clear()
        if not keeps_records:
            self.records.clear()
            for claim in self.claims.values():
                claim.end = None


class SimulatedCluster(Remote):
    """A cluster whose scheduler starts attempts later, in any order, or refuses or loses them."""

    def __init__(
        self, world: VirtualClock, behaviour: Callable[[int, int], Model], slots: int = 2
    ) -> None:
        super().__init__(world, behaviour)
        self.slots = slots
        """Attempts that run at a time; users of the cluster that we do not know have the others."""
        self.refuses = False
        self._accepted = 4000

    def start(self, key: Key, asked_by: Hear, part: int | None = None) -> None:
        """Put an attempt into the queue, once ever."""
        now = self.world.time
        if key in self.claims:
            asked_by(Report(what="late", key=key, time=now))
            return
        claim = self.claims[key] = Claim(self.boots)
        if self.refuses:
            self._refuse(key, claim, "the partition is down", delay=30.0)
            return
        self._accepted += 1
        claim.queued = Report(what="queued", key=key, time=now, external_id=str(self._accepted))
        self.queue.append(key)
        self._say(claim.queued)
        self._schedule_soon()

    def signal(self, key: Key, number: int) -> None:
        """Send a signal; an attempt in the queue is removed from it."""
        if key not in self.queue:
            super().signal(key, number)
        elif number in (signals.SIGTERM, signals.SIGKILL):
            self.queue.remove(key)
            self._refuse(key, self.claims[key], "it was removed from the queue")

    def lose_queue(self) -> None:
        """The scheduler forgets all that it has not started."""
        for key in self.queue:
            report = Report(what="lost", key=key, time=self.world.time, why="lab does not know it")
            self.claims[key].refused = report
        self.queue.clear()

    def restart(self, keeps_records: bool = True) -> None:
        """Power off and on: what ran is gone, the queue is not."""
        super().restart(keeps_records)
        self._schedule_soon()

    def _refuse(self, key: Key, claim: Claim, why: str, delay: float = 0.0) -> None:
        now = self.world.time
        claim.refused = Report(what="refused", key=key, time=now, why=why, delay=delay)
        self._say(claim.refused)

    def _schedule_soon(self) -> None:
        self.world.after(self.world.random.uniform(0.0, 20.0), self._schedule, self.afar)

    def _schedule(self) -> None:
        if self.queue and len(self.processes) < self.slots:
            key = self.world.random.choice(self.queue)
            self.queue.remove(key)
            claim = self.claims[key]
            claim.boot = self.boots
            self._spawn(key, claim)
        if self.queue:
            self._schedule_soon()
