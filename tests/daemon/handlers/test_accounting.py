"""GPU time by user, queue, day: every attempt is counted once, and nothing is lost."""

import math
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from daemon.handler_fixture import HandlerFixture
from stoker.core import events as e
from stoker.daemon.handlers import accounting
from stoker.daemon.handlers.accounting import KEYS, UsageRecord, summarize
from stoker.daemon.routes.usage import parse_period
from stoker.daemon.settings import AccountingSettings
from stoker.schema.usage import UsageGroup

FREE = AccountingSettings()


def records(handlers: HandlerFixture, limit: int = 100, until: float = math.inf) -> Any:
    found: list[UsageRecord] = handlers.ask(
        partial(accounting.finished_records, handlers.context, 0.0, until, limit)
    )
    return found + handlers.ask(partial(accounting.unfinished_records, lambda *_: None))


def summary(
    handlers: HandlerFixture, by: str, since: float = 0.0, until: float = math.inf,
    prices: AccountingSettings = FREE, limit: int = 100,
) -> tuple[dict[str, UsageGroup], UsageGroup]:  # fmt: skip
    groups, total = summarize(records(handlers, limit), by, since, until, prices)
    return {group.key: group for group in groups}, total


@pytest.fixture
def used(handlers: HandlerFixture) -> HandlerFixture:
    """1 held two GPUs for an hour; 2 failed after half an hour on one; 3 runs; 4 used none."""
    first = handlers.submit(gpus="2", queue="night", label=["lr", "big"])
    handlers.run(first)
    handlers.apply(
        e.UsageMeasured(at=handlers.now, job=first, attempt=0, measured=3600.0, busy=2700.0,
                        energy=3.6e6)
    )  # fmt: skip
    handlers.now += 3599.0
    handlers.exit(first)
    second = handlers.submit(gpus="1")
    handlers.run(second)
    handlers.now += 1799.0
    handlers.exit(second, 1)
    third = handlers.submit(gpus="1")
    fourth = handlers.submit(cpus="1")
    handlers.run(third, fourth)
    handlers.now += 719.0
    handlers.exit(fourth)
    return handlers


def test_gpu_time_is_summed_by_queue(used: HandlerFixture) -> None:
    groups, total = summary(used, "queue")
    night, default = groups["night"], groups["default"]
    assert (night.gpu_hours, night.utilization, night.kwh, night.jobs) == (2.0, 75.0, 1.0, 1)
    assert (default.gpu_hours, default.wasted_gpu_hours) == (0.7, 0.5)
    assert (default.jobs, default.failed, default.kwh) == (3, 1, None)
    assert (total.gpu_hours, total.jobs, total.key) == (2.7, 4, "total")
    assert list(groups) == ["night", "default"], "largest first"


def test_a_job_is_in_the_group_of_each_label(used: HandlerFixture) -> None:
    groups, total = summary(used, "label")
    assert (groups["lr"].gpu_hours, groups["big"].gpu_hours, total.gpu_hours) == (2.0, 2.0, 2.7)
    assert groups["-"].jobs == 3


def test_attempts_are_grouped_by_requested_gpus_and_by_cause(used: HandlerFixture) -> None:
    groups, _ = summary(used, "gpus")
    assert {key: group.jobs for key, group in groups.items()} == {"0": 1, "1": 2, "2": 1}
    groups, _ = summary(used, "cause")
    jobs = {key: (group.jobs, group.gpu_hours, group.wasted_gpu_hours)
            for key, group in groups.items()}  # fmt: skip
    assert jobs == {"done": (2, 2.0, 0.0), "exit 1": (1, 0.5, 0.5), "running": (1, 0.2, 0.0)}


def test_details_are_not_part_of_a_cause() -> None:
    causes = ("stopped: job 17 needs its GPUs", "exit 1", "", "x" * 100)
    assert [accounting.short_cause(cause) for cause in causes] == [
        "stopped",
        "exit 1",
        "-",
        "x" * 60,
    ]


