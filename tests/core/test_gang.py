"""Attempts on several machines: they begin together, and one part's death ends the whole."""

from typing import Any

import pytest
from msgspec.structs import replace

from core.scenario import Afar, gpus, node
from simulation.state_comparison import state_as_dict
from stoker.core import events as e
from stoker.core.events.instructions import (
    ResumeAttempt,
    RunJobEndHook,
    RunQueueEmptyHook,
    StartProcess,
    SuspendAttempt,
    TerminateAttempt,
)
from stoker.core.model.resources import ResourceRequest
from stoker.core.model.spec import Retry
from stoker.core.placement.placer import find_placement
from stoker.core.state.timers import next_wakeup
from stoker.daemon.submission.checks import check_satisfiable
from stoker.engine import CommandRejected


def together(machines: int = 2, each: float = 1) -> ResourceRequest:
    return replace(gpus(each), node_count=machines)


def three() -> Afar:
    story = Afar(gpus=2)
    story.add("ant")
    story.add("bee")
    return story


def gang(machines: int = 2, **fields: Any) -> tuple[Afar, int]:
    """A job that runs on several machines of two GPUs each."""
    story = three()
    job = story.submit(together(machines, 2), **fields)
    story.plan()
    for part in range(machines):
        story.part(e.ProcessStarted, job, part, pid=70 + part, boot=story.boot)
    assert story.is_(job) == "RUNNING"
    return story, job


def over(story: Afar, job: int, part: int, code: int | None = 0, **more: Any):
    return story.part(e.ProcessExited, job, part, code=code, **more)


ENDED = [TerminateAttempt(1, 0)]


# -------------------------------------------------------------------------------- placement


def test_all_machines_are_taken_at_once_and_given_back_at_once():
    story = three()
    job = story.submit(together(3, 2))
    planned = e.AttemptPlanned(
        at=story.now, job=job, attempt=0, boot=story.boot,
        placement=find_placement(story.state.cluster, together(3, 2)),  # type: ignore[arg-type]
    )  # fmt: skip
    assert story.tell(planned) == [StartProcess(job, 0, planned.placement)]
    assert story.where(job) == ["box", "ant", "bee"]
    assert all(story.free(node=name) == {"0": 0, "1": 0} for name in story.where(job))
    assert story.placed(job).gpu_amount == 6000
    for part in (2, 0):
        over(story, job, part)
        assert story.free(node="bee") == {"0": 0, "1": 0}
    over(story, job, 1)
    assert story.all_free()


def test_it_waits_until_as_many_machines_have_room():
    story = three()
    small = [story.submit(gpus(2)) for _ in range(2)]
    story.run(*small)
    job = story.submit(together(2, 2))
    assert story.plan() == []
    story.exited(small[0])
    assert story.plan() == [job]
    assert set(story.where(job)) == {"box", "ant", "bee"} - {story.job(small[1]).placement.node}  # type: ignore[union-attr]


def test_silent_and_excluded_machines_do_not_count():
    story = three()
    story.silent("ant")
    job = story.submit(together(2))
    assert story.plan() == [job]
    assert story.where(job) == ["box", "bee"]
    waits = story.submit(replace(together(2), not_nodes=("box",)))
    assert story.plan() == []
    story.reached("ant")
    assert story.plan() == [waits]
    assert sorted(story.where(waits)) == ["ant", "bee"]


def test_the_parts_go_where_a_single_job_would_go_first():
    story = three()
    story.run(
        story.submit(gpus(1, required=("1",))),
        story.submit(ResourceRequest(cpus=1, nodes=("ant",))),
    )
    job = story.submit(together(2))
    story.plan()
    assert story.where(job) == ["box", "ant"]  # the fuller in GPUs, then the fuller in cores


def test_what_cannot_be_on_so_many_machines_is_refused():
    story = three()
    check_satisfiable(story.state, together(3, 2))
    with pytest.raises(
        CommandRejected, match=r"on each of 4 nodes requested; there are only 3 nodes\."
    ):
        check_satisfiable(story.state, together(4))
    story.tell(e.NodeJoined(at=story.now, facts=node(1, name="bee")))
    with pytest.raises(CommandRejected, match="only 2 of 3 nodes can run it; bee has 1 GPU, not 2"):
        check_satisfiable(story.state, together(3, 2))
    with pytest.raises(CommandRejected, match="only 1 of 3 nodes can run it; add nodes"):
        check_satisfiable(story.state, replace(together(2), nodes=("ant",)))


