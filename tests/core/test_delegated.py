"""Delegated nodes: another scheduler decides where on them an attempt runs, and when it starts."""

import msgspec
import pytest
from msgspec.structs import replace

from core.scenario import Afar, gpus
from core.test_rebalance import held_gpus, plan_after, resize_target
from core.test_training import counted, listens
from core.test_why import unknown
from stoker.core import events as e
from stoker.core.events.instructions import StartProcess, TerminateAttempt
from stoker.core.explain.why import explain_job, reason
from stoker.core.launch.launch import launch
from stoker.core.model.job import Job
from stoker.core.model.resources import (
    DeviceAllocation,
    DeviceFacts,
    NodeFacts,
    Placement,
    PlacementMode,
    ResourceRequest,
)
from stoker.core.model.spec import Container, Retry, Training
from stoker.core.placement.fit import fit
from stoker.core.placement.infeasible import infeasibility_reason
from stoker.core.planner.planner import plan
from stoker.core.state.record import ClusterRecord
from stoker.daemon.nodes.configured import lost_attempts
from stoker.store.codec import decode_event


def lab(
    gpus: int = 4, max_in_flight: int = 2, takes_gangs: bool = False, **pools: int
) -> NodeFacts:
    """A cluster with pools of GPUs, cores and memory."""
    cards = tuple(
        DeviceFacts(f"*{model}", capacity=count * 1000, model=model, memory=40_000)
        for model, count in (pools or {"a100": gpus}).items()
    )
    return NodeFacts(
        "lab",
        {
            "gpu": cards,
            "cpu": (DeviceFacts("*", capacity=64_000),),
            "mem": (DeviceFacts("*", capacity=500_000),),
        },
        placement=PlacementMode.DELEGATED,
        max_in_flight=max_in_flight,
        takes_gangs=takes_gangs,
    )


def cluster(facts: NodeFacts | None = None, here: int = 0) -> Afar:
    """This machine without GPUs, and a cluster that was reached."""
    story = Afar(here)
    added = e.NodeAdded(at=story.now, name="lab", executor="slurm", options={"partition": "gpu"})
    story.tell(added)
    story.tell(e.NodeJoined(at=story.now, facts=facts or lab()))
    story.reached("lab")
    return story


def queued(story: Afar, **fields: object) -> int:
    job = story.submit(**fields)  # type: ignore[arg-type]
    story.plan()
    story.about(e.AttemptQueued, job, external_id="4711")
    return job


def told(story: Afar, job: int) -> str:
    return explain_job(story.state, story.job(job), story.now, story.boot, unknown).text


def test_a_placement_on_a_delegated_node_holds_an_amount_and_names_no_device():
    story = cluster()
    job = story.submit(replace(gpus(2), cpus=8000))
    [instruction] = story.tell(next(iter(plan(story.state, story.now, story.boot))))
    placement = story.placed(job)
    assert instruction == StartProcess(job, 0, placement)
    assert placement.allocations == (
        DeviceAllocation("gpu", "*a100", 2000),
        DeviceAllocation("cpu", "*", 8000),
    )
    assert placement.names("gpu") == []
    assert (placement.gpu_count, placement.gpu_amount) == (2, 2000)
    assert story.free(node="lab") == {"*a100": 2000}
    story.exited(job)
    assert story.all_free()


def test_an_accepted_attempt_is_queued_until_its_process_exists():
    story = cluster()
    job = queued(story)
    assert story.is_(job) == "QUEUED"
    assert (story.job(job).external_id, story.job(job).started_at) == ("4711", None)
    story.now += 3600
    story.started(job, pid=None, external_id="4711", hosts=("n17",), devices=("2",))
    after = story.job(job)
    assert (after.state.value, after.pid, after.started_at) == ("RUNNING", None, story.now)
    assert (after.hosts, after.devices) == (("n17",), ("2",))
    story.exited(job)
    assert story.is_(job) == "COMPLETED"
    assert story.job(job).external_id == "4711"


def test_what_is_said_of_an_attempt_twice_or_too_late_changes_nothing():
    story = cluster()
    job = queued(story)
    story.about(e.AttemptQueued, job, external_id="4711")
    story.started(job, pid=None)
    story.about(e.AttemptQueued, job, external_id="4712")
    assert (story.is_(job), story.job(job).external_id) == ("RUNNING", "4711")
    story.exited(job, 1)
    story.about(e.AttemptQueued, job, external_id="4713")
    assert (story.is_(job), story.job(job).external_id) == ("FAILED", "4711")


def test_another_attempt_forgets_where_the_last_one_was():
    story = cluster()
    job = queued(story, retry=Retry(1))
    story.started(job, pid=None, hosts=("n17",))
    story.exited(job, 1)
    story.wait(3600)
    story.plan()
    again = story.job(job)
    assert (again.attempt, again.external_id, again.hosts) == (1, None, ())


