"""The cycle: apply events, handle commands, plan, commit; what follows from it is returned.

Three callers run it: the daemon and `feed` with real clocks and processes, the simulation tests
with a virtual clock and modelled ones.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from time import perf_counter
from typing import Any, Protocol

from msgspec import Struct, field

from stoker.core.events import Event, JobsSubmitted, SpecRecorded, SweepDefined
from stoker.core.events.instructions import Instruction
from stoker.core.handlers import apply
from stoker.core.model.units import BadValue
from stoker.core.planner.cycle import plan_events, pre_command_events, unload_events
from stoker.core.state.record import ChangeSet
from stoker.core.state.restore import restore
from stoker.core.state.state import State
from stoker.core.state.timers import next_wakeup
from stoker.faults import FaultTracker, excerpt
from stoker.store.port import Batch, Store, StoreError, StoreFull

TIMERS, PLANNING, UNLOADING = STAGES = ("timers", "planning", "unloading finished jobs")
"""What a cycle does besides events and commands; a stage that fails is paused, the others run."""
EVENTS = "events"
MAX_SET_ASIDE_EVENTS = 1000
"""Events that could not be applied and are tried again."""
MIN_SLEEP_SECONDS = 1.0
"""What is due while a stage is paused may stay due: that must not keep the processor busy."""


class CommandRejected(Exception):
    """A command that is not carried out: a message for its sender, and an error code."""

    def __init__(self, message: str, code: str = "failed") -> None:
        super().__init__(message)
        self.message, self.code = message, code


class CommandResult(Struct):
    """What a handler decides: events, what must be stored with them, and the reply."""

    events: list[Event] = []
    reply: Callable[[State], Any] | None = None
    blobs: dict[str, bytes] = {}
    secrets: dict[str, bytes] = {}
    key: tuple[str, int, int] | None = None
    durable: bool = True
    """Whether a submission must be on disk before the reply, since its sender relies on it."""

    @property
    def is_acknowledged(self) -> bool:
        """Whether it is a submission whose reply promises that it is on disk."""
        return self.durable and any(
            type(event) is JobsSubmitted or type(event) is SweepDefined for event in self.events
        )


class Instant(Struct, frozen=True):
    """Now, by the wall clock (for people) and the boot clock (for durations)."""

    wall: float
    boot: float


class Command(Protocol):
    """Something that a client wants done."""

    def handle(self, state: State, now: Instant) -> CommandResult:
        """Return the events and the reply, or raise CommandRejected."""

    def reply(self, value: Any) -> None:
        """Take the reply: the command is carried out and in the journal."""

    def reject(self, rejection: CommandRejected) -> None:
        """Take the rejection: nothing has changed."""


class Reply(Struct):
    """The outcome of one command, ready to be sent."""

    command: Command
    value: Any = None
    rejection: CommandRejected | None = None

    def send(self) -> None:
        """Pass the outcome to the command."""
        if self.rejection is not None:
            self.command.reject(self.rejection)
        else:
            self.command.reply(self.value)


class CycleResult(Struct):
    """What follows from a cycle; all of it is in the journal.

    The caller executes the instructions, sends the replies and publishes the events, in this
    order, and then handles the error. One cycle may make several commits: their results are
    joined in the order of the commits.
    """

    seq: int
    """The journal's number of the last event."""
    events: list[Event] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    changes: ChangeSet = field(default_factory=ChangeSet)
    """What is different from before."""
    commit_seconds: float = 0.0
    """How long writing the journal took."""
    error: Exception | None = None
    """What ended the cycle early; commits made before it are part of the result."""

    def raise_error(self) -> None:
        """Raise what ended the cycle early, if anything did."""
        if self.error is not None:
            raise self.error

    def reject(self, commands: Iterable[Command], rejection: CommandRejected) -> None:
        """Add the same rejection for each of these commands."""
        self.replies += [Reply(command, rejection=rejection) for command in commands]