def test_a_queue_counts_the_gpus_of_all_parts():
    story = three()
    story.tell(e.QueueDefined(at=0, name="night", max_gpus=3000))
    wide, narrow = story.submit(together(2, 2), queue="night"), story.submit(queue="night")
    assert story.plan() == [narrow]
    story.tell(e.QueueDefined(at=0, name="night", max_gpus=5000))
    assert story.plan() == [wide]
    assert story.state.quotas.queue_gpus == {"night": 5000}


def test_nothing_without_a_limit_slips_in_where_it_would_delay_several_machines():
    story = three()
    runs = story.submit(gpus(2), limit=100)
    story.run(runs)
    wide, long, short = (
        story.submit(together(3, 2)), story.submit(), story.submit(limit=50),
    )  # fmt: skip
    assert story.plan() == [short]
    story.exited(runs)
    story.started(short)
    story.exited(short)
    assert story.plan() == [wide]
    assert story.is_(long) == "PENDING"


def test_a_waiting_job_can_be_edited_to_need_several_machines_and_back():
    story = three()
    story.run(*[story.submit(gpus(2), limit=99) for _ in range(2)])
    job = story.submit()
    spec = replace(story.state.spec(story.job(job)), request=together(2))
    story.tell(e.SpecRecorded(at=story.now, hash="wide", spec=spec))
    narrow = story.job(job).spec
    story.fact(e.JobEdited, job, spec="wide", name="job", priority=0)
    assert story.plan() == []
    story.tell(e.SpecRecorded(at=story.now, hash=narrow, spec=replace(spec, request=gpus(1))))
    story.fact(e.JobEdited, job, spec=narrow, name="job", priority=0)
    assert story.plan() == [job]


def test_another_go_of_several_parts_is_not_tied_to_one_of_their_machines():
    story, job = gang()
    over(story, job, 0, 1)
    over(story, job, 1, 1)
    story.fact(e.JobRetried, job, same_devices=True)
    assert story.plan() == [job]
    assert len(story.where(job)) == 2


# ------------------------------------------------------------------------------------- ends


def test_it_runs_from_its_first_part_on_and_has_the_process_of_part_zero():
    story = three()
    job = story.submit(together(2), limit=60)
    story.plan()
    story.part(e.ProcessStarted, job, 1, pid=8, boot=story.boot)
    assert (story.is_(job), story.job(job).pid) == ("RUNNING", None)
    story.now += 5
    story.part(e.ProcessStarted, job, 0, pid=7, boot=story.boot)
    assert (story.job(job).pid, story.job(job).started_at) == (7, story.now - 5)


def test_all_parts_at_zero_are_a_success():
    story, job = gang(3)
    assert over(story, job, 1) == []
    assert over(story, job, 2) == []
    assert story.is_(job) == "RUNNING"
    assert over(story, job, 0) == [RunJobEndHook(job), RunQueueEmptyHook()]
    assert (story.is_(job), story.job(job).code, story.job(job).note) == ("COMPLETED", 0, None)


def test_what_is_to_be_known_of_its_parts_is_known_of_the_whole():
    story, job = gang(3)
    over(story, job, 1, note="r was changed locally")
    over(story, job, 0)
    over(story, job, 2, note="left 1 process behind")
    assert story.is_(job) == "COMPLETED"
    assert story.job(job).note == ("r was changed locally (ant); left 1 process behind (bee)")


def test_a_part_that_found_nothing_to_do_lets_the_others_go_on():
    story, job = gang()
    assert over(story, job, 0, 77) == []
    assert story.is_(job) == "RUNNING"
    over(story, job, 1, 0)
    assert story.is_(job) == "COMPLETED"
    story, job = gang()
    over(story, job, 0, 77)
    over(story, job, 1, 77)
    assert (story.is_(job), story.job(job).cause) == ("COMPLETED", "skipped (exit 77)")