def test_the_time_limit_counts_from_the_start_and_not_from_the_queue():
    story = cluster()
    job = queued(story, limit=60)
    assert story.wait(10_000) == []
    story.started(job, pid=None)
    assert story.wait(59) == []
    assert [type(each) for each in story.wait(1)] == [e.TimeLimitReached]


def test_a_deadline_ends_a_queued_job_that_could_not_end_in_time():
    story = cluster()
    job = queued(story, limit=60, deadline_at=story.now + 100)
    assert [type(each) for each in story.wait(41)] == [e.DeadlinePassed]
    assert story.is_(job) == "COMPLETING"
    story.about(e.StartCancelled, job, why="cancelled there")
    assert story.is_(job) == "DEADLINE"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_cancelled_job_is_taken_out_of_the_queue_there(when: str):
    story = cluster()
    job = story.submit()
    story.plan()
    if when == "after":
        story.about(e.AttemptQueued, job, external_id="4711")
    assert story.fact(e.JobCancelled, job) == [TerminateAttempt(job, 0)]
    if when == "before":
        story.about(e.AttemptQueued, job, external_id="4711")
    assert (story.is_(job), story.job(job).external_id) == ("COMPLETING", "4711")
    story.about(e.StartCancelled, job, why="cancelled there")
    assert story.is_(job) == "CANCELLED"
    assert story.all_free()


def test_a_refused_job_waits_again_and_a_lost_one_goes_by_its_rule():
    story = cluster()
    refused, lost = queued(story), queued(story)
    story.about(e.StartCancelled, refused, why="the partition is down", delay=30.0)
    assert (story.is_(refused), story.job(refused).attempt) == ("PENDING", 1)
    story.about(e.AttemptLost, lost, why="lab does not know it any more")
    assert story.is_(lost) == "NODE_FAIL"
    assert story.all_free()


def test_only_so_many_attempts_wait_there_and_the_others_wait_here():
    story = cluster()
    first, second, third, fourth = (story.submit() for _ in range(4))
    assert story.plan() == [first, second]
    assert "lab accepts no new jobs: 2 jobs wait in its queue" in told(story, third)
    story.about(e.AttemptQueued, first, external_id="1")
    assert story.plan() == []
    story.started(first, pid=None)
    assert story.plan() == [third]
    story.about(e.StartFailed, second, why="invalid account")
    assert story.plan() == [fourth]


def test_the_number_of_waiting_attempts_outlives_a_restart():
    story = cluster()  # each fact is followed by a comparison with the restored state
    first, second, third = (story.submit() for _ in range(3))
    story.plan()
    story.restart()
    story.reached("lab")
    assert story.state.in_flight("lab") == [first, second]
    assert story.plan() == []
    story.started(second, pid=None)
    assert story.plan() == [third]


def test_more_may_wait_there_when_the_node_says_so():
    story = cluster()
    jobs = [story.submit() for _ in range(3)]
    assert story.plan() == jobs[:2]
    story.tell(e.NodeJoined(at=story.now, facts=lab(max_in_flight=3)))
    assert story.plan() == jobs[2:]


def test_why_says_that_it_waits_in_the_queue_there():
    story = cluster()
    job = queued(story)
    expected = "queued on lab (4711)"
    assert reason(story.state, story.job(job), story.now) == ("Queued", expected)
    assert told(story, job) == expected
    start = story.now + 1500
    story.about(e.AttemptQueued, job, external_id="4711", reason="Resources", start=start)
    assert told(story, job) == "queued on lab (4711: Resources; expected start in 25 min)"
    story.now += 1800
    assert told(story, job) == "queued on lab (4711: Resources; handed over 30 min ago)"
    story.silent("lab")
    assert "whether it runs is known when lab answers" in told(story, job)


def test_a_job_on_a_delegated_node_never_makes_room():
    story = cluster(lab(gpus=1, max_in_flight=5))
    job = queued(story, requeueable=True)
    story.submit(priority=100)
    assert story.plan() == []
    story.started(job, pid=None)
    assert story.state.preemptible == {}
    assert story.plan() == []
    assert story.is_(job) == "RUNNING"


def test_an_elastic_job_keeps_its_size_on_a_delegated_node():
    story = cluster()
    job = queued(story, request=gpus(1, max_amount=4000), training=Training(epochs=9))
    story.started(job, pid=None)
    assert story.state.running_elastic == {}


