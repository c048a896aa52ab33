"""The slots of a batch: reckoned once, when it starts, and never more than that."""

from __future__ import annotations

from stoker.frontdoors.execute_batch.machine import free_of, options
from stoker.frontdoors.execute_batch.slots import slots, why_none

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stoker.frontdoors.execute_batch.lines import Line
    from stoker.frontdoors.execute_batch.party import Member
    from stoker.frontdoors.execute_batch.slots import Need


class Slot:
    """A place for one job at a time."""

    __slots__ = ("gpu", "member", "number", "options")

    def __init__(
        self, number: int, member: Member, gpu: int | None, options: dict[str, Any]
    ) -> None:
        self.number, self.member, self.gpu, self.options = number, member, gpu, options

    def shown(self, command: str) -> str:
        """A job's command, as people are told of it."""
        if self.gpu is None or "exclusive" in self.options:
            return command
        return f"export CUDA_VISIBLE_DEVICES={self.gpu} && {command}"

    def line(self, command: str) -> str:
        """What is run. Whoever reserves a machine has its GPUs too, but might not want any."""
        if self.gpu is None and "exclusive" in self.options:
            return f"export CUDA_VISIBLE_DEVICES=; {command}"
        return command


class Plan:
    """All slots of all machines."""

    def __init__(
        self, members: Sequence[Member], need: Need, gpus: Sequence[dict[str, Any]]
    ) -> None:
        self.need = need
        self.slots: list[Slot] = []
        self.limits: dict[str, int] = {}
        self.choices: list[list[int]] = []
        self._free = {member.typed: free_of(member.view, gpus) for member in members}
        for member in members:
            free = self._free[member.typed]
            found = slots(free, need)
            self.limits[member.typed] = len(found)
            self.choices.append([gpu for gpu in found if gpu is not None])
            for gpu in found:
                asked = options(need, free, member.view, gpu, len(found))
                asked["nodelist"] = member.node
                self.slots.append(Slot(len(self.slots), member, gpu, asked))

    def excuses(self) -> dict[str, str]:
        """Why machines take no job."""
        return {
            name: why_none(free, self.need)
            for name, free in self._free.items()
            if not self.limits[name]
        }

    def rehearse(self, lines: Sequence[Line]) -> None:
        """Print what would be run where, if all jobs took the same time."""
        for number, line in enumerate(lines):
            slot = self.slots[number % len(self.slots)]
            print(f"{slot.member.typed}: {line.name};  {slot.shown(line.command)}")
