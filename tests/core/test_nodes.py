"""Remote nodes: added, unreachable, reached again and removed, and what becomes of their jobs."""

import pytest
from msgspec.structs import replace

from core.scenario import Afar, gpus, node
from stoker.core import events as e
from stoker.core.events.instructions import TerminateAttempt
from stoker.core.explain.why import explain_job
from stoker.core.measurement.estimator import likely_hardware
from stoker.core.model.resources import ResourceRequest
from stoker.core.model.spec import Retry
from stoker.core.placement.placer import find_placement
from stoker.core.state.record import Unreachable
from stoker.core.state.timers import next_wakeup
from stoker.daemon.submission.checks import check_satisfiable
from stoker.engine import CommandRejected

HOUR = 3600


def on_ant(**fields: object) -> tuple[Afar, int]:
    """A job that runs on a machine over SSH, since this one has no GPU."""
    story = Afar(gpus=0)
    story.add("ant", gpus=1)
    job = story.submit(**fields)  # type: ignore[arg-type]
    story.run(job)
    assert story.where(job) == ["ant"]
    return story, job


def until_due(story: Afar) -> float | None:
    return next_wakeup(story.state, story.now, story.boot)


# ------------------------------------------------------------------------ they come and go


def test_a_node_takes_jobs_once_it_is_reached():
    story = Afar(gpus=0)
    job = story.submit()
    story.tell(e.NodeAdded(at=story.now, name="ant", address="ssh://ant"))
    assert story.plan() == []
    story.tell(e.NodeJoined(at=story.now, facts=node(1, name="ant")))
    assert story.state.cluster.nodes["ant"].unavailable_reason == "it has not been reached yet"
    assert story.plan() == []
    story.reached("ant")
    assert story.state.pending.planning_requested
    assert story.plan() == [job]


def test_an_unreachable_node_gets_no_job_and_its_jobs_keep_their_devices():
    story = Afar(gpus=0)
    story.add("ant", gpus=2)
    runs = story.submit()
    story.run(runs)
    story.silent("ant", "no route to host")
    waits = story.submit()
    assert story.plan() == []
    assert story.free(node="ant") == {"0": 0, "1": 1000}
    assert story.is_(runs) == "RUNNING"
    found = explain_job(story.state, story.job(waits), story.now, story.boot, lambda _: None)
    assert "ant is unreachable: no route to host" in found.text
    story.reached("ant")
    assert story.plan() == [waits]
    story.exited(runs)
    assert story.is_(runs) == "COMPLETED"


def test_what_ended_during_a_silence_ends_as_it_did():
    story, job = on_ant()
    story.silent("ant")
    story.now += 9999
    story.exited(job, 3)
    story.reached("ant")
    assert (story.is_(job), story.job(job).code) == ("FAILED", 3)
    assert story.all_free()


def test_a_time_limit_that_passes_while_unreachable_applies_when_the_node_is_back():
    in_time, job = on_ant(limit=60)
    in_time.silent("ant")
    assert until_due(in_time) is None
    assert in_time.wait(100) == []
    in_time.exited(job, 0)
    in_time.reached("ant")
    assert in_time.is_(job) == "COMPLETED"
    too_long, job = on_ant(limit=60)
    too_long.silent("ant")
    assert too_long.wait(100) == []
    too_long.reached("ant")
    assert [type(fact) for fact in too_long.wait(0)] == [e.TimeLimitReached]


def test_a_repeated_unreachable_event_keeps_the_first_time():
    story, _ = on_ant()
    began = story.now
    story.silent("ant")
    story.now += 60
    story.silent("ant", "connection refused")
    assert story.state.record.unreachable["ant"] == Unreachable(began, began, "connection refused")


