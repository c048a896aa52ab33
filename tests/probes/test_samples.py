import os

from stoker.probes.readings import GpuFacts, GpuProcess, GpuUse, Reading
from stoker.probes.samples import samples


def reading(*processes: GpuProcess, known: bool = True) -> Reading:
    gpu = GpuFacts(index=0, uuid="GPU-a", model="M", memory=8192, vendor="nvidia", pci=None)
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


def test_processes_are_divided_into_ours_and_strangers_and_the_dead_left_out():
    here, other = os.getpid(), os.getppid()
    looked = reading(
        GpuProcess(pid=here, memory=300),
        GpuProcess(pid=other, memory=200),
        GpuProcess(pid=2**22 + 7, memory=100),
    )
    sample = samples(looked, lambda pid: pid == here)["GPU-a"]
    assert (sample.ours, sample.ours_memory) == (True, 300)
    assert [stranger.pid for stranger in sample.strangers] == [other]
    assert sample.strangers[0].user
    assert (sample.memory_used, sample.memory_total, sample.utilization) == (1000, 8192, 5)


def test_our_memory_is_unknown_when_one_of_our_processes_does_not_say():
    looked = reading(GpuProcess(pid=1, memory=300), GpuProcess(pid=2, memory=None))
    assert samples(looked, lambda _pid: True)["GPU-a"].ours_memory is None


def test_without_our_processes_our_memory_is_zero():
    sample = samples(reading(known=False), lambda _pid: True)["GPU-a"]
    assert (sample.ours, sample.ours_memory, sample.processes_known) == (False, 0, False)
