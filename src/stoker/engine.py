"""The cycle: receive, decide and apply, plan, journal, carry out, publish.

Three drivers turn it: the daemon and `feed` with real clocks and processes, the simulator
with a virtual clock and modelled ones.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from stoker.core.clock import seconds_until_due
from stoker.core.cycle import before_requests, planned, unloaded
from stoker.core.events import Event, JobsSubmitted, SpecRecorded, SweepDefined
from stoker.core.excerpt import excerpt
from stoker.core.fold import apply
from stoker.core.instructions import Instruction
from stoker.core.job import Spec
from stoker.core.restore import restore
from stoker.core.state import State
from stoker.faults import FaultTracker
from stoker.store.port import Batch, Store, StoreError, StoreFull

TIMERS, PLANNING, UNLOADING = STAGES = ("timers", "planning", "unloading finished jobs")
"""What a cycle does besides events and requests; one that fails is paused, the others go on."""
EVENTS = "events"
MAX_SET_ASIDE = 1000
"""Events that could not be applied and are tried again."""
LEAST_SLEEP_SECONDS = 1.0
"""What is due while a stage is paused may stay due: that must not keep the processor busy."""


class CommandRejected(Exception):
    """A request that is not granted: a sentence, and the kind of error it is."""

    def __init__(self, message: str, code: str = "failed") -> None:
        super().__init__(message)
        self.message, self.code = message, code


class CommandResult(Struct):
    """What a request comes to: facts, what must be stored with them, and the answer."""

    events: list[Event] = []
    reply: Callable[[State], Any] | None = None
    blobs: dict[str, bytes] = {}
    secrets: dict[str, bytes] = {}
    key: tuple[str, int, int] | None = None
    durable: bool = True
    """Whether a submission must be on disk before it is answered: somebody relies on it."""

    @property
    def is_acknowledged(self) -> bool:
        """Whether it is a submission whose answer promises that it is on disk."""
        return self.durable and any(
            type(event) is JobsSubmitted or type(event) is SweepDefined for event in self.events
        )


class Instant(Struct, frozen=True):
    """Now, by the wall clock (for people) and the boot clock (for durations)."""

    wall: float
    boot: float


class Command(Protocol):
    """A request waiting for its answer."""

    def handle(self, state: State, now: Instant) -> CommandResult:
        """Say what the request comes to, or raise Refusal."""

    def reply(self, value: Any) -> None:
        """The request is granted and on record."""

    def reject(self, rejection: CommandRejected) -> None:
        """The request is not granted; nothing changed."""


class Engine:
    """One state, one store, one line of time."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], Instant],
        carry_out: Callable[[list[Instruction]], None],
        publish: Callable[[int, Sequence[Event]], None],
        faults: FaultTracker | None = None,
    ) -> None:
        """Without `faults` an internal error is raised: tests and simulations look for them."""
        self.store = store
        self.clock = clock
        self.carry_out = carry_out
        self.publish = publish
        self.faults = faults
        self.stale = False
        """Whether memory must be read back before anything else: an attempt at that has failed."""
        self.set_aside: list[Event] = []
        """Events that could not be applied because of an internal error: they are tried again."""
        self._excerpt = ""
        """The state as the last internal error has left it, in words."""
        self.owed: list[Event] = []
        """Facts that could not be written yet (disk full): they are never dropped."""
        self.trouble: str | None = None
        self.needs: Callable[[], Container[int]] = tuple
        """Jobs that must not leave memory, since something of them is still to be heard."""
        self.planning = True
        """False while draining: what runs goes on, nothing new starts."""
        self.unforced = False
        """Whether something is committed but not yet on disk."""
        self.reload()

    @property
    def has_unrecorded(self) -> bool:
        """Whether events are known that are not in the journal yet."""
        return bool(self.owed or self.set_aside)

    def reload(self) -> None:
        """Forget memory and read the state back from the store."""
        self.stale = True
        snapshot = self.store.load()
        self.seq = snapshot.seq
        self.state = restore(
            snapshot.rest, snapshot.specs, snapshot.jobs, snapshot.sweeps, snapshot.members
        )
        self.stale = False

    def cycle(self, events: Iterable[Event] = (), asks: Sequence[Command] = ()) -> None:
        """Turn once. Nothing is acknowledged or carried out before it is on record."""
        events = [*self.owed, *events]
        self.owed = []
        self._reload_if_stale(events, asks)
        stages = [stage for stage in STAGES if not self._is_failing(stage)]
        error = self._turn(events, asks, stages)
        if error is not None:
            self._turn_apart(events, asks, stages, error)
        self._retry()

    def seconds_until_due(self, now: Instant) -> float | None:
        """Return how long until the passing of time, or a pause, has something to bring about."""
        wait = seconds_until_due(self.state, now.wall, now.boot)
        retry = self.faults.seconds_until_retry((*STAGES, EVENTS)) if self.faults else None
        if retry is None:
            return wait
        return retry if wait is None else min(retry, max(wait, LEAST_SLEEP_SECONDS))

    # -- one turn -----------------------------------------------------------------------

    def _turn(
        self, events: list[Event], asks: Sequence[Command], stages: Sequence[str]
    ) -> Exception | None:
        """Decide, commit and carry out; return an internal error, after which nothing happened."""
        turn = _CycleBatch(self.state)
        try:
            self._decide(turn, events, asks, stages)
            if turn.events:
                self.seq = self.store.commit(turn.batch(), force=turn.force)
        except StoreFull as full:
            self._out_of_room(full, events, asks)
            return None
        except StoreError as error:
            self.owed += events
            self._give_up(asks, CommandRejected(str(error), "unavailable"))
            raise
        except Exception as error:
            if self.faults is None:
                self.owed = events if asks else []  # with requests, one of those may be at fault
                self._give_up(asks, _internal(error))
                raise
            self._excerpt = excerpt(self.state)
            self._discard(events, asks)
            return error
        if turn.events:
            self.unforced = not turn.force
            self._room_again()
        self._finish(turn)
        return None

    def _discard(self, events: list[Event], asks: Sequence[Command]) -> None:
        """Go back to what is on record; if that cannot be read, the whole turn is put off."""
        try:
            self.reload()
        except Exception as error:
            self.owed += events
            for ask in asks:
                ask.reject(CommandRejected(f"The state cannot be read: {error}", "unavailable"))
            raise

    def _finish(self, turn: _CycleBatch) -> None:
        """What the turn has decided is on record: carry it out, answer and publish it."""
        if turn.wishes:
            self._contain("executing instructions", self.carry_out, turn.wishes)
        for ask, refusal, decision in turn.answers:
            if refusal is not None:
                self._contain("answering a request", ask.reject, refusal)
            elif decision is not None:
                self._contain("answering a request", self._answer, ask, decision)
        if turn.events:
            self._contain("publishing events", self.publish, self.seq, turn.events)
        if turn.later:
            self.cycle(asks=turn.later)

    def _answer(self, ask: Command, decision: CommandResult) -> None:
        try:
            reply = decision.reply(self.state) if decision.reply else None
        except Exception as error:
            ask.reject(_internal(error, "The request was carried out, but its reply failed."))
            raise
        ask.reply(reply)

    def _contain(self, what: str, call: Callable[..., None], *args: Any) -> None:
        if self.faults is None:
            call(*args)
        else:
            self.faults.contain(what, None, call, *args)

    def _reload_if_stale(self, events: list[Event], asks: Sequence[Command]) -> None:
        if self.stale:
            self._discard(events, asks)

    # -- internal errors ----------------------------------------------------------------

    def _turn_apart(
        self, events: list[Event], asks: Sequence[Command], stages: list[str], error: Exception
    ) -> None:
        """Repeat a failed turn in parts, so that only the one at fault has no effect."""
        parts: list[_Part] = [
            *(([event], [], []) for event in events),
            *(([], [ask], []) for ask in asks),
            *(([], [], [stage]) for stage in stages),
        ]
        while parts:
            part, *parts = parts
            try:
                found = self._turn(*part)
            except BaseException:
                self.owed += [event for events, _, _ in parts for event in events]
                for _, rest, _ in parts:
                    for ask in rest:
                        ask.reject(
                            CommandRejected(f"not decided because of {error!r}", "unavailable")
                        )
                raise
            if found is not None:
                self._blame(part, found)

    def _blame(self, part: _Part, error: Exception) -> None:
        """One event, request or stage is at fault: report it, and go on without it."""
        faults = self.faults
        assert faults is not None
        for event in part[0]:
            logged = f"{event}\n{self._excerpt}"
            faults.pause(EVENTS, error, logged)
            self.set_aside = [*self.set_aside, event][-MAX_SET_ASIDE:]
        for ask in part[1]:
            faults.record(f"request {getattr(ask, 'name', '')}".strip(), error, self._excerpt)
            ask.reject(_internal(error))
        for stage in part[2]:
            faults.pause(stage, error, self._excerpt)

    def _retry(self) -> None:
        """Try again what was paused, each by itself, when its pause is over."""
        faults = self.faults
        if faults is None:
            return
        for stage in STAGES:
            possible = stage != PLANNING or self.planning
            if possible and faults.is_failing(stage) and faults.may_retry(stage):
                error = self._turn([], [], [stage])
                if error is not None:
                    self._blame(([], [], [stage]), error)
                else:
                    faults.resolve(stage)
        if self.set_aside and faults.may_retry(EVENTS):
            events, self.set_aside = self.set_aside, []
            for event in events:
                error = self._turn([event], [], [])
                if error is not None:
                    self._blame(([event], [], []), error)
            if not self.set_aside:
                faults.resolve(EVENTS)

    def _is_failing(self, stage: str) -> bool:
        return self.faults is not None and self.faults.is_failing(stage)

    # -- a full disk --------------------------------------------------------------------

    def _room_again(self) -> None:
        """A commit went through: if the disk was full, set the reserve aside again."""
        if self.trouble is not None:
            self.trouble = None
            restore = getattr(self.store, "set_ballast", None)
            if restore is not None:
                restore()

    def _give_up(self, asks: Sequence[Command], refusal: CommandRejected) -> None:
        """Nothing of this turn happened: say so, and go back to what is on record."""
        for ask in asks:
            ask.reject(refusal)
        self.reload()

    def _decide(
        self, turn: _CycleBatch, events: list[Event], asks: Sequence[Command], stages: Sequence[str]
    ) -> None:
        state, now = self.state, self.clock()
        for event in events:
            turn.apply(event)
        for event in before_requests(state, now.wall, now.boot) if TIMERS in stages else ():
            turn.apply(event)
        for ask in asks:
            try:
                decision = ask.handle(state, now)
            except CommandRejected as refusal:
                turn.answers.append((ask, refusal, None))
                continue
            if decision.key is not None and decision.key[0] in turn.keys:
                turn.later.append(ask)  # a repeated request: it will find the first on record
                continue
            lost = self.store.lost() if decision.is_acknowledged else None
            if lost is not None:
                turn.answers.append((ask, CommandRejected(lost, "unavailable"), None))
                continue
            turn.take(decision)
            turn.answers.append((ask, None, decision))
        if PLANNING in stages:
            for event in planned(state, now.wall, now.boot, self.planning):
                turn.apply(event)
        for event in unloaded(state, now.wall, self.needs) if UNLOADING in stages else ():
            turn.apply(event)

    def _out_of_room(self, full: StoreFull, facts: list[Event], asks: Sequence[Command]) -> None:
        """Disk full: refuse requests, give up the ballast, and write the facts alone."""
        self.reload()
        self.trouble = str(full)
        self._write_or_owe(full, facts)
        for ask in asks:
            self._answer_unwritten(ask, full)

    def _answer_unwritten(self, ask: Command, full: StoreFull) -> None:
        """A request that changes nothing needs no room."""
        try:
            decision = ask.handle(self.state, self.clock())
        except CommandRejected as refusal:
            ask.reject(refusal)
            return
        except Exception as error:
            if self.faults is None:
                raise
            self._blame(([], [ask], []), error)
            return
        if decision.events:
            ask.reject(CommandRejected(str(full), "no_room"))
        else:
            self._contain("answering a request", self._answer, ask, decision)

    def _write_or_owe(self, full: StoreFull, facts: list[Event]) -> None:
        drop = getattr(self.store, "drop_ballast", None)
        if not facts:
            return
        if drop is not None and drop():
            planning, self.planning = self.planning, False
            try:
                self.cycle(facts)
            finally:
                self.planning = planning
                self.trouble = str(full)
        else:
            self.owed += facts


