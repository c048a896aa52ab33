"""How many jobs a machine takes at once, by the numbers of the guide and its original."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.compat.execute_batch.machine import free_resources, slot_options
from stoker.compat.execute_batch.plan import Plan
from stoker.compat.execute_batch.slots import (
    MAX_GPU_USE,
    OVERCOMMITTED_CORES,
    THOUSAND,
    GpuFree,
    JobNeed,
    NodeFree,
    compute_slots,
    no_slot_reason,
)
from stoker.core.options.submit import ParseContext, parse_options

RTX = 5900
"""MB of a GPU."""


def machine(
    *gpus: GpuFree, cores: float = 24, memory: int = 30607, in_use: bool = False
) -> NodeFree:
    return NodeFree(round(cores * THOUSAND), memory, gpus, in_use)


def idle(count: int) -> list[GpuFree]:
    return [GpuFree(index, RTX) for index in range(count)]


def test_mls_54_58_two_gpus_two_jobs() -> None:
    assert compute_slots(machine(*idle(2)), JobNeed()) == [0, 1]


def test_mls_58_four_gpus_and_the_memory_for_four() -> None:
    assert compute_slots(machine(*idle(4)), JobNeed()) == [0, 1, 2, 3]


def test_mls_55_58_two_cores_more_than_there_are() -> None:
    need = JobNeed(gpu=False, memory=100)
    assert len(compute_slots(machine(), need)) == 26
    assert len(compute_slots(machine(cores=12), need)) == 14
    assert len(compute_slots(machine(cores=0), need)) == 2
    assert len(compute_slots(machine(cores=-1.5), need)) == 0


def test_mls_25_58_eight_cores_each() -> None:
    assert len(compute_slots(machine(), JobNeed(gpu=False, memory=100, cores=8))) == 3


def test_mls_28_55_58_a_gpu_is_promised_up_to_1_2() -> None:
    def shared(share: int, count: int = 2) -> list[int | None]:
        return compute_slots(
            machine(*idle(count)), JobNeed(reserve_gpu=False, gpu_share=share, memory=100)
        )

    assert shared(500) == [0, 1, 0, 1]
    assert shared(400, 1) == [0, 0, 0]  # 0.4 + 0.4 + 0.4 is not more than 1.2
    assert shared(1200, 1) == [0]
    assert shared(1201, 1) == []


def test_mls_56_what_is_just_enough_fits() -> None:
    assert compute_slots(machine(GpuFree(0, 1000), memory=7000), JobNeed()) == [0]
    assert compute_slots(machine(GpuFree(0, 999), memory=7000), JobNeed()) == []
    assert compute_slots(machine(GpuFree(0, 1000), memory=6999), JobNeed()) == []


def test_mls_57_the_least_busy_gpu_that_has_the_memory() -> None:
    need = JobNeed(gpu_share=100)
    assert compute_slots(machine(GpuFree(0, RTX, used=900), GpuFree(1, RTX)), need)[0] == 1
    assert compute_slots(machine(GpuFree(0, 10), GpuFree(1, RTX, used=500)), need) == [1]
    assert (
        compute_slots(machine(GpuFree(0, RTX, used=300), GpuFree(1, RTX, used=300)), need)[0] == 0
    )


def test_mls_26_memory_bounds() -> None:
    assert len(compute_slots(machine(), JobNeed(gpu=False, memory=2000))) == 30607 // 2000
    assert len(compute_slots(machine(*idle(9)), JobNeed())) == 30607 // 7000


def test_mls_27_a_gpu_without_the_memory_is_no_use() -> None:
    assert compute_slots(machine(GpuFree(0, 500)), JobNeed()) == []


def test_mls_29_59_no_gpu() -> None:
    assert compute_slots(machine(), JobNeed()) == []
    assert compute_slots(machine(), JobNeed(gpu=False)) == [None] * 4


def test_mls_30_several_jobs_on_one_gpu_if_its_memory_allows() -> None:
    need = JobNeed(reserve_gpu=False, gpu_memory=3000, gpu_share=100, memory=100)
    assert compute_slots(machine(GpuFree(0, 12000)), need) == [0] * 4


def test_mls_31_a_whole_machine_is_one_slot() -> None:
    assert compute_slots(machine(*idle(2)), JobNeed(reserve=True)) == [0]
    assert compute_slots(machine(), JobNeed(reserve=True, gpu=False)) == [None]
    assert compute_slots(machine(memory=10), JobNeed(reserve=True, gpu=False)) == []
    assert compute_slots(machine(in_use=True), JobNeed(reserve=True, gpu=False)) == []


def test_mls_53_a_driver_that_does_not_say() -> None:
    assert compute_slots(machine(GpuFree(0, None)), JobNeed()) == [0]


def test_what_our_own_jobs_hold_of_a_gpu_is_not_free() -> None:
    whole, part = GpuFree(0, RTX, held=1000), GpuFree(0, RTX, held=500)
    share = JobNeed(reserve_gpu=False, gpu_share=300, memory=100)
    assert compute_slots(machine(whole), JobNeed()) == compute_slots(machine(whole), share) == []
    assert compute_slots(machine(part), JobNeed()) == []
    assert compute_slots(machine(part), share) == [0, 0]


@pytest.mark.parametrize(
    ("free", "need", "why"),
    [
        (machine(memory=6000), JobNeed(), "6000 MB of memory are free, a job needs 7000"),
        (machine(cores=1), JobNeed(cores=4), r"1\.0 cores are free \(2 more"),
        (machine(), JobNeed(), "it has no GPU"),
        (machine(GpuFree(0, 500)), JobNeed(), "at most 500 MB free, a job needs 1000"),
        (machine(GpuFree(0, RTX, used=900)), JobNeed(), "too busy for 0.75 of one"),
        (machine(GpuFree(0, RTX, held=1000)), JobNeed(), "your jobs use its GPUs"),
        (machine(in_use=True), JobNeed(reserve=True), "cannot be reserved"),
    ],
)
def test_mls_61_why_there_is_no_room(free: NodeFree, need: JobNeed, why: str) -> None:
    import re

    assert compute_slots(free, need) == []
    assert re.search(why, no_slot_reason(free, need))


NEEDS = st.builds(
    JobNeed,
    cores=st.integers(0, 40),
    memory=st.integers(0, 40000),
    gpu=st.booleans(),
    gpu_memory=st.integers(0, 9000),
    gpu_share=st.integers(0, 1500),
    reserve_gpu=st.booleans(),
    reserve=st.booleans(),
)
GPUS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 9000)),
        st.integers(0, 1000),
        st.sampled_from([0, 250, 1000]),
    ),
    max_size=5,
).map(lambda rows: [GpuFree(index, *row) for index, row in enumerate(rows)])
MACHINES = st.builds(
    NodeFree, st.integers(-2000, 64000), st.integers(0, 64000), GPUS, st.booleans()
)


@given(MACHINES, NEEDS)
def test_mls_55_no_promise_is_broken_and_no_room_is_left(free: NodeFree, need: JobNeed) -> None:
    found = compute_slots(free, need)
    count = len(found)
    assert (found == []) == bool(_lacking(free, need, []))
    assert free.cores - count * need.cores * THOUSAND >= -OVERCOMMITTED_CORES or not count
    assert free.memory >= count * need.memory
    for gpu in free.gpus:
        here = found.count(gpu.number)
        assert gpu.memory is None or gpu.memory >= here * need.gpu_memory
        assert not here or gpu.used + here * need.gpu_share <= MAX_GPU_USE
        assert here <= 1 or not need.reserve_gpu
        assert not here or gpu.held < THOUSAND
    if not need.reserve and count < 1000:
        assert _lacking(free, need, found)


def _lacking(free: NodeFree, need: JobNeed, found: list[int | None]) -> bool:
    """Whether one more job would be one too many, reckoned another way."""
    count = len(found) + 1
    if (need.reserve and free.in_use) or free.memory < count * need.memory:
        return True
    if free.cores + OVERCOMMITTED_CORES < count * need.cores * THOUSAND:
        return True
    return need.gpu and not any(_takes(gpu, need, found.count(gpu.number)) for gpu in free.gpus)


def _takes(gpu: GpuFree, need: JobNeed, here: int) -> bool:
    if gpu.held >= THOUSAND or (need.reserve_gpu and (here or gpu.held)):
        return False
    used = max(gpu.used, gpu.held * MAX_GPU_USE // THOUSAND) + (here + 1) * need.gpu_share
    enough = gpu.memory is None or gpu.memory >= (here + 1) * need.gpu_memory
    return enough and used <= MAX_GPU_USE


# ----------------------------------------------------------------------- what jobs ask for


def view(
    cores: int = 24,
    free: float | None = None,
    memory: int = 30000,
    held: tuple[str, int] = ("0", 0),
    left: tuple[str, int] | None = None,
    gpus: int = 2,
) -> dict[str, Any]:
    """A machine as the daemon shows it."""
    left = left or (str(cores), memory)
    return {
        "name": "n", "jobs": int(held != ("0", 0)),
        "resources": {"cpu": {"free": left[0], "held": held[0]},
                      "mem": {"free": str(left[1]), "held": str(held[1])}},
        "measured": {
            "cores": cores, "free_cores": cores if free is None else free, "memory": 32000,
            "memory_available": memory,
            "gpus": [{"index": index, "memory": RTX, "memory_used": 0, "utilization": 0}
                     for index in range(gpus)],
        },
    }  # fmt: skip


def book(index: int, **more: Any) -> dict[str, Any]:
    return {"node": "n", "index": index, "free": "1", "drained": None, "foreign_process": None,
            "memory_left": RTX, **more}  # fmt: skip


def asked(need: JobNeed, node: dict[str, Any], *books: dict[str, Any]) -> list[dict[str, Any]]:
    free = free_resources(node, books)
    found = compute_slots(free, need)
    return [slot_options(need, free, node, gpu, len(found)) for gpu in found]


def test_all_slots_together_ask_for_no_more_than_there_is() -> None:
    jobs = asked(JobNeed(gpu=False, memory=100), view())
    assert len(jobs) == 26
    assert sum(float(job["cpus"]) for job in jobs) <= 24
    assert all("gpus" not in job for job in jobs)


def test_what_others_used_from_the_start_is_no_reason_to_wait() -> None:
    # 18 of 24 cores are busy, of which the books forgive one.
    (job,) = asked(JobNeed(gpu=False, cores=8), view(free=6, left=("7", 20000)))
    assert float(job["cpus"]) <= 7
    assert job["no_threads"]


def test_a_reserved_gpu_is_a_whole_one_and_a_share_part_of_the_overload() -> None:
    first, second = asked(JobNeed(), view(), book(0), book(1))
    assert (first["gpus"], first["use_gpus"], second["use_gpus"]) == ("1.000", "0", "1")
    assert first["gpu_memory"] == "1000M"
    shared = asked(JobNeed(reserve_gpu=False, gpu_share=400, memory=1), view(gpus=1), book(0))
    assert [job["gpus"] for job in shared] == ["0.333"] * 3


def test_only_a_gpu_that_was_busy_from_the_start_is_used_in_spite_of_others() -> None:
    one, other = asked(
        JobNeed(gpu_share=100), view(), book(0, foreign_process="ana's python"), book(1)
    )
    assert one["explicit"] is True
    assert "explicit" not in other


def test_a_drained_gpu_is_left_alone() -> None:
    (job,) = asked(JobNeed(), view(), book(0, drained="broken fan"), book(1))
    assert job["use_gpus"] == "1"


def test_mls_31_a_whole_machine_with_or_without_gpus() -> None:
    assert asked(JobNeed(reserve=True), view(), book(0), book(1)) == [
        {"exclusive": True, "gpus": "1"}
    ]
    (job,) = asked(JobNeed(reserve=True, gpu=False), view(gpus=1), book(0, foreign_process="ana"))
    assert job == {"exclusive": True, "gpus": "0", "explicit": True}


def test_reserved_resources_are_not_free_although_they_are_unused() -> None:
    full = view(held=("24", 0), left=("0", 30000), gpus=0)
    assert asked(JobNeed(gpu=False, memory=1), full) == []
    half = view(held=("0", 20000), left=("24", 12000), gpus=0)
    assert len(asked(JobNeed(gpu=False, memory=4000), half)) == 3


def test_mls_53_no_memory_is_requested_of_a_gpu_of_unknown_size() -> None:
    node = view(gpus=1)
    node["measured"]["gpus"][0] |= {"memory": None, "memory_used": None, "utilization": None}
    (job,) = asked(JobNeed(), node, book(0, memory_left=None))
    assert "gpu_memory" not in job


@given(NEEDS)
def test_every_ask_is_understood(need: JobNeed) -> None:
    context = ParseContext(0.0, lambda _: [], lambda _: [])
    for job in asked(need, view(), book(0), book(1))[:3]:
        request = parse_options(job, context).request
        assert request.memory <= need.memory
        if need.gpu and not need.reserve:
            assert request.gpus is not None
            assert request.gpus.required == (job["use_gpus"],)
        elif not need.reserve:
            assert request.gpus is None


def plan(need: JobNeed, **seen: Any) -> Plan:
    member: Any = SimpleNamespace(name="m", node="n", view=view(gpus=0, **seen))
    return Plan([member], need, [])


def test_mls_51_only_where_load_takes_slots_away_is_it_measured_again() -> None:
    need = JobNeed(gpu=False, memory=100)
    assert plan(need, free=12).has_busy_cores
    assert plan(need, free=12).limits == {"m": 14}
    assert not plan(need, free=24).has_busy_cores
    assert not plan(JobNeed(gpu=False, memory=15000), free=1).has_busy_cores
