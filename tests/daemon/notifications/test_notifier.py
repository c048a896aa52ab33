"""Messages from events: targets, times, and again after a crash."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from daemon.notifier_fixture import NotifierFixture
from stoker.core import events as e
from stoker.core.model.alarm import Alarm
from stoker.core.model.units import BadValue
from stoker.daemon.notifications import compose
from stoker.daemon.notifications import notifier as module
from stoker.daemon.notifications.outbox import Outbox
from stoker.daemon.settings import NotifyTarget
from stoker.engine import CommandRejected

ALL = NotifyTarget(kind="ntfy", url="x", on=("end",))
CHAT = NotifyTarget(kind="slack", url="https://chat", on=("fail", "alarm"))


def test_mail_options_send_mail(tmp_path: Path) -> None:
    fixture = NotifierFixture(tmp_path)
    ok = fixture.submit(mail_type="ALL", mail_user="ana@lab.org", name="ok")
    bad = fixture.submit(mail_type="FAIL", name="bad")
    fixture.exit(ok, 0)
    fixture.exit(bad, 3)
    assert sorted(fixture.flush()) == [
        ("ada", "job 2 bad FAILED"),
        ("ana@lab.org", "job 1 ok done"),
        ("ana@lab.org", "job 1 ok started"),
    ]
    failure = next(job.message for job in fixture.sent if job.message.event == "fail")
    assert failure.lines[0] == "exit 3"
    assert failure.command == "stoker retry 2"
    assert failure.link == "https://box:1/#/j/2"


def test_without_targets_nothing_is_created(tmp_path: Path) -> None:
    fixture = NotifierFixture(tmp_path)
    fixture.exit(fixture.submit(), 1)
    assert fixture.flush() == []
    assert not (tmp_path / "outbox.db").exists()


def test_configured_targets_get_messages_about_all_jobs(tmp_path: Path) -> None:
    fixture = NotifierFixture(tmp_path, lab=CHAT, all=ALL)
    fixture.exit(fixture.submit(name="ok"), 0)
    fixture.exit(fixture.submit(name="bad"), 1)
    assert sorted(fixture.flush()) == [
        ("ntfy", "job 1 ok done"), ("ntfy", "job 2 bad FAILED"), ("slack", "job 2 bad FAILED"),
    ]  # fmt: skip
    assert all(job.message.log == [] for job in fixture.sent)


def test_failures_within_a_minute_are_one_message(tmp_path: Path) -> None:
    fixture = NotifierFixture(tmp_path, lab=CHAT)
    for id in [fixture.submit() for _ in range(12)]:
        fixture.exit(id, 1)
    assert fixture.flush() == [("slack", "12 jobs failed")]
    assert fixture.sent[0].message.lines[-1] == "and 2 more"


def test_an_array_is_one_message_at_its_end(tmp_path: Path) -> None:
    fixture = NotifierFixture(tmp_path)
    first = fixture.submit(array="0-3", notify=["ana@lab.org:end"], name="grid")
    for id in (first + 3, first, first + 2):
        fixture.exit(id, int(id == first))
    assert fixture.notifier._builder._witness
    fixture.exit(first + 1, 0)
    assert fixture.flush() == [("ana@lab.org", "array 1 grid: 3 done, 1 failed")]
    assert fixture.sent[0].message.lines == ["most frequent cause: exit 1 ×1"]


def test_members_that_end_together_are_one_message(tmp_path: Path) -> None:
    fixture = NotifierFixture(tmp_path)
    fixture.targets["lab"] = NotifyTarget(kind="ntfy", url="x", on=("empty",))
    fixture.open()
    first = fixture.submit(array="0-1", notify=["ana@lab.org:end"], name="grid")
    fixture.run(first, first + 1)
    fixture.apply(
        *(e.ProcessExited(at=1.0, job=id, attempt=fixture.job(id).attempt, code=0)
          for id in (first, first + 1))
    )  # fmt: skip
    assert sorted(fixture.flush()) == [
        ("ana@lab.org", "array 1 grid: 2 done, 0 failed"), ("ntfy", "the queue is empty"),
    ]  # fmt: skip


def test_an_array_starts_once(tmp_path: Path) -> None:
    fixture = NotifierFixture(tmp_path)
    first = fixture.submit(array="0-3", mail_type="BEGIN", name="grid")
    fixture.run(first, first + 1)
    assert fixture.flush() == [("ada", "array 1 grid started")]


def test_tasks_of_an_array_are_reported_one_by_one_on_request(tmp_path: Path) -> None:
    fixture = NotifierFixture(tmp_path)
    first = fixture.submit(array="0-1", mail_type="END,ARRAY_TASKS")
    fixture.exit(first, 0)
    fixture.exit(first + 1, 0)
    assert len(fixture.flush()) == 2


def test_a_requeued_attempt_is_a_message(tmp_path: Path) -> None:
    fixture = NotifierFixture(tmp_path)
    id = fixture.submit(mail_type="REQUEUE", retries="1")
    fixture.exit(id, 1)
    assert [title for _, title in fixture.flush()] == [f"job {id} true is requeued"]


def test_alarms_reach_the_targets_of_the_job_and_of_all(tmp_path: Path) -> None:
    fixture = NotifierFixture(tmp_path, lab=CHAT, me=NotifyTarget(kind="desktop"))
    id = fixture.submit(notify=["me:alarm"])
    fixture.run(id)
    idle = Alarm(kind="gpu_idle", since=1.0, text="nothing", job=id, node="box", gpu="0")
    hot = Alarm(kind="hot", since=1.0, text="99 °C", node="box", gpu="1")
    for _ in range(2):
        fixture.apply(e.AlarmRaised(at=1.0, alarm=idle), e.AlarmRaised(at=1.0, alarm=hot))
    assert sorted(fixture.flush()) == [
        ("desktop", f"job {id} true: idle (GPU box/0)"), ("slack", "2 alarms"),
    ]  # fmt: skip


def test_a_marked_alarm_is_no_message_and_an_action_is_named(tmp_path: Path) -> None:
    fixture = NotifierFixture(tmp_path, lab=CHAT)
    id = fixture.submit()
    fixture.run(id)
    for kind, action in (("gpu_idle", "mark"), ("hung", "retry")):
        alarm = Alarm(kind=kind, since=1.0, text="nothing", job=id, action=action)
        fixture.apply(e.AlarmRaised(at=1.0, alarm=alarm))
    assert fixture.flush() == [("slack", f"job {id} true: hung")]
    assert fixture.sent[0].message.lines == [
        "nothing", "It is ended and repeated, at most three times.",
    ]  # fmt: skip


def test_evidence_is_sent_where_logs_are(tmp_path: Path) -> None:
    hook = NotifyTarget(kind="webhook", url="https://hook", on=("alarm",))
    fixture = NotifierFixture(tmp_path, lab=CHAT, hook=hook)
    id = fixture.submit()
    fixture.run(id)
    alarm = Alarm(kind="hung", since=1.0, text="nothing", job=id, evidence="pid 7 python\n  wait")
    fixture.apply(e.AlarmRaised(at=1.0, alarm=alarm))
    fixture.flush()
    logs = {job.target["kind"]: job.message.log for job in fixture.sent}
    assert logs == {"slack": [], "webhook": ["pid 7 python", "  wait"]}


def test_an_empty_queue_is_a_message(tmp_path: Path) -> None:
    fixture = NotifierFixture(tmp_path, lab=NotifyTarget(kind="ntfy", url="x", on=("empty",)))
    first, second = fixture.submit(), fixture.submit()
    fixture.exit(first, 1)
    fixture.exit(second, 0)
    assert fixture.flush() == [("ntfy", "the queue is empty")]


# -- crashes ------------------------------------------------------------------------------


def test_events_that_the_last_daemon_did_not_handle_become_messages(tmp_path: Path) -> None:
    fixture = NotifierFixture(tmp_path, all=ALL)
    first, second = fixture.submit(name="a"), fixture.submit(name="b")
    fixture.exit(first, 0)
    fixture.flush()
    del fixture.notifier  # the daemon is killed after the commit, before it has looked at it
    fixture.exit(second, 0)
    fixture.open()
    assert fixture.flush() == [("ntfy", "job 1 a done"), ("ntfy", "job 2 b done")]
    fixture.open()
    assert len(fixture.flush()) == 2


def test_a_failed_delivery_waits_for_the_next_daemon(tmp_path: Path) -> None:
    fixture = NotifierFixture(tmp_path, all=ALL)
    fixture.error = "not now"
    fixture.exit(fixture.submit(name="a"), 0)
    fixture.flush()
    assert fixture.notifier.warnings() == ["notifications to all fail: not now"]
    fixture.error = None
    with sqlite3.connect(tmp_path / "outbox.db") as db:
        db.execute("UPDATE messages SET due = 0")
    db.close()
    fixture.open()
    fixture.flush()
    assert len(fixture.sent) == 2
    assert fixture.sent[0].idempotency_key == fixture.sent[1].idempotency_key
    assert fixture.notifier.warnings() == []


def test_a_delivery_that_hangs_delays_neither_the_loop_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.3)
    fixture = NotifierFixture(tmp_path, all=ALL)
    release = threading.Event()
    fixture.notifier._deliver = lambda job: (release.wait(20), None)[1]
    for _ in range(5):
        fixture.exit(fixture.submit(), 0)  # returns at once
    fixture.notifier.close()
    release.set()
    assert fixture.notifier._thread is not None
    fixture.notifier._thread.join(10)
    assert not fixture.notifier._thread.is_alive()


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DISK_RETRY_SECONDS", 0.01)
    fixture = NotifierFixture(tmp_path, all=ALL)
    add, failures = Outbox.add, []

    def fail_first(*args: Any) -> None:
        if len(failures) < 3:
            failures.append(1)
            raise sqlite3.OperationalError("database or disk is full")
        add(*args)

    monkeypatch.setattr(Outbox, "add", fail_first)
    fixture.exit(fixture.submit(name="a"), 0)
    fixture.exit(fixture.submit(name="b"), 0)
    deadline = time.monotonic() + 20
    while len(fixture.sent) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sorted(title for _, title in fixture.flush()) == ["job 1 a done", "job 2 b done"]


def test_ends_without_targets_read_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture = NotifierFixture(tmp_path, me=NotifyTarget(kind="desktop"))
    monkeypatch.setattr(compose, "job_end", lambda *_: pytest.fail("it was composed"))
    fixture.exit(fixture.submit(), 1)
    assert fixture.flush() == []


# -- submissions and tests ----------------------------------------------------------------


def test_unknown_targets_are_rejected_and_mail_without_a_server_warns(tmp_path: Path) -> None:
    fixture = NotifierFixture(tmp_path, lab=CHAT)
    with pytest.raises((BadValue, CommandRejected), match=r"labb: there is no such target.*lab"):
        fixture.submit(notify=["labb"])
    fixture.context.sends_mail = lambda: False
    from functools import partial

    from stoker.daemon.submission.submit import submit_jobs

    receipt = fixture.ask(
        partial(submit_jobs, fixture.context, fixture.submission(mail_type="END"))
    )
    assert "no e-mail is sent" in receipt["warnings"][0]
    fixture.flush()


def test_a_test_message(tmp_path: Path) -> None:
    fixture = NotifierFixture(tmp_path, lab=CHAT)
    assert fixture.notifier.send_test("lab") is None
    assert fixture.sent[0].message.event == "test"
    assert fixture.notifier.send_test("mailto:ana@lab.org") is None
    assert fixture.sent[1].target["to"] == "ana@lab.org"
    assert "configuration" in str(fixture.notifier.send_test("gone"))
    fixture.flush()


def test_a_thread_that_ended_by_an_error_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(outbox: Outbox, busy: set[str]) -> float:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Outbox, "next_due", fail)
    fixture = NotifierFixture(tmp_path, all=ALL)
    fixture.notifier.close()
    (warning,) = fixture.notifier.warnings()
    assert warning == "notifications stopped (RuntimeError: a defect); restart the daemon"
