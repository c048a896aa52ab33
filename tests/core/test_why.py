"""Explanations of pending and running jobs."""

import pytest
from msgspec.structs import replace

from core.scenario import Afar, Scenario, gpus
from stoker.core import events as e
from stoker.core.explain.constraints import node_constraints
from stoker.core.explain.forecast import Kind, TimeInterval
from stoker.core.explain.why import explain_job, reason
from stoker.core.model.dependency import Clause, Dependency
from stoker.core.model.job import Job
from stoker.core.model.resources import GpuRequest, ResourceRequest


def unknown(_: Job) -> TimeInterval | None:
    """No forecast."""
    return None


def reason_of(scenario: Scenario, job: int) -> str | None:
    return reason(scenario.state, scenario.job(job), scenario.now)[0]


def test_a_running_job_has_no_reason() -> None:
    scenario = Scenario(gpus=1)
    job = scenario.submit()
    scenario.run(job)
    assert reason_of(scenario, job) is None
    explanation = explain_job(
        scenario.state, scenario.job(job), scenario.now, scenario.now, unknown
    )
    assert explanation.text == "it is not waiting for anything"


@pytest.mark.parametrize(("code", "text"), [(2, "exit 2"), (0, "")])
def test_a_finished_job_is_explained_by_its_cause(code: int, text: str) -> None:
    scenario = Scenario()
    scenario.run(job := scenario.submit())
    scenario.exited(job, code)
    assert (
        explain_job(scenario.state, scenario.job(job), scenario.now, scenario.boot, unknown).text
        == text
    )


def test_the_head_waits_for_resources_and_later_jobs_by_priority() -> None:
    scenario = Scenario(gpus=1)
    first, second, third = scenario.submit(), scenario.submit(), scenario.submit()
    scenario.run(first)
    assert [reason_of(scenario, job) for job in (second, third)] == ["Resources", "Priority"]


def test_every_reason_for_pending_has_its_code() -> None:
    scenario = Scenario(gpus=1)
    running = scenario.submit(limit=60)
    scenario.run(running)
    held = scenario.submit(held=True)
    later = scenario.submit(begin_at=scenario.now + 60)
    behind = scenario.submit(dependency=Dependency((Clause("afterok", (running,)),)))
    array = scenario.submit(ResourceRequest(cpus=1000), count=2, array=True, array_limit=1)
    scenario.plan()
    assert reason_of(scenario, held) == "JobHeldUser"
    assert reason_of(scenario, later) == "BeginTime"
    assert reason_of(scenario, behind) == "Dependency"
    assert reason_of(scenario, array + 1) == "JobArrayTaskLimit"
    scenario.exited(running, code=1)
    assert reason_of(scenario, behind) == "DependencyNeverSatisfied"


def test_an_explanation_names_each_gpu_and_its_jobs() -> None:
    scenario = Scenario(gpus=3)
    mine = scenario.submit(limit=600)
    scenario.run(mine)
    scenario.tell(e.DevicesDrained(at=scenario.now, devices=(("box", "gpu", "1"),), reason="fan"))
    scenario.tell(
        e.ForeignUseChanged(
            at=scenario.now, node="box", device="2", foreign_user="bob's python (pid 8)"
        )
    )
    waiting = scenario.submit(gpus(2))
    scenario.plan()
    explanation = explain_job(
        scenario.state, scenario.job(waiting), scenario.now, scenario.now, unknown
    )
    (constraint,) = explanation.nodes[0].constraints
    assert constraint.text == "needs 2 GPUs, 0 free on box"
    assert constraint.details == (
        "GPU 0 is held by job 1 (at most 10:00 more)",
        "GPU 1 is drained (fan)",
        "GPU 2 is used by bob's python (pid 8)",
    )