def test_a_removed_node_leaves_nothing_behind():
    story, job = on_ant()
    story.exited(job)
    story.tell(e.DevicesDrained(at=story.now, devices=(("ant", "gpu", "0"),), reason="fan"))
    story.measured("ant", 500, 500)
    story.tell(e.NodeRemoved(at=story.now, name="ant"))
    rest = story.state.record
    assert list(story.state.cluster.nodes) == ["box"]
    assert [
        rest.remotes,
        rest.unreachable,
        rest.foreign_load,
        rest.abandoned_attempts,
        rest.drained,
    ] == [{}] * 5
    for late in (
        e.NodeUnreachable(at=story.now, node="ant", why="closed", boot=story.boot),
        e.NodeLoadMeasured(at=story.now, node="ant", cpus=5),
        e.NodeReached(at=story.now, node="ant"),
    ):
        story.tell(late)
        assert [rest.unreachable, rest.foreign_load] == [{}, {}]
    story.add("ant", gpus=1)
    assert story.state.cluster.nodes["ant"].by_name["gpu", "0"].drained is None


def test_adding_a_node_again_changes_nothing_unless_its_address_changed():
    story, job = on_ant(if_unreachable=60)
    story.tell(e.NodeAdded(at=story.now, name="ant", address="ssh://ant", shared=True))
    assert story.state.cluster.nodes["ant"].unavailable_reason is None
    story.tell(e.NodeAdded(at=story.now, name="ant", address="ssh://ant2"))
    assert story.state.cluster.nodes["ant"].unavailable_reason == "it has not been reached yet"
    assert story.wait(HOUR) == []  # nobody has said that it does not answer
    story.silent("ant")
    assert until_due(story) == 60
    story.reached("ant")
    assert story.is_(job) == "RUNNING"


# ------------------------------------------------------------------------------ which one


def several(**machines: int) -> Afar:
    story = Afar(gpus=0, cpus=8)
    for name, count in machines.items():
        story.add(name, gpus=count, cpus=8)
    return story


def spread(story: Afar, request: ResourceRequest, count: int) -> list[str]:
    jobs = [story.submit(request) for _ in range(count)]
    story.plan()
    return [story.where(job)[0] for job in jobs]


def test_gpu_jobs_are_packed_so_that_a_large_one_finds_a_whole_node():
    story = several(ant=3, bee=2, cat=3)
    assert spread(story, gpus(1), 4) == ["bee", "bee", "ant", "ant"]
    assert spread(story, gpus(3), 1) == ["cat"]


def test_drained_or_foreign_gpus_do_not_make_a_node_look_empty():
    story = several(ant=2, bee=3)
    drained = (("bee", "gpu", "0"),)
    story.tell(e.DevicesDrained(at=story.now, devices=drained, reason="fan"))
    story.tell(e.ForeignUseChanged(at=story.now, node="bee", device="1", foreign_user="bob"))
    assert spread(story, gpus(1), 1) == ["bee"]


def test_cpu_jobs_go_where_the_least_is_going_on_and_among_equals_stay_here():
    story = several(ant=0, bee=0)
    assert spread(story, ResourceRequest(cpus=4000), 6) == ["box", "ant", "bee"] * 2
    story = several(ant=0, bee=0)
    story.measured("box", cpus=6000)
    story.measured("ant", memory=20_000)
    assert spread(story, ResourceRequest(cpus=1000), 2) == ["bee", "bee"]


def test_what_others_use_is_not_given_out():
    story = several()
    story.measured("box", cpus=5000, memory=30_000)
    assert find_placement(story.state.cluster, ResourceRequest(cpus=3001)) is None
    assert find_placement(story.state.cluster, ResourceRequest(memory=2001)) is None
    job = story.submit(ResourceRequest(cpus=3000, memory=2000))
    assert story.plan() == [job]
    waits = story.submit(ResourceRequest(cpus=1000))
    assert story.plan() == []
    found = explain_job(story.state, story.job(waits), story.now, story.boot, lambda _: None)
    assert "needs 1 cpu, 0 free on box" in found.text
    story.measured("box", cpus=4000)
    assert story.plan() == [waits]


