"""Why a job waits, and when it may start."""

import pytest
from msgspec.structs import replace

from core.scenario import Afar, Scenario, gpus
from stoker.core import events as e
from stoker.core.dependency import Clause, Dependency
from stoker.core.explain import reason, why
from stoker.core.job import Job
from stoker.core.outlook import Kind, Span
from stoker.core.request import Request


def unknown(_: Job) -> Span | None:
    """No forecast."""
    return None


def reason_of(story: Scenario, job: int) -> str | None:
    return reason(story.state, story.job(job), story.now)[0]


def test_a_running_job_has_no_reason() -> None:
    story = Scenario(gpus=1)
    job = story.submit()
    story.run(job)
    assert reason_of(story, job) is None
    told = why(story.state, story.job(job), story.now, story.now, unknown)
    assert told.text == "it is not waiting for anything"


@pytest.mark.parametrize(("code", "text"), [(2, "exit 2"), (0, "")])
def test_a_finished_job_is_explained_by_its_cause(code: int, text: str) -> None:
    story = Scenario()
    story.run(job := story.submit())
    story.exited(job, code)
    assert why(story.state, story.job(job), story.now, story.boot, unknown).text == text


def test_the_first_that_does_not_fit_waits_for_resources_and_the_next_for_its_turn() -> None:
    story = Scenario(gpus=1)
    first, second, third = story.submit(), story.submit(), story.submit()
    story.run(first)
    assert [reason_of(story, job) for job in (second, third)] == ["Resources", "Priority"]


def test_every_kind_of_waiting_has_its_word() -> None:
    story = Scenario(gpus=1)
    running = story.submit(limit=60)
    story.run(running)
    held = story.submit(held=True)
    later = story.submit(begin_at=story.now + 60)
    behind = story.submit(dependency=Dependency((Clause("afterok", (running,)),)))
    array = story.submit(Request(cpus=1000), count=2, array=True, array_limit=1)
    story.plan()
    assert reason_of(story, held) == "JobHeldUser"
    assert reason_of(story, later) == "BeginTime"
    assert reason_of(story, behind) == "Dependency"
    assert reason_of(story, array + 1) == "JobArrayTaskLimit"
    story.exited(running, code=1)
    assert reason_of(story, behind) == "DependencyNeverSatisfied"


def test_why_names_each_gpu_and_who_has_it() -> None:
    story = Scenario(gpus=3)
    mine = story.submit(limit=600)
    story.run(mine)
    story.tell(e.DevicesDrained(at=story.now, devices=(("box", "gpu", "1"),), reason="fan"))
    story.tell(
        e.ForeignUseChanged(at=story.now, node="box", device="2", stranger="bob's python (pid 8)")
    )
    waiting = story.submit(gpus(2))
    story.plan()
    told = why(story.state, story.job(waiting), story.now, story.now, unknown)
    (constraint,) = told.nodes[0].constraints
    assert constraint.text == "needs 2 GPUs, 0 free on box"
    assert constraint.details == (
        "GPU 0 is held by job 1 (at most 10:00 more)",
        "GPU 1 is drained (fan)",
        "GPU 2 is used by bob's python (pid 8)",
    )


def test_why_names_the_foreign_use_that_would_have_to_end() -> None:
    story = Scenario(gpus=4)
    running = story.submit(limit=600)
    story.run(running)

    def used(device: str, mark: str) -> None:
        story.tell(e.ForeignUseChanged(at=story.now, node="box", device=device, stranger=mark))

    used("1", "the stoker of ana")
    used("2", "the stoker of ana")
    used("3", "bob's python (pid 8)")

    def unblocks(job: int) -> tuple[str, ...]:
        found = why(story.state, story.job(job), story.now, story.now, unknown).unblocks
        return tuple(line for line in found if line.startswith("GPU"))

    one, three = story.submit(gpus(1)), story.submit(gpus(3))
    story.plan()
    assert unblocks(one) == (
        "GPUs 1 and 2 become free, now used by the stoker of ana",
        "GPU 3 becomes free, now used by bob's python (pid 8)",
    )
    story.tell(e.JobCancelled(at=story.now, job=one))
    assert unblocks(three) == (
        "GPUs 1, 2 and 3 become free, now used by the stoker of ana and bob's python (pid 8)",
    )
    four = story.submit(gpus(4))
    assert unblocks(four) == ()