def test_the_hours_of_each_day_add_up_to_the_total(used: HandlerFixture) -> None:
    used.now += 86_400.0
    days = accounting.hours_by_day(records(used), "queue", 0.0, math.inf)
    assert len(days) == 2, "the running job belongs to the second day"
    assert list(days) == sorted(days)
    total = sum(hours for parts in days.values() for hours in parts.values())
    assert total == pytest.approx(summary(used, "queue")[1].gpu_hours, abs=1e-3)


@pytest.mark.parametrize("by", [key for key in KEYS if key != "label"])
def test_the_groups_of_every_other_key_add_up_to_the_total(used: HandlerFixture, by: str) -> None:
    groups, total = summary(used, by)
    for name in ("gpu_hours", "wasted_gpu_hours", "busy_gpu_hours", "measured_gpu_hours"):
        added = sum(getattr(group, name) for group in groups.values())
        assert added == pytest.approx(getattr(total, name), abs=1e-3), name


def test_only_attempts_that_ended_in_the_time_count(used: HandlerFixture) -> None:
    end = used.job(1).ended_at or 0.0
    assert summary(used, "user", until=end)[1].gpu_hours == 2.0
    assert summary(used, "user", since=end + 1)[1].gpu_hours == 0.7
    assert summary(used, "user", since=used.now + 1)[1].jobs == 0


def test_prices_give_a_cost(used: HandlerFixture) -> None:
    prices = AccountingSettings(price_gpu_hour=2.0, price_kwh=0.5)
    assert summary(used, "user", prices=prices)[1].cost == 5.9
    assert summary(used, "user")[1].cost is None


def test_waiting_times_are_quantiles() -> None:
    waits = [
        UsageRecord(n, "ana", "-", "q", "-", ("-",), "-", "0", "done", 10.0, False, float(n), ())
        for n in range(100)
    ]
    _, total = summarize(waits, "user", 0.0, 20.0, FREE)
    assert (total.wait_p50, total.wait_p90) == (50.0, 90.0)


def test_unloaded_jobs_are_read_from_the_store(used: HandlerFixture) -> None:
    _, before = summary(used, "user")
    used.unload(1, 2)
    assert summary(used, "user")[1] == before


def test_a_period_that_ends_in_1970_is_not_the_default() -> None:
    epoch = "1970-01-01T00:00:00Z"
    assert parse_period(epoch, epoch, 1e9) == (0.0, 0.0)
    assert parse_period(None, None, 1e9) == (1e9 - 30 * 86400, 1e9 + 1)


@pytest.mark.parametrize("seed", range(5))
def test_time_of_users_foreign_use_and_free_time_are_all_the_time_of_all_gpus(
    tmp_path: Path, seed: int
) -> None:
    handlers, random, gpus = HandlerFixture(tmp_path, gpus=4), Random(seed), 4
    begin, not_held = handlers.now, Counter[str]()
    submitted: list[int] = []
    foreign: set[str] = set()
    for _ in range(60):
        action = random.choice(["submit", "submit", "exit", "fail", "foreign"])
        running = [id for id in submitted if handlers.status(id) in ("RUNNING", "CONFIGURING")]
        before = handlers.now
        if action == "submit":
            submitted.append(handlers.submit(gpus=random.choice(["1", "2", "4"])))
        elif action in ("exit", "fail") and running:
            handlers.now -= 1.0  # `exit` takes a second
            handlers.exit(random.choice(running), int(action == "fail"))
        elif action == "foreign":
            name = str(random.randrange(gpus))
            foreign ^= {name}
            user = "max" if name in foreign else None
            handlers.apply(
                e.ForeignUseChanged(at=handlers.now, node="box", device=name, foreign_user=user)
            )
        handlers.run(*(id for id in submitted if handlers.status(id) == "CONFIGURING"))
        assert handlers.now == before
        seconds = random.uniform(1.0, 5000.0)
        for device in handlers.state.cluster.nodes["box"].types["gpu"]:
            if device.unallocated:  # foreign processes can come to a GPU of a job
                not_held["foreign" if device.foreign_user else "free"] += seconds
        handlers.now += seconds
    _, total = summary(handlers, "user", limit=1000)
    held = total.gpu_hours * 3600.0
    assert min(held, not_held["foreign"], not_held["free"]) > 0
    assert held + sum(not_held.values()) == pytest.approx(gpus * (handlers.now - begin), rel=1e-6)
