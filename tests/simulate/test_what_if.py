"""What-if without a daemon: jobs go on from where they are, and changes count for whom they do."""

from math import inf
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from stoker.core.model.units import BadValue
from stoker.schema.node import AllocationView
from stoker.simulate.arguments import Options
from stoker.simulate.whatif import api_views, cluster_model, render, whatif
from stoker.simulate.whatif.api_views import WhatIfInput
from stoker.simulate.whatif.history_replay import Forecast
from stoker.simulate.whatif.whatif import WhatIfArgs, evaluate

NOW = 1_800_000_000.0


def ago(seconds: float) -> str:
    return str(NOW - seconds)


def job(id: int, gpus: str = "1", state: str = "PENDING", **more: Any) -> dict[str, Any]:
    """One job as it is listed; it waits, unless something else is said."""
    request = {"gpus": gpus, **more.pop("request", {})}
    return {
        "id": id, "label": str(id), "name": f"job{id}", "user": "ann", "queue": "default",
        "state": state, "submitted_at": ago(1000), "request": request, **more,
    }  # fmt: skip


def running(id: int, gpus: str, node: str, cards: list[str], since: float, **more: Any) -> Any:
    return job(id, gpus, "RUNNING", node=node, devices={"gpu": cards}, started_at=ago(since),
               elapsed=since, **more)  # fmt: skip


def ended(id: int, seconds: float, before: float, gpus: str = "1", **more: Any) -> Any:
    """One that ended some time ago, as soon as it had run."""
    past = [{"attempt": 0, "started_at": ago(before + seconds), "ended_at": ago(before)}]
    return {**job(id, gpus, "COMPLETED", **more), "submitted_at": ago(before + seconds),
            "ended_at": ago(before), "attempts": past}  # fmt: skip


def facts(queue: list[Any], history: list[Any] | None = None, **more: Any) -> WhatIfInput:
    """A lab with machines a and b, of two GPUs each."""
    held = {"gpu": {"total": "2", "devices": ["0", "1"]}, "cpu": {"total": "8", "devices": ["0"]}}
    told = {
        "now": NOW, "days": 7, "history": history or [], "queue": queue,
        "nodes": [{"name": name, "state": "up", "resources": held} for name in "ab"],
        "gpus": [{"node": name, "id": id, "index": int(id), "state": "free"}
                 for name in "ab" for id in "01"],
        "queues": [], "policies": [{"queue": "*", "chosen": "backfill"}], **more,
    }  # fmt: skip
    return api_views.read(msgspec.json.encode(told))


def question(**more: Any) -> WhatIfArgs:
    nothing: dict[str, Any] = {
        "policy": None, "parameters": {}, "policy_text": "", "add": [], "remove": [],
        "priorities": {}, "json": False, "html": None,
    }  # fmt: skip
    return WhatIfArgs(**{**nothing, **more})


TRAINS = {"epochs_done": 5, "epochs": 10, "ran_seconds": 500.0, "family": "ann: net"}
RUNNING = [
    running(1, "2", "a", ["0", "1"], 300, time_limit=600),
    running(2, "1", "b", ["0"], 500, training=TRAINS),
    running(3, "0.5", "b", ["1"], 100, time_limit=1100),
]


def test_what_runs_goes_on_where_it_is_and_what_waits_gets_what_is_left() -> None:
    waiting = [job(4, "2", time_limit=60), job(5, "0.5", time_limit=60), job(6, "1", time_limit=60)]
    found = evaluate(facts(RUNNING + waiting), question(policy="fifo")).before
    assert found[1] == Forecast(start=0.0, end=300.0)
    assert found[2].end == pytest.approx(500.0)  # half of its epochs took 500 s
    assert found[3].end == 1000.0
    assert found[4] == Forecast(start=300.0, end=360.0)  # on machine a, when that is free
    assert found[5] == Forecast(start=0.0, end=60.0)  # beside job 3
    assert found[6] == Forecast(start=360.0, end=420.0)


def test_what_runs_on_a_node_that_ends_continues_elsewhere() -> None:
    queue = facts([running(1, "2", "a", ["0", "1"], 500, training=TRAINS)])
    queue.nodes[0] = replace(queue.nodes[0], allocation=AllocationView(id="7", end=ago(-400)))
    assert evaluate(queue, question()).before[1].end == pytest.approx(500.0, abs=60)
    alone = evaluate(queue, question(remove=["b"]))
    assert alone.before[1] != alone.after[1] == Forecast(start=None, end=None)


def test_a_dependent_job_runs_after_its_dependency() -> None:
    waiting = [job(4, time_limit=60), job(5, time_limit=60, depends="afterok:1"),
               job(6, time_limit=60, depends="afterany:4:77")]  # fmt: skip
    found = evaluate(facts(RUNNING + waiting), question(add=["gpus=4"])).after
    assert found[4].start == 0.0
    assert found[5].start == 300.0
    assert found[6].start == 60.0