def test_an_explanation_names_the_foreign_use_that_must_end() -> None:
    scenario = Scenario(gpus=4)
    running = scenario.submit(limit=600)
    scenario.run(running)

    def used(device: str, mark: str) -> None:
        scenario.tell(
            e.ForeignUseChanged(at=scenario.now, node="box", device=device, foreign_user=mark)
        )

    used("1", "the stoker of ana")
    used("2", "the stoker of ana")
    used("3", "bob's python (pid 8)")

    def unblocks(job: int) -> tuple[str, ...]:
        found = explain_job(
            scenario.state, scenario.job(job), scenario.now, scenario.now, unknown
        ).unblocks
        return tuple(line for line in found if line.startswith("GPU"))

    one, three = scenario.submit(gpus(1)), scenario.submit(gpus(3))
    scenario.plan()
    assert unblocks(one) == (
        "GPUs 1 and 2 become free, now used by the stoker of ana",
        "GPU 3 becomes free, now used by bob's python (pid 8)",
    )
    scenario.tell(e.JobCancelled(at=scenario.now, job=one))
    assert unblocks(three) == (
        "GPUs 1, 2 and 3 become free, now used by the stoker of ana and bob's python (pid 8)",
    )
    four = scenario.submit(gpus(4))
    assert unblocks(four) == ()


@pytest.mark.parametrize(
    ("kind", "text"), [(Kind.RUNS, "ends in about 25 min"), (Kind.LIMIT, "ends in at most 25 min")]
)
def test_ends_of_running_jobs_are_those_of_the_forecast(kind: Kind, text: str) -> None:
    scenario = Scenario(gpus=1)
    first = scenario.submit(limit=3600)
    scenario.run(first)
    waiting = scenario.submit()
    end = TimeInterval(scenario.now, scenario.now + 1500.0, None, kind, "")
    explanation = explain_job(
        scenario.state, scenario.job(waiting), scenario.now, scenario.now, lambda job: end
    )
    assert explanation.unblocks == (f"job {first} {text}",)


def test_a_paused_job_has_no_end_estimate() -> None:
    scenario = Scenario(gpus=2)
    first, second = scenario.submit(gpus(1), limit=1000), scenario.submit(gpus(1), limit=2000)
    scenario.run(first, second)
    waiting = scenario.submit(gpus(1))
    scenario.tell(e.JobPaused(at=scenario.now, job=first, boot=scenario.now))
    explanation = explain_job(
        scenario.state, scenario.job(waiting), scenario.now, scenario.now, unknown
    )
    assert explanation.unblocks == (f"job {second} ends in at most 33 min",)
    scenario.tell(e.JobPaused(at=scenario.now, job=second, boot=scenario.now))
    explanation = explain_job(
        scenario.state, scenario.job(waiting), scenario.now, scenario.now, unknown
    )
    assert explanation.unblocks == tuple(
        f"job {job} ends: no estimate, because job {job} is paused (stoker resume {job})"
        for job in (first, second)
    )
    paused = explain_job(scenario.state, scenario.job(first), scenario.now, scenario.now, unknown)
    assert paused.text == f"it is paused; to continue it: stoker resume {first}"


def test_a_cancelled_job_that_has_not_ended_is_expected_to_stop() -> None:
    scenario = Scenario(gpus=1)
    scenario.run(first := scenario.submit(limit=3600))
    waiting = scenario.submit()
    scenario.tell(e.JobCancelled(at=scenario.now, job=first))
    explanation = explain_job(
        scenario.state, scenario.job(waiting), scenario.now, scenario.now, unknown
    )
    assert explanation.unblocks == (f"job {first} stops, as it was asked to",)


def test_a_job_without_time_limit_has_no_end_estimate() -> None:
    scenario = Scenario(gpus=1)
    first, second = scenario.submit(), scenario.submit()
    scenario.run(first)
    explanation = explain_job(
        scenario.state, scenario.job(second), scenario.now, scenario.now, unknown
    )
    assert explanation.queue_position is not None
    assert explanation.queue_position.position == 1


def test_only_the_queue_head_waits_for_resources() -> None:
    scenario = Scenario(gpus=1)
    scenario.run(scenario.submit())
    waiting = [scenario.submit(limit=limit) for limit in (10, 20, 30)]
    assert [reason_of(scenario, job) for job in waiting] == ["Resources", "Priority", "Priority"]


def too_large(scenario: Scenario) -> tuple[int, int, int, int]:
    """A running job, a pending one that lost a GPU which it needs, and two others behind it."""
    running = scenario.submit(limit=600)
    scenario.run(running)
    large = scenario.submit(gpus(2), limit=600)
    scenario.tell(e.DevicesDrained(at=scenario.now, devices=(("box", "gpu", "1"),), reason="fan"))
    return running, large, scenario.submit(limit=600), scenario.submit(limit=600)