BAD_ENDS: list[tuple[type[e.Event], dict[str, Any], str, str]] = [
    (e.ProcessExited, {"code": 3}, "FAILED", "exit 3"),
    (e.ProcessExited, {"signal": 9}, "FAILED", "killed by SIGKILL"),
    (e.ProcessExited, {"signal": 9, "memory": "host"}, "OUT_OF_MEMORY", "out of memory"),
    (e.ProcessExited, {"code": 1, "memory": "cuda"}, "OUT_OF_MEMORY", "CUDA out of memory"),
    (e.StartFailed, {"why": "no such program"}, "FAILED", "no such program (ant)"),
    (e.AttemptLost, {"why": "it restarted"}, "NODE_FAIL", "lost: it restarted (ant)"),
]


@pytest.mark.parametrize(("kind", "fields", "state", "cause"), BAD_ENDS)
@pytest.mark.parametrize("others", ["terminated", "fine", "lost"])
def test_one_bad_part_ends_the_others_and_decides(kind, fields, state, cause, others: str):
    story, job = gang(3)
    over(story, job, 2, 0)  # one had been done before
    assert story.part(kind, job, 1, **fields) == ENDED
    assert story.is_(job) == "COMPLETING"
    assert not story.all_free()
    if others == "lost":
        story.part(e.AttemptLost, job, 0, why="later")
    else:
        over(story, job, 0, **({"code": 0} if others == "fine" else {"code": None, "signal": 15}))
    assert (story.is_(job), story.job(job).cause) == (state, cause)
    assert story.all_free()
    if kind is e.ProcessExited:
        assert story.job(job).note == "its part 1 on ant ended first"
        assert (story.job(job).code, story.job(job).signal) == (
            fields.get("code"), fields.get("signal"),
        )  # fmt: skip


def test_the_others_are_ended_once():
    story, job = gang(3)
    assert over(story, job, 0, 1) == ENDED
    assert over(story, job, 1, None, signal=15) == []
    assert over(story, job, 2, None, signal=15) == [RunJobEndHook(job), RunQueueEmptyHook()]
    assert story.job(job).cause == "exit 1"


@pytest.mark.parametrize(
    ("kind", "fields", "on"),
    [
        (e.AttemptLost, {"why": "it restarted"}, "lost"),
        (e.ProcessExited, {"code": 4}, "exit:4"),
        (e.ProcessExited, {"signal": 9, "memory": "host"}, "oom"),
    ],
)
def test_the_retry_rule_sees_the_bad_part(kind, fields, on: str):
    story, job = gang(retry=Retry(1, (on,)))
    story.part(kind, job, 1, **fields)
    over(story, job, 0, None, signal=15)
    assert (story.is_(job), story.job(job).attempt) == ("PENDING", 1)
    story.wait(10)
    assert story.plan() == [job]
    assert story.job(job).ends == ()
    over(story, job, 0, attempt=0)  # of the first attempt
    assert story.job(job).ends == ()
    over(story, job, 0)
    over(story, job, 1)
    assert story.is_(job) == "COMPLETED"


def test_a_part_that_asks_to_be_requeued_has_all_of_it_requeued():
    story, job = gang()
    assert over(story, job, 1, 75) == ENDED
    over(story, job, 0, None, signal=15)
    assert (story.is_(job), story.job(job).requeues, story.job(job).retries) == ("PENDING", 1, 0)


def cancelled(story: Afar, job: int):
    return story.fact(e.JobCancelled, job)


def out_of_time(story: Afar, job: int):
    return story.about(e.TimeLimitReached, job)


def too_late(story: Afar, job: int):
    return story.fact(e.DeadlinePassed, job)


@pytest.mark.parametrize(
    ("act", "state"),
    [(cancelled, "CANCELLED"), (out_of_time, "TIMEOUT"), (too_late, "DEADLINE")],
)
@pytest.mark.parametrize("code", [0, 1, 77, None])
def test_ended_on_purpose_it_holds_everything_until_its_last_part_is_gone(act, state, code):
    story, job = gang()
    assert act(story, job) == ENDED
    assert over(story, job, 1, code) == []
    assert not story.all_free()
    assert over(story, job, 0, None, signal=15) == [RunJobEndHook(job), RunQueueEmptyHook()]
    assert story.is_(job) == state
    assert story.all_free()


@pytest.mark.parametrize("act", [out_of_time, too_late])
def test_what_ends_already_is_not_ended_again(act):
    story, job = gang()
    over(story, job, 1, 5)
    assert act(story, job) == []
    over(story, job, 0, None, signal=15)
    assert (story.is_(job), story.job(job).cause) == ("FAILED", "exit 5")