def test_without_a_machine_its_jobs_go_on_elsewhere_from_what_they_have_saved() -> None:
    answer = evaluate(facts(RUNNING), question(remove=["b"]))
    assert answer.before[2].start == 0.0
    assert answer.after[1] == answer.before[1]
    assert answer.after[2] == Forecast(start=300.0, end=pytest.approx(800.0))
    assert answer.after[3] == Forecast(start=300.0, end=1400.0)  # it has saved nothing


def test_a_job_for_which_no_machine_is_left_is_named() -> None:
    waiting = [job(4, "1", request={"nodelist": ["b"]}, time_limit=60)]
    answer = evaluate(facts(RUNNING + waiting), question(remove=["b"]))
    assert [each.id for each in answer.infeasible] == [4]
    assert "could no longer run: 4" in render.lines(answer)


def test_the_past_is_reported_by_user_and_by_job() -> None:
    history = [ended(n, 3600.0, 86400.0 - n, "4", user="ann" if n % 2 else "bob",
                     request={"gpus": "2", "machines": 2}) for n in range(1, 5)]  # fmt: skip
    answer = evaluate(facts([], history), question(add=["node=2x2"]))
    text = render.lines(answer)
    assert "the last 7 days: 4 jobs on 2 nodes with 4 GPUs → 4 with 8" in text
    assert "would have ended earlier: 3, later: 0" in text
    assert {"ann", "bob"} <= {line.split()[0] for line in text if line}
    told = render.as_json(answer)
    first, second = told["past"]["runs"]
    assert second["jct"]["mean"] < first["jct"]["mean"]
    assert len(told["shifts"]) == 3


def test_each_queue_keeps_its_own_policy_and_limits() -> None:
    more = {
        "queues": [{"name": "slow", "max_running": 1}],
        "policies": [{"queue": "*", "chosen": "auto"},
                     {"queue": "slow", "chosen": "fifo", "own": True}],
    }  # fmt: skip
    waiting = [job(n, time_limit=60, queue="slow") for n in (1, 2)]
    found = evaluate(facts(waiting, **more), question(add=["gpus=1"]))
    assert found.cluster.policies == {"*": ("auto", {}), "slow": ("fifo", {})}
    assert [found.before[n].start for n in (1, 2)] == [0.0, 60.0]


@pytest.mark.parametrize("trains", [False, True])
def test_auto_is_planner_as_soon_as_a_job_trains(trains: bool) -> None:
    limits = {1: 1200, 2: 72_000, 3: 4800}
    waiting = [
        job(n, "4", time_limit=limit, request={"gpus": "2", "machines": 2}, restartable=trains)
        for n, limit in limits.items()
    ]
    answer = evaluate(facts(waiting), question(policy="auto"))
    begins = {n: answer.after[n].start or 0.0 for n in limits}
    assert (begins[3] < begins[2]) is trains, "the long one is passed under planner alone"


def test_a_policy_with_parameters_of_its_own() -> None:
    wanted = whatif.read_what_if_args(
        Options({"policy": "planner", "json": True}), ["quantum=20m", "hysteresis=3"]
    )
    assert wanted.parameters == {"quantum": 1200.0, "hysteresis": 3.0}
    assert whatif.describe_change(wanted) == "policy planner quantum=20m hysteresis=3"
    answer = evaluate(facts([job(1, time_limit=60)]), wanted)
    assert answer.changed_cluster.policies == {
        "*": ("planner", {"quantum": 1200.0, "hysteresis": 3.0})
    }


def test_a_priority_does_not_start_a_held_job() -> None:
    held = job(7, reason="JobHeldUser")
    given = facts([job(1, time_limit=60), held], meant={"7": [7]})
    with pytest.raises(
        BadValue, match=r"7 is held, before its begin time, or depends on such a job"
    ):
        evaluate(given, question(priorities={"7": "high"}))


def test_priorities_by_word_and_number() -> None:
    waiting = [job(n, "2", time_limit=60, request={"machines": 2}) for n in (1, 2, 3)]
    given = facts(waiting, meant={"3": [3], "job1": [1]})
    answer = evaluate(given, question(priorities={"3": "high", "job1": "-5"}))
    assert [answer.before[n].start for n in (1, 2, 3)] == [0.0, 60.0, 120.0]
    assert [answer.after[n].start for n in (3, 2, 1)] == [0.0, 60.0, 120.0]


def test_drained_and_silent_machines_are_not_there() -> None:
    nodes = [{"name": "a", "state": "up"}, {"name": "b", "state": "unreachable"}]
    gpus = [{"node": "a", "id": "0", "state": "free"},
            {"node": "a", "id": "1", "state": "free", "drained": "fan"},
            {"node": "b", "id": "0", "state": "free"}]  # fmt: skip
    lab = cluster_model.cluster_from_input(facts([], nodes=nodes, gpus=gpus))
    assert [(node.name, len(node.types["gpu"])) for node in lab.nodes] == [("a", 1)]


