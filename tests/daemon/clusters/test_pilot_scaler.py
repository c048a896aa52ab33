"""When allocations of a cluster are requested, and when they are released."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from core.scenario import Afar, gpus
from stoker.core import events as e
from stoker.core.explain.forecast import (
    CLUSTER_DECIDES,
    CLUSTER_SCHEDULE,
    JobForecast,
    Kind,
    forecast_input,
)
from stoker.core.explain.why import explain_job, reason
from stoker.core.model.spec import Training
from stoker.daemon.clusters.pilot_scaler import PilotScaler, clusters_with_pilots
from stoker.daemon.submission.checks import check_satisfiable
from stoker.daemon.workers.estimates import start_end_estimate
from stoker.engine import CommandRejected, Instant
from stoker.executors.port import Allocation
from stoker.executors.slurm.handover.executor import HandoverReading
from stoker.executors.slurm.options import cluster_addition, parse_options
from stoker.simulate.forecast.futures import forecast
from virtual_reactor import VirtualReactor

OPTIONS = {"pilot": "gpus=2 cores=4 mem=8G time=1h max=2 idle=5m", "sbatch": "-p gpu"}
TWO_NODES = replace(gpus(2), node_count=2)


class Lab(Afar):
    """A host without GPUs, and a Slurm cluster."""

    def __init__(self, ahead: str = "") -> None:
        super().__init__(gpus=0)
        options = {**OPTIONS, **({"ahead": ahead} if ahead else {})}
        self.scaler = PilotScaler(
            lambda: self.state, lambda _: None, VirtualReactor(lambda: self.boot), "abc",
            lambda: Instant(self.now, self.boot),
        )  # fmt: skip
        self.tell(cluster_addition("lab", options, shared=False, at=self.now))
        self.tell(e.NodeReached(at=self.now, node="lab"))
        facts = parse_options(OPTIONS).pilot.node_facts("lab")
        self.tell(e.NodeJoined(at=self.now, facts=facts))

    def tell(self, event: e.Event) -> Any:
        instructions = super().tell(event)
        if hasattr(self, "scaler"):
            self.scaler.on_events([event])
        return instructions

    def scale(self) -> list[e.Event]:
        """Apply what the scaler decides; return its events."""
        events: list[e.Event] = []
        for name, options in clusters_with_pilots(self.state):
            now = Instant(self.now, self.boot)
            events += self.scaler.changes(self.state, name, options, now)
        for event in events:
            self.tell(event)
        return events

    def join(self, name: str) -> None:
        """Let a pilot join as it was declared."""
        facts = parse_options(OPTIONS).pilot.node_facts(name)
        self.tell(e.NodeReached(at=self.now, node=name))
        self.tell(e.NodeJoined(at=self.now, facts=type(facts)(name, facts.types)))


def names(events: list[e.Event]) -> list[str]:
    return [f"{type(event).__name__} {getattr(event, 'name', '')}" for event in events]


def test_a_pending_job_causes_one_request() -> None:
    lab = Lab()
    assert lab.scale() == []
    lab.submit(count=5)
    lab.plan()
    (added,) = lab.scale()
    assert isinstance(added, e.NodeAdded)
    assert (added.name, added.executor, added.cluster) == ("lab-1", "slurm-pilot", "lab")
    assert added.options["job"].startswith("stoker-abc-lab-")
    assert added.options["sbatch"].endswith("--gres=gpu:2 --mem=8192M --time=60 -p gpu")
    assert lab.scale() == []


def test_a_start_is_expected_when_the_cluster_expects_to_provide_an_allocation() -> None:
    lab = Lab()
    first, second, large = lab.submit(gpus(2), limit=600), lab.submit(limit=60), lab.submit(gpus(3))
    lab.plan()
    lab.scale()

    def predicted(start: float | None, is_queued: bool = True) -> dict[int, JobForecast]:
        allocation = Allocation("4711", is_queued, "Resources", start, None)
        nodes = lab.scaler.expected_nodes(lambda name: allocation if name == "lab-1" else None)
        input = forecast_input(lab.state, lab.now, lab.boot, {}, nodes)
        return {each.job: each for each in forecast(msgspec.json.encode(input)).jobs}

    found = predicted(lab.now + 500)
    estimate = start_end_estimate(found[first], lab.job(first), lab.now, lab.now)
    assert estimate.start is not None
    assert estimate.start.likely == pytest.approx(lab.now + 500)
    assert (estimate.start.low, estimate.start.high) == pytest.approx(
        (lab.now + 270, lab.now + 926), abs=1
    )
    assert (estimate.start.kind, estimate.start.basis) == (Kind.SIMILAR, CLUSTER_SCHEDULE)
    behind = found[second].start
    assert behind is not None
    assert (behind.kind, behind.basis) == (Kind.SIMILAR, CLUSTER_SCHEDULE)
    assert found[large].never == "it needs something whose end cannot be estimated"
    starting = predicted(lab.now - 1, is_queued=False)[first].start
    assert starting is not None
    assert starting.at == [lab.now] * 9
    for unknown in (None, lab.now - 1):
        assert predicted(unknown)[first].never == CLUSTER_DECIDES


def test_requests_stop_at_the_maximum() -> None:
    lab = Lab()
    lab.submit(count=9)
    for name in ("lab-1", "lab-2"):
        assert names(lab.scale()) == [f"NodeAdded {name}"]
        lab.join(name)
        assert len(lab.plan()) == 2
    assert lab.scale() == []


def test_a_gang_causes_a_request_for_each_of_its_nodes() -> None:
    lab = Lab()
    lab.submit(TWO_NODES)
    assert names(lab.scale()) == ["NodeAdded lab-1", "NodeAdded lab-2"]


def test_an_idle_pilot_is_released_after_its_time() -> None:
    lab = Lab()
    job = lab.submit()
    lab.scale()
    lab.join("lab-1")
    lab.run(job)
    lab.exited(job)
    assert lab.scale() == []
    lab.now += 299
    assert lab.scale() == []
    lab.now += 2
    assert names(lab.scale()) == ["NodeRemoved lab-1"]


def test_a_pilot_that_a_new_daemon_has_not_reached_yet_is_kept() -> None:
    """Its last job may have ended meanwhile, which is known before its resources are."""
    lab = Lab()
    job = lab.submit(gpus(2))
    lab.plan()
    lab.scale()
    lab.join("lab-1")
    assert lab.plan() == [job]
    lab.run(job)
    lab.tell(e.NodeUnreachable(at=lab.now, node="lab-1", why="not reached", boot=lab.boot))
    lab.exited(job)
    assert lab.scale() == []
    lab.now += 301
    assert names(lab.scale()) == ["NodeRemoved lab-1"]


def test_a_request_that_no_job_needs_any_more_is_withdrawn() -> None:
    lab = Lab()
    job = lab.submit()
    lab.scale()
    lab.fact(e.JobCancelled, job)
    assert names(lab.scale()) == ["NodeRemoved lab-1"]


def test_refused_requests_are_repeated_later_and_later() -> None:
    lab = Lab()
    job = lab.submit()
    delays = []
    for _ in range(4):
        waited = 0
        while not any(isinstance(event, e.NodeAdded) for event in lab.scale()):
            lab.now += 30
            waited += 30
        delays.append(waited)
        lab.tell(e.NodeRemoved(at=lab.now, name="lab-1", why="sbatch refused it: no account"))
    assert delays == [0, 0, 60, 900]
    lab.scale()
    text = explain_job(lab.state, lab.job(job), lab.now, lab.boot, lambda _: None).text
    assert "lab provides no allocation: sbatch refused it: no account" in text


def test_a_job_that_is_too_long_for_an_allocation_causes_none_unless_it_can_continue() -> None:
    lab = Lab()
    lab.submit(limit=7200.0)
    assert lab.scale() == []
    lab.submit(limit=7200.0, training=Training())
    assert names(lab.scale()) == ["NodeAdded lab-1"]


def test_a_job_waits_for_the_allocation_and_says_so() -> None:
    lab = Lab()
    job = lab.submit()
    lab.scale()
    lab.tell(
        e.NodeUnreachable(at=lab.now, node="lab-1", why="Slurm job 7: Priority", boot=lab.boot)
    )
    expected = "waits for an allocation of lab (Slurm job 7: Priority)"
    assert reason(lab.state, lab.job(job), lab.now) == ("Resources", expected)


def test_a_request_is_checked_against_what_the_cluster_provides() -> None:
    lab = Lab()
    check_satisfiable(lab.state, gpus(2))
    check_satisfiable(lab.state, TWO_NODES)
    with pytest.raises(CommandRejected, match="lab has 2 GPUs, not 3"):
        check_satisfiable(lab.state, gpus(3))
    with pytest.raises(CommandRejected, match="'lab' is a cluster"):
        check_satisfiable(lab.state, replace(gpus(1), nodes=("lab",)))


def handing_over() -> Lab:
    """A cluster with pilots and a node to which other jobs are handed over."""
    lab = Lab(ahead="4")
    (added,) = lab.scale()
    assert isinstance(added, e.NodeAdded)
    assert (added.name, added.executor, added.cluster) == ("lab-jobs", "slurm-jobs", "lab")
    assert added.options["ahead"] == "4"
    lab.tell(e.NodeReached(at=lab.now, node="lab-jobs"))
    pilot = parse_options(OPTIONS).pilot.node_facts("pilot")
    facts = HandoverReading(("a100",), 4, pilot).node_facts("lab-jobs")
    lab.tell(e.NodeJoined(at=lab.now, facts=facts))
    return lab


def test_jobs_that_no_pilot_can_run_are_handed_over() -> None:
    lab = handing_over()
    small, large = lab.submit(gpus(2)), lab.submit(gpus(3))
    long = lab.submit(gpus(1), limit=7200)
    training = lab.submit(gpus(1), limit=7200, training=Training(epochs=3))
    assert lab.plan() == [large, long]
    assert [lab.job(job).placement.node for job in (large, long)] == ["lab-jobs", "lab-jobs"]
    assert lab.is_(small) == lab.is_(training) == "PENDING"
    assert names(lab.scale()) == ["NodeAdded lab-1"]
    lab.join("lab-1")
    assert lab.plan() == [small]


def test_a_job_that_was_submitted_before_waits_for_a_pilot_and_one_that_names_the_node_does_not():
    lab = Lab(ahead="4")
    before = lab.submit(gpus(2))
    lab.scale()
    pilot = parse_options(OPTIONS).pilot.node_facts("pilot")
    lab.tell(e.NodeReached(at=lab.now, node="lab-jobs"))
    facts = HandoverReading(("a100",), 4, pilot).node_facts("lab-jobs")
    lab.tell(e.NodeJoined(at=lab.now, facts=facts))
    named = lab.submit(replace(gpus(1), nodes=("lab-jobs",)))
    assert lab.plan() == [named]
    assert lab.is_(before) == "PENDING"


def test_the_node_for_other_jobs_goes_with_the_option() -> None:
    lab = handing_over()
    lab.tell(cluster_addition("lab", OPTIONS, shared=False, at=lab.now))
    lab.tell(e.NodeReached(at=lab.now, node="lab"))
    assert names(lab.scale()) == ["NodeRemoved lab-jobs"]
