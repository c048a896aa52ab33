"""AttemptEnds: reports how attempts end, and what the node may forget then."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.core.events import AttemptLost, ProcessExited, StartCancelled, StartFailed
from stoker.core.model.job import AttemptId
from stoker.core.model.units import printable
from stoker.executors.agent.attempt import Phase, RemoteAttempt, parse_attempt
from stoker.executors.agent.result_collector import LACKS_MEMORY

if TYPE_CHECKING:
    from stoker.executors.agent.executor import AgentExecutor

MAX_REASON_LENGTH = 2000
"""Characters of a reason or a note that is journalled."""


class AttemptEnds:
    """Ends the attempts of one executor."""

    def __init__(self, executor: AgentExecutor) -> None:
        self.executor = executor
        self._unacknowledged: set[AttemptId] = set()
        """Attempts that the node may forget once their ends are on disk."""

    def fail(self, attempt: AttemptId, part: int | None, why: str) -> None:
        """Report a start that would fail again."""
        job, number = attempt
        self.executor.sink.event(
            StartFailed(at=time.time(), job=job, attempt=number, why=_stored(why), part=part)
        )

    def cancel(
        self, attempt: RemoteAttempt, why: str, delay: float = 0.0, keep: bool = False
    ) -> None:
        """Report a start that did not happen; `keep` what the node has recorded of it."""
        is_recorded = attempt.is_ordered and not keep
        self.forget(attempt)
        self._release_records(attempt, is_recorded)
        job, number = attempt.id
        self.executor.sink.event(
            StartCancelled(at=time.time(), job=job, attempt=number, why=_stored(why), delay=delay)
        )

    def lose(self, attempt: RemoteAttempt, why: str, keep: bool = False) -> None:
        """Report an end that left no record; `keep` what the node has recorded of it."""
        self.forget(attempt)
        self._release_records(attempt, not keep)
        job, number = attempt.id
        self.executor.sink.event(
            AttemptLost(
                at=time.time(), job=job, attempt=number, why=_stored(why), part=attempt.part,
                preempted=self.executor.end_reason is not None or attempt.is_preempted,
            )
        )  # fmt: skip

    def _release_records(self, attempt: RemoteAttempt, on_acknowledgement: bool) -> None:
        if on_acknowledgement:
            self.expect_acknowledgement(attempt.id)
        else:
            attempt.mirror.forget()

    def forget(self, attempt: RemoteAttempt) -> None:
        """Look after an attempt no longer."""
        attempt.phase = Phase.DONE
        self.executor.attempts.pop(attempt.id, None)
        self.executor.collector.followed.pop(attempt.id.job, None)

    def on_collected(self, attempt: RemoteAttempt, trouble: str | None, remark: str | None) -> None:
        """Report the end of an attempt after its output and files were fetched."""
        if attempt.checkpoints_left:
            self.executor.sink.checkpoints_left_behind(attempt.id)
        if attempt.lost_reason is not None:
            self.lose(attempt, "; ".join(filter(None, (attempt.lost_reason, trouble, remark))))
            return
        assert attempt.outcome is not None
        code, left = int(attempt.outcome[0]), int(attempt.outcome[2])
        self.forget(attempt)
        self.expect_acknowledgement(attempt.id)
        killer = code - 128 if 128 < code <= 128 + 64 else None
        was_killed = attempt.end is not None and attempt.end.was_killed
        lacks_memory = LACKS_MEMORY in attempt.outcome and attempt.end is None
        note = trouble or ("killed after the grace period" if was_killed else None)
        if left and note is None:
            note = f"left {left} process{'es' * (left > 1)} behind, ended with the job"
        note = "; ".join(filter(None, (note, remark))) or None
        self.executor.sink.event(
            ProcessExited(
                at=time.time(), job=attempt.id.job, attempt=attempt.id.attempt,
                code=None if killer else code, signal=killer, note=note and _stored(note),
                part=attempt.part, memory="host" if lacks_memory else None,
            )
        )  # fmt: skip

    def note_path(self, attempt: AttemptId) -> str:
        """Return the file with the positions in the mirrored logs of an attempt."""
        return f"{self.executor.environment.notes}/{self.executor.name}.{attempt}"

    def expect_acknowledgement(self, attempt: AttemptId) -> None:
        """Let the node forget an attempt once its end is acknowledged."""
        self._unacknowledged.add(attempt)

    def acknowledge(self, attempts: Sequence[AttemptId]) -> None:
        """Let the node forget attempts: their ends are on disk."""
        forgotten = [attempt for attempt in attempts if attempt in self._unacknowledged]
        self._unacknowledged.difference_update(forgotten)
        for attempt in forgotten:
            with contextlib.suppress(OSError):
                os.unlink(self.note_path(attempt))
        if forgotten:
            self.executor.connection.request(None, "forget", *map(str, forgotten))

    def remove_old_notes(self) -> None:
        """Remove notes that a daemon left when it was killed before it acknowledged an end."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.executor.environment.notes):
                node, _, word = name.partition(f"{self.executor.name}.")
                attempt = parse_attempt(word) if not node else None
                if attempt is not None and attempt not in self.executor.attempts:
                    os.unlink(self.note_path(attempt))


def _stored(text: str) -> str:
    """Return a reason as it is journalled: a node may have written part of it."""
    return printable(text, MAX_REASON_LENGTH)
