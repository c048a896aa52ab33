"""The real executor, supervisors and recovery, with a fault before any system call."""

from unittest import mock

import pytest

from simulation.modelled_host import host
from simulation.schedules import HOST, play
from stoker.executors.local import recovery as adoption
from stoker.executors.local.attempt import LocalAttempt
from stoker.executors.local.claims import Claim
from stoker.executors.local.recovery import AttemptRecovery

SEEDS = 60


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_no_schedule_loses_doubles_or_orphans_anything(first: int) -> None:
    result = play(HOST, first, 10)
    assert not result.texts, "\n".join(result.texts)
    assert result.counts["jobs"] > 50
    assert result.faults["daemon"] > 5


def test_a_schedule_repeats_itself() -> None:
    def trace() -> list[object]:
        with host(7) as played:
            played.play()
            return [played.kernel.started, played.faults, played.world.time, played.kernel.last_pid]

    assert trace() == trace()


def is_violation_found() -> bool:
    """Run the same schedules until one of them has a violation."""
    return any(play(HOST, seed, 1).texts for seed in range(SEEDS))


def test_the_schedules_find_a_claim_that_is_not_made() -> None:
    """Without the claims of cancelled starts, a slow supervisor would start them nevertheless."""
    with mock.patch.object(adoption, "create_claim", return_value=True):
        assert is_violation_found()


def test_the_schedules_find_records_that_are_read_before_the_liveness_check() -> None:
    """A supervisor may record an end and leave between the two: that end would be lost."""
    read, read_claim = AttemptRecovery._read, adoption.read_claim

    def read_too_early(self: AttemptRecovery, attempt: LocalAttempt, boot: float) -> Claim | None:
        mine = self.executor.claim_path(attempt.id)
        claim, end = read_claim(mine), self.executor.exit_log.find(attempt.id)
        adoption.time.sleep(0.01)
        with (
            mock.patch.object(
                adoption, "read_claim", lambda path: claim if path == mine else read_claim(path)
            ),
            mock.patch.object(self.executor.exit_log, "find", return_value=end),
        ):
            return read(self, attempt, boot)

    with mock.patch.object(AttemptRecovery, "_read", read_too_early):
        assert is_violation_found()