def test_foreign_load_counts_on_a_node_with_one_core():
    story = Afar(gpus=0, cpus=1)
    story.measured("box", cpus=400)
    waits, runs = story.submit(ResourceRequest(cpus=700)), story.submit(ResourceRequest(cpus=600))
    assert story.plan() == [runs]
    story.measured("box")
    story.exited(runs)
    assert story.plan() == [waits]


def test_foreign_load_above_the_free_amount_takes_nothing_from_running_jobs():
    story, job = on_ant()
    story.measured("ant", cpus=99_000, memory=99_000_000)
    assert find_placement(story.state.cluster, ResourceRequest(cpus=1, nodes=("ant",))) is None
    story.exited(job)
    assert story.all_free()


def test_foreign_load_is_kept_when_a_node_joins_again():
    story = several(ant=0)
    story.measured("ant", cpus=7500)
    story.tell(e.NodeJoined(at=story.now, facts=node(0, name="ant")))
    assert spread(story, ResourceRequest(cpus=1000, nodes=("ant",)), 0) == []
    assert find_placement(story.state.cluster, ResourceRequest(cpus=1000, nodes=("ant",))) is None


def test_a_retry_on_the_same_gpus_is_on_the_same_node():
    story = several(ant=1, bee=1)
    job = story.submit(gpus(1, required=("0",)))
    story.run(job)
    assert story.where(job) == ["ant"]
    story.exited(job, 1)
    story.fact(e.JobRetried, job, same_devices=True)
    story.silent("ant")
    assert story.plan() == []
    story.tell(e.NodeRemoved(at=story.now, name="bee"))  # its place in line is as it was
    story.reached("ant")
    assert story.plan() == [job]


def test_a_retry_on_the_same_gpus_does_not_move_when_nodes_are_added():
    story = Afar(gpus=1)
    job = story.submit()
    story.run(job)
    story.exited(job, 1)
    story.run(story.submit())
    story.fact(e.JobRetried, job, same_devices=True)
    story.add("ant", gpus=1)
    assert story.plan() == []


def test_a_request_that_only_an_unreachable_node_satisfies_is_accepted():
    story, _ = on_ant()
    story.silent("ant")
    check_satisfiable(story.state, gpus(1))
    with pytest.raises(CommandRejected, match="ant has 1 GPU, not 2"):
        check_satisfiable(story.state, gpus(2))


# --------------------------------------------------------------------- restarted elsewhere


def test_without_a_rule_no_job_of_an_unreachable_node_is_restarted():
    story, job = on_ant(retry=Retry(9))
    story.silent("ant")
    assert until_due(story) is None
    assert story.wait(1e9) == []
    assert story.is_(job) == "RUNNING"


def test_its_owners_rule_restarts_it_elsewhere_at_the_very_moment():
    story, job = on_ant(if_unreachable=HOUR)
    story.add("bee", gpus=1)
    story.now += 100
    assert until_due(story) is None
    story.silent("ant")
    assert until_due(story) == HOUR
    assert story.wait(HOUR - 1) == []
    [given_up] = story.wait(1)
    assert given_up == e.AttemptAbandoned(at=story.now, job=job, attempt=0, node="ant")
    assert (story.is_(job), story.job(job).attempt) == ("PENDING", 1)
    assert story.job(job).past[-1].cause == "lost: ant was unreachable"
    assert story.state.record.abandoned_attempts == {"ant": ((job, 0),)}
    assert story.plan() == [job]
    assert story.where(job) == ["bee"]
    assert until_due(story) is None
    story.exited(job, 9, attempt=0)  # the old one has ended, but it does not count any more
    assert story.is_(job) == "CONFIGURING"
    story.reached("ant", (job, 0))
    assert story.state.record.abandoned_attempts == {}
    assert story.free(node="ant") == {"0": 1000}


def test_a_node_takes_no_job_while_an_abandoned_attempt_may_run_there():
    story, job = on_ant(if_unreachable=60)
    story.silent("ant")
    story.wait(60)
    story.reached("ant")
    assert story.plan() == []
    assert (
        story.state.cluster.nodes["ant"].unavailable_reason
        == "jobs abandoned there have not ended yet"
    )
    assert until_due(story) is None
    story.reached("ant", (job, 0))
    assert story.plan() == [job]


