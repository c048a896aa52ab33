"""Alarms and targets of notifications on the command line."""

import json
import time

import pytest

from client.fake_daemon import FakeDaemon, view
from conftest import Run
from stoker.cli.output.alarm_text import alarm_line, short_alarm
from stoker.cli.output.times import iso

NOW = 1_794_950_000.0


def alarm(kind: str = "gpu_idle", age: float = 840.0, **more: object) -> dict[str, object]:
    fields = {
        "kind": kind, "job": 42, "label": "42", "node": "box", "gpu": "0", "since": iso(NOW - age),
        "text": "nothing runs\x1b on it", "action": "stoker logs 42", "response": "tell",
        "evidence": "",
    }  # fmt: skip
    return {**fields, **more}


@pytest.mark.parametrize(
    ("kind", "text"),
    [("gpu_idle", "idle 14 min"), ("gpu_unused", "unused 14 min"), ("nan", "NaN 14 min"),
     ("xid", "Xid 14 min"), ("log_silent", "log silent 14 min")],
)  # fmt: skip
def test_the_word_in_lists(kind: str, text: str) -> None:
    assert short_alarm([alarm(kind)], NOW) == text
    assert short_alarm([alarm(kind), alarm("hung")], NOW) == f"{text} +1"


def test_the_line_of_an_alarm() -> None:
    assert alarm_line(alarm(), NOW) == "idle for 14 min: nothing runs? on it (GPU box/0)"
    assert alarm_line(alarm("hung", gpu=None), NOW) == "hung for 14 min: nothing runs? on it"


def test_actions_and_evidence_are_shown(fake: FakeDaemon, stoker: Run) -> None:
    since = iso(time.time() - 840)
    hung = alarm("hung", gpu=None, since=since, response="cancel", evidence="pid 7\x1b\n  wait")
    assert alarm_line(hung).endswith("nothing runs? on it; action: cancel")
    assert alarm_line(alarm(response="mark")).endswith("on it (GPU box/0)")
    fake.answers["GET /v1/alarms"] = (200, {"alarms": [alarm(since=since), hung]})
    lines = stoker("alarms").stdout.splitlines()
    assert [line.split()[-4] for line in lines[1:]] == ["tell", "cancel"]
    assert stoker("alarms", "-v").stdout.splitlines() == [
        *lines, "", "hung 42:", "  pid 7?", "    wait",
    ]  # fmt: skip


def test_alarms_are_a_table(fake: FakeDaemon, stoker: Run) -> None:
    since = iso(time.time() - 840)
    hot = alarm("hot", job=None, label=None, since=since, action="stoker drain box/0")
    alarms = [alarm(since=since), alarm("hung", node=None, gpu=None, since=since), hot]
    fake.answers["GET /v1/alarms"] = (200, {"alarms": alarms})
    lines = stoker("alarms").stdout.splitlines()
    assert lines[0].split() == ["ALARM", "JOBID", "GPU", "SINCE", "WHAT", "ACTION", "TRY"]
    assert lines[1].split()[:6] == ["idle", "42", "box/0", "14", "min", "ago"]
    assert lines[2].split()[:3] == ["hung", "42", "-"]
    assert lines[3].split()[:3] == ["hot", "-", "box/0"]
    assert lines[3].endswith("stoker drain box/0")
    assert "\x1b" not in "".join(lines)
    assert json.loads(stoker("alarms", "--json").stdout)["alarms"][0]["kind"] == "gpu_idle"
    fake.answers["GET /v1/alarms"] = (200, {"alarms": []})
    assert stoker("alarms").stderr == "stoker: no alarms\n"
    assert stoker("alarms", "42").returncode == 2


def test_queue_and_show_have_the_alarms_of_a_job(fake: FakeDaemon, stoker: Run) -> None:
    job = view(42, state="RUNNING", state_code="R", node="box", devices={"gpu": ["0"]})
    job |= {"alarms": [alarm(since=iso(time.time() - 840))], "advice": "it used 1 of 2 GPUs"}
    reply = {"jobs": [job], "sweeps": [], "more": 0, "counts": {"RUNNING": 1}, "warnings": []}
    fake.answers["GET /v1/jobs"] = (200, reply)
    assert "box:0 (idle 14 min)" in stoker("queue").stdout
    shown = stoker("show", "42").stdout
    assert "idle for 14 min: nothing runs? on it (GPU box/0)" in shown
    assert "it used 1 of 2 GPUs" in shown


def test_targets_are_a_table(fake: FakeDaemon, stoker: Run) -> None:
    targets = [
        {"name": "lab", "kind": "slack", "on": ["fail", "alarm"], "sent": 3, "pending": 1,
         "failed": 2, "error": "host answered 500"},
        {"name": "mailto:ana@lab.org", "kind": "email", "on": [], "sent": 0, "pending": 0,
         "failed": 0, "error": None},
    ]  # fmt: skip
    rules = [{"id": 4, "target": "me", "when": "sweep 17 done", "user": "ana", "note": None}]
    fake.answers["GET /v1/notifications"] = (200, {"targets": targets, "rules": rules})
    lines = stoker("notify").stdout.splitlines()
    assert lines[1].split()[:7] == ["lab", "slack", "fail,", "alarm", "3", "1", "2"]
    assert lines[-1].split() == ["4", "me", "sweep", "17", "done", "ana"]
    assert lines[1].endswith("host answered 500")
    assert lines[2].split()[:3] == ["mailto:ana@lab.org", "email", "-"]


def test_a_test_message(fake: FakeDaemon, stoker: Run) -> None:
    route = "POST /v1/notifications/test"
    fake.answers[route] = (200, {"target": "lab", "error": None})
    assert stoker("notify", "test", "lab").stderr == "stoker: sent a test message to lab\n"
    fake.answers[route] = (200, {"target": "lab", "error": "lab.org answered 404 Not Found"})
    done = stoker("notify", "test", "lab")
    assert (done.returncode, done.stderr) == (1, "stoker: lab: lab.org answered 404 Not Found\n")
    assert stoker("notify", "test").returncode == 2


def test_a_rule_is_added_and_removed(fake: FakeDaemon, stoker: Run) -> None:
    rule = {"id": 4, "target": "me", "when": "gpu free", "user": "ana", "note": "free now: box/0"}
    fake.answers["POST /v1/notifications/rules"] = (200, rule)
    fake.answers["DELETE /v1/notifications/rules/4"] = (200, rule | {"note": None})
    done = stoker("notify", "me", "--when", "gpu free")
    assert done.stderr == "stoker: rule 4: me when gpu free (free now: box/0)\n"
    assert stoker("notify", "remove", "4").stderr == "stoker: rule 4: me when gpu free: removed\n"
    assert stoker("notify", "--when", "gpu free").returncode == 2
