"""The work of simple_gpu_scheduler: a line for each slot that is free, the last one first."""

from __future__ import annotations

import time

from stoker import wire
from stoker.client.errors import StokerError
from stoker.compat.simple_gpu_scheduler import record
from stoker.compat.simple_gpu_scheduler.outputs import Outputs
from stoker.compat.simple_gpu_scheduler.slots import DOOR, Slot
from stoker.feed.job_stream import Batch, FinishedJob, JobStream
from stoker.feed.line_reader import Lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

READ_AHEAD = 256
"""Lines that are kept in memory; they are in nobody's queue yet."""
LONGEST_COMMAND = 128 * 1024 - 1
"""Bytes that the kernel takes as one word of a command line."""
TRY_AGAIN = 1.0
"""Seconds before a line for which there was no room (a full disk) is tried again."""
SHOWN = 200
"""Letters of a command in a complaint."""


class Command:
    """A line that has been given a slot."""

    __slots__ = ("line", "shown", "slot")

    def __init__(self, line: str, shown: str, slot: Slot) -> None:
        self.line, self.shown, self.slot = line, shown, slot


class Slots(JobStream):
    """Gives each line the slot that became free last."""

    waits_for_ends = True
    trusts_names = True

    def __init__(self, lines: Lines, slots: Sequence[Slot], outputs: Outputs) -> None:
        named = dict.fromkeys(device for slot in slots for device in slot.devices)
        super().__init__(lines, list(named))
        self.outputs = outputs
        self.free = list(slots)
        self.busy: dict[int, Command] = {}
        self.failed = self.cancelled = self.not_run = 0
        self.not_before = 0.0
        self.ending = False
        self.said: set[str] = set()
        logs = {key: _pattern(path) for key, path in outputs.paths("%j").items()}
        for slot in slots:
            slot.options.update(logs)

    # -- lines out ----------------------------------------------------------------------

    def hungry(self, waiting: int) -> bool:
        """A little ahead of the slots, so that the next line is at hand."""
        return not self.lines.full(READ_AHEAD)

    def openings(self, waiting: int, news: int) -> int:
        """As many as slots are free, or may be after the news."""
        if not self.lines.at_hand or self.outputs.full or self._must_wait():
            return 0
        most = len(self.free) + min(news, len(self.busy))
        return most if self.lines.regular else min(most, self.lines.waiting)

    def _must_wait(self) -> bool:
        return bool(self.not_before) and time.monotonic() < self.not_before

    def next(self, waiting: int) -> Batch | None:
        """A line and the slot for it, or None if the next line cannot be run."""
        taken = self.lines.take(1) if self.free else []
        if not taken:
            return None
        line = taken[0].rstrip()
        what, shown = self._read(line)
        if what is None:
            self._leave_out(f"`{shown[:40]}...` is skipped: it is longer than 128 KiB")
            return None
        command = Command(line, shown, self.free.pop())
        return Batch(what, command.slot.options, slot=command)

    @staticmethod
    def _read(line: str) -> tuple[dict[str, str] | None, str]:
        """What to run, if it can be run, and what to call it."""
        script = record.decode(line)
        if script is not None:
            name, text = script
            return {"script": text, "script_name": name}, name
        if len(line.encode()) > LONGEST_COMMAND:
            return None, line
        # A shell takes a backslash and the newline behind it for nothing at all.
        return {"line": line}, line.replace("\\\n", "")

    def submitted(self, lot: Batch, first: int, last: int) -> None:
        """Say so, in the words that scripts look for."""
        command = lot.slot
        assert isinstance(command, Command)
        self.busy[first] = command
        self.outputs.say(f"Processing command `{command.shown}` on gpu {command.slot.name}")
        self.outputs.follow(first)

    def refused(self, lot: Batch, error: StokerError) -> StokerError | None:
        """What has no room now is tried again later; what cannot run at all has failed."""
        command = lot.slot
        assert isinstance(command, Command)
        self.free.append(command.slot)
        if error.code == "unavailable":
            text = f"{error.message} Running commands continue; the others are not run."
            return StokerError(text, wire.EXIT_FAILED, error.code)
        if error.code in ("disk_full", "queue_full"):
            self.lines.put_back(command.line)
            self.not_before = time.monotonic() + TRY_AGAIN
            self.warn(f"{error.message} Trying again later.")
        else:
            self._leave_out(f"`{_short(command.shown)}` is not run: {error.message}")
        return None

    def _leave_out(self, text: str) -> None:
        self.failed += 1
        self._complain(text)

    # -- ends ---------------------------------------------------------------------------

    def ended(self, end: FinishedJob) -> None:
        """Its slot is the next to be used."""
        command = self.busy.pop(end.id)
        self.free.append(command.slot)
        self.outputs.over(end.id)
        what = f"`{_short(command.shown)}`"
        if end.state == "CANCELLED" and self.ending:
            self.cancelled += end.started
            self.not_run += not end.started
        elif end.state != "COMPLETED":
            self.failed += 1
            cause = end.view()["cause"]
            self._complain(f"{what} failed on gpu {command.slot.name}: {cause}")
        elif end.note:
            self._complain(f"{what} {end.note}; its GPU is released when no process uses it")

    def turned(self, running: Callable[[], int]) -> None:
        """Show what commands have printed."""
        for number, why in self.lines.excuses():
            self._leave_out(f"line {number} is skipped: {why}")
        self.outputs.turn()

    def due(self) -> float | None:
        """When to look at the logs, or to try again."""
        waits = [self.outputs.due()]
        if self._must_wait():
            waits.append(self.not_before - time.monotonic())
        return min((wait for wait in waits if wait is not None), default=None)

    def interrupted(self) -> None:
        """What is cancelled from now on has not failed."""
        self.ending = True

    def draining(self) -> None:
        """Say so."""
        self.ending = True
        self._complain("draining: running commands finish, no more are started")

    def stopped(self) -> None:
        """Say how much was left undone."""
        rest = self.lines.rest()
        not_run = "the rest" if rest is None else self.not_run + rest
        counts = ((self.cancelled, "cancelled"), (not_run, "not run"))
        said = ", ".join(f"{count} {what}" for count, what in counts if count)
        if said:
            self._complain(f"commands: {said}")

    def warn(self, text: str) -> None:
        """Say something once."""
        if text not in self.said:
            self.said.add(text)
            self._complain(text)

    def _complain(self, text: str) -> None:
        self.outputs.complain(f"{DOOR}: {text}")

    @property
    def code(self) -> int:
        """0 when every command succeeded that was started, or could not be."""
        return 1 if self.failed else 0


def _pattern(path: str) -> str:
    """A path in which only `%j` stands for something."""
    directory, _, name = path.rpartition("/")
    return f"{directory.replace('%', '%%')}/{name}"


def _short(text: str) -> str:
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