class Engine:
    """One state and its store; `cycle` is the only way to change them."""

    def __init__(
        self, store: Store, clock: Callable[[], Instant], faults: FaultTracker | None = None
    ) -> None:
        """Without `faults` an internal error ends the cycle: tests want to see it."""
        self.store = store
        self.clock = clock
        self.faults = faults
        self.seq: int
        self.state: State
        self.store_error: str | None = None
        """Why nothing can be written (disk full); None while commits succeed."""
        self.unsynced = False
        """Whether something is committed but not yet on disk."""
        self.unwritten_events: list[Event] = []
        """Events that could not be written yet (disk full): they are never dropped."""
        self.set_aside: list[Event] = []
        """Events that could not be applied because of an internal error: they are tried again."""
        self._is_stale = False
        """Whether the state must be read back before anything else, since that has failed."""
        self._excerpt = ""
        """A description of the state at the last internal error."""
        self._result = CycleResult(0)
        """What follows from the cycle that runs."""
        self._scheduling_enabled = True
        self._pinned_jobs: Callable[[], Container[int]] = tuple
        self.reload()

    @property
    def has_unrecorded_events(self) -> bool:
        """Whether events are known that are not in the journal yet."""
        return bool(self.unwritten_events or self.set_aside)

    @property
    def must_retry(self) -> bool:
        """Whether a commit failed: its events must be written, or its plan be made again."""
        return bool(self.unwritten_events) or not self.state.memory.has_current_ranks

    def mark_synced(self) -> None:
        """Take note that everything committed so far is on disk, or about to be."""
        self.unsynced = False

    def reload(self) -> None:
        """Discard the state and read it back from the store."""
        self._is_stale = True
        snapshot = self.store.load()
        self.seq = snapshot.seq
        self.state = restore(
            snapshot.rest, snapshot.specs, snapshot.jobs, snapshot.sweeps, snapshot.members
        )
        self._is_stale = False

    def cycle(
        self,
        events: Iterable[Event] = (),
        commands: Sequence[Command] = (),
        scheduling_enabled: bool = True,
        pinned_jobs: Callable[[], Container[int]] = tuple,
    ) -> CycleResult:
        """Run one cycle and return what follows from it; nothing of it is done before.

        Without `scheduling_enabled` no job is started; `pinned_jobs` must stay in memory, since
        events of theirs are still expected.
        """
        self._scheduling_enabled, self._pinned_jobs = scheduling_enabled, pinned_jobs
        result = self._result = CycleResult(self.seq)
        try:
            self._cycle(events, commands)
        except Exception as error:  # noqa: BLE001 - the caller raises it, after what was committed
            result.error = error
        return result

    def seconds_until_due(self, now: Instant) -> float | None:
        """Return the seconds until a timer or the end of a pause needs a cycle."""
        wait = next_wakeup(self.state, now.wall, now.boot)
        retry = self.faults.seconds_until_retry((*STAGES, EVENTS)) if self.faults else None
        if retry is None:
            return wait
        return retry if wait is None else min(retry, max(wait, MIN_SLEEP_SECONDS))

    # -- one cycle ----------------------------------------------------------------------

    def _cycle(self, events: Iterable[Event], commands: Sequence[Command]) -> None:
        events = [*self.unwritten_events, *events]
        self.unwritten_events = []
        if self._is_stale:
            self._discard(events, commands)
        faults = self.faults
        stages = [stage for stage in STAGES if not (faults and faults.is_failing(stage))]
        error = self._run(events, commands, stages)
        if error is not None:
            self._run_in_parts(events, commands, stages, error)
        self._retry()

    def _run(
        self, events: list[Event], commands: Sequence[Command], stages: Sequence[str]
    ) -> Exception | None:
        """Decide and commit; return an internal error, after which nothing has changed."""
        batch = _CycleBatch(self.state)
        try:
            self._decide(batch, events, commands, stages)
            if batch.events:
                begin = perf_counter()
                self.seq = self.store.commit(batch.to_store(), sync=batch.must_sync)
                self._result.commit_seconds += perf_counter() - begin
        except StoreFull as full:
            self._on_disk_full(full, events, commands)
            return None
        except StoreError as error:
            self.unwritten_events += events
            self._give_up(commands, CommandRejected(str(error), "unavailable"))
            raise
        except Exception as error:
            if self.faults is None:
                # With commands, one of these may be at fault, and the events are good.
                self.unwritten_events = events if commands else []
                self._give_up(commands, _internal(error))
                raise
            self._excerpt = excerpt(self.state)
            self._discard(events, commands)
            return error
        if batch.events:
            self.unsynced = not batch.must_sync
            self._on_disk_recovered()
        self._add(batch)
        if batch.repeated:
            self._cycle([], batch.repeated)
        return None

    def _decide(
        self,
        batch: _CycleBatch,
        events: list[Event],
        commands: Sequence[Command],
        stages: Sequence[str],
    ) -> None:
        state, now = self.state, self.clock()
        for event in events:
            batch.apply(event)
        for event in pre_command_events(state, now.wall, now.boot) if TIMERS in stages else ():
            batch.apply(event)
        for command in commands:
            try:
                decision = _handle(command, state, now)
            except CommandRejected as rejection:
                batch.outcomes.append((command, rejection))
                continue
            if decision.key is not None and decision.key[0] in batch.keys:
                batch.repeated.append(command)  # it finds the first of this key in the journal
                continue
            lost = self.store.durability_warning() if decision.is_acknowledged else None
            if lost is not None:
                batch.outcomes.append((command, CommandRejected(lost, "unavailable")))
                continue
            batch.accept(decision)
            batch.outcomes.append((command, decision))
        if PLANNING in stages:
            for event in plan_events(state, now.wall, now.boot, self._scheduling_enabled):
                batch.apply(event)
        for event in (
            unload_events(state, now.wall, self._pinned_jobs) if UNLOADING in stages else ()
        ):
            batch.apply(event)

    def _add(self, batch: _CycleBatch) -> None:
        """Add to the result what is in the journal now."""
        result = self._result
        if batch.events:
            result.seq = self.seq
            result.events += batch.events
            result.changes.add(batch.changes)
            result.instructions += batch.instructions
        for command, outcome in batch.outcomes:
            if isinstance(outcome, CommandRejected):
                result.replies.append(Reply(command, rejection=outcome))
            else:
                self._add_reply(command, outcome)

    def _add_reply(self, command: Command, decision: CommandResult) -> None:
        """Evaluate the reply now: a later commit of this cycle may change the state."""
        try:
            value = decision.reply(self.state) if decision.reply else None
        except Exception as error:
            why = "The request was carried out, but its reply failed."
            self._result.reject([command], _internal(error, why))
            if self.faults is None:
                raise
            self.faults.record("answering a request", error)
        else:
            self._result.replies.append(Reply(command, value))

    def _discard(self, events: list[Event], commands: Sequence[Command]) -> None:
        """Return to what is in the journal; if that cannot be read, postpone the events."""
        try:
            self.reload()
        except Exception as error:
            self.unwritten_events += events
            why = f"The state cannot be read: {error}"
            self._result.reject(commands, CommandRejected(why, "unavailable"))
            raise

    def _give_up(self, commands: Sequence[Command], rejection: CommandRejected) -> None:
        """Reject the commands, and return to what is in the journal."""
        self._result.reject(commands, rejection)
        self.reload()

    # -- internal errors ----------------------------------------------------------------

    def _run_in_parts(
        self, events: list[Event], commands: Sequence[Command], stages: list[str], error: Exception
    ) -> None:
        """Repeat a failed run in parts, so that only the part at fault has no effect."""
        parts: list[_Part] = [
            *(([event], [], []) for event in events),
            *(([], [command], []) for command in commands),
            *(([], [], [stage]) for stage in stages),
        ]
        while parts:
            part, *parts = parts
            try:
                self._run_part(part)
            except BaseException:
                self.unwritten_events += [event for events, _, _ in parts for event in events]
                rejection = CommandRejected(f"not decided because of {error!r}", "unavailable")
                self._result.reject(
                    [command for _, some, _ in parts for command in some], rejection
                )
                raise

    def _run_part(self, part: _Part) -> bool:
        """Run one part; return False if it is at fault."""
        error = self._run(*part)
        if error is not None:
            self._isolate(part, error)
        return error is None

    def _isolate(self, part: _Part, error: Exception) -> None:
        """Report the event, command or stage that is at fault, and continue without it."""
        faults = self.faults
        assert faults is not None
        events, commands, stages = part
        for event in events:
            faults.pause(EVENTS, error, f"{event}\n{self._excerpt}")
            self.set_aside = [*self.set_aside, event][-MAX_SET_ASIDE_EVENTS:]
        for command in commands:
            name = f"request {getattr(command, 'name', '')}".strip()
            faults.record(name, error, self._excerpt)
        self._result.reject(commands, _internal(error))
        for stage in stages:
            faults.pause(stage, error, self._excerpt)

    def _retry(self) -> None:
        """Try again what was paused, one part at a time, when its pause is over."""
        faults = self.faults
        if faults is None:
            return
        for stage in STAGES:
            possible = stage != PLANNING or self._scheduling_enabled
            is_due = possible and faults.is_failing(stage) and faults.may_retry(stage)
            if is_due and self._run_part(([], [], [stage])):
                faults.resolve(stage)
        if self.set_aside and faults.may_retry(EVENTS):
            events, self.set_aside = self.set_aside, []
            for event in events:
                self._run_part(([event], [], []))
            if not self.set_aside:
                faults.resolve(EVENTS)

    # -- a full disk --------------------------------------------------------------------

    def _on_disk_full(
        self, full: StoreFull, events: list[Event], commands: Sequence[Command]
    ) -> None:
        """Release the reserved space for the events alone; reject commands that need space."""
        self.reload()
        self.store_error = str(full)
        if events:
            self._write_events(full, events)
        for command in commands:
            self._reply_without_writing(command, full)

    def _write_events(self, full: StoreFull, events: list[Event]) -> None:
        if not self.store.release_reserve():
            self.unwritten_events += events
            return
        enabled, self._scheduling_enabled = self._scheduling_enabled, False
        try:
            self._cycle(events, ())
        finally:
            self._scheduling_enabled = enabled
            self.store_error = str(full)

    def _reply_without_writing(self, command: Command, full: StoreFull) -> None:
        """Reply to a command that changes nothing: it needs no space."""
        try:
            decision = _handle(command, self.state, self.clock())
        except CommandRejected as rejection:
            self._result.reject([command], rejection)
            return
        except Exception as error:
            if self.faults is None:
                raise
            self._isolate(([], [command], []), error)
            return
        if decision.events:
            self._result.reject([command], CommandRejected(str(full), "disk_full"))
        else:
            self._add_reply(command, decision)

    def _on_disk_recovered(self) -> None:
        """After a commit: if the disk was full, reserve the space again."""
        if self.store_error is not None:
            self.store_error = None
            self.store.reserve_space()