def test_held_jobs_and_later_ones_are_left_out_and_counted() -> None:
    waiting = [job(1, reason="JobHeldUser"), job(2, begin_at=str(NOW + 60)), job(3, time_limit=9)]
    answer = evaluate(facts(waiting), question(policy="fifo"))
    assert [each.id for each in answer.live_jobs] == [3]
    said = "2 jobs skipped: held, before the begin time, or dependent on such jobs."
    assert said in answer.notes


def test_jobs_that_depend_on_a_held_job_are_left_out() -> None:
    waiting = [
        job(1, reason="JobHeldUser"), job(2, depends="afterok:1"), job(3, depends="afterany:2"),
        job(4, time_limit=9), job(5, depends="afterok:1?afterok:4", time_limit=9),
    ]  # fmt: skip
    answer = evaluate(facts(waiting), question(policy="fifo"))
    assert [each.id for each in answer.live_jobs] == [4, 5]
    said = "3 jobs skipped: held, before the begin time, or dependent on such jobs."
    assert said in answer.notes


def test_of_many_jobs_those_are_shown_that_move_most() -> None:
    waiting = [job(n, "2", time_limit=60, request={"machines": 2}) for n in range(1, 31)]
    answer = evaluate(facts(waiting, meant={"30": [30]}), question(priorities={"30": "high"}))
    text = render.lines(answer)
    heading = "today: 30 jobs; earlier: 1, later: 29; on average they end in 15.5 min → 15.5 min"
    at = text.index(heading)
    assert text[at + 2].split()[0] == "30"
    assert text[at + 2].endswith("29.0 min earlier")
    assert text[at + 22] == "… and 10 jobs with smaller changes; see --json"


def test_nothing_to_replay_is_reported() -> None:
    with pytest.raises(
        BadValue, match="no job ended in the last 7 days, and no pending job can start"
    ):
        evaluate(facts([]), question(policy="fifo"))


def test_a_question_in_words() -> None:
    asked = whatif.read_what_if_args(
        Options(
            {"policy": "srsf", "add": ["gpus=4"], "remove": ["node=b"], "priority": ["42=high"]}
        ),
        [],
    )
    assert (
        whatif.describe_change(asked)
        == "policy srsf, 4 more GPUs, without b, job 42 with priority high"
    )


def in_turn(forecasts: dict[int, Forecast], *jobs: int) -> list[int]:
    return sorted(jobs, key=lambda job: forecasts[job].start or inf)


def test_the_planner_uses_declared_and_measured_durations() -> None:
    """All GPUs are in use for an hour; then the shortest goes first, and each needs them all."""
    holds = [
        running(n, "2", node, ["0", "1"], 60, time_limit=3660) for n, node in ((1, "a"), (2, "b"))
    ]
    gang = {"machines": 2}
    waiting = [
        job(3, "2", request=gang, time_limit=7200),
        job(4, "2", request=gang, training={"expected_seconds": 1200, "remaining_seconds": 1200,
                                            "estimate_seconds": 1200}),
        job(5, "2", request=gang, training={**TRAINS, "remaining_seconds": 500.0,
                                            "estimate_seconds": 1000.0}),
    ]  # fmt: skip
    today = [{"queue": "*", "chosen": "planner"}]
    answer = evaluate(facts([*holds, *waiting], policies=today), question(policy="fifo"))
    assert in_turn(answer.before, 3, 4, 5) == [5, 4, 3]
    assert in_turn(answer.after, 3, 4, 5) == [3, 4, 5]


def test_a_plain_job_with_a_declared_duration_cannot_be_preempted() -> None:
    said = {"expected_seconds": 60, "remaining_seconds": 60, "estimate_seconds": 60}
    _, today, _ = cluster_model.jobs_from_input(
        facts([job(1, training=said), job(2, training=TRAINS)])
    )
    assert [(each.non_preemptible, each.reports) for each in today] == [
        (True, False),
        (False, True),
    ]


def test_new_machines_are_like_those_that_were_there() -> None:
    waiting = [job(1, "1", request={"cpus": "4"}, time_limit=60)]
    answer = evaluate(facts(waiting), question(add=["gpus=4"], remove=["a", "b"]))
    assert answer.infeasible == []


def test_a_paused_job_is_noted_as_assumed_to_resume() -> None:
    paused = {**running(1, "2", "a", ["0", "1"], 60, time_limit=3660), "state": "SUSPENDED"}
    answer = evaluate(facts([paused]), question(policy="fifo"))
    assert "1 job paused: assumed to resume now." in answer.notes
