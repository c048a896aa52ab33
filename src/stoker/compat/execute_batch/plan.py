"""The slots of a batch: reckoned once, when it starts, and never more than that."""

from __future__ import annotations

from stoker.compat.execute_batch.lines import tell
from stoker.compat.execute_batch.machine import free_of, options
from stoker.compat.execute_batch.slots import slots, why_none

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stoker.compat.execute_batch.lines import Line
    from stoker.compat.execute_batch.node_lease import Member
    from stoker.compat.execute_batch.slots import Need


class Slot:
    """A place for one job at a time."""

    __slots__ = ("gpu", "member", "number", "options")

    def __init__(
        self, number: int, member: Member, gpu: int | None, options: dict[str, Any]
    ) -> None:
        self.number, self.member, self.gpu, self.options = number, member, gpu, options

    def beside(self, other: Slot) -> bool:
        """Whether another one is on the same machine."""
        return self.member is other.member

    def shown(self, command: str) -> str:
        """A job's command, as people are told of it."""
        if self.gpu is None or "exclusive" in self.options:
            return command
        return f"export CUDA_VISIBLE_DEVICES={self.gpu} && {command}"

    def line(self, command: str) -> str:
        """What is run. The GPU is named here as well, since ~/.bashrc might name another one;
        whoever reserves a machine for jobs on GPUs has them all.
        """
        if self.gpu is not None and "exclusive" in self.options:
            return command
        return f"export CUDA_VISIBLE_DEVICES={'' if self.gpu is None else self.gpu}; {command}"

    def typed(self, command: str, id: int) -> str:
        """What is executed, as far as it can be typed."""
        from shlex import quote

        shell = "bash -ic" if "bash" in self.member.view["measured"]["tools"] else "sh -c"
        where = self.member.address.removeprefix("ssh://")
        return f"{where} (job {id}): {shell} {quote(self.line(command))}"


class Plan:
    """All slots of all machines."""

    def __init__(
        self, members: Sequence[Member], need: Need, gpus: Sequence[dict[str, Any]]
    ) -> None:
        self.members, self.need, self.gpus = members, need, gpus
        self.slots: list[Slot] = []
        self.limits: dict[str, int] = {}
        self.choices: list[list[int]] = []
        self._free = {member.typed: free_of(member.view, gpus) for member in members}
        for member in members:
            free = self._free[member.typed]
            found = slots(free, need)
            self.limits[member.typed] = len(found)
            whole = bool(found) and need.reserve and need.gpu
            given = [gpu.index for gpu in free.gpus] if whole else found
            self.choices.append([gpu for gpu in given if gpu is not None])
            for gpu in found:
                asked = options(need, free, member.view, gpu, len(found))
                asked["nodelist"] = member.node
                self.slots.append(Slot(len(self.slots), member, gpu, asked))

    @property
    def crowded(self) -> bool:
        """Whether there would be more slots if nobody used the cores."""
        for member in self.members:
            seen = member.view["measured"]
            idle = {**member.view, "measured": {**seen, "free_cores": seen["cores"]}}
            if len(slots(free_of(idle, self.gpus), self.need)) > self.limits[member.typed]:
                return True
        return False

    def excuses(self) -> dict[str, str]:
        """Why machines take no job."""
        return {
            member.typed: why_none(self._free[member.typed], self.need) + _trouble(member)
            for member in self.members
            if not self.limits[member.typed]
        }

    def rehearse(self, lines: Sequence[Line]) -> None:
        """Print what would be run where, if all jobs took the same time."""
        for number, line in enumerate(lines):
            slot = self.slots[number % len(self.slots)]
            tell(f"{slot.member.typed}: {line.name};  {slot.shown(line.command)}")


def _trouble(member: Member) -> str:
    """What else is the matter with a machine; that there is no bash has been said."""
    notes = [note for note in member.view.get("notes", ()) if not note.startswith("no bash")]
    return f" ({'; '.join(notes)})" if notes else ""
