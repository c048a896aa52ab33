"""Rules of notifications: what `stoker notify TARGET --when ...` sends."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from daemon.notifier_fixture import NotifierFixture
from daemon.users_fixture import ANA, BO, Users
from stoker.core import events as e
from stoker.core.model.alarm import Alarm
from stoker.daemon.notifications import rules
from stoker.daemon.settings import NotifyTarget
from stoker.daemon.sweeps.submit import handle_submit_sweep
from stoker.schema import requests as r

ME = NotifyTarget(kind="desktop")


class RulesFixture(NotifierFixture):
    """A notifier with the target `me`, which is notified by rules only."""

    def __init__(self, directory: Path, **targets: NotifyTarget) -> None:
        super().__init__(directory, **(targets or {"me": ME}))

    def add(self, when: str, target: str = "me") -> Any:
        body = r.AddNotifyRule(target=target, when=when)
        return self.ask(partial(rules.add, self.context, body))

    def rejects_rule(self, when: str, code: str, word: str, target: str = "me") -> None:
        body = r.AddNotifyRule(target=target, when=when)
        self.rejects(partial(rules.add, self.context, body), code, word)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.reactor.run_timers()

    def titles(self) -> list[str]:
        return [title for _, title in self.flush()]


def test_a_rule_about_failures_is_about_all_jobs(tmp_path: Path) -> None:
    fixture = RulesFixture(tmp_path)
    fixture.add("job fail")
    fixture.exit(fixture.submit(name="ok"), 0)
    fixture.exit(fixture.submit(name="bad"), 1)
    assert fixture.titles() == ["job 2 bad FAILED"]


def test_a_rule_about_one_job_is_about_no_other(tmp_path: Path) -> None:
    fixture = RulesFixture(tmp_path)
    first, second = fixture.submit(name="a"), fixture.submit(name="b")
    assert fixture.add(f"job {second} done", "ana@lab.org")["target"] == "ana@lab.org"
    fixture.exit(first, 0)
    fixture.exit(second, 1)
    assert fixture.flush() == [("ana@lab.org", "job 2 b FAILED")]


def test_a_rule_about_an_array_is_one_message_and_about_a_member_its_own(tmp_path: Path) -> None:
    fixture = RulesFixture(tmp_path)
    first = fixture.submit(array="0-2", name="grid")
    fixture.add(f"array {first} done")
    fixture.add(f"job {first}_1 end", "ana@lab.org")
    for id in range(first, first + 3):
        fixture.exit(id, 0)
    assert sorted(fixture.flush()) == [
        ("ana@lab.org", "job 1_1 grid done"), ("desktop", "array 1 grid: 3 done, 0 failed"),
    ]  # fmt: skip


def test_a_rule_about_arrays_is_not_about_jobs(tmp_path: Path) -> None:
    fixture = RulesFixture(tmp_path)
    fixture.add("array done")
    fixture.exit(fixture.submit(), 0)
    first = fixture.submit(array="0-1", name="grid")
    fixture.exit(first, 0)
    fixture.exit(first + 1, 0)
    assert fixture.titles() == ["array 2 grid: 2 done, 0 failed"]


def test_a_rule_about_one_kind_of_alarm(tmp_path: Path) -> None:
    fixture = RulesFixture(tmp_path)
    fixture.add("alarm idle")
    id = fixture.submit()
    fixture.run(id)
    for kind in ("hung", "gpu_idle"):
        alarm = Alarm(kind=kind, since=1.0, text="nothing", job=id)
        fixture.apply(e.AlarmRaised(at=1.0, alarm=alarm))
    assert fixture.titles() == ["job 1 true: idle"]


def test_a_gpu_that_becomes_free_is_one_message(tmp_path: Path) -> None:
    fixture = RulesFixture(tmp_path)
    assert fixture.add("gpu free")["note"] == "free now: box/0, box/1"
    first, second = fixture.submit(gpus="1"), fixture.submit(gpus="1")
    fixture.run(first, second)
    fixture.exit(first, 0)
    fixture.exit(second, 0)
    assert fixture.titles() == ["GPU free: box/0"]


def test_a_gpu_that_the_next_job_takes_is_not_free(tmp_path: Path) -> None:
    fixture = RulesFixture(tmp_path)
    fixture.add("gpu free")
    first = fixture.submit(gpus="2")
    fixture.submit(gpus="2")
    fixture.exit(first, 0)
    assert fixture.titles() == []


def test_a_time_limit_is_announced_once_per_attempt_and_limit(tmp_path: Path) -> None:
    fixture = RulesFixture(tmp_path)
    fixture.add("before-limit 10m")
    id, short = fixture.submit(time="60m", name="long"), fixture.submit(time="5m", name="short")
    fixture.run(id, short)
    fixture.advance(2)
    fixture.advance(49 * 60)
    assert fixture.reactor.seconds_until_timer() == pytest.approx(58, abs=2)
    fixture.advance(61)
    fixture.advance(2)
    fixture.notifier.close()
    fixture.open()  # the next daemon does not repeat it
    fixture.advance(2)
    assert fixture.titles() == ["job 1 long reaches its time limit in 10 min"]
    assert fixture.sent[0].message.command == "stoker edit 1 --time TIME"


def test_a_share_of_the_time_limit_as_in_sbatch(tmp_path: Path) -> None:
    fixture = RulesFixture(tmp_path)
    id = fixture.submit(time="100m", name="long", mail_type="TIME_LIMIT_90,TIME_LIMIT_50")
    fixture.submit(time="100m", name="other")
    fixture.run(id, id + 1)
    for seconds in (2, 50 * 60, 39 * 60, 2 * 60):
        fixture.advance(seconds)
    assert fixture.flush() == [
        ("ada", "job 1 long reaches its time limit in 50 min"),
        ("ada", "job 1 long reaches its time limit in 9 min"),
    ]


def test_a_configured_target_has_conditions_too(tmp_path: Path) -> None:
    target = NotifyTarget(kind="desktop", on=("job fail", "queue empty"))
    fixture = RulesFixture(tmp_path, lab=target)
    fixture.exit(fixture.submit(), 1)
    assert fixture.titles() == ["the queue is empty", "job 1 true FAILED"]


def test_a_rule_survives_the_daemon_and_ends_with_its_job(tmp_path: Path) -> None:
    fixture = RulesFixture(tmp_path)
    id = fixture.submit()
    fixture.add(f"job {id} done")
    fixture.add("queue empty")
    assert fixture.add("queue empty")["id"] == 2  # it is there already
    fixture.notifier.close()
    fixture.open()
    fixture.exit(id, 0)
    assert sorted(fixture.titles()) == ["job 1 true done", "the queue is empty"]
    fixture.open()
    fixture.add("job fail")
    assert [view.id for view in rules.views(fixture.context, fixture.state)] == [2, 3]
    fixture.flush()


def test_a_removed_rule_sends_nothing(tmp_path: Path) -> None:
    fixture = RulesFixture(tmp_path)
    rule = fixture.add("job done")
    fixture.ask(partial(rules.remove, fixture.context, str(rule["id"])))
    fixture.exit(fixture.submit(), 0)
    assert fixture.titles() == []
    fixture.rejects(partial(rules.remove, fixture.context, "1"), "not_found", "no rule 1")


def test_rules_that_cannot_hold_are_rejected(tmp_path: Path) -> None:
    fixture = RulesFixture(tmp_path)
    fixture.rejects_rule("job done", "not_found", "no such target", target="labb")
    fixture.rejects_rule("job 7 done", "not_found", "7")
    fixture.rejects_rule("when it is over", "usage", "no condition")
    id = fixture.submit()
    fixture.exit(id, 0)
    fixture.rejects_rule(f"job {id} done", "failed", "has ended already")
    fixture.flush()


def test_users_of_a_system_daemon_are_notified_of_their_own_jobs(tmp_path: Path) -> None:
    fixture = RulesFixture(tmp_path)
    fixture.context.notify_targets = lambda: ["me"]
    users = Users(fixture)
    bos = users.submit(BO, name="b")
    rule = users.ask(ANA, rules.add, r.AddNotifyRule(target="me", when="job done"))
    users.rejects(
        ANA, "permission", "another user", rules.add,
        r.AddNotifyRule(target="me", when=f"job {bos} done"),
    )  # fmt: skip
    users.rejects(
        ANA, "permission", "to ana only", rules.add,
        r.AddNotifyRule(target="bo@lab.org", when="job done"),
    )  # fmt: skip
    users.rejects(BO, "not_found", "no rule", rules.remove, str(rule["id"]))
    assert rules.views(users.context(BO), fixture.state) == []
    fixture.exit(bos, 0)
    fixture.exit(users.submit(ANA, name="a"), 0)
    assert fixture.titles() == ["job 2 a done"]


def test_a_sweep_tells_its_best_value_also_if_that_is_read_after_its_end(tmp_path: Path) -> None:
    fixture = RulesFixture(tmp_path)
    definition = {
        "method": "grid", "parameters": {"x": {"values": [1, 2]}}, "line": "train {x}",
        "metric": {"name": "loss"}, "name": "lr",
    }  # fmt: skip
    body = r.Sweep(definition=definition, directory=str(tmp_path), environment={"PATH": "/bin"})
    reply = fixture.ask(handle_submit_sweep(fixture.context, body))
    fixture.add("sweep lr done")
    trials = [reply["sweep"] + 1, reply["sweep"] + 2]
    fixture.exit(trials[0], 0)
    fixture.exit(trials[1], 1)
    fixture.apply(e.TrialMeasured(at=fixture.now, job=trials[0], attempt=0, value=0.1, final=True))
    assert fixture.titles() == ["sweep 1 lr: 1 done, 1 failed"]
    assert fixture.sent[0].message.lines == [
        "best loss 0.1 by trial 0", "most frequent cause: exit 1 ×1",
    ]  # fmt: skip
