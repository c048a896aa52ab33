"""Gangs whose parts are all on one delegated node, which tells them apart by rank."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.core import events as e
from stoker.core.events.instructions import StartProcess
from stoker.core.model.job import AttemptId
from stoker.core.model.resources import Placement
from stoker.daemon.nodes.gang import (
    DELEGATED_BARRIER_SECONDS,
    MAX_RETRY_SECONDS,
    GangCoordinator,
)
from stoker.engine import Instant
from stoker.executors.port import Barrier, PartHost

HOSTS = (PartHost("n1", "10.0.0.7"), PartHost("n2", "10.0.0.8"))


class RecordingExecutor:
    def __init__(self) -> None:
        self.started: list[tuple[int, int]] = []
        self.released: dict[int, Mapping[str, str] | None] = {}

    def start(self, launch: int, barrier: Barrier) -> None:
        self.started.append((launch, barrier.rank))
        assert barrier.timeout == DELEGATED_BARRIER_SECONDS

    def release(self, attempt: AttemptId, rank: int, environment: Mapping[str, str] | None) -> None:
        self.released[rank] = environment


@pytest.fixture
def lab() -> RecordingExecutor:
    return RecordingExecutor()


@pytest.fixture
def gangs(lab: RecordingExecutor) -> GangCoordinator:
    nodes: Any = SimpleNamespace(
        local_name="box", build_launch=lambda _, rank: rank, clock=lambda: Instant(5.0, 5.0),
        executor=lambda name: lab if name == "lab" else None, address=lambda name: None,
        local_address=lambda seen_from: "box", is_training=lambda job: True,
    )  # fmt: skip
    return GangCoordinator(nodes)


def start(gangs: GangCoordinator, attempt: int = 0) -> AttemptId:
    part = Placement("lab", ())
    gangs.start(StartProcess(1, attempt, Placement("lab", (), (part,))))
    return AttemptId(1, attempt)


def cancel(gangs: GangCoordinator, attempt: AttemptId, rank: int, why: str) -> list[e.Event]:
    job, number = attempt
    cancelled = e.StartCancelled(at=1.0, job=job, attempt=number, why=why, part=rank)
    return gangs.to_gang_events("lab", cancelled)


def test_the_parts_learn_the_addresses_and_hosts_that_were_chosen(
    gangs: GangCoordinator, lab: RecordingExecutor
) -> None:
    attempt = start(gangs)
    assert lab.started == [(0, 0), (1, 1)]
    gangs.on_ready("lab", attempt, 1, 29501, HOSTS[1])
    assert lab.released == {}
    gangs.on_ready("lab", attempt, 0, 29501, HOSTS[0])
    for rank in range(2):
        environment = dict(lab.released[rank] or {})
        config = environment.pop("TF_CONFIG")
        assert '["10.0.0.7:29501", "10.0.0.8:29501"]' in config
        assert f'"index": {rank}' in config
        assert environment == {
            "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29501", "NODELIST": "n1,n2",
            "STOKER_NODES": "n1,n2",
        }  # fmt: skip


def test_events_belong_to_the_rank_that_they_name(gangs: GangCoordinator) -> None:
    attempt = start(gangs)
    for rank in range(2):
        gangs.on_ready("lab", attempt, rank, 29501, HOSTS[rank])
    ended = e.ProcessExited(at=1.0, job=1, attempt=0, code=3, part=1)
    assert gangs.to_gang_events("lab", ended) == [ended]
    (lost,) = cancel(gangs, attempt, 0, "too late")
    assert isinstance(lost, e.AttemptLost)
    assert lost.part == 0


def test_a_gang_that_is_not_complete_in_time_is_taken_back_and_tried_less_and_less_often(
    gangs: GangCoordinator, lab: RecordingExecutor
) -> None:
    delays = []
    for number in range(9):
        attempt = start(gangs, number)
        lab.released.clear()
        gangs.on_ready("lab", attempt, 0, 29501, HOSTS[0])
        assert cancel(gangs, attempt, 0, "the others did not come") == []
        assert lab.released == {1: None}  # it waits for a host, which it must not get any more
        assert gangs.take_events() == []
        assert cancel(gangs, attempt, 1, "cancelled") == []
        (cancelled,) = gangs.take_events()
        assert isinstance(cancelled, e.StartCancelled)
        assert (cancelled.part, cancelled.why) == (None, "the others did not come")
        delays.append(cancelled.delay)
    assert delays[:3] == [10.0, 20.0, 40.0]
    assert delays[-1] == MAX_RETRY_SECONDS
    attempt = start(gangs, 9)
    for rank in range(2):
        gangs.on_ready("lab", attempt, rank, 29501, HOSTS[rank])
    attempt = start(gangs, 10)
    for rank in range(2):
        cancel(gangs, attempt, rank, "again")
    (cancelled,) = gangs.take_events()
    assert isinstance(cancelled, e.StartCancelled)
    assert cancelled.delay == 10.0


def test_a_daemon_that_restarted_lets_the_others_follow_a_part_that_has_passed(
    gangs: GangCoordinator, lab: RecordingExecutor
) -> None:
    attempt = start(gangs)
    for rank in range(2):  # each log begins with its wait, whatever came after it
        gangs.on_ready("lab", attempt, rank, 29501, HOSTS[rank])
    assert (lab.released[1] or {})["MASTER_ADDR"] == "10.0.0.7"
    started = e.ProcessStarted(at=1.0, job=1, attempt=0, pid=None, boot=1.0, part=0)
    assert gangs.to_gang_events("lab", started) == [started]