def test_its_owner_may_cancel_what_ends_already_and_at_once():
    story, job = gang(retry=Retry(5))
    over(story, job, 1, 5)
    assert story.fact(e.JobCancelled, job, at_once=True) == [TerminateAttempt(job, 0, True)]
    over(story, job, 0, None, signal=9)
    assert story.is_(job) == "CANCELLED"


def test_a_time_limit_counts_from_the_first_start():
    story = three()
    job = story.submit(together(2), limit=60)
    story.plan()
    story.now += 10
    story.part(e.ProcessStarted, job, 1, pid=8, boot=story.boot)
    story.now += 10
    story.part(e.ProcessStarted, job, 0, pid=7, boot=story.boot)
    assert next_wakeup(story.state, story.now, story.boot) == 50


def test_a_pause_stops_all_of_it_and_a_part_may_die_in_it():
    story, job = gang()
    assert story.fact(e.JobPaused, job, boot=story.boot) == [SuspendAttempt(job, 0)]
    assert story.fact(e.JobResumed, job, boot=story.boot) == [ResumeAttempt(job, 0)]
    story.fact(e.JobPaused, job, boot=story.boot)
    assert over(story, job, 0, None, signal=9) == ENDED
    over(story, job, 1, None, signal=15)
    assert story.is_(job) == "FAILED"


def test_a_start_that_was_called_off_frees_all_machines_and_leaves_no_trace():
    story = three()
    job = story.submit(together(3))
    story.plan()
    story.part(e.StartFailed, job, 2, why="its disk is full")
    story.about(e.StartCancelled, job, why="ant was not ready", delay=5.0)
    assert (story.is_(job), story.job(job).attempt) == ("PENDING", 1)
    assert (story.job(job).ends, story.job(job).pid) == ((), None)
    assert story.all_free()
    assert story.plan() == []
    story.wait(5)
    assert story.plan() == [job]


def test_a_cancelled_start_that_was_called_off_is_over():
    story = three()
    job = story.submit(together(3))
    story.plan()
    assert story.fact(e.JobCancelled, job) == ENDED
    story.about(e.StartCancelled, job, why="ant was not ready")
    assert story.is_(job) == "CANCELLED"
    assert story.all_free()


@pytest.mark.parametrize("kind", [e.ProcessExited, e.AttemptLost, e.StartFailed])
def test_what_is_told_of_a_part_twice_counts_once(kind):
    story, job = gang(3)
    over(story, job, 1, 0)
    before = state_as_dict(story.state)
    more = {"code": 9} if kind is e.ProcessExited else {"why": "told late"}
    assert story.part(kind, job, 1, **more) == []
    assert state_as_dict(story.state) == before


# ------------------------------------------------------------------------------ silent parts


def test_a_part_on_a_silent_machine_holds_all_of_it():
    story, job = gang()
    story.silent("ant")
    over(story, job, 0, 1)
    assert story.is_(job) == "COMPLETING"
    assert story.wait(1e6) == []
    assert not story.all_free()
    over(story, job, 1, None, signal=15)
    story.reached("ant")
    assert story.is_(job) == "FAILED"


def test_a_time_limit_ends_the_parts_that_can_be_reached():
    story, job = gang(limit=60)
    story.silent("ant")
    assert [type(fact) for fact in story.wait(60)] == [e.TimeLimitReached]
    over(story, job, 0, None, signal=15)
    assert story.is_(job) == "COMPLETING"
    story, job = gang(limit=60)
    story.silent("ant")
    over(story, job, 0, 0)
    assert story.wait(60) == []


def test_a_silent_part_that_is_given_up_ends_the_others_and_all_of_it_goes_elsewhere():
    story, job = gang(if_unreachable=60)
    assert story.where(job) == ["box", "ant"]
    story.silent("ant")
    [given_up] = story.wait(60)
    assert given_up == e.AttemptAbandoned(at=story.now, job=job, attempt=0, node="ant")
    assert story.is_(job) == "COMPLETING"
    assert story.wait(60) == []  # once is enough
    over(story, job, 0, None, signal=15)
    assert story.job(job).cause == "lost: ant was unreachable"
    assert story.state.record.abandoned_attempts == {"ant": ((job, 0),)}
    assert story.plan() == [job]
    assert sorted(story.where(job)) == ["bee", "box"]
    over(story, job, 1, 0, attempt=0)
    story.reached("ant", (job, 0))
    assert story.is_(job) == "CONFIGURING"
    assert story.state.record.abandoned_attempts == {}


