"""Job stream of simple_gpu_scheduler: a line for each free slot, last freed slot first."""

from __future__ import annotations

import time
from typing import NamedTuple

from stoker import wire
from stoker.client.errors import StokerError
from stoker.compat.simple_gpu_scheduler import record
from stoker.compat.simple_gpu_scheduler.outputs import OutputCopier
from stoker.compat.simple_gpu_scheduler.slots import NAME, Slot
from stoker.feed.job_stream import Batch, FinishedJob, JobStream
from stoker.feed.line_reader import LineReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

READ_AHEAD = 256
"""Lines read ahead of the slots; they are in no queue yet."""
LONGEST_COMMAND = 128 * 1024 - 1
"""Maximum bytes of one argument of a command line (Linux)."""
RETRY_SECONDS = 1.0
"""Delay before a line is retried that the daemon could not accept (a full disk)."""
MAX_SHOWN = 200
"""Maximum characters of a command in a message."""


class Command(NamedTuple):
    """A line and its slot."""

    line: str
    shown: str
    slot: Slot


class SlotStream(JobStream):
    """Assigns each line the slot that was freed last."""

    waits_for_ends = True
    accepts_unknown_gpus = True

    def __init__(self, lines: LineReader, slots: Sequence[Slot], outputs: OutputCopier) -> None:
        named = dict.fromkeys(device for slot in slots for device in slot.devices)
        super().__init__(lines, list(named))
        self.outputs = outputs
        self.free = list(slots)
        self.busy: dict[int, Command] = {}
        self.failed = self.cancelled = self.not_run = 0
        self.not_before = 0.0
        self.ending = False
        self.said: set[str] = set()
        logs = {key: _output_pattern(path) for key, path in outputs.paths("%j").items()}
        for slot in slots:
            slot.options.update(logs)

    # -- submission ---------------------------------------------------------------------

    def wants_input(self, waiting: int) -> bool:
        """Return True if lines should be read, slightly ahead of the slots."""
        return not self.lines.is_full(READ_AHEAD)

    def free_slots(self, waiting: int, news: int) -> int:
        """Return the number of slots that are free, or may be after pending events."""
        if not self.lines.may_take or self.outputs.full or self._must_wait():
            return 0
        max_free = len(self.free) + min(news, len(self.busy))
        return max_free if self.lines.is_regular else min(max_free, self.lines.buffered)

    def _must_wait(self) -> bool:
        return bool(self.not_before) and time.monotonic() < self.not_before

    def next_batch(self, waiting: int) -> Batch | None:
        """Return a line with its slot, None if the next line cannot be run."""
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
        """Return the command of a line, and the text to show for it."""
        script = record.decode(line)
        if script is not None:
            name, text = script
            return {"script": text, "script_name": name}, name
        if len(line.encode()) > LONGEST_COMMAND:
            return None, line
        # A shell removes a backslash and the newline after it.
        return {"line": line}, line.replace("\\\n", "")

    def on_submitted(self, lot: Batch, first: int, last: int) -> None:
        """Print the message that existing scripts look for."""
        command = lot.slot
        assert isinstance(command, Command)
        self.busy[first] = command
        self.outputs.say(f"Processing command `{command.shown}` on gpu {command.slot.name}")
        self.outputs.follow(first)

    def on_rejected(self, lot: Batch, error: StokerError) -> StokerError | None:
        """Retry a line later if the daemon is full; otherwise count it as failed."""
        command = lot.slot
        assert isinstance(command, Command)
        self.free.append(command.slot)
        if error.code == "unavailable":
            text = f"{error.message} Running commands continue; the others are not run."
            return StokerError(text, wire.EXIT_FAILED, error.code)
        if error.code in ("disk_full", "queue_full"):
            self.lines.put_back(command.line)
            self.not_before = time.monotonic() + RETRY_SECONDS
            self.warn(f"{error.message} Trying again later.")
        else:
            self._leave_out(f"`{_short(command.shown)}` is not run: {error.message}")
        return None

    def _leave_out(self, text: str) -> None:
        self.failed += 1
        self._complain(text)

    # -- end ----------------------------------------------------------------------------

    def on_finished(self, end: FinishedJob) -> None:
        """Free the slot of a finished command; it is used next."""
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

    def show_progress(self, running: Callable[[], int]) -> None:
        """Copy the output of the commands."""
        for number, why in self.lines.take_skipped():
            self._leave_out(f"line {number} is skipped: {why}")
        self.outputs.turn()

    def next_update(self) -> float | None:
        """Return the seconds until the next poll of the logs or retry."""
        waits = [self.outputs.due()]
        if self._must_wait():
            waits.append(self.not_before - time.monotonic())
        return min((wait for wait in waits if wait is not None), default=None)

    def on_interrupt(self) -> None:
        """From now on, cancelled commands do not count as failed."""
        self.ending = True

    def on_drain(self) -> None:
        """Print that the scheduler is draining."""
        self.ending = True
        self._complain("draining: running commands finish, no more are started")

    def on_stopped(self) -> None:
        """Report the commands that did not run."""
        remaining = self.lines.drop_remaining()
        not_run = "the rest" if remaining is None else self.not_run + remaining
        counts = ((self.cancelled, "cancelled"), (not_run, "not run"))
        said = ", ".join(f"{count} {what}" for count, what in counts if count)
        if said:
            self._complain(f"commands: {said}")

    def warn(self, text: str) -> None:
        """Print a message once."""
        if text not in self.said:
            self.said.add(text)
            self._complain(text)

    def _complain(self, text: str) -> None:
        self.outputs.complain(f"{NAME}: {text}")

    @property
    def exit_code(self) -> int:
        """Return the exit code: 1 if a command failed or could not start."""
        return 1 if self.failed else 0


def _output_pattern(path: str) -> str:
    """Return an output path in which only `%j` is a placeholder."""
    directory, _, name = path.rpartition("/")
    return f"{directory.replace('%', '%%')}/{name}"


def _short(text: str) -> str:
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
