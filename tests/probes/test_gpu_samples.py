import os

import pytest

from stoker.probes.gpu_reading import GpuFacts, GpuProcess, GpuUse, Reading
from stoker.probes.gpu_samples import UNKNOWN_ATTEMPT, build_samples, parse_token


def reading(*processes: GpuProcess, known: bool = True) -> Reading:
    gpu = GpuFacts(index=0, uuid="GPU-a", model="M", memory=8192, vendor="nvidia")
    use = GpuUse(
        uuid="GPU-a",
        memory_used=1000,
        utilization=5,
        temperature=None,
        power=None,
        processes=processes,
        processes_known=known,
    )
    return Reading(facts=(gpu,), use=(use,))


def test_processes_are_divided_into_own_and_foreign_without_dead_ones():
    here, other = os.getpid(), os.getppid()
    looked = reading(
        GpuProcess(pid=here, memory=300),
        GpuProcess(pid=other, memory=200),
        GpuProcess(pid=2**22 + 7, memory=100),
    )
    seen = build_samples(looked, lambda pid: (7, 1) if pid == here else None)["GPU-a"]
    assert seen.shares == {(7, 1): 300}
    sample = seen.sample
    assert (sample.ours, sample.ours_memory) == (True, 300)
    assert [stranger.pid for stranger in sample.foreign_processes] == [other]
    assert sample.foreign_processes[0].user
    assert (sample.memory_used, sample.memory_total, sample.utilization) == (1000, 8192, 5)


def test_our_memory_is_unknown_when_one_of_our_processes_does_not_say():
    looked = reading(GpuProcess(pid=1, memory=300), GpuProcess(pid=2, memory=None))
    seen = build_samples(looked, lambda _pid: (7, 1))["GPU-a"]
    assert (seen.sample.ours, seen.sample.ours_memory) == (True, None)
    assert seen.shares == {(7, 1): None}


def test_without_our_processes_our_memory_is_zero():
    seen = build_samples(reading(known=False), lambda _pid: (7, 1))["GPU-a"]
    assert seen.shares == {}
    sample = seen.sample
    assert (sample.ours, sample.ours_memory, sample.processes_known) == (False, 0, False)


def test_memory_is_summed_over_the_processes_of_each_attempt():
    looked = reading(
        GpuProcess(pid=1, memory=300),
        GpuProcess(pid=2, memory=50),
        GpuProcess(pid=3, memory=None),
        GpuProcess(pid=4, memory=7),
    )
    owner_of = {1: (7, 1), 2: (7, 1), 3: (8, 1), 4: (9, 2)}
    seen = build_samples(looked, owner_of.get)["GPU-a"]
    assert seen.shares == {(7, 1): 350, (8, 1): None, (9, 2): 7}
    assert seen.sample.ours_memory is None


@pytest.mark.parametrize(
    ("token", "key"),
    [
        ("abc.7.1", (7, 1)),
        ("abc.7.1.", (7, 1)),  # as on machines over SSH
        ("abc.12.0", (12, 0)),
        ("abc.7", UNKNOWN_ATTEMPT),
        ("abc.x.1", UNKNOWN_ATTEMPT),
        ("abc.7.1..", UNKNOWN_ATTEMPT),
        ("abc.².1", UNKNOWN_ATTEMPT),
        ("ab.7.1", None),
        ("abcd.7.1", None),
        ("abc", None),
        ("abc.", None),
        ("", None),
        (None, None),
    ],
)
def test_a_token_names_its_attempt(token, key):
    assert parse_token(token, "abc") == key