@pytest.mark.parametrize(
    ("request_", "lack"),
    [
        (gpus(0.5), "gives whole GPUs only; a pilot can share them"),
        (
            replace(gpus(1), node_count=2),
            "takes only jobs that run on one node; pilots can run others",
        ),
        (replace(gpus(1), exclusive=True), "gives no job a node of its own; a pilot can"),
        (gpus(5), "has 4 GPUs, not 5"),
        (gpus(1, required=("0",)), "has 0 GPUs among those named, not 1"),
    ],
)
def test_what_another_scheduler_cannot_be_asked_for_is_not_placed_there(
    request_: ResourceRequest, lack: str
):
    story = cluster()
    job = story.submit(request_)
    assert infeasibility_reason(story.state.cluster.nodes["lab"], request_) == lack
    assert story.plan() == []
    assert story.is_(job) == "PENDING"


def test_a_job_that_may_share_a_gpu_gets_a_whole_one_on_a_delegated_node():
    story = cluster(lab(gpus=1))
    first, second = (story.submit(gpus(1, memory=9000, shareable=True)) for _ in range(2))
    assert story.plan() == [first]
    (allocation,) = story.job(first).placement.allocations
    assert (allocation.amount, allocation.memory) == (1000, 0)
    assert story.is_(second) == "PENDING"


def test_a_gang_does_not_include_a_delegated_node():
    story = cluster(here=1)
    wide = story.submit(replace(gpus(1), node_count=2))
    assert story.plan() == []
    story.add("ant")
    assert story.plan() == [wide]
    assert story.where(wide) == ["box", "ant"]


def gang(max_in_flight: int = 2, here: int = 0, **fields: object) -> tuple[Afar, int]:
    """A job of two parts on a delegated node that takes gangs."""
    story = cluster(lab(takes_gangs=True, max_in_flight=max_in_flight), here)
    job = story.submit(replace(gpus(2), node_count=2), **fields)  # type: ignore[arg-type]
    story.plan()
    return story, job


def test_all_parts_of_a_gang_are_on_a_delegated_node_that_takes_gangs():
    story, job = gang(max_in_flight=1, here=1)
    part = Placement("lab", (DeviceAllocation("gpu", "*a100", 2000),))
    assert story.placed(job) == replace(part, other_parts=(part,))
    assert story.free(node="lab") == {"*a100": 0}
    assert story.state.in_flight("lab") == [job]
    single = story.submit(replace(gpus(2), node_count=1))
    assert story.plan() == []
    for rank in range(2):
        story.part(e.ProcessStarted, job, rank, pid=None, boot=story.boot, hosts=(f"n{rank}",))
    assert story.job(job).hosts == ("n0", "n1")
    story.part(e.ProcessExited, job, 0, code=0)
    assert story.is_(job) == "RUNNING"
    story.part(e.ProcessExited, job, 1, code=0)
    assert story.is_(job) == "COMPLETED"
    assert story.plan() == [single]


def test_a_gang_needs_the_amounts_of_all_its_parts():
    story = cluster(lab(takes_gangs=True))
    jobs = [story.submit(replace(gpus(each), node_count=2)) for each in (3, 2)]
    assert story.plan() == jobs[1:]


def test_a_gang_is_on_nodes_of_ones_own_rather_than_delegated():
    story = cluster(lab(takes_gangs=True), here=2)
    story.add("ant")
    job = story.submit(replace(gpus(2), node_count=2))
    story.plan()
    assert story.where(job) == ["box", "ant"]


def test_a_gang_on_a_delegated_node_is_given_up_and_lost_as_a_whole():
    story, job = gang(requeueable=True)
    for rank in range(2):
        story.part(e.ProcessStarted, job, rank, pid=None, boot=story.boot)
    story.silent("lab")
    lost = lost_attempts(story.state, "lab", "gone", story.now)
    assert [each.part for each in lost] == [0, 1]  # type: ignore[attr-defined]
    story.about(e.AttemptAbandoned, job, node="lab")
    assert (story.is_(job), story.job(job).attempt) == ("PENDING", 1)


def test_a_job_for_several_nodes_is_left_to_pilots_only_if_there_may_be_enough_of_them():
    pilot = replace(lab(), placement=PlacementMode.MANAGED, on_demand=2)
    story = cluster(replace(lab(gpus=9, takes_gangs=True), pilot=pilot))
    jobs = [story.submit(replace(gpus(1), node_count=count)) for count in (2, 3)]
    assert story.plan() == jobs[1:]


def test_an_image_that_a_pilot_cannot_run_is_handed_over():
    pilot = replace(lab(gpus=2), placement=PlacementMode.MANAGED, on_demand=1)
    story = Afar(0)
    for name, facts in (
        ("lab-jobs", replace(lab(), name="lab-jobs", pilot=pilot)),
        ("lab-1", replace(lab(gpus=2), name="lab-1", placement=PlacementMode.MANAGED)),
    ):
        story.tell(e.NodeAdded(at=story.now, name=name, options={"cluster": "lab"}))
        story.tell(e.NodeJoined(at=story.now, facts=facts))
        story.reached(name)
    jobs = [story.submit(gpus(1), container=Container(image)) for image in ("a", "b")]
    for job in jobs:
        story.run(job)
        assert story.where(job) == ["lab-1"]
    story.exited(jobs[0], code=125, lacks="it sees no GPU")
    assert story.plan() == jobs[:1]
    assert story.where(jobs[0]) == ["lab-jobs"]