_Part = tuple[list[Event], list[Command], list[str]]
"""Some events, commands and stages of a cycle."""


def _handle(command: Command, state: State, now: Instant) -> CommandResult:
    """Return what a command decides; reject one with a value that cannot be read."""
    try:
        return command.handle(state, now)
    except BadValue as error:
        raise CommandRejected(str(error), "usage") from None


def _internal(
    error: Exception, what: str = "The request was rejected and nothing changed."
) -> CommandRejected:
    return CommandRejected(f"Internal error {error!r}. {what} See: stoker daemon log", "internal")


class _CycleBatch:
    """What goes into one commit, and what follows from it."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.stored = Batch()
        self.changes = ChangeSet()
        self.events = self.stored.events
        self.instructions: list[Instruction] = []
        self.outcomes: list[tuple[Command, CommandRejected | CommandResult]] = []
        self.keys: dict[str, tuple[str, int, int]] = {}
        self.repeated: list[Command] = []
        """Commands with a key that another one of this batch has: they are handled after it."""
        self.must_sync = False

    def apply(self, event: Event) -> None:
        """Change the state by an event, and keep the event for the journal."""
        if type(event) is SpecRecorded:
            self.stored.specs[event.hash] = event.spec
        self.instructions += apply(self.state, event)
        self.events.append(event)

    def accept(self, decision: CommandResult) -> None:
        """Apply the events of a command, and keep what is stored with them."""
        for event in decision.events:
            self.apply(event)
        # An acknowledged submission is on disk before its reply is sent.
        self.must_sync = self.must_sync or decision.is_acknowledged
        self.stored.blobs.update(decision.blobs)
        self.stored.secrets.update(decision.secrets)
        if decision.key is not None:
            self.keys[decision.key[0]] = decision.key

    def to_store(self) -> Batch:
        """Everything that changed, for one transaction."""
        state, batch = self.state, self.stored
        changes = self.changes = state.take_changes()
        batch.jobs = [state.jobs[id] for id in changes.jobs]
        batch.dropped = changes.unloaded
        batch.rest = state.record if changes.has_record else None
        batch.keys = list(self.keys.values())
        batch.sweeps = [state.sweeps[id] for id in changes.sweeps]
        return batch