def test_abandoning_an_attempt_twice_changes_nothing():
    story, job = on_ant(if_unreachable=60)
    story.silent("ant")
    [given_up] = story.wait(60)
    assert story.tell(given_up) == []
    assert story.state.record.abandoned_attempts == {"ant": ((job, 0),)}


def test_a_node_unreachable_for_a_short_time_restarts_no_job():
    story, job = on_ant(if_unreachable=60)
    for _ in range(5):
        story.silent("ant")
        assert story.wait(59) == []
        story.reached("ant")
        assert story.wait(59) == []
    assert story.is_(job) == "RUNNING"


@pytest.mark.parametrize(
    ("act", "end"),
    [
        (lambda story, job: story.fact(e.JobCancelled, job), "CANCELLED"),
        (lambda story, job: story.about(e.TimeLimitReached, job), "TIMEOUT"),
        (lambda story, job: story.fact(e.DeadlinePassed, job), "DEADLINE"),
    ],
)
def test_a_terminating_job_ends_when_its_unreachable_node_is_given_up(act, end: str):
    story, job = on_ant(if_unreachable=60, retry=Retry(9))
    story.silent("ant")
    assert act(story, job) == [TerminateAttempt(job, 0)]
    assert story.is_(job) == "COMPLETING"
    story.wait(60)
    assert story.is_(job) == end
    assert story.state.record.abandoned_attempts == {"ant": ((job, 0),)}
    assert story.all_free()


def test_an_unconfirmed_start_is_abandoned_like_any_other():
    story = Afar(gpus=0)
    story.add("ant", gpus=1)
    job = story.submit(if_unreachable=60)
    story.plan()
    story.silent("ant")
    story.wait(60)
    assert (story.is_(job), story.state.record.abandoned_attempts) == (
        "PENDING",
        {"ant": ((job, 0),)},
    )


def test_a_paused_job_is_given_up_too():
    story, job = on_ant(if_unreachable=60)
    story.fact(e.JobPaused, job, boot=story.boot)
    story.silent("ant")
    story.wait(60)
    assert story.is_(job) == "PENDING"


# --------------------------------------------------------------- drivers that start again


def test_a_new_daemon_marks_all_remote_nodes_unreachable():
    story, job = on_ant(if_unreachable=60)
    story.now += 500
    story.restart()
    assert story.state.cluster.nodes["ant"].unavailable_reason == "it has not been reached yet"
    assert story.state.cluster.nodes["box"].unavailable_reason is None
    assert until_due(story) == 60
    story.silent("ant")
    assert until_due(story) == 60
    story.reached("ant")
    assert until_due(story) is None
    assert story.is_(job) == "RUNNING"


def test_a_silence_goes_on_through_a_restart_of_the_driver():
    story, _ = on_ant(if_unreachable=60)
    story.silent("ant")
    story.wait(40)
    story.restart()
    assert story.state.record.unreachable["ant"].reason == "it does not answer"
    assert until_due(story) == 20


def test_a_node_stays_unreachable_through_a_reboot_with_a_new_boot_clock():
    story, job = on_ant(if_unreachable=60)
    story.silent("ant")
    story.wait(40)
    story.restart(rebooted=True)
    assert story.boot == 5.0
    assert until_due(story) == 20
    story.silent("ant")
    assert story.wait(19) == []
    assert len(story.wait(1)) == 1
    assert story.is_(job) == "PENDING"


def test_a_wall_clock_set_back_delays_no_job():
    story, _ = on_ant(if_unreachable=60, limit=100)
    story.silent("ant")
    story.now -= 5000
    story.restart(rebooted=True)
    assert until_due(story) == 60
    story.reached("ant")
    assert until_due(story) == 100


def test_a_time_limit_afar_goes_on_through_a_reboot_here():
    story, job = on_ant(limit=100)
    story.now += 30
    story.restart(rebooted=True)
    story.reached("ant")
    assert until_due(story) == 70
    story.wait(70)
    assert story.job(job).ending == "time"


