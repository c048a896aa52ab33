"""Foreign use of GPUs is detected from samples."""

import pytest

from stoker.core.measurement.foreign_use import (
    ForeignProcess,
    ForeignUse,
    ForeignUseDetector,
    Sample,
    Thresholds,
)

ALICE = ForeignProcess(pid=42, user="alice", command="python train.py", memory=5000)
DESKTOP = ForeignProcess(pid=7, user="bob", command="Xorg", memory=300, graphics=True)


def sample(
    *strangers: ForeignProcess,
    used: int | None = 0,
    total: int | None = 10_000,
    load: int | None = 0,
    ours: bool = False,
    known: bool = True,
) -> Sample:
    return Sample(
        uuid="GPU-a",
        memory_used=used,
        memory_total=total,
        utilization=load,
        ours=ours,
        ours_memory=None if ours else 0,
        foreign_processes=strangers,
        processes_known=known,
    )


FAILED = sample(used=None, total=None, load=None, known=False)


def see(
    watch: ForeignUseDetector, what: Sample, now: float = 0.0, settling: bool = False
) -> ForeignUse:
    return watch.observe(what, now, settling)


def test_an_idle_gpu_is_free():
    assert see(ForeignUseDetector(Thresholds()), sample()) == ForeignUse(
        busy=False, foreign_processes=(), reason=""
    )


def test_a_foreign_compute_process_makes_a_gpu_busy_at_once_and_is_named():
    verdict = see(ForeignUseDetector(Thresholds()), sample(ALICE, used=5100))
    assert (verdict.busy, verdict.foreign_processes) == (True, (ALICE,))
    assert verdict.reason == "alice's python train.py (pid 42, 5000 MiB)"


def test_a_foreign_process_beside_our_job_makes_a_gpu_busy():
    assert see(
        ForeignUseDetector(Thresholds()), sample(ALICE, used=9000, ours=True), settling=True
    ).busy


def test_a_foreign_process_of_unknown_memory_makes_a_gpu_busy():
    hidden = ForeignProcess(pid=42, user="", command="", memory=None)
    assert see(ForeignUseDetector(Thresholds()), sample(hidden)).reason == "process (pid 42)"


def test_a_process_that_holds_next_to_nothing_does_not_count():
    tiny = ForeignProcess(pid=42, user="alice", command="nvtop", memory=3)
    assert not see(ForeignUseDetector(Thresholds()), sample(tiny)).busy


def test_a_desktop_counts_only_from_the_threshold_on():
    watch = ForeignUseDetector(Thresholds())
    verdict = see(watch, sample(DESKTOP, used=999))
    assert (verdict.busy, verdict.foreign_processes) == (False, (DESKTOP,))
    verdict = see(watch, sample(DESKTOP, used=1000), 1)
    assert (verdict.busy, verdict.reason) == (True, "bob (10% of its memory)")


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("used", "load", "busy"),
    [(999, 0, False), (1000, 0, True), (0, 9, False), (0, 10, True), (999, 9, False)],
)
def test_exactly_the_threshold_is_busy_and_anything_below_is_free(known, used, load, busy):
    assert (
        see(ForeignUseDetector(Thresholds()), sample(used=used, load=load, known=known)).busy
        is busy
    )


def test_load_and_memory_beside_our_own_job_are_ours():
    watch = ForeignUseDetector(Thresholds())
    assert not see(watch, sample(used=9000, load=100, ours=True)).busy
    assert not see(watch, sample(used=9000, load=100, known=False), settling=True).busy


def test_memory_that_our_ended_attempt_has_not_given_back_is_ours_until_settled():
    watch = ForeignUseDetector(Thresholds())
    assert not see(watch, sample(used=8000, load=50), 0, settling=True).busy
    assert see(watch, sample(used=8000), 5, settling=False).busy


def test_it_is_free_again_only_after_staying_clear():
    watch = ForeignUseDetector(Thresholds())
    see(watch, sample(ALICE), 0)
    verdict = see(watch, sample(), 10)
    assert (verdict.busy, verdict.foreign_processes) == (True, ())
    assert verdict.reason.endswith("idle now, free after 5 s without other processes")
    assert see(watch, sample(), 14.9).busy
    verdict = see(watch, sample(), 15)
    assert (verdict.busy, verdict.reason) == (False, "")


def test_a_foreign_process_that_pauses_restarts_the_wait():
    watch = ForeignUseDetector(Thresholds())
    see(watch, sample(ALICE), 0)
    see(watch, sample(), 1)
    see(watch, sample(ALICE), 4)
    assert see(watch, sample(), 7).busy
    assert see(watch, sample(), 11).busy
    assert not see(watch, sample(), 12).busy


def test_a_failed_reading_never_makes_it_busy():
    assert not see(ForeignUseDetector(Thresholds()), FAILED).busy


def test_a_failed_reading_never_makes_it_free():
    watch = ForeignUseDetector(Thresholds())
    see(watch, sample(ALICE), 0)
    for now in (1, 10, 100):
        verdict = see(watch, FAILED, now)
        assert (verdict.busy, verdict.foreign_processes) == (True, (ALICE,))
    assert see(watch, sample(), 101).busy  # the wait begins with the first real look
    assert not see(watch, sample(), 106).busy


@pytest.mark.parametrize(
    ("cause", "blind"),
    [
        (sample(ALICE), sample(known=False)),
        (sample(used=5000), sample(used=None)),
        (sample(load=50), sample(load=None)),
    ],
)
def test_a_look_that_cannot_see_what_made_it_busy_does_not_make_it_free(cause, blind):
    watch = ForeignUseDetector(Thresholds())
    see(watch, cause, 0)
    see(watch, blind, 1)
    assert see(watch, blind, 100).busy


def test_fields_that_a_gpu_never_had_do_not_keep_it_busy():
    watch = ForeignUseDetector(Thresholds())
    see(watch, sample(used=5000, load=None, known=False), 0)
    see(watch, sample(load=None, known=False), 1)
    assert not see(watch, sample(load=None, known=False), 6).busy
