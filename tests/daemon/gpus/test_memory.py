"""GPU memory of attempts: measured, attributed, and published if it is significant."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.scenario import Scenario, gpus
from e2e.daemon_fixture import until
from stoker.core import events as e
from stoker.core.measurement.foreign_use import Thresholds
from stoker.core.model.resources import (
    DeviceAllocation,
    DeviceFacts,
    NodeFacts,
    Placement,
    ResourceRequest,
)
from stoker.daemon.gpus import probe_client
from stoker.daemon.gpus.foreign_usage import ForeignUsageDetector, ForeignUsageThresholds
from stoker.daemon.gpus.history import GpuHistory
from stoker.daemon.gpus.memory import (
    MIN_CONTEXT_MIB,
    SETTLE_SECONDS,
    GpuMemoryTracker,
    NodeMemoryMeter,
    is_significant,
)
from stoker.daemon.gpus.monitor import (
    DRIVER_TIMEOUT_SECONDS,
    POLL_SECONDS,
    STALE_SECONDS,
    GpuMonitor,
)
from stoker.daemon.gpus.process_owners import ProcessOwners
from stoker.daemon.gpus.recorder import GpuRecorder
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.executors.linux.process_tree import TOKEN
from stoker.probes.gpu_reading import GpuFacts, GpuProcess, GpuUse, Reading
from stoker.probes.gpu_samples import build_samples
from stoker.probes.remote_facts import parse

Uses = dict[str, list[tuple[int, int | None]]]
"""Pids and MiB by GPU."""


def recorder() -> GpuRecorder:
    return GpuRecorder(GpuHistory())


def machine(name: str, count: int = 2) -> NodeFacts:
    cards = [
        DeviceFacts(name=str(n), index=n, memory=24_000, uuid=f"GPU-{name}-{n}")
        for n in range(count)
    ]
    return NodeFacts(name=name, types={"gpu": tuple(cards)})


class MemoryFixture:
    """A node with two GPUs and jobs, and readings of its GPUs."""

    def __init__(self, name: str = "here", count: int = 2) -> None:
        self.scenario, self.name, self.count = Scenario(gpus=0), name, count
        self.scenario.tell(e.NodeJoined(at=self.scenario.now, facts=machine(name, count)))
        self.tracker = GpuMemoryTracker()
        self.meter = NodeMemoryMeter(name, self.tracker)
        self.now = 1000.0
        self.pids: dict[int, tuple[int, int]] = {}

    def job(self, request: ResourceRequest | None = None, *pids: int) -> int:
        """Start a job with these processes; return its id."""
        job = self.scenario.submit(request or gpus(1))
        self.scenario.run(job)
        for pid in pids:
            self.pids[pid] = job, self.scenario.job(job).attempt
        return job

    def reading(
        self, uses: Uses, used: int | None = None, processes_listed: bool = True
    ) -> Reading:
        uses_of_gpus = []
        for n in range(self.count):
            processes = uses.get(str(n), [])
            total = used if used is not None else sum(size or 0 for _, size in processes)
            uses_of_gpus.append(
                GpuUse(
                    uuid=f"GPU-{self.name}-{n}", memory_used=total, utilization=0, temperature=None,
                    power=None, processes_known=processes_listed,
                    processes=tuple(GpuProcess(pid=pid, memory=size) for pid, size in processes),
                )
            )  # fmt: skip
        return Reading(use=tuple(uses_of_gpus))

    def measure(
        self, uses: Uses, used: int | None = None, processes_listed: bool = True
    ) -> list[Any]:
        """Return what a reading changes, jobs and MiB, and apply it to the core."""
        self.now += POLL_SECONDS
        samples = build_samples(
            self.reading(uses, used, processes_listed), self.pids.get, lambda _: ("eve", "python")
        )
        events = self.meter.update(self.scenario.state, samples, self.now)
        for event in events:
            self.scenario.tell(event)
        assert all(isinstance(event, e.MemoryMeasured) for event in events)
        return [(event.job, event.memory) for event in events]

    def settle(self) -> None:
        """Read empty GPUs until earlier memory use no longer counts."""
        for _ in range(int(SETTLE_SECONDS / POLL_SECONDS) + 1):
            assert self.measure({}) == []


def test_kub_63_memory_is_summed_over_gpus_and_process_tree() -> None:
    fixture = MemoryFixture()
    job = fixture.job(gpus(2), 10, 11, 12)
    assert fixture.measure({"0": [(10, 1000), (11, 500)], "1": [(10, 100), (12, 700)]}) == [
        (job, 1500)
    ]
    assert fixture.tracker.current(job) == {"0": 1500, "1": 800}
    assert fixture.scenario.job(job).progress.peak == 1500


def test_kub_63_a_job_that_is_on_no_gpu_has_none() -> None:
    fixture = MemoryFixture()
    job = fixture.job(gpus(2), 10)
    assert fixture.measure({"0": [(99, 4000)]}) == []
    assert fixture.tracker.current(job) == {}


def test_kub_19_every_job_on_a_shared_gpu_has_its_own_value() -> None:
    fixture = MemoryFixture(count=1)
    first, second = fixture.job(gpus(0.5), 10, 11), fixture.job(gpus(0.5), 20)
    assert fixture.measure({"0": [(10, 1000), (20, 3000), (11, 24)]}) == [
        (first, 1024),
        (second, 3000),
    ]
    assert fixture.tracker.current(second) == {"0": 3000}


@pytest.mark.parametrize(
    ("published", "peak", "expected"),
    [
        (0, 0, False), (0, 1, True), (100, 104, False), (100, 105, True), (100, 90, False),
        (10_000, 10_063, False), (10_000, 10_064, True), (1280, 1343, False), (1280, 1344, True),
    ],
)  # fmt: skip
def test_only_a_significantly_higher_peak_is_published(
    published: int, peak: int, expected: bool
) -> None:
    assert is_significant(published, peak) is expected


def test_a_decrease_is_shown_and_not_published() -> None:
    fixture = MemoryFixture()
    job = fixture.job(gpus(1), 10)
    assert fixture.measure({"0": [(10, 5000)]}) == [(job, 5000)]
    assert fixture.measure({"0": [(10, 200)]}) == []
    assert fixture.tracker.current(job) == {"0": 200}
    assert fixture.measure({"0": [(10, 5010)]}) == []
    assert fixture.measure({"0": [(10, 6000)]}) == [(job, 6000)]
    assert fixture.measure({}) == []
    assert fixture.tracker.current(job) == {}


def test_after_a_restart_no_peak_is_published_twice() -> None:
    fixture = MemoryFixture()
    job = fixture.job(gpus(1), 10)
    assert fixture.measure({"0": [(10, 5000)]}) == [(job, 5000)]
    fixture.meter = NodeMemoryMeter(fixture.name, GpuMemoryTracker())
    assert fixture.measure({"0": [(10, 5000)]}) == []
    assert fixture.measure({"0": [(10, 5100)]}) == [(job, 5100)]


def test_only_current_attempts_of_jobs_that_request_gpus_are_measured() -> None:
    fixture = MemoryFixture()
    plain = fixture.job(ResourceRequest(), 10)
    over = fixture.job(gpus(1), 20)
    fixture.pids[30] = 12345, 1
    fixture.scenario.exited(over)
    assert fixture.measure({"0": [(10, 500), (20, 500), (30, 500)]}) == []
    assert fixture.tracker.current(plain) == fixture.tracker.current(over) == {}


def test_the_largest_part_of_an_attempt_on_several_nodes_counts() -> None:
    scenario, tracker = Scenario(gpus=0), GpuMemoryTracker()
    for name in ("a", "b"):
        scenario.tell(e.NodeJoined(at=scenario.now, facts=machine(name, 1)))
    job = scenario.submit(gpus(1))
    take = (DeviceAllocation("gpu", "0", 1000),)
    placement = Placement("a", take, (Placement("b", take),))
    scenario.about(e.AttemptPlanned, job, placement=placement, boot=scenario.boot)
    key = (job, scenario.job(job).attempt)
    # Both readings arrive before the core has applied one: the smaller is not published.
    (first,) = tracker.update(scenario.state, "b", {key: {"0": 4000}})
    assert isinstance(first, e.MemoryMeasured)
    assert first.memory == 4000
    assert tracker.update(scenario.state, "a", {key: {"0": 3000}}) == []
    assert tracker.current(job) == {"a/0": 3000, "b/0": 4000}
    tracker.clear("b")
    assert tracker.current(job) == {"a/0": 3000}


LOOKS = st.lists(
    st.tuples(*[st.none() | st.integers(0, 24_000) | st.just(0)] * 3, st.booleans()),
    max_size=30,
)


@given(LOOKS)
def test_published_peaks_only_grow_and_are_close_to_the_measured_ones(
    readings: list[tuple[int | None, int | None, int | None, bool]],
) -> None:
    fixture = MemoryFixture()
    job = fixture.job(gpus(2), 10, 11)
    published, peak = [0], 0
    for first, second, other, restarts in readings:
        if restarts:
            fixture.meter = NodeMemoryMeter(fixture.name, GpuMemoryTracker())
        sizes = {"0": [(10, first or 0), (11, second or 0)], "1": [(10, other or 0)]}
        peak = max(peak, (first or 0) + (second or 0), other or 0)
        published += [memory for id, memory in fixture.measure(sizes) if id == job]
        assert not is_significant(published[-1], peak)
    assert published == sorted(set(published))
    assert published[-1] <= peak


# -- drivers without process memory -----------------------------------------------------


def test_an_attempt_alone_on_a_gpu_uses_all_of_its_used_memory() -> None:
    fixture = MemoryFixture(count=1)
    job = fixture.job(gpus(1), 10)
    assert (
        fixture.measure({"0": [(10, None)]}, used=3000) == []
    )  # it may have been used before the job
    fixture.settle()
    assert fixture.measure({"0": [(10, None)]}, used=3000) == [(job, 3000)]
    assert fixture.tracker.current(job) == {"0": 3000}


def test_a_process_without_a_value_makes_the_sum_unknown() -> None:
    fixture = MemoryFixture(count=1)
    job = fixture.job(gpus(1), 10, 11)
    fixture.settle()
    assert fixture.measure({"0": [(10, 100), (11, None)]}, used=3000) == [(job, 3000)]


@pytest.mark.parametrize("processes_listed", [True, False])
def test_an_attempt_with_invisible_processes_has_the_memory_added_since_its_start(
    processes_listed: bool,
) -> None:
    fixture = MemoryFixture(count=1)
    fixture.settle()
    assert (
        fixture.measure({}, used=400, processes_listed=processes_listed) == []
    )  # used by the driver
    job = fixture.job(gpus(1))
    fixture.settle()
    assert (
        fixture.measure({}, used=400 + MIN_CONTEXT_MIB - 1, processes_listed=processes_listed) == []
    )
    assert fixture.measure({}, used=2400, processes_listed=processes_listed) == [(job, 2400)]


def test_memory_is_not_inferred_beside_a_foreign_process() -> None:
    fixture = MemoryFixture(count=1)
    fixture.job(gpus(1), 10)
    fixture.settle()
    assert fixture.measure({"0": [(10, None), (99, 1)]}, used=3000) == []
    (device,) = fixture.scenario.state.cluster.nodes["here"].types["gpu"]
    device.foreign_user = "eve's python"
    assert fixture.measure({"0": [(10, None)]}, used=3000) == []


def test_memory_is_not_inferred_on_a_shared_gpu() -> None:
    fixture = MemoryFixture(count=1)
    first = fixture.job(gpus(0.5), 10)
    fixture.job(gpus(0.5), 20)
    fixture.settle()
    assert fixture.measure({"0": [(10, None), (20, None)]}, used=3000) == []
    assert fixture.measure({}, used=3000, processes_listed=False) == []
    # The known value of the other is reported nevertheless.
    assert fixture.measure({"0": [(10, 700), (20, None)]}, used=3000) == [(first, 700)]


def test_memory_is_not_inferred_while_processes_of_another_attempt_exist() -> None:
    fixture = MemoryFixture(count=1)
    over = fixture.job(gpus(1), 10)
    fixture.settle()
    assert fixture.measure({"0": [(10, None)]}, used=9000) == [(over, 9000)]
    fixture.scenario.exited(over)
    fixture.job(gpus(1), 20)
    assert fixture.measure({"0": [(20, None)]}, used=9000) == []
    assert fixture.measure({"0": [(10, None), (20, None)]}, used=9000) == []
    fixture.settle()
    assert fixture.measure({"0": [(10, None), (20, None)]}, used=9000) == []


# -- remote nodes -----------------------------------------------------------------------


def test_memory_is_measured_on_an_ssh_node() -> None:
    scenario, tracker = Scenario(gpus=0), GpuMemoryTracker()
    scenario.tell(e.NodeJoined(at=scenario.now, facts=machine("far", 1)))
    job = scenario.submit(gpus(1))
    scenario.plan()
    scenario.started(job, pid=70)
    attempt = scenario.job(job).attempt
    reading = parse(
        b"home /home/me\ngpu 0, GPU-far-0, A100, 80000, 4100, 0, 40, 50\napps\n"
        b"app GPU-far-0, 77, 4000\napp GPU-far-0, 78, 50\napp GPU-far-0, 79, 9\n"
        b"owner 77 70 me - python x\n"
        b"owner 78 78 me abc.%d.%d. python child\nowner 79 79 eve - x\nend\n" % (job, attempt)
    )
    detector = ForeignUsageDetector("far", ForeignUsageThresholds(Thresholds()), tracker)
    ours = reading.owner_lookup("abc", {70: (job, attempt)})
    events = detector.update(scenario.state, reading.reading, ours, reading.identify)
    published = [event for event in events if isinstance(event, e.MemoryMeasured)]
    assert [(event.job, event.attempt, event.memory) for event in published] == [
        (job, attempt, 4050)
    ]


# -- owners of processes ----------------------------------------------------------------


@pytest.fixture
def family() -> Iterator[tuple[int, dict[str, int]]]:
    """A session leader, a child in another session, and one without the environment."""
    waits = "read x <&3"
    script = f"""
        exec 3<&0
        sh -c 'echo child $$; {waits}' &
        setsid sh -c 'echo away $$; {waits}' &
        setsid sh -c 'env -i setsid sh -c "echo bare \\$\\$; {waits}"; :' &
        wait
    """
    environment = {"PATH": os.environ["PATH"], TOKEN: "abc.7.1"}
    leader = subprocess.Popen(
        ["sh", "-c", script], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True, text=True,
    )  # fmt: skip
    assert leader.stdout is not None
    words = [leader.stdout.readline().split() for _ in range(3)]
    yield leader.pid, {name: int(pid) for name, pid in words}
    leader.communicate()  # they end with their stdin
    assert leader.returncode == 0


def test_the_owner_of_a_process_is_found_by_session_token_or_ancestors(
    family: tuple[int, dict[str, int]],
) -> None:
    leader, pids = family
    by_session = ProcessOwners("other").lookup({leader: (9, 3)})
    assert by_session(leader) == by_session(pids["child"]) == (9, 3)
    assert by_session(pids["away"]) == by_session(pids["bare"]) == (9, 3)
    by_token = ProcessOwners("abc").lookup({})
    for pid in (leader, *pids.values()):
        assert os.getsid(pid) == leader or pid in (pids["away"], pids["bare"])
        assert by_token(pid) == (7, 1)
    assert by_token(os.getpid()) is None
    assert ProcessOwners("ab").lookup({})(leader) is None
    assert by_token(2**22 + 7) is None


def test_the_owner_of_a_process_stays_when_its_ancestors_are_gone(
    family: tuple[int, dict[str, int]],
) -> None:
    _, pids = family
    bare, owners = pids["bare"], ProcessOwners("abc")
    assert owners.lookup({})(bare) == (7, 1)
    parent = parent_of(bare)
    os.kill(parent, signal.SIGKILL)
    until(lambda: parent_of(bare) != parent)
    assert owners.lookup({})(bare) == (7, 1)
    assert ProcessOwners("abc").lookup({})(bare) is None


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# -- polling now ------------------------------------------------------------------------


class NoLocks:
    """GPU locks without other users."""

    def holder(self, _uuid: str) -> None:
        return None


def test_gpus_can_be_polled_at_once() -> None:
    gpu = GpuFacts(index=0, uuid="GPU-a", model="M", memory=8192, vendor="nvidia")
    first = Reading(facts=(gpu,))
    holds: Any = NoLocks()
    watch = GpuMonitor("here", first, "abc", Thresholds(), holds, EpollReactor(), recorder())
    try:
        state = Scenario(gpus=0).state
        done: list[int] = []
        watch.keep_fresh(lambda: done.append(1))
        assert not done, "nothing has been read yet"
        watch.take_events(state)
        assert done == [1]
        watch.read_at = time.monotonic() + 600  # no poll is due for long
        watch._timer()
        assert watch.probe.requested_at is None
        watch.read_at = time.monotonic() - POLL_SECONDS
        watch._timer()
        assert watch.probe.requested_at is not None
    finally:
        watch.close()


def test_a_driver_that_hangs_blocks_no_start_and_is_queried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe_client, "COMMAND", ("-c", "import time; time.sleep(600)"))
    gpu = GpuFacts(index=0, uuid="GPU-a", model="M", memory=8192, vendor="nvidia")
    locks: Any = NoLocks()
    first = Reading(facts=(gpu,))
    watch = GpuMonitor("here", first, "abc", Thresholds(), locks, EpollReactor(), recorder())
    try:
        watch.on_state(Scenario(gpus=0).state)
        assert not watch._timer.is_set, "nothing needs a reading"
        watch.keep_fresh(lambda: None)
        watch.read_at -= STALE_SECONDS + 1
        assert watch.is_stale()
        watch._timer()
        assert watch.probe.requested_at is not None
        watch.probe.requested_at -= DRIVER_TIMEOUT_SECONDS + 1
        watch._timer()
        assert watch.note == "the GPU driver has not answered for 10 s"
        assert not watch.is_stale()
        watch.read_at -= POLL_SECONDS
        watch._timer()
        assert watch.probe.requested_at is not None
    finally:
        watch.close()