@pytest.mark.parametrize(
    ("kind", "text"), [(Kind.RUNS, "ends in about 25 min"), (Kind.LIMIT, "ends in at most 25 min")]
)
def test_ends_of_running_jobs_are_those_of_the_forecast(kind: Kind, text: str) -> None:
    story = Scenario(gpus=1)
    first = story.submit(limit=3600)
    story.run(first)
    waiting = story.submit()
    end = Span(story.now, story.now + 1500.0, None, kind, "")
    told = why(story.state, story.job(waiting), story.now, story.now, lambda job: end)
    assert told.unblocks == (f"job {first} {text}",)


def test_nobody_knows_when_a_paused_job_ends() -> None:
    story = Scenario(gpus=2)
    first, second = story.submit(gpus(1), limit=1000), story.submit(gpus(1), limit=2000)
    story.run(first, second)
    waiting = story.submit(gpus(1))
    story.tell(e.JobPaused(at=story.now, job=first, boot=story.now))
    told = why(story.state, story.job(waiting), story.now, story.now, unknown)
    assert told.unblocks == (f"job {second} ends in at most 33 min",)
    story.tell(e.JobPaused(at=story.now, job=second, boot=story.now))
    told = why(story.state, story.job(waiting), story.now, story.now, unknown)
    (said,) = told.unblocks
    assert said.startswith(f"job {first} or {second} ends: no estimate, because job {first}")
    assert said.endswith(f"is paused (stoker resume {first})")
    paused = why(story.state, story.job(first), story.now, story.now, unknown)
    assert paused.text == f"it is paused; to continue it: stoker resume {first}"


def test_nobody_knows_when_an_unlimited_job_ends() -> None:
    story = Scenario(gpus=1)
    first, second = story.submit(), story.submit()
    story.run(first)
    told = why(story.state, story.job(second), story.now, story.now, unknown)
    assert told.position == 1


def test_only_the_very_first_in_line_waits_for_resources() -> None:
    story = Scenario(gpus=1)
    story.run(story.submit())
    waiting = [story.submit(limit=limit) for limit in (10, 20, 30)]
    assert [reason_of(story, job) for job in waiting] == ["Resources", "Priority", "Priority"]


def test_what_waits_for_the_limit_of_its_array_says_so() -> None:
    story = Scenario(gpus=4)
    array = story.submit(count=3, array=True, array_limit=1, limit=60)
    story.plan()
    assert reason_of(story, array + 2) == "JobArrayTaskLimit"


def test_who_waits_for_a_limit_is_not_the_first_in_line() -> None:
    story = Scenario(gpus=2)
    story.submit(gpus(0.5), count=3, array=True, array_limit=2)
    story.plan()
    big = story.submit(gpus(2))
    assert reason_of(story, big) == "Resources"


def test_a_running_job_says_that_its_machine_does_not_answer() -> None:
    story = Afar(gpus=0)
    story.add("ant", gpus=1)
    job = story.submit()
    story.run(job)
    story.silent("ant", "no route to host")
    story.now += 90
    told = "ant has been unreachable for 1:30 (no route to host)"
    assert reason(story.state, story.job(job), story.now) == ("NodeUnreachable", told)
    answer = why(story.state, story.job(job), story.now, story.boot, unknown)
    assert answer.text.startswith(f"{told}; it is assumed to be running there")
    story.reached("ant")
    assert reason_of(story, job) is None