@pytest.mark.parametrize("hands_over", [False, True])
def test_an_elastic_job_grows_in_a_pilot_of_a_cluster_that_also_takes_other_jobs(hands_over: bool):
    pilot = replace(lab(gpus=2), placement=PlacementMode.MANAGED, on_demand=1)
    story = cluster(replace(lab(), pilot=pilot if hands_over else None))
    story.add("lab-1", gpus=2)
    job = story.submit(gpus(1, max_amount=2000), training=Training(epochs=1000))
    other = story.submit(gpus(1))
    listens(story, job)
    assert (story.where(job), held_gpus(story, job)) == (["lab-1"], 1)
    story.started(other)
    story.exited(other)
    counted(story, job, 1, seconds=1000.0)
    assert plan_after(story) == [job]
    assert resize_target(story, job) == 2


def test_the_size_of_an_elastic_job_does_not_depend_on_a_delegated_node():
    story = cluster(lab(takes_gangs=True))
    job = story.submit(gpus(2, max_amount=4000), training=Training(epochs=9, distributed=True))
    story.plan()
    assert story.where(job) == ["lab"]
    assert story.placed(job).gpu_count == 2


def test_jobs_run_here_while_there_is_room_and_there_when_there_is_none():
    story = cluster(here=1)
    here, there = story.submit(), story.submit()
    cores = story.submit(ResourceRequest(cpus=1000))
    story.plan()
    assert [story.where(job) for job in (here, there, cores)] == [["box"], ["lab"], ["box"]]


def test_a_pool_of_one_gpu_is_a_pool():
    story = cluster(lab(gpus=1))
    job = story.submit(gpus(1, memory=9000))
    story.plan()
    assert story.placed(job).allocations == (DeviceAllocation("gpu", "*a100", 1000),)
    assert fit(story.state.cluster.nodes["lab"], gpus(1)) is None


def test_a_model_is_taken_from_its_own_pool():
    story = cluster(lab(a100=2, h100=8))
    job = story.submit(gpus(1, model="h100"))
    story.plan()
    assert story.placed(job).allocations == (DeviceAllocation("gpu", "*h100", 1000),)


def test_a_start_there_names_no_device():
    story = cluster()
    job = story.submit(gpus(2, memory=6000, shareable=True), training=Training(epochs=3))
    story.plan()
    lab_node = story.state.cluster.nodes["lab"]
    order = launch(
        story.job(job), story.state.spec(story.job(job)), story.placed(job), lab_node, 0.0,
        logs="/logs", token="token.1", scripts="/scripts",
    )  # fmt: skip
    names = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "STOKER_GPUS", "STOKER_GPU_UUIDS"}
    assert not names & set(order.extra)
    assert (order.extra["STOKER_GPU_COUNT"], order.extra["NUM_GPUS"]) == ("2", "2")
    assert order.extra["RESERVED_MEM"] == "6000"
    assert order.gpus == ()


def test_rows_of_older_versions_are_read_as_managed_nodes_over_ssh():
    added = b'{"kind":"NodeAdded","at":1.0,"name":"ant","address":"ssh://ant","key":"/k"}'
    assert decode_event("NodeAdded", 1, added) == e.NodeAdded(
        at=1.0, name="ant", address="ssh://ant", key="/k", executor="ssh", options={}
    )
    rest = msgspec.json.decode(b'{"nodes":{"box":{"name":"box","types":{}}}}', type=ClusterRecord)
    assert rest.nodes["box"].placement is PlacementMode.MANAGED
    started = b'{"kind":"ProcessStarted","at":1.0,"job":1,"attempt":0,"pid":7,"boot":1.0}'
    assert decode_event("ProcessStarted", 1, started) == e.ProcessStarted(
        at=1.0, job=1, attempt=0, pid=7, boot=1.0
    )


def test_what_is_not_used_is_not_written():
    started = e.ProcessStarted(at=1.0, job=1, attempt=0, pid=7, boot=1.0)
    facts, job = NodeFacts("box", {}), Job(1, "spec", "job", "ada", 1.0)
    assert msgspec.to_builtins(started) == {
        "kind": "ProcessStarted", "at": 1.0, "job": 1, "attempt": 0, "pid": 7, "boot": 1.0,
    }  # fmt: skip
    assert msgspec.to_builtins(facts) == {"name": "box", "types": {}}
    assert "external_id" not in msgspec.to_builtins(job)