_Part = tuple[list[Event], list[Command], list[str]]
"""Some events, requests and stages of a turn."""


def _internal(
    error: Exception, what: str = "The request was rejected and nothing changed."
) -> CommandRejected:
    return CommandRejected(f"Internal error {error!r}. {what} See: stoker daemon log", "internal")


class _CycleBatch:
    """What one cycle has gathered so far."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.events: list[Event] = []
        self.wishes: list[Instruction] = []
        self.answers: list[tuple[Command, CommandRejected | None, CommandResult | None]] = []
        self.blobs: dict[str, bytes] = {}
        self.secrets: dict[str, bytes] = {}
        self.keys: dict[str, tuple[str, int, int]] = {}
        self.later: list[Command] = []
        self.specs: dict[str, Spec] = {}
        self.force = False

    def apply(self, event: Event) -> None:
        """Let a fact change the state, and remember it for the journal."""
        if type(event) is SpecRecorded:
            self.specs[event.hash] = event.spec
        self.wishes += apply(self.state, event)
        self.events.append(event)

    def take(self, decision: CommandResult) -> None:
        """A granted request: its facts, and what is stored beside them."""
        for event in decision.events:
            self.apply(event)
        # Acknowledged work is on disk before the answer goes out.
        self.force = self.force or decision.is_acknowledged
        self.blobs.update(decision.blobs)
        self.secrets.update(decision.secrets)
        if decision.key is not None:
            self.keys[decision.key[0]] = decision.key

    def batch(self) -> Batch:
        """All that changed, for one transaction."""
        state = self.state
        batch = Batch(
            events=self.events,
            jobs=[state.jobs[id] for id in state.touched],
            dropped=state.dropped,
            rest=state.rest if state.rest_changed else None,
            blobs=self.blobs,
            secrets=self.secrets,
            keys=list(self.keys.values()),
            specs=self.specs,
            sweeps=[state.sweeps[id] for id in state.touched_sweeps],
        )
        state.touched, state.dropped, state.rest_changed = set(), [], False
        state.touched_sweeps = set()
        return batch
