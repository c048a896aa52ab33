"""Forecasts in the daemon: the helper process, its failures, and one estimate for all commands."""

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from core.scenario import Scenario
from daemon.handler_fixture import as_json
from memory_store import MemoryStore
from stoker.core import events as e
from stoker.core.explain.forecast import (
    Forecast,
    JobForecast,
    Kind,
    Samples,
    command_key,
    forecast_input,
)
from stoker.core.model.sweep import TrialBoard, trial_of
from stoker.core.state.state import State
from stoker.daemon.context import CommandHandler, RequestContext
from stoker.daemon.handlers import queries
from stoker.daemon.runtime.clock import system_clock
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.daemon.views import job as views
from stoker.daemon.workers import forecast_client
from stoker.daemon.workers.estimates import OUT_OF_DATE
from stoker.engine import Instant
from stoker.simulate.forecast.futures import forecast
from stoker.store.port import JobQuery
from store.rows import batch, done
from store.rows import sweep as a_sweep


@pytest.fixture
def forecasts(tmp_path: Path) -> Iterator[forecast_client.ForecastClient]:
    context = RequestContext(MemoryStore(), str(tmp_path), "box", "ana")
    client = forecast_client.ForecastClient(context, EpollReactor())
    yield client
    client.close()
    client.process.close(10)


def settle(forecasts: forecast_client.ForecastClient) -> None:
    """Wait until the process has replied."""
    for _ in range(1000):
        if not forecasts.process.is_running:
            return
        forecasts.process.reactor.wait(0.05)  # type: ignore[attr-defined]
    pytest.fail("it does not end")


def test_the_answer_is_kept_until_something_happens(
    forecasts: forecast_client.ForecastClient,
) -> None:
    state, done = State(), []
    assert (
        forecasts.refresh(state, system_clock(), lambda: done.append(1))
        == forecast_client.FIRST_WAIT_SECONDS
    )
    assert not done
    settle(forecasts)
    assert forecasts.error is None
    assert forecasts.latest is not None
    assert done == [1]
    forecasts.on_events([e.FailuresDismissed(at=0.0, jobs=())])
    assert not forecasts.refresh(state, system_clock(), lambda: done.append(2)), (
        "there is nothing to wait for"
    )
    assert (forecasts.process.is_running, done) == (False, [1, 2])
    forecasts.on_events([e.JobHeld(at=0.0, job=1)])
    assert forecasts.refresh(state, system_clock()) == forecast_client.NEXT_WAIT_SECONDS
    second = forecasts.process.pid
    assert second
    forecasts.refresh(state, system_clock())
    assert forecasts.process.pid == second, "one at a time"
    forecasts.close()
    assert not forecasts.process.is_running


@pytest.mark.parametrize(
    ("code", "why"),
    [("raise SystemExit('no luck')", "no luck"), ("print('?', flush=True)", "it answered b'?'")],
)
def test_a_failed_forecast_is_reported(
    forecasts: forecast_client.ForecastClient, monkeypatch: pytest.MonkeyPatch, code: str, why: str
) -> None:
    monkeypatch.setattr(forecast_client, "COMMAND", ("-c", code))
    done: list[int] = []
    forecasts.refresh(State(), system_clock(), lambda: done.append(1))
    settle(forecasts)
    assert forecasts.latest is None
    assert forecasts.error is not None
    assert why in forecasts.error
    assert done == [1]