def test_a_job_that_no_node_can_run_is_not_what_others_wait_for() -> None:
    scenario = Scenario(gpus=2)
    running, large, second, third = too_large(scenario)

    def reasons() -> list[tuple[str | None, str | None]]:
        jobs = [scenario.job(job) for job in (large, second, third)]
        return [reason(scenario.state, job, scenario.now) for job in jobs]

    def unblocks(job: int) -> tuple[str, ...]:
        state, now = scenario.state, scenario.now
        return explain_job(state, scenario.job(job), now, now, unknown).unblocks

    assert reasons()[1:] == [
        ("Resources", "needs 1 GPU"), ("Priority", f"behind job {second}"),
    ]  # fmt: skip
    assert reasons()[0][0] == "Resources"
    assert unblocks(second) == (f"job {running} ends in at most 10 min",)
    assert unblocks(third) == (f"job {second} starts first, ahead of it",)
    scenario.tell(e.DevicesUndrained(at=scenario.now, devices=(("box", "gpu", "1"),)))
    assert [code for code, _ in reasons()] == ["Resources", "Priority", "Priority"]
    assert unblocks(second) == (f"job {large} starts first: devices are reserved for it",)


def test_in_strict_order_a_job_that_no_node_can_run_blocks_its_queue() -> None:
    scenario = Scenario(gpus=2)
    scenario.tell(e.PolicyChosen(at=scenario.now, queue="*", name="fifo", parameters={}))
    running, large, second, _ = too_large(scenario)
    first = (
        f"job {large} starts first: this queue does not backfill, and no available node can run it",
    )

    def unblocks() -> tuple[str, ...]:
        state, now = scenario.state, scenario.now
        return explain_job(state, scenario.job(second), now, now, unknown).unblocks

    assert unblocks() == first
    scenario.exited(running)
    code, text = reason(scenario.state, scenario.job(second), scenario.now)
    assert code == "Priority"
    assert text == (
        f"behind job {large}, which no available node can run and which blocks its queue"
    )
    assert unblocks() == first


def test_the_limit_of_an_array_is_a_reason() -> None:
    scenario = Scenario(gpus=4)
    array = scenario.submit(count=3, array=True, array_limit=1, limit=60)
    scenario.plan()
    assert reason_of(scenario, array + 2) == "JobArrayTaskLimit"


def test_a_job_blocked_by_a_quota_is_not_the_queue_head() -> None:
    scenario = Scenario(gpus=2)
    scenario.submit(gpus(0.5), count=3, array=True, array_limit=2)
    scenario.plan()
    big = scenario.submit(gpus(2))
    assert reason_of(scenario, big) == "Resources"


def test_a_running_job_on_an_unreachable_node_has_a_reason() -> None:
    scenario = Afar(gpus=0)
    scenario.add("ant", gpus=1)
    job = scenario.submit()
    scenario.run(job)
    scenario.silent("ant", "no route to host")
    scenario.now += 90
    explanation = "ant has been unreachable for 1:30 (no route to host)"
    assert reason(scenario.state, scenario.job(job), scenario.now) == (
        "NodeUnreachable",
        explanation,
    )
    answer = explain_job(scenario.state, scenario.job(job), scenario.now, scenario.boot, unknown)
    assert answer.text.startswith(f"{explanation}; whether it runs is known when ant answers")
    scenario.reached("ant")
    assert reason_of(scenario, job) is None


def test_only_requested_nodes_are_explained_also_if_never_reached() -> None:
    scenario = Afar(gpus=0)
    scenario.add("ant", gpus=1)
    scenario.tell(e.NodeAdded(at=scenario.now, name="bee", address="ssh://bee"))
    scenario.silent("bee", "no such host")
    scenario.run(scenario.submit())
    anywhere, there = scenario.submit(), scenario.submit(replace(gpus(1), nodes=("ant",)))

    def nodes(job: int) -> dict[str, list[str]]:
        found = explain_job(scenario.state, scenario.job(job), scenario.now, scenario.boot, unknown)
        return {view.node: [each.text for each in view.constraints] for view in found.nodes}

    assert list(nodes(there)) == ["ant"]
    assert list(nodes(anywhere)) == ["box", "ant", "bee"]
    assert nodes(anywhere)["bee"] == ["the resources of bee are not known yet: no such host"]