def test_a_given_up_part_that_comes_back_before_the_others_are_gone_does_not_count():
    story, job = gang(if_unreachable=60)
    story.silent("ant")
    story.wait(60)
    over(story, job, 1, 0)
    story.reached("ant", (job, 0))
    assert story.is_(job) == "COMPLETING"
    over(story, job, 0, 0)
    assert story.is_(job) == "PENDING"


def test_when_all_machines_are_silent_each_is_given_up_at_its_own_time():
    story = Afar(gpus=0)
    for name in ("ant", "bee", "cat"):
        story.add(name)
    job = story.submit(together(2), if_unreachable=60)
    story.plan()
    assert story.where(job) == ["ant", "bee"]
    story.silent("ant")
    story.wait(30)
    story.silent("bee")
    [first] = story.wait(30)
    assert first.node == "ant"  # type: ignore[attr-defined]
    assert story.is_(job) == "COMPLETING"
    [second] = story.wait(30)
    assert second.node == "bee"  # type: ignore[attr-defined]
    assert story.is_(job) == "PENDING"
    assert story.state.record.abandoned_attempts == {"ant": ((job, 0),), "bee": ((job, 0),)}


def test_a_part_that_failed_before_another_was_given_up_decides():
    story, job = gang(3, if_unreachable=60)
    over(story, job, 0, 3)
    story.silent("ant")
    over(story, job, 2, None, signal=15)
    story.wait(60)
    assert (story.is_(job), story.job(job).cause) == ("FAILED", "exit 3")
    assert story.state.record.abandoned_attempts == {"ant": ((job, 0),)}


def test_a_cancelled_one_with_a_silent_part_is_over_when_that_is_given_up():
    story, job = gang(if_unreachable=60, retry=Retry(5))
    story.silent("ant")
    story.fact(e.JobCancelled, job)
    over(story, job, 0, None, signal=15)
    story.wait(60)
    assert story.is_(job) == "CANCELLED"
    assert story.all_free()


def test_a_part_that_is_over_is_not_given_up():
    story, job = gang(if_unreachable=60)
    over(story, job, 1, 0)
    story.silent("ant")
    assert story.wait(99) == []
    over(story, job, 0, 0)
    assert story.is_(job) == "COMPLETED"


def test_a_reboot_here_loses_the_part_here_and_ends_the_others():
    story, job = gang(retry=Retry(1, ("lost",)), limit=500)
    story.restart(rebooted=True)
    assert story.part(e.AttemptLost, job, 0, why="the node restarted") == ENDED
    story.reached("ant")
    over(story, job, 1, None, signal=15)
    assert story.is_(job) == "PENDING"
    assert story.job(job).past[-1].cause == "lost: the node restarted (box)"


# -------------------------------------------------------------------- a machine is removed


def test_a_machine_of_a_gang_is_removed_while_the_other_part_ends():
    story, job = gang()
    removed = story.where(job).index("ant")
    assert story.about(e.AttemptLost, job, why="ant was removed", part=removed) == ENDED
    story.tell(e.NodeRemoved(at=story.now, name="ant"))
    story.submit(ResourceRequest())  # asks for nothing: it would fit on a machine without devices
    story.submit(gpus(2), limit=60)
    later = story.submit(gpus(2), limit=60)
    waits = story.submit(together(3, 2))
    for id in story.plan():
        assert "ant" not in story.where(id)
    assert story.is_(later) == "PENDING"
    story.restart()
    over(story, job, 1 - removed)
    assert "ant" not in story.state.cluster.nodes
    assert story.is_(job) == "NODE_FAIL"
    assert story.plan() == [later]
    assert story.is_(waits) == "PENDING"


def test_a_machine_that_was_removed_from_a_gang_can_be_added_again_before_it_ends():
    story, job = gang()
    removed = story.where(job).index("ant")
    story.about(e.AttemptLost, job, why="ant was removed", part=removed)
    story.tell(e.NodeRemoved(at=story.now, name="ant"))
    story.add("cat")
    story.add("ant")  # memory is compared with what rows give, also the order of machines
    assert story.state.cluster.nodes["ant"].unavailable_reason is None
    over(story, job, 1 - removed)
    assert story.all_free()
    assert "ant" in story.state.cluster.nodes
