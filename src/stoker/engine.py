"""The cycle: receive, decide and apply, plan, journal, carry out, publish.

Three drivers turn it: the daemon and `feed` with real clocks and processes, the simulator
with a virtual clock and modelled ones.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from stoker.core.cycle import after_requests, before_requests
from stoker.core.events import Event, JobsSubmitted, SpecRecorded, SweepDefined
from stoker.core.fold import apply
from stoker.core.instructions import Instruction
from stoker.core.job import Spec
from stoker.core.restore import restore
from stoker.core.state import State
from stoker.store.port import Batch, Store, StoreError, StoreFull


class Refusal(Exception):
    """A request that is not granted: a sentence, and the kind of error it is."""

    def __init__(self, message: str, code: str = "failed") -> None:
        super().__init__(message)
        self.message, self.code = message, code


class Undecided(Exception):
    """A bug of ours came to light in a turn with requests. They are refused, nothing of the turn
    has happened, and the state is as it is on record.
    """


class Decision(Struct):
    """What a request comes to: facts, what must be stored with them, and the answer."""

    events: list[Event] = []
    reply: Callable[[State], Any] | None = None
    blobs: dict[str, bytes] = {}
    secrets: dict[str, bytes] = {}
    key: tuple[str, int, int] | None = None
    durable: bool = True
    """Whether a submission must be on disk before it is answered: somebody relies on it."""


class Moment(Struct, frozen=True):
    """Now, by the wall clock (for people) and the boot clock (for durations)."""

    at: float
    boot: float


class Ask(Protocol):
    """A request waiting for its answer."""

    def decide(self, state: State, now: Moment) -> Decision:
        """Say what the request comes to, or raise Refusal."""

    def answer(self, reply: Any) -> None:
        """The request is granted and on record."""

    def refuse(self, refusal: Refusal) -> None:
        """The request is not granted; nothing changed."""


class Engine:
    """One state, one store, one line of time."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], Moment],
        carry_out: Callable[[list[Instruction]], None],
        publish: Callable[[int, Sequence[Event]], None],
    ) -> None:
        self.store = store
        self.clock = clock
        self.carry_out = carry_out
        self.publish = publish
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

    def reload(self) -> None:
        """Forget memory and read the state back from the store."""
        snapshot = self.store.load()
        self.seq = snapshot.seq
        self.state = restore(
            snapshot.rest, snapshot.specs, snapshot.jobs, snapshot.sweeps, snapshot.members
        )

    def cycle(self, facts: Iterable[Event] = (), asks: Sequence[Ask] = ()) -> None:
        """Turn once. Nothing is acknowledged or carried out before it is on record."""
        facts = [*self.owed, *facts]
        self.owed = []
        turn = _Turn(self.state)
        try:
            self._decide(turn, facts, asks)
            if turn.events:
                self.seq = self.store.commit(turn.batch(), force=turn.force)
        except StoreFull as full:
            self._out_of_room(full, facts, asks)
            return
        except StoreError as error:
            self.owed = facts
            self._give_up(asks, Refusal(str(error), "unavailable"))
            raise
        except Exception as error:
            self.owed = facts if asks else []  # with requests, one of those may be at fault
            self._give_up(asks, Refusal(f"stoker has a bug: {error!r}", "internal"))
            if asks:
                raise Undecided from error
            raise
        if turn.events:
            self.unforced = not turn.force
            self._room_again()
        if turn.wishes:
            self.carry_out(turn.wishes)
        for ask, refusal, decision in turn.answers:
            if refusal is not None:
                ask.refuse(refusal)
            elif decision is not None:
                ask.answer(decision.reply(self.state) if decision.reply else None)
        if turn.events:
            self.publish(self.seq, turn.events)
        if turn.later:
            self.cycle(asks=turn.later)

    def _room_again(self) -> None:
        """A commit went through: if the disk was full, set the reserve aside again."""
        if self.trouble is not None:
            self.trouble = None
            restore = getattr(self.store, "set_ballast", None)
            if restore is not None:
                restore()

    def _give_up(self, asks: Sequence[Ask], refusal: Refusal) -> None:
        """Nothing of this turn happened: say so, and go back to what is on record."""
        for ask in asks:
            ask.refuse(refusal)
        self.reload()

    def _decide(self, turn: _Turn, facts: list[Event], asks: Sequence[Ask]) -> None:
        state, now = self.state, self.clock()
        for fact in facts:
            turn.apply(fact)
        for fact in before_requests(state, now.at, now.boot):
            turn.apply(fact)
        for ask in asks:
            try:
                decision = ask.decide(state, now)
            except Refusal as refusal:
                turn.answers.append((ask, refusal, None))
                continue
            if decision.key is not None and decision.key[0] in turn.keys:
                turn.later.append(ask)  # a repeated request: it will find the first on record
                continue
            turn.take(decision)
            turn.answers.append((ask, None, decision))
        for decided in after_requests(state, now.at, now.boot, self.planning, self.needs):
            turn.apply(decided)

    def _out_of_room(self, full: StoreFull, facts: list[Event], asks: Sequence[Ask]) -> None:
        """Disk full: refuse requests, give up the ballast, and write the facts alone."""
        self.reload()
        self.trouble = str(full)
        self._write_or_owe(full, facts)
        for ask in asks:
            self._answer_unwritten(ask, full)

    def _answer_unwritten(self, ask: Ask, full: StoreFull) -> None:
        """A request that changes nothing needs no room."""
        try:
            decision = ask.decide(self.state, self.clock())
        except Refusal as refusal:
            ask.refuse(refusal)
            return
        if decision.events:
            ask.refuse(Refusal(str(full), "no_room"))
        else:
            ask.answer(decision.reply(self.state) if decision.reply else None)

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
            self.owed = facts


class _Turn:
    """What one cycle has gathered so far."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.events: list[Event] = []
        self.wishes: list[Instruction] = []
        self.answers: list[tuple[Ask, Refusal | None, Decision | None]] = []
        self.blobs: dict[str, bytes] = {}
        self.secrets: dict[str, bytes] = {}
        self.keys: dict[str, tuple[str, int, int]] = {}
        self.later: list[Ask] = []
        self.specs: dict[str, Spec] = {}
        self.force = False

    def apply(self, event: Event) -> None:
        """Let a fact change the state, and remember it for the journal."""
        if type(event) is SpecRecorded:
            self.specs[event.hash] = event.spec
        self.wishes += apply(self.state, event)
        self.events.append(event)

    def take(self, decision: Decision) -> None:
        """A granted request: its facts, and what is stored beside them."""
        for event in decision.events:
            self.apply(event)
            # Acknowledged work is on disk before the answer goes out.
            acknowledged = type(event) is JobsSubmitted or type(event) is SweepDefined
            self.force = self.force or (decision.durable and acknowledged)
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