def test_a_pause_on_a_remote_node_does_not_count_although_the_daemon_rebooted():
    story, job = on_ant(limit=100)
    story.now += 30
    story.fact(e.JobPaused, job, boot=story.boot)
    story.now += 1000
    story.restart(rebooted=True)
    story.reached("ant")
    story.now += 50
    story.fact(e.JobResumed, job, boot=story.boot)
    assert story.job(job).slack == 1050
    assert until_due(story) == 70


def test_a_limit_of_what_has_not_been_seen_to_start_counts_from_the_reboot_at_most():
    story = Afar(gpus=0)
    story.add("ant", gpus=1)
    job = story.submit(limit=100)
    story.plan()
    story.now += 30
    story.restart(rebooted=True)
    story.reached("ant")
    assert until_due(story) == 100
    story.started(job, boot=story.boot - 20)
    assert until_due(story) == 80


def test_what_ran_here_is_lost_by_a_reboot_and_what_ran_afar_is_not():
    story = Afar(gpus=1)
    story.add("ant", gpus=2)
    here, afar = story.submit(), story.submit()
    story.run(here, afar)
    assert (story.where(here), story.where(afar)) == (["box"], ["ant"])
    story.restart(rebooted=True)
    story.about(e.AttemptLost, here, why="the node restarted")
    story.reached("ant")
    assert (story.is_(here), story.is_(afar)) == ("NODE_FAIL", "RUNNING")


def test_a_reboot_of_a_remote_node_loses_its_attempts():
    story, job = on_ant(retry=Retry(1, ("lost",)))
    story.silent("ant")
    story.about(e.AttemptLost, job, why="the node restarted")
    story.reached("ant")
    assert story.is_(job) == "PENDING"
    story.wait(10)
    assert story.plan() == [job]


def test_a_cordoned_node_takes_no_job_until_it_is_uncordoned() -> None:
    story = Afar(gpus=0)
    story.add("ant", gpus=1)
    story.tell(e.NodeCordoned(at=story.now, node="ant", why="no space left on ant"))
    job = story.submit()
    story.plan()
    found = explain_job(story.state, story.job(job), story.now, story.now, lambda _: None)
    assert "ant accepts no new jobs: no space left on ant" in found.text
    story.tell(e.NodeCordoned(at=story.now, node="ant"))
    story.plan()
    assert story.where(job) == ["ant"]


def test_a_new_daemon_forgets_cordoned_nodes() -> None:
    story = Afar(gpus=0)
    story.add("ant", gpus=1)
    story.tell(e.NodeCordoned(at=story.now, node="ant", why="no space left on ant"))
    story.tell(e.DaemonStarted(at=story.now, term=2, boot="one", pid=1, version="", clock=1000.0))
    assert story.state.record.cordoned == {}


def test_cordoning_an_unknown_node_changes_nothing() -> None:
    story = Afar()
    story.tell(e.NodeCordoned(at=story.now, node="stranger", why="no space left"))
    assert story.state.record.cordoned == {}


def test_the_gpu_models_are_those_of_the_nodes_as_after_a_restart():
    story = Afar()
    story.add("a")
    facts = node(2, name="a")
    for model in ("v100", "h100"):  # the node gets other GPUs
        cards = tuple(replace(card, model=model) for card in facts.types["gpu"])
        story.tell(e.NodeJoined(at=story.now, facts=replace(facts, types={"gpu": cards})))
    assert [facts.model for facts in story.state.cluster.gpu_models.values()] == ["a100", "h100"]
    story.tell(e.NodeRemoved(at=story.now, name="box"))
    assert [facts.model for facts in story.state.cluster.gpu_models.values()] == ["h100"]
    job = story.submit(gpus(1))
    spec = story.state.spec(story.job(job))
    assert likely_hardware(story.state.cluster, story.job(job), spec) == (1, "h100")
    story.run(job)
