"""Plan: the slots of a batch, computed once at its start."""

from __future__ import annotations

from typing import NamedTuple

from stoker.compat.execute_batch.lines import print_line
from stoker.compat.execute_batch.machine import free_resources, slot_options
from stoker.compat.execute_batch.slots import compute_slots, no_slot_reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stoker.compat.execute_batch.lines import Line
    from stoker.compat.execute_batch.node_lease import LeasedNode
    from stoker.compat.execute_batch.slots import JobNeed


class Slot(NamedTuple):
    """Resources of one node for one job at a time."""

    number: int
    node: LeasedNode
    gpu: int | None
    options: dict[str, Any]

    def display_command(self, command: str) -> str:
        """Return the command as shown to the user."""
        if self.gpu is None or "exclusive" in self.options:
            return command
        return f"export CUDA_VISIBLE_DEVICES={self.gpu} && {command}"

    def command_line(self, command: str) -> str:
        """Return the command line to run.

        It sets the GPU, because ~/.bashrc might set another; a reserved node has all GPUs.
        """
        if self.gpu is not None and "exclusive" in self.options:
            return command
        return f"export CUDA_VISIBLE_DEVICES={'' if self.gpu is None else self.gpu}; {command}"

    def verbose_line(self, command: str, id: int) -> str:
        """Return the remote command line for --verbose."""
        from shlex import quote

        shell = "bash -ic" if "bash" in self.node.view["measured"]["tools"] else "sh -c"
        address = self.node.address.removeprefix("ssh://")
        return f"{address} (job {id}): {shell} {quote(self.command_line(command))}"


class Plan:
    """All slots of all nodes."""

    def __init__(
        self, members: Sequence[LeasedNode], need: JobNeed, gpus: Sequence[dict[str, Any]]
    ) -> None:
        self.nodes, self.need, self.gpus = members, need, gpus
        self.slots: list[Slot] = []
        self.limits: dict[str, int] = {}
        self.choices: list[list[int]] = []
        self._free = {member.name: free_resources(member.view, gpus) for member in members}
        for member in members:
            free = self._free[member.name]
            gpus_of_slots = compute_slots(free, need)
            self.limits[member.name] = len(gpus_of_slots)
            whole_node = bool(gpus_of_slots) and need.reserve and need.gpu
            indexes = [gpu.number for gpu in free.gpus] if whole_node else gpus_of_slots
            self.choices.append([gpu for gpu in indexes if gpu is not None])
            for gpu in gpus_of_slots:
                options = slot_options(need, free, member.view, gpu, len(gpus_of_slots))
                options["nodelist"] = member.node
                self.slots.append(Slot(len(self.slots), member, gpu, options))

    @property
    def has_busy_cores(self) -> bool:
        """Return True if idle cores would allow more slots."""
        for member in self.nodes:
            measured = member.view["measured"]
            idle = {**member.view, "measured": {**measured, "free_cores": measured["cores"]}}
            if (
                len(compute_slots(free_resources(idle, self.gpus), self.need))
                > self.limits[member.name]
            ):
                return True
        return False

    def no_slot_reasons(self) -> dict[str, str]:
        """Return why nodes have no slot, by name."""
        return {
            member.name: no_slot_reason(self._free[member.name], self.need) + _node_notes(member)
            for member in self.nodes
            if not self.limits[member.name]
        }

    def print_dry_run(self, lines: Sequence[Line]) -> None:
        """Print where each line would run if all took the same time."""
        for number, line in enumerate(lines):
            slot = self.slots[number % len(self.slots)]
            print_line(f"{slot.node.name}: {line.name};  {slot.display_command(line.command)}")


def _node_notes(member: LeasedNode) -> str:
    """Return the notes of a node except the missing bash, which was reported."""
    notes = [note for note in member.view.get("notes", ()) if not note.startswith("no bash")]
    return f" ({'; '.join(notes)})" if notes else ""
