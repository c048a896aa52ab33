"""Nodes that end: what starts there, what is reserved there, and what is asked to stop."""

from math import inf
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from core.scenario import Afar, gpus, node
from core.test_training import counted, elastic, listens, progress, training
from stoker.core import events as e
from stoker.core.events.instructions import RequestStop, SignalAttempt
from stoker.core.explain.forecast import TimeInterval
from stoker.core.explain.why import explain_job, reason
from stoker.core.model.job import Job
from stoker.core.model.resources import NodeFacts
from stoker.core.model.spec import EarlySignal, Training
from stoker.core.placement.horizon import END_GRACE_SECONDS
from stoker.core.state.timers import due_events, next_wakeup

HOUR = 3600.0


class Lab(Afar):
    """A host without GPUs, and allocations of two GPUs."""

    def __init__(self) -> None:
        super().__init__(gpus=0)

    def join(self, name: str, seconds: float | None, gpus: int = 2) -> None:
        """Let an allocation join that ends after some time, or change its end."""
        if name not in self.state.record.remotes:
            self.tell(e.NodeAdded(at=self.now, name=name, address=f"slurm://{name}"))
        ends_at = None if seconds is None else self.now + seconds
        self.tell(e.NodeJoined(at=self.now, facts=replace(node(gpus, name), ends_at=ends_at)))
        self.reached(name)


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.mark.parametrize(
    ("fields", "starts"),
    [
        ({"limit": 1800}, True),
        ({"limit": 3600}, False),
        ({}, True),
        ({"limit": 36000, "training": Training(epochs=9)}, True),
        ({"limit": 3600, "requeueable": True}, False),
    ],
)
def test_a_job_starts_if_it_ends_before_its_node_or_can_continue_elsewhere(
    lab: Lab, fields: dict[str, Any], starts: bool
) -> None:
    lab.join("a", HOUR)
    job = lab.submit(**fields)
    assert lab.plan() == [job] * starts


def test_nothing_starts_in_the_last_minutes_of_a_node(lab: Lab) -> None:
    lab.join("a", END_GRACE_SECONDS - 1)
    lab.submit()
    lab.submit(training=Training(epochs=2))
    assert lab.plan() == []


def test_a_job_goes_to_the_node_that_exists_for_long_enough(lab: Lab) -> None:
    lab.join("a", HOUR)
    lab.join("b", 3 * HOUR)
    jobs = [lab.submit(limit=7200), lab.submit(limit=7200), lab.submit(limit=7200)]
    assert lab.plan() == jobs[:2]
    assert [lab.where(job) for job in jobs[:2]] == [["b"], ["b"]]


def test_a_shorter_job_of_the_same_request_is_not_held_back(lab: Lab) -> None:
    lab.join("a", HOUR)
    lab.submit(limit=7200)
    can_continue, short = lab.submit(limit=7200, training=Training()), lab.submit(limit=60)
    assert lab.plan() == [can_continue, short]


def test_a_job_starts_once_the_end_of_its_node_was_postponed(lab: Lab) -> None:
    lab.join("a", HOUR)
    job = lab.submit(limit=7200)
    assert lab.plan() == []
    lab.join("a", 3 * HOUR)
    assert lab.plan() == [job]


@pytest.mark.parametrize("policy", ["backfill", "conservative"])
def test_no_reservation_lies_beyond_the_end_of_a_node(lab: Lab, policy: str) -> None:
    """The head could have the GPUs of `a` after the first job, but would not be done by its end."""
    lab.tell(e.PolicyChosen(at=lab.now, queue="*", name=policy))
    lab.join("a", 2 * HOUR)
    first = lab.submit(limit=3600)
    lab.run(first)
    head = lab.submit(gpus(2), limit=5400)
    behind = lab.submit(limit=6000)
    assert lab.plan() == [behind]
    assert lab.is_(head) == "PENDING"


@pytest.mark.parametrize("policy", ["backfill", "conservative"])
def test_a_reservation_is_kept_where_the_node_exists_for_long_enough(lab: Lab, policy: str) -> None:
    lab.tell(e.PolicyChosen(at=lab.now, queue="*", name=policy))
    lab.join("a", 3 * HOUR)
    first = lab.submit(limit=3600)
    lab.run(first)
    lab.submit(gpus(2), limit=5400)
    lab.submit(limit=6000)
    short = lab.submit(limit=3000)
    assert lab.plan() == [short]


def test_the_end_of_a_node_releases_the_other_nodes_of_a_gang(lab: Lab) -> None:
    lab.join("a", HOUR)
    lab.join("b", None)
    gang = lab.submit(replace(gpus(2), node_count=2))
    lab.run()
    for part in (0, 1):
        lab.part(e.ProcessStarted, gang, part, pid=7, boot=lab.boot)
    assert [end for end, _ in lab.state.release_times] == [lab.boot + HOUR]
    lab.join("a", 2 * HOUR)
    assert [end for end, _ in lab.state.release_times] == [lab.boot + 2 * HOUR]
    lab.join("a", None)
    assert [end for end, _ in lab.state.release_times] == [inf]