def test_why_speaks_of_the_machines_asked_for_and_of_those_never_reached() -> None:
    story = Afar(gpus=0)
    story.add("ant", gpus=1)
    story.tell(e.NodeAdded(at=story.now, name="bee", address="ssh://bee"))
    story.silent("bee", "no such host")
    story.run(story.submit())
    anywhere, there = story.submit(), story.submit(replace(gpus(1), nodes=("ant",)))

    def nodes(job: int) -> dict[str, list[str]]:
        found = why(story.state, story.job(job), story.now, story.boot, unknown)
        return {view.node: [each.text for each in view.constraints] for view in found.nodes}

    assert list(nodes(there)) == ["ant"]
    assert list(nodes(anywhere)) == ["box", "ant", "bee"]
    assert nodes(anywhere)["bee"] == ["the resources of bee are not known yet: no such host"]


def test_a_start_that_was_called_off_says_why_it_is_tried_again_later() -> None:
    story = Scenario(gpus=1)
    job = story.submit()
    story.plan()
    story.about(e.StartCalledOff, job, why="no space left on gpu1", delay=10.0)
    code, text = reason(story.state, story.job(job), story.now)
    assert code == "BeginTime"
    assert text == "tries again in 0:10: no space left on gpu1"


def test_jobs_whose_machines_all_are_silent_say_so_and_not_that_they_wait_for_their_turn() -> None:
    story = Afar(gpus=0)
    story.add("ant", gpus=1)
    story.add("bee", gpus=0)
    story.silent("ant", "no route to host")
    story.now += 90
    there = replace(Request(cpus=1000), nodes=("ant",))
    first, second = story.submit(there), story.submit(there)
    anywhere, both = story.submit(gpus(1)), story.submit(replace(there, nodes=("ant", "bee")))
    told = ("NodeUnreachable", "waits for ant, unreachable for 1:30")
    for job in (first, second, anywhere):
        assert reason(story.state, story.job(job), story.now) == told
    assert reason_of(story, both) != "NodeUnreachable"
    pair = story.submit(replace(there, nodes=("ant", "bee"), machines=2))
    assert reason(story.state, story.job(pair), story.now) == told
    answer = why(story.state, story.job(second), story.now, story.boot, unknown)
    assert (answer.reason, answer.position) == ("NodeUnreachable", 2)
    assert "ant is unreachable: no route to host" in answer.text


def test_why_says_what_helps_with_a_machine_that_does_not_answer() -> None:
    story = Afar(gpus=0)
    story.add("ant", gpus=1)
    job = story.submit()
    story.run(job)
    story.silent("ant")

    def told() -> str:
        return why(story.state, story.job(job), story.now, story.boot, unknown).text

    assert f"abandon it with stoker nodes remove ant --force, then stoker retry {job}" in told()
    story.tell(e.JobCancelled(at=story.now, job=job))
    assert "it ends when ant answers" in told()
    assert "runs on" not in told()


def test_what_is_still_being_started_is_not_said_to_run_on() -> None:
    story = Afar(gpus=0)
    story.add("ant", gpus=1)
    story.add("bee", gpus=1)
    gang = story.submit(replace(gpus(1), machines=2))
    alone = story.submit(replace(Request(cpus=1000), nodes=("ant",)))
    story.plan()
    story.silent("bee")
    told = why(story.state, story.job(gang), story.now, story.boot, unknown).text
    assert "it is starting; its parts wait for each other until bee answers" in told
    story.silent("ant")
    told = why(story.state, story.job(alone), story.now, story.boot, unknown).text
    assert "whether it runs is known when ant answers" in told
    assert "runs on there" not in told


def test_a_job_for_a_machine_that_was_removed_says_so() -> None:
    story = Afar()
    story.add("ant")
    job = story.submit(replace(gpus(1), nodes=("ant",)))
    story.tell(e.NodeRemoved(at=story.now, name="ant"))
    told = reason(story.state, story.job(job), story.now)
    assert told == ("ReqNodeNotAvail", f"ant was removed; stoker edit {job} -w NODE")