def test_a_cancelled_start_has_a_reason() -> None:
    scenario = Scenario(gpus=1)
    job = scenario.submit()
    scenario.plan()
    scenario.about(e.StartCancelled, job, why="no space left on gpu1", delay=10.0)
    code, text = reason(scenario.state, scenario.job(job), scenario.now)
    assert code == "BeginTime"
    assert text == "tries again in 0:10: no space left on gpu1"


def test_unreachable_nodes_are_the_reason_if_no_other_node_is_suitable() -> None:
    scenario = Afar(gpus=0)
    scenario.add("ant", gpus=1)
    scenario.add("bee", gpus=0)
    scenario.silent("ant", "no route to host")
    scenario.now += 90
    there = replace(ResourceRequest(cpus=1000), nodes=("ant",))
    first, second = scenario.submit(there), scenario.submit(there)
    anywhere, both = scenario.submit(gpus(1)), scenario.submit(replace(there, nodes=("ant", "bee")))
    explanation = ("NodeUnreachable", "waits for ant, unreachable for 1:30")
    for job in (first, second, anywhere):
        assert reason(scenario.state, scenario.job(job), scenario.now) == explanation
    assert reason_of(scenario, both) != "NodeUnreachable"
    pair = scenario.submit(replace(there, nodes=("ant", "bee"), node_count=2))
    assert reason(scenario.state, scenario.job(pair), scenario.now) == explanation
    answer = explain_job(scenario.state, scenario.job(second), scenario.now, scenario.boot, unknown)
    assert answer.queue_position is not None
    assert (answer.reason, answer.queue_position.position) == ("NodeUnreachable", 2)
    assert "ant is unreachable: no route to host" in answer.text


def test_an_explanation_says_what_to_do_about_an_unreachable_node() -> None:
    scenario = Afar(gpus=0)
    scenario.add("ant", gpus=1)
    job = scenario.submit()
    scenario.run(job)
    scenario.silent("ant")

    def explanation() -> str:
        return explain_job(
            scenario.state, scenario.job(job), scenario.now, scenario.boot, unknown
        ).text

    assert (
        f"abandon it with stoker nodes remove ant --force, then stoker retry {job}" in explanation()
    )
    scenario.tell(e.JobCancelled(at=scenario.now, job=job))
    assert "it ends when ant answers" in explanation()
    assert "runs on" not in explanation()


def test_a_starting_job_is_not_assumed_to_run() -> None:
    scenario = Afar(gpus=0)
    scenario.add("ant", gpus=1)
    scenario.add("bee", gpus=1)
    gang = scenario.submit(replace(gpus(1), node_count=2))
    alone = scenario.submit(replace(ResourceRequest(cpus=1000), nodes=("ant",)))
    scenario.plan()
    scenario.silent("bee")
    explanation = explain_job(
        scenario.state, scenario.job(gang), scenario.now, scenario.boot, unknown
    ).text
    assert "whether it runs is known when bee answers" in explanation
    scenario.silent("ant")
    explanation = explain_job(
        scenario.state, scenario.job(alone), scenario.now, scenario.boot, unknown
    ).text
    assert "whether it runs is known when ant answers" in explanation
    assert "runs on there" not in explanation


def test_a_removed_node_is_a_reason() -> None:
    scenario = Afar()
    scenario.add("ant")
    job = scenario.submit(replace(gpus(1), nodes=("ant",)))
    scenario.tell(e.NodeRemoved(at=scenario.now, name="ant"))
    explanation = reason(scenario.state, scenario.job(job), scenario.now)
    assert explanation == ("ReqNodeNotAvail", f"ant was removed; stoker edit {job} -w NODE")


def test_the_gpus_of_a_queue_may_be_named_with_their_node() -> None:
    scenario = Scenario(gpus=2)
    holders = [scenario.submit(gpus(1)) for _ in range(2)]
    for job in holders:
        scenario.run(job)
    (node,) = scenario.state.cluster.nodes
    request = ResourceRequest(gpus=GpuRequest(1000, allowed=(f"{node}/0",)))
    now = scenario.now
    (view,) = node_constraints(scenario.state, scenario.job(holders[0]), request, now, now)
    (constraint,) = view.constraints
    assert [detail.split(" (")[0] for detail in constraint.details] == [
        f"GPU 0 is held by job {holders[0]}"
    ]