def test_no_victim_stops_for_a_job_that_the_end_of_the_node_forbids(lab: Lab) -> None:
    lab.join("a", HOUR)
    victims = [training(lab, gpus(1)), training(lab, gpus(1))]
    listens(lab, *victims)
    lab.submit(limit=7200, priority=1)
    assert lab.plan() == []
    lab.submit(limit=600, priority=1)
    assert len(lab.plan()) == 1


def test_an_elastic_job_does_not_grow_on_a_node_that_ends_soon(lab: Lab) -> None:
    lab.join("a", None, gpus=4)
    job = training(lab, elastic())
    listens(lab, job)
    counted(lab, job, 1, seconds=1000.0)
    lab.join("a", END_GRACE_SECONDS + 1, gpus=4)
    lab.now += 2
    assert lab.plan() == []
    lab.join("a", None, gpus=4)
    assert lab.plan() == [job]


# -- the coming end ------------------------------------------------------------------------


def test_training_jobs_are_asked_to_stop_before_the_end_and_resume_elsewhere(lab: Lab) -> None:
    lab.join("a", HOUR)
    job = training(lab, gpus(1))
    listens(lab, job)
    assert next_wakeup(lab.state, lab.now, lab.boot) == HOUR - END_GRACE_SECONDS
    assert lab.wait(HOUR - END_GRACE_SECONDS - 1) == []
    [asked] = lab.wait(1)
    assert isinstance(asked, e.PreemptionRequested)
    assert (asked.job, asked.why) == (job, "a ends soon")
    assert lab.wait(1) == []
    wait = next_wakeup(lab.state, lab.now, lab.boot)
    assert wait is None or wait > 1
    counted(lab, job, 1, seconds=10.0)
    lab.exited(job, 75, stopped=True)
    lab.join("b", HOUR)
    assert lab.plan() == [job]
    assert lab.where(job) == ["b"]
    assert lab.job(job).retries == 0
    assert progress(lab, job).epochs == 1


def test_a_stop_is_requested_by_the_control_file(lab: Lab) -> None:
    lab.join("a", HOUR)
    job = training(lab, gpus(1))
    listens(lab, job)
    lab.now += HOUR
    [event] = due_events(lab.state, lab.now, lab.boot)
    assert lab.tell(event) == [RequestStop(job, 0)]


def test_a_training_job_that_reports_late_is_asked_then(lab: Lab) -> None:
    lab.join("a", HOUR)
    job = training(lab, gpus(1))
    lab.run(job)
    assert lab.wait(HOUR - 60) == []
    lab.about(e.TrainingBegan, job)
    assert [type(event) for event in lab.wait(0)] == [e.PreemptionRequested]


def test_an_end_that_comes_earlier_than_known_is_acted_upon(lab: Lab) -> None:
    """As when another scheduler preempts the allocation."""
    lab.join("a", 8 * HOUR)
    job = training(lab, gpus(1))
    listens(lab, job)
    assert lab.wait(60) == []
    lab.join("a", 30.0)
    assert [event.job for event in lab.wait(0)] == [job]  # type: ignore[attr-defined]


def test_jobs_with_an_early_signal_get_it_and_others_run_until_the_end(lab: Lab) -> None:
    lab.join("a", HOUR)
    warned = lab.submit(early_signal=EarlySignal(10, 30))
    plain, requeue = lab.submit(gpus(0.5)), lab.submit(gpus(0.5), requeueable=True)
    lab.run(warned, plain, requeue)
    lab.now += HOUR - 60
    [event] = due_events(lab.state, lab.now, lab.boot)
    assert lab.tell(event) == [SignalAttempt(warned, 0, 10, if_caught=True)]
    assert lab.wait(1) == []


def test_a_job_that_must_not_be_requeued_gets_its_early_signal_only(lab: Lab) -> None:
    lab.join("a", HOUR)
    warned = lab.submit(early_signal=EarlySignal(10, 30), non_preemptible=True)
    silent = training(lab, gpus(1), non_preemptible=True)
    listens(lab, warned, silent)
    lab.now += HOUR - 60
    [event] = due_events(lab.state, lab.now, lab.boot)
    assert lab.tell(event) == [SignalAttempt(warned, 0, 10)]
    assert lab.wait(1) == []


# -- words, journals -----------------------------------------------------------------------


def no_estimate(_: Job) -> TimeInterval | None:
    return None


def test_why_names_the_end_and_the_limit(lab: Lab) -> None:
    lab.join("a", 40 * 60.0)
    job = lab.submit(limit=7200)
    lab.plan()
    text = "a ends in 40 min, the job's limit is 2 h"
    assert reason(lab.state, lab.job(job), lab.now) == ("Resources", text)
    assert text in explain_job(lab.state, lab.job(job), lab.now, lab.boot, no_estimate).text


def test_an_end_survives_a_restart_and_old_facts_have_none(lab: Lab) -> None:
    lab.join("a", HOUR)
    lab.now += 10
    lab.restart(rebooted=True)
    assert lab.state.cluster.node_ends == {"a": lab.now - 10 + HOUR}
    assert msgspec.json.decode(b'{"name":"a","types":{}}', type=NodeFacts).ends_at is None
    assert b"ends_at" not in msgspec.json.encode(node())


def test_a_removed_node_has_no_end(lab: Lab) -> None:
    lab.join("a", HOUR)
    lab.tell(e.NodeRemoved(at=lab.now, name="a"))
    assert lab.state.cluster.node_ends == {}
