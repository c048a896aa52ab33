"""The log of node changes, into which every reader keeps its own cursor."""

from __future__ import annotations


class ChangeLog:
    """Names of changed nodes in the order of their last change.

    Invariant: one entry per node, so that the log does not grow with the number of changes.
    Cost: O(1) per change, O(nodes changed since the cursor) per reader.
    """

    __slots__ = ("_sequence_of", "end")

    def __init__(self) -> None:
        self._sequence_of: dict[str, int] = {}
        self.end = 0
        """Sequence number of the last change: the cursor of a reader that has read all."""

    def append(self, name: str) -> None:
        """Record a change of a node."""
        self.end += 1
        self._sequence_of.pop(name, None)
        self._sequence_of[name] = self.end

    def since(self, cursor: int) -> list[str]:
        """Return the nodes that changed after a cursor, the latest first."""
        names = []
        for name, sequence in reversed(self._sequence_of.items()):
            if sequence <= cursor:
                break
            names.append(name)
        return names