def test_a_killed_forecast_is_started_again_and_the_reply_says_so(
    forecasts: forecast_client.ForecastClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State()
    forecasts.refresh(state, system_clock())
    settle(forecasts)
    first = forecasts.latest
    assert first is not None
    forecasts.on_events([e.JobHeld(at=0.0, job=1)])
    with monkeypatch.context() as slow:
        slow.setattr(forecast_client, "COMMAND", ("-c", "import time; time.sleep(600)"))
        forecasts.refresh(state, system_clock())
    assert forecasts.process.is_running
    os.kill(forecasts.process.pid, signal.SIGKILL)
    settle(forecasts)
    assert forecasts.latest is first

    decide = partial(forecast_client.handle_eta, forecasts, [], 10)
    reply = decide(state, system_clock()).reply
    assert reply is not None
    answer = reply(state)
    assert "the forecast process failed" in answer.trouble
    assert answer.age >= 0
    assert answer.newer, "no second request is needed"
    settle(forecasts)
    assert forecasts.latest is not first
    assert forecasts.error is None


def test_a_forecast_that_fails_repeatedly_is_not_restarted_by_replies(
    forecasts: forecast_client.ForecastClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State()
    forecasts.refresh(state, system_clock())
    settle(forecasts)
    monkeypatch.setattr(forecast_client, "COMMAND", ("-c", "raise SystemExit('no luck')"))
    forecasts.on_events([e.JobHeld(at=0.0, job=1)])
    for times in (1, 2):
        forecasts.refresh(state, system_clock())
        settle(forecasts)
        assert forecasts.restarts.failures == times
    reply = partial(forecast_client.handle_eta, forecasts, [], 10)(state, system_clock()).reply
    assert reply is not None
    assert not reply(state).newer
    forecasts.refresh(state, system_clock())
    assert forecasts.process.is_running, "a client that asks has another try"


def test_a_forecast_that_hangs_is_killed(
    forecasts: forecast_client.ForecastClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast_client, "COMMAND", ("-c", "import time; time.sleep(600)"))
    forecasts.refresh(State(), system_clock())
    forecasts._timeout()
    assert forecasts.process.is_running
    monkeypatch.setattr(forecast_client, "TIMEOUT_SECONDS", 0.0)
    forecasts._timeout()
    assert forecasts.error is not None
    assert "took longer" in forecasts.error
    forecasts.process.close(10)
    assert forecasts.process.reap()


def estimated(forecasts: forecast_client.ForecastClient, scenario: Scenario) -> Instant:
    """Install a forecast of the jobs of a scenario."""
    request = forecast_input(scenario.state, scenario.now, scenario.now, {})
    forecasts._on_reply(msgspec.json.encode(forecast(msgspec.json.encode(request))))
    forecasts.context.forecast = forecasts.forecast
    forecasts.context.forecast_sweep = forecasts.forecast_sweep
    return Instant(scenario.now, scenario.now)


def reply(decide: CommandHandler, scenario: Scenario, now: Instant) -> Any:
    reply_of = decide(scenario.state, now).reply
    assert reply_of is not None
    return as_json(reply_of(scenario.state))


def test_queue_show_why_and_eta_have_one_estimate(
    forecasts: forecast_client.ForecastClient,
) -> None:
    scenario = Scenario(gpus=1)
    first, second, third = (scenario.submit(limit=limit) for limit in (100, 50, 10))
    scenario.run(first)
    now, context = estimated(forecasts, scenario), forecasts.context
    listed = {
        view["id"]: view
        for view in reply(partial(queries.list_views, context, [1, 2, 3], 0), scenario, now)
    }
    forecast_views = reply(partial(forecast_client.handle_eta, forecasts, [], 10), scenario, now)[
        "jobs"
    ]
    assert [view["id"] for view in forecast_views] == [first, second, third]
    for forecast_view in forecast_views:
        view = listed[forecast_view["id"]]
        assert view["foreseen"] == {
            key: forecast_view[key] for key in ("at", "start", "end", "never")
        }
        why = reply(partial(queries.explain, context, str(forecast_view["id"])), scenario, now)
        assert why["foreseen"] == view["foreseen"]
        assert why["expected_end"] == view["expected_end"] == forecast_view["end"]["likely"]
    assert listed[third]["expected_start"] == views.iso(scenario.now + 150)
    assert listed[third]["foreseen"]["start"]["kind"] == "limit"
    why = reply(partial(queries.explain, context, str(second)), scenario, now)
    assert why["unblocks"] == [f"job {first} ends in at most 2 min"], "from the same estimate"


def test_a_pending_job_never_starts_now(forecasts: forecast_client.ForecastClient) -> None:
    """Whatever the forecast predicted, and at any later time."""
    scenario = Scenario(gpus=1)
    first, second = (scenario.submit(limit=100) for _ in range(2))
    scenario.run(first)
    estimated(forecasts, scenario)
    for later in (0.0, 50.0, 99.5, 100.0, 150.0, 599.0):
        now = Instant(scenario.now + later, scenario.now + later)
        (view,) = reply(partial(queries.list_views, forecasts.context, [second], 0), scenario, now)
        start = view["expected_start"]
        assert start is None or start >= (views.iso(now.wall + 0.99) or "")
    assert view["foreseen"]["never"] is not None


def test_completed_runs_are_distinguished_by_their_commands(
    forecasts: forecast_client.ForecastClient,
) -> None:
    store = forecasts.context.store
    runs = [done(1, 10.0), done(2, 20.0, command=("train", "1")), done(3, 30.0, user="bob")]
    store.commit(batch(*runs), sync=False)
    (newest, seconds), (older, _) = forecasts._runs_of(done(9, 90.0))
    assert newest == command_key(runs[1], store.find_jobs(JobQuery(ids=[2]))[0].spec)
    assert newest != older
    assert seconds == 5.0


def test_lists_do_not_cause_a_forecast_more_often_than_every_two_seconds(
    forecasts: forecast_client.ForecastClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Scenario(gpus=1)
    assert not forecasts.refresh_for_list(scenario.state, system_clock(), list), "there is no job"
    scenario.submit()
    assert (
        forecasts.refresh_for_list(scenario.state, system_clock(), list)
        == forecast_client.LIST_WAIT_SECONDS
    )
    settle(forecasts)
    forecasts.duration = 0.1  # on a busy host it takes longer than a list waits
    forecasts.on_events([e.JobHeld(at=0.0, job=1)])
    monkeypatch.setattr(forecast_client, "LIST_INTERVAL_SECONDS", 1000.0)
    assert not forecasts.refresh_for_list(scenario.state, system_clock(), list)
    assert not forecasts.process.is_running
    forecasts.on_events([e.JobsSubmitted(at=0.0, first=2, count=1, spec="")])
    assert (
        forecasts.refresh_for_list(scenario.state, system_clock(), list)
        == forecast_client.LIST_WAIT_SECONDS
    )
    assert forecasts.process.is_running


def test_lists_do_not_wait_for_a_forecast_that_takes_long(
    forecasts: forecast_client.ForecastClient,
) -> None:
    scenario = Scenario(gpus=1)
    scenario.submit()
    estimated(forecasts, scenario)
    forecasts.duration = forecast_client.LIST_WAIT_SECONDS + 0.1
    assert not forecasts.refresh_for_list(scenario.state, system_clock(), list)
    assert forecasts.process.is_running, "the next list has it"


def test_an_edited_job_has_no_estimate_until_the_next_forecast(
    forecasts: forecast_client.ForecastClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even a list uses the previous one, however recent it is or long it took."""
    scenario, done = Scenario(gpus=1), list[int]()
    scenario.run(job := scenario.submit(limit=600))
    forecasts.refresh(scenario.state, Instant(scenario.now, scenario.now))
    settle(forecasts)
    monkeypatch.setattr(forecast_client, "LIST_INTERVAL_SECONDS", 1000.0)
    now = Instant(scenario.now, scenario.now)

    def end() -> float | None:
        forecast = forecasts.forecast(job, scenario.state, now)
        assert forecast is not None
        assert (forecast.end is None) == (forecast.never == OUT_OF_DATE)
        return forecast.end.likely if forecast.end is not None else None

    assert end() == scenario.now + 600
    for limit in (7200, 60):
        spec = replace(scenario.state.spec(scenario.job(job)), limit=limit)
        scenario.tell(e.SpecRecorded(at=scenario.now, hash=f"{limit}", spec=spec))
        edit = e.JobEdited(at=scenario.now, job=job, spec=f"{limit}", name="job", priority=0)
        scenario.tell(edit)
        if limit == 7200:  # a forecast without the edit is being computed
            forecasts.on_events([e.JobHeld(at=0.0, job=2)])
            forecasts.refresh(State(), now, lambda: done.append(1))
        else:
            monkeypatch.setattr(forecast_client, "QUICK_SECONDS", 0.0)
        forecasts.on_events([edit])
        assert end() is None
        before = forecasts.process.pid
        assert forecasts.refresh_for_list(scenario.state, now, lambda: done.append(2)) > 0
        assert forecasts.process.pid not in (0, before)
        settle(forecasts)
        assert end() == scenario.now + limit
    assert done == [1, 2, 2], "the first one has waited for the forecast with the edit"


def test_a_sweep_ends_with_its_last_trial(forecasts: forecast_client.ForecastClient) -> None:
    at = system_clock().wall
    samples = {
        1: Samples(at=[at + 10] * 9, until=at + 99, kind=Kind.RUNS, basis="runs"),
        2: Samples(at=[at + 30] * 9, until=at + 99, kind=Kind.RUNS, basis="runs"),
    }
    jobs = [JobForecast(job=id, end=end) for id, end in samples.items()]
    forecasts._on_reply(msgspec.json.encode(Forecast(at=at, jobs=jobs, plays=9)))
    scenario = Scenario(gpus=1)
    sweep = a_sweep(1, total=2, issued=2, counts={"waiting": 2})
    for id in (scenario.submit(), scenario.submit()):
        scenario.job(id).params, scenario.job(id).array, scenario.job(id).index = "{}", 1, id
        scenario.state.boards.setdefault(1, TrialBoard()).trials[id] = trial_of(scenario.job(id))
    forecast = forecasts.forecast_sweep(sweep, scenario.state, Instant(at, at))
    assert forecast is not None
    assert forecast.end is not None
    assert (forecast.end.likely, forecast.end.kind) == (at + 30, Kind.RUNS)
    forecast = forecasts.forecast_sweep(replace(sweep, total=4), scenario.state, Instant(at, at))
    assert forecast is not None
    assert forecast.end is not None
    assert (forecast.end.likely, forecast.end.kind) == (at + 60, Kind.SIMILAR), (
        "two are yet to come"
    )
