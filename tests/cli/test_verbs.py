"""Requests and output of each verb, with a fake daemon."""

import csv
import io
import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from client.fake_daemon import FakeDaemon, chunked, view
from stoker import places, wire
from stoker.cli.output import times
from stoker.cli.session.follow_many import LineWriter, follow_many
from stoker.main import main

Captured = pytest.CaptureFixture[str]

RUNNING = {"state": "RUNNING", "state_code": "R", "node": "box", "devices": {"gpu": ["0", "1"]},
           "elapsed": 75.0, "time_limit": 3600, "time_left": 3525.0}  # fmt: skip
FAILED = {"state": "FAILED", "state_code": "F", "cause": "exit 3", "exit_code": 3, "result": 3,
          "ended_at": "2026-11-15T20:40:00Z", "tail": ["Traceback", "ValueError: nan"]}  # fmt: skip


def listing(*views: dict[str, Any], **more: Any) -> tuple[int, Any]:
    return 200, {"jobs": list(views), "more": 0, "counts": {}, **more}


# ------------------------------------------------------------------------------- queue


def test_with_nothing_queued_no_daemon_is_needed(home: Path, capsys: Captured) -> None:
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "nothing queued" in err
    assert not any(home.iterdir())


VIEWS = ("queue", "queue --watch", "show 1", "why 1", "eta", "logs 1", "metrics 1", "history",
         "gpus", "gpus --watch", "nodes", "policy", "limit", "reserve", "share", "token list",
         "sweep list", "sweep show 1",
         "what-if --policy fifo")  # fmt: skip


@pytest.mark.parametrize("typed", VIEWS)
def test_a_read_only_command_without_a_daemon_fails_and_starts_none(
    home: Path, capsys: Captured, typed: str
) -> None:
    state = Path(places.journal_path())
    state.parent.mkdir(parents=True)
    state.touch()
    before = sorted(home.rglob("*"))
    assert main(typed.split()) == wire.EXIT_UNREACHABLE
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "stoker: No daemon is running. Start one with: stoker daemon start\n"
    assert sorted(home.rglob("*")) == before


def test_the_columns_of_the_queue(fake: FakeDaemon, capsys: Captured) -> None:
    waiting = view(43, reason="Resources", name="x" * 90)
    fake.answers["GET /v1/jobs"] = listing(view(42, **RUNNING), waiting)
    assert main([]) == 0
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split() == ["JOBID", "NAME", "USER", "ST", "TIME", "LEFT", "GPUS", "NODE/REASON"]
    assert first.split() == ["42", "train", "ana", "R", "1:15", "58:45", "1", "box:0,1"]
    assert second.split()[-1] == "(Resources)"
    assert "x" * 90 in second


def test_an_expected_start_gets_a_column(fake: FakeDaemon, capsys: Captured) -> None:
    moment = "2090-01-01T00:00:00Z"
    start = {"low": moment, "likely": moment, "high": moment, "kind": "similar", "basis": ""}
    foreseen = {"at": moment, "start": start, "end": None, "never": None}
    fake.answers["GET /v1/jobs"] = listing(view(1, state="PENDING", foreseen=foreseen))
    main([])
    heading, row = capsys.readouterr().out.splitlines()
    assert "START" in heading
    assert " in " in row


def test_failures_are_listed_with_their_last_lines(fake: FakeDaemon, capsys: Captured) -> None:
    fake.answers["GET /v1/jobs"] = listing(view(42, **RUNNING), view(7, **FAILED))
    main([])
    text = capsys.readouterr().out
    assert "7 train  FAILED: exit 3" in text
    assert "| ValueError: nan" in text
    assert "stoker retry 7" in text
    assert "tail=5" in fake.requests[0][1]


@pytest.mark.parametrize(
    ("argv", "out"),
    [
        (["--format", "{id} {state}"], "42 RUNNING\n"),
        (["-o", "label,name"], "LABEL  NAME\n42     train\n"),
        (["--no-header", "-o", "state"], "RUNNING\n"),
    ],
)
def test_custom_columns(fake: FakeDaemon, capsys: Captured, argv: list[str], out: str) -> None:
    fake.answers["GET /v1/jobs"] = listing(view(42, **RUNNING))
    assert main(["queue", *argv]) == 0
    assert capsys.readouterr().out == out


@pytest.mark.parametrize("argv", [["--format", "{nope}"], ["-o", "nope"]])
def test_an_unknown_field_is_rejected(fake: FakeDaemon, capsys: Captured, argv: list[str]) -> None:
    fake.answers["GET /v1/jobs"] = listing(view(1))
    assert main(["queue", *argv]) == 2
    assert "no field 'nope'. There are: array, attempt" in capsys.readouterr().err


def test_json_and_json_lines(fake: FakeDaemon, capsys: Captured) -> None:
    fake.answers["GET /v1/jobs"] = listing(view(1), view(2))
    main(["--json"])
    assert [job["id"] for job in json.loads(capsys.readouterr().out)["jobs"]] == [1, 2]
    main(["--json-lines"])
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == [1, 2]


def test_filters_are_passed_on(fake: FakeDaemon) -> None:
    fake.answers["GET /v1/jobs"] = listing()
    main(["queue", "--state", "pd,failed", "-u", "ana", "--limit", "7", "3-5"])
    assert fake.requests[0][1] == (
        "/v1/jobs?select=3-5&state=PENDING%2CFAILED&limit=7&user=ana&tail=5&estimate=1"
    )


def test_a_long_queue_does_not_hide_what_failed(fake: FakeDaemon, capsys: Captured) -> None:
    replies = iter(
        [
            listing(view(1), more=500, counts={"PENDING": 500, "FAILED": 1}),
            listing(view(7, **FAILED)),
        ]
    )
    fake.answers["GET /v1/jobs"] = lambda _: next(replies)
    main(["--limit", "1"])
    out, err = capsys.readouterr()
    assert "7 train  FAILED" in out
    assert "499 more jobs" in err


MEMBERS = {"label": "15_[0-299]", "count": 300, "causes": {"exit 3": 298, "killed by SEGV": 2}}


def test_array_members_are_one_row_and_one_excerpt(fake: FakeDaemon, capsys: Captured) -> None:
    pending = view(72, label="70_2", members={"label": "70_[2-9%2]", "count": 8, "causes": {}})
    failed = view(313, **{**FAILED, "label": "15_298", "members": MEMBERS})
    fake.answers["GET /v1/jobs"] = listing(pending, failed, counts={"PENDING": 8, "FAILED": 300})
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:2] == ["70_[2-9%2]", "train"]
    assert lines[3].startswith("15_[0-299] train  300 FAILED: exit 3 (298), killed by SEGV (2), ")
    assert lines[4:] == [
        "    | Traceback",
        "    | ValueError: nan",
        "    stoker logs 15_298   stoker retry '15_[0-299]'",
    ]
    assert "arrays=1" in fake.requests[0][1]
    for exact in ("--json", "--json-lines", "-e", "70"):
        assert main(["queue", exact]) == 0
        assert "arrays=1" not in fake.requests[-1][1]


def test_an_empty_queue_prints_a_message_on_stderr(fake: FakeDaemon, capsys: Captured) -> None:
    fake.answers["GET /v1/jobs"] = listing()
    main([])
    assert capsys.readouterr() == ("", "stoker: the queue is empty\n")


# ------------------------------------------------------------------------------ submit

SUBMITTED = {"first": 12, "last": 411, "count": 400, "label": "12-411", "warnings": ["Careful."]}


def test_submit_prints_the_id_alone(fake: FakeDaemon, capsys: Captured) -> None:
    fake.answers["POST /v1/jobs"] = (200, SUBMITTED)
    assert main(["submit", "--gpus", "1", "python", "train.py", "--lr", "0.01"]) == 0
    assert capsys.readouterr() == ("12-411\n", "stoker: Careful.\n")
    body = fake.bodies("/v1/jobs")[0]
    assert body["what"] == {"argv": ["python", "train.py", "--lr", "0.01"]}
    assert body["options"] == {"gpus": "1"}
    assert body["dry_run"] is False


def test_quiet_is_quiet(fake: FakeDaemon, capsys: Captured) -> None:
    fake.answers["POST /v1/jobs"] = (200, SUBMITTED)
    main(["submit", "--parsable", "true"])
    assert capsys.readouterr() == ("12-411\n", "")


def test_submit_as_json(fake: FakeDaemon, capsys: Captured) -> None:
    fake.answers["POST /v1/jobs"] = (200, SUBMITTED)
    main(["submit", "--json", "true"])
    assert json.loads(capsys.readouterr().out) == {"id": 12, **SUBMITTED}


def test_a_dry_run_prints_no_id(fake: FakeDaemon, capsys: Captured) -> None:
    fake.answers["POST /v1/jobs"] = (200, {**SUBMITTED, "first": None, "warnings": []})
    assert main(["submit", "--test-only", "true"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "would be pending" in err
    assert fake.bodies("/v1/jobs")[0]["dry_run"] is True


def test_submit_and_wait_returns_the_jobs_code(fake: FakeDaemon) -> None:
    fake.answers["POST /v1/jobs"] = (200, SUBMITTED)
    fake.answers["POST /v1/wait"] = (200, {"finished": True, "jobs": [view(12, **FAILED)]})
    assert main(["submit", "-W", "true"]) == 3
    assert fake.bodies("/v1/wait")[0]["select"] == ["12-411"]


# --------------------------------------------------------------------- run, logs, wait


def test_run_follows_and_ends_as_the_job(
    fake: FakeDaemon, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    fake.answers["POST /v1/jobs"] = (200, {"first": 5, "count": 1, "label": "5", "warnings": []})
    fake.answers["GET /v1/jobs/5/log"] = chunked(b"epoch 1\r", b"\xffdone\n")
    fake.answers["GET /v1/jobs"] = listing(view(5, **FAILED))
    fake.answers["POST /v1/wait"] = (200, {"finished": True, "jobs": [view(5, **FAILED)]})
    assert main(["run", "--", "python", "-x"]) == 3
    out, err = capsysbinary.readouterr()
    assert out == b"epoch 1\r\xffdone\n"
    assert b"job 5 (train) FAILED: exit 3" in err
    assert fake.bodies("/v1/jobs")[0]["what"] == {"argv": ["python", "-x"]}


def test_following_continues_at_the_offset_after_a_restart(
    fake: FakeDaemon, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    replies = iter([chunked(b"one\n", end=False), chunked(b"tw", end=False), chunked(b"o\n")])
    fake.answers["GET /v1/jobs"] = listing(view(5, **RUNNING))
    fake.answers["GET /v1/jobs/5/log"] = lambda _: next(replies)
    fake.answers["POST /v1/wait"] = (200, {"finished": True, "jobs": [view(5, result=0)]})
    assert main(["logs", "-f", "5"]) == 0
    assert capsysbinary.readouterr().out == b"one\ntwo\n"
    asked = [target for _, target, _ in fake.requests if "/log" in target]
    assert [target.partition("?")[2] for target in asked] == [
        "follow=1&attempt=0", "follow=1&offset=4&attempt=0", "follow=1&offset=6&attempt=0",
    ]  # fmt: skip


def test_following_continues_with_the_next_attempt(
    fake: FakeDaemon, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    views = iter([view(5, **RUNNING), view(5, **RUNNING, attempt=1), view(5, attempt=1, result=0)])
    logs = iter([chunked(b"first\n"), chunked(b"second\n")])
    fake.answers["GET /v1/jobs"] = lambda _: listing(next(views))
    fake.answers["GET /v1/jobs/5/log"] = lambda _: next(logs)
    fake.answers["POST /v1/wait"] = (200, {"finished": True, "jobs": [view(5, result=0)]})
    assert main(["logs", "-f", "5"]) == 0
    assert capsysbinary.readouterr().out == b"first\nsecond\n"
    asked = [target for _, target, _ in fake.requests if "/log" in target]
    assert [target[-9:] for target in asked] == ["attempt=0", "attempt=1"]


def test_several_logs_have_headings(
    fake: FakeDaemon, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    fake.answers["GET /v1/jobs"] = listing(view(1), view(2, **FAILED))
    fake.answers["GET /v1/jobs/1/log"] = chunked(b"a\n")
    fake.answers["GET /v1/jobs/2/log"] = chunked(b"b\n")
    fake.answers["POST /v1/jobs/dismiss"] = (200, {"done": [], "skipped": []})
    assert main(["logs", "--tail", "3", "--since", "5m", "1-2"]) == 0
    assert capsysbinary.readouterr().out == b"==> 1 train <==\na\n\n==> 2 train <==\nb\n"
    assert "/log?tail=3&since=300" in fake.requests[1][1]
    assert fake.bodies("/v1/jobs/dismiss") == [{"select": ["2"]}]


def test_lines_of_several_jobs_come_with_their_job_in_front(
    fake: FakeDaemon, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    jobs = [view(9, result=0), view(10, **FAILED)]
    fake.answers["GET /v1/jobs"] = lambda _: listing(jobs[0], jobs[1])
    fake.answers["GET /v1/jobs/9/log"] = chunked(b"a", b"1\n10%\r20%\r\n", b"a2")
    fake.answers["GET /v1/jobs/10/log"] = chunked(b"b1\n")
    fake.answers["POST /v1/wait"] = (200, {"finished": True, "jobs": jobs})
    assert main(["logs", "-f", "9-10"]) == 3
    out, err = capsysbinary.readouterr()
    assert sorted(out.splitlines()) == [b" 9 | 20%", b" 9 | a1", b" 9 | a2", b"10 | b1"]
    assert b"job 10 (train) FAILED: exit 3" in err


def test_lines_of_several_jobs_are_printed_as_they_come(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    turns = {"1": threading.Semaphore(), "2": threading.Semaphore(0)}

    def copy(label: str, target: LineWriter) -> None:
        other = "21"[int(label) - 1]
        for line in (b"one\n", b"two\n"):
            assert turns[label].acquire(timeout=10)
            target.write(line)
            turns[other].release()

    follow_many(["1", "2"], copy)
    assert capsysbinary.readouterr().out == b"1 | one\n2 | one\n1 | two\n2 | two\n"


def test_an_error_while_one_of_several_jobs_is_followed_ends_it_all() -> None:
    forever = threading.Event()

    def copy(label: str, _: LineWriter) -> None:
        if label == "2":
            raise BrokenPipeError
        forever.wait()

    with pytest.raises(BrokenPipeError):
        follow_many(["1", "2"], copy)
    forever.set()


def test_more_jobs_than_are_followed_at_once_are_followed_in_turn(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.cli.session.follow_many.MAX_CONNECTIONS", 2)
    labels = [str(number) for number in range(10, 20)]
    follow_many(labels, lambda label, target: target.write(b"done\n") and None)
    lines = capsysbinary.readouterr().out.decode().splitlines()
    assert sorted(lines) == [f"{label} | done" for label in labels]


def test_wait_returns_the_highest_code(fake: FakeDaemon, capsys: Captured) -> None:
    jobs = [view(1, result=0), view(2, result=143, state="CANCELLED"), view(3, **FAILED)]
    fake.answers["POST /v1/wait"] = (200, {"finished": True, "jobs": jobs, "stuck": []})
    assert main(["wait", "1-3"]) == 143
    assert fake.bodies("/v1/wait")[0] == {"select": ["1-3"], "any": False, "timeout": None}


def test_wait_gives_up_with_101(fake: FakeDaemon, capsys: Captured) -> None:
    fake.answers["POST /v1/wait"] = (200, {"finished": False, "jobs": [view(1)], "stuck": []})
    assert main(["wait", "--any", "--timeout", "0.05s", "1"]) == 101
    assert "timeout; 1 job not finished" in capsys.readouterr().err
    assert fake.bodies("/v1/wait")[0]["any"] is True


def test_wait_ends_when_a_job_can_never_start(fake: FakeDaemon, capsys: Captured) -> None:
    stuck = [{"id": 2, "text": "it waits for job 1, which failed."}]
    fake.answers["POST /v1/wait"] = (200, {"finished": False, "jobs": [view(2)], "stuck": stuck})
    assert main(["wait", "2"]) == 1
    assert "job 2 can never start: it waits for job 1" in capsys.readouterr().err


def test_what_is_waited_for_does_not_change_meanwhile(fake: FakeDaemon) -> None:
    fake.answers["GET /v1/jobs"] = listing(view(12), more=399)
    fake.answers["POST /v1/wait"] = (200, {"finished": True, "jobs": [], "stuck": []})
    assert main(["wait", "last", "7"]) == 0
    assert fake.bodies("/v1/wait")[0]["select"] == ["12-411", "7"]
    fake.answers["GET /v1/jobs"] = listing(view(1), view(5))
    assert main(["wait", "all"]) == 0
    assert fake.bodies("/v1/wait")[1]["select"] == ["1", "5"]


def test_the_log_of_an_attempt_that_never_was(fake: FakeDaemon, capsys: Captured) -> None:
    fake.answers["GET /v1/jobs"] = listing(view(5, **{**FAILED, "attempt": 1, "dismissed": True}))
    fake.answers["GET /v1/jobs/5/log"] = chunked(b"first\n")
    assert main(["logs", "--attempt", "9", "5"]) == 3
    assert capsys.readouterr().err == "stoker: There is no attempt 9 of job 5.\n"
    assert main(["logs", "--attempt", "1", "5"]) == 0
    fake.answers["GET /v1/jobs"] = listing(view(5, attempt=1))
    assert main(["logs", "--attempt", "1", "5"]) == 3
    assert main(["logs", "--attempt", "0", "5"]) == 0


def earlier(number: int, **changes: Any) -> dict[str, Any]:
    """A job in its second attempt."""
    past = [{"attempt": 0, "started_at": None, "ended_at": None, "cause": "stopped"}]
    return view(number, **{"attempt": 1, "attempts": past, "log": f"/l/{number}.1.out", **changes})


def test_the_log_of_a_later_attempt_names_the_earlier_one(
    fake: FakeDaemon, capsys: Captured
) -> None:
    fake.answers["GET /v1/jobs/18/log"] = chunked(b"second\n")
    fake.answers["GET /v1/jobs"] = listing(earlier(18, **RUNNING))
    assert main(["logs", "18"]) == 0
    shown_text = capsys.readouterr()
    assert shown_text.out == "second\n"
    assert shown_text.err == (
        "stoker: attempt 1 of job 18; output of the previous attempt: stoker logs --attempt 0 18\n"
    )
    fake.answers["GET /v1/jobs"] = listing(earlier(18))
    assert main(["logs", "18"]) == 0
    assert "attempt 1 of job 18 has not started" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--attempt", "0"], ["--json"], ["--path"]])
def test_other_requests_do_not_mention_earlier_attempts(
    fake: FakeDaemon, capsys: Captured, words: list[str]
) -> None:
    fake.answers["GET /v1/jobs/18/log"] = chunked(b"x\n")
    fake.answers["GET /v1/jobs"] = listing(earlier(18, **RUNNING))
    assert main(["logs", *words, "18"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("changes", [{"log": "/x/mine.out"}, {"attempts": []}])
def test_without_an_earlier_log_none_is_named(
    fake: FakeDaemon, capsys: Captured, changes: dict[str, Any]
) -> None:
    fake.answers["GET /v1/jobs/18/log"] = chunked(b"x\n")
    fake.answers["GET /v1/jobs"] = listing(earlier(18, **RUNNING, **changes))
    assert main(["logs", "18"]) == 0
    assert capsys.readouterr().err == ""


def test_wait_for_an_unknown_job_fails(fake: FakeDaemon) -> None:
    assert main(["wait", "99"]) == 3


# ---------------------------------------------------------------------- verbs that act


@pytest.mark.parametrize(
    ("argv", "path", "body"),
    [
        (["cancel", "7", "1,4-6"], "cancel", {"select": ["7", "1,4-6"]}),
        (["kill", "-s", "USR1", "7"], "kill", {"select": ["7"], "signal": "USR1"}),
        (["kill", "-9", "7"], "kill", {"select": ["7"], "signal": "9"}),
        (["kill", "-1"], "kill", {"select": ["-1"], "signal": None}),
        (["pause", "7"], "pause", {"select": ["7"]}),
        (["resume", "last"], "resume", {"select": ["last"]}),
        (["hold", "%lr"], "hold", {"select": ["%lr"]}),
        (["release", "42_3"], "release", {"select": ["42_3"]}),
        (["retry", "--failed"], "retry", {"select": [], "failed": True, "same_gpus": False}),
        (
            ["retry", "7", "--running"],
            "retry",
            {"select": ["7"], "failed": False, "same_gpus": False, "running": True},
        ),
        (
            ["retry", "--since", "2026-11-01"],
            "retry",
            {"select": [], "failed": True, "same_gpus": False, "all": True,
             "since": times.iso(times.parse_time("2026-11-01"))},
        ),
        (["edit", "7", "--priority", "5"], "edit", {"select": ["7"], "options": {"priority": "5"}}),
        (["move", "7", "--first"], "move", {"select": ["7"], "where": "first", "other": None}),
        (["move", "7", "--after", "5"], "move", {"select": ["7"], "where": "after", "other": "5"}),
    ],
)  # fmt: skip
def test_the_verb_is_the_request(
    fake: FakeDaemon, capsys: Captured, argv: list[str], path: str, body: dict[str, object]
) -> None:
    done = [{"id": 7, "label": "7", "state": "PENDING"}, {"id": 8, "label": "8", "state": "R"}]
    fake.answers[f"POST /v1/{path}"] = (200, {"done": done, "skipped": []})
    assert main(argv) == 0
    assert fake.bodies(f"/v1/{path}") == [body]
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith(" 7-8\n")


def test_when_nothing_could_be_done_the_code_is_1(fake: FakeDaemon, capsys: Captured) -> None:
    skipped = [{"id": 7, "label": "7", "why": "it has already finished"}]
    fake.answers["POST /v1/cancel"] = (200, {"done": [], "skipped": skipped})
    assert main(["cancel", "7"]) == 1
    assert capsys.readouterr().err == "stoker: job 7 not changed: it has already finished\n"


@pytest.mark.parametrize(
    "verb", ["cancel", "kill", "hold", "retry", "edit", "move", "pause", "wait"]
)
def test_jobs_must_be_named(fake: FakeDaemon, verb: str) -> None:
    assert main([verb]) == 2
    assert not fake.requests


# ---------------------------------------------------------------------------- the rest


def test_show_prints_all_known_fields(fake: FakeDaemon, capsys: Captured) -> None:
    fake.answers["GET /v1/jobs"] = listing(view(42, **RUNNING))
    assert main(["show", "42"]) == 0
    text = capsys.readouterr().out
    assert "Job 42 train" in text
    assert "holds           gpu 0,1" in text
    assert "python train.py" in text
    assert "None" not in text
    main(["show", "42", "--json"])
    assert json.loads(capsys.readouterr().out)["state"] == "RUNNING"


def test_show_of_a_finished_job_and_of_its_request(fake: FakeDaemon, capsys: Captured) -> None:
    asked = {"retry": "1 on oom,exit:3", "on_end": "notify", "warning_signal": "10@120",
             "deadline_at": "2026-11-16T20:40:00Z",
             "begin_at": "2026-11-15T20:35:00Z", "environment_hash": "abc"}  # fmt: skip
    over = {**RUNNING, **FAILED, **asked}
    fake.answers["GET /v1/jobs"] = listing(view(42, **over))
    fake.answers["POST /v1/jobs/dismiss"] = (200, {"done": [], "skipped": []})
    assert main(["show", "42", "-v"]) == 0
    shown_text = dict(line[2:].split(None, 1) for line in capsys.readouterr().out.splitlines()[1:])
    text = str(shown_text)
    assert shown_text["used"] == "gpu 0,1"
    assert "holds" not in shown_text
    assert "left" not in shown_text
    assert "up to 1 time, after oom, exit:3" in text
    assert "SIGUSR1, 120 s before its time limit" in text
    assert "notify" in text
    assert shown_text["deadline"].startswith("2026-11-1")
    assert "T20:35" not in text
    assert shown_text["environment"] == "abc"
    nothing = dict.fromkeys(asked)
    fake.answers["GET /v1/jobs"] = listing(view(42, **{**RUNNING, **nothing}))
    main(["show", "42"])
    assert "None" not in capsys.readouterr().out


def test_why_prints_sentences(fake: FakeDaemon, capsys: Captured) -> None:
    fake.answers["GET /v1/jobs/42/why"] = (200, {
        "id": 42, "label": "42", "state": "PENDING", "reason": "Resources",
        "text": "it waits for its turn.", "expected_start": None, "expected_basis": None,
        "position": 3, "ahead": [39, 40],
        "nodes": [{"node": "box", "fits_empty": True, "constraints": [
            {"name": "gpus", "needs": "2", "free": "1", "text": "needs 2 GPUs, 1 is free"}]}],
    })  # fmt: skip
    assert main(["why", "42"]) == 0
    assert capsys.readouterr().out == (
        "Job 42 is PENDING (Resources): it waits for its turn.\n"
        "It is number 3 in the queue; ahead of it: 39, 40.\n"
        "  box\n"
        "    gpus: needs 2 GPUs, 1 is free\n"
    )


GPU = {"node": "box", "id": "0", "index": 0, "uuid": "GPU-x", "model": "A100", "memory": 24576,
       "memory_used": 300, "utilization": 3, "temperature": 41, "power": 60.0, "state": "shared",
       "free": "0.5", "jobs": [{"id": 42, "label": "42", "name": "t", "user": "ana",
                                "share": "0.5"}],
       "foreign": [{"pid": 812, "user": "bo", "command": "/bin/python x",
                    "memory": 200}]}  # fmt: skip


def test_gpus_one_line_each(fake: FakeDaemon, capsys: Captured) -> None:
    idle = {**GPU, "id": "1", "index": 1, "utilization": None, "memory": None, "temperature": None,
            "jobs": [], "foreign": [], "state": "free"}  # fmt: skip
    fake.answers["GET /v1/gpus"] = (200, {"gpus": [GPU, idle], "note": None})
    assert main(["gpus", "--no-header"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "41°C  3%  300/24576 MiB  shared  0.5  ana: job 42 t (0.5), bo: python (200M)" in first
    assert "free" in second
    assert main(["gpus", "--id", "1", "--json"]) == 0
    assert [gpu["id"] for gpu in json.loads(capsys.readouterr().out)["gpus"]] == ["1"]
    assert main(["gpus", "--id", "9"]) == 3


HERE = {"name": "box", "state": "up", "jobs": 3, "since": None, "address": None, "why": None,
        "notes": [], "resources": {"cpu": {"total": "16", "free": "15.25"},
        "mem": {"total": "131072", "free": "5120"},
        "gpu": {"total": "4", "free": "1"}}}  # fmt: skip
AFAR = {**HERE, "name": "gpu1", "address": "ssh://me@198.51.100.7:22", "jobs": 0,
        "measured": {"gpus": [{"model": "T4"}] * 2, "cores": 8, "memory_available": 4096},
        "resources": {"gpu": {"total": "2", "free": "2"}}}  # fmt: skip
SILENT = {**AFAR, "name": "gpu2", "state": "unreachable", "measured": None,
          "why": "ssh: connect to host 198.51.100.8 port 22: Connection refused"}  # fmt: skip


def test_nodes_one_line_each(fake: FakeDaemon, capsys: Captured) -> None:
    fake.answers["GET /v1/nodes"] = (200, {"nodes": [HERE]})
    assert main(["nodes"]) == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split("  ")[-1] == "JOBS"
    assert row.split() == ["box", "up", "1/4", "15/16", "5/128G", "3"]
    fake.answers["GET /v1/nodes"] = (200, {"nodes": [HERE, AFAR, SILENT]})
    assert main(["nodes"]) == 0
    _, here, there, silent = capsys.readouterr().out.splitlines()
    assert here.endswith("3  this machine")
    assert there.split() == ["gpu1", "up", "2/2", "-", "-", "0", "ssh://me@198.51.100.7:22"]
    assert silent.split()[2:4] == ["-/2", "-"]
    assert silent.endswith("  Connection refused")


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_nodes_on_a_terminal_lose_the_address_first_and_never_the_note(
    fake: FakeDaemon, capsys: Captured, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr("stoker.cli.output.table.terminal_width", lambda: width)
    fake.answers["GET /v1/nodes"] = (200, {"nodes": [HERE, AFAR, SILENT]})
    assert main(["nodes"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    assert ("ssh://" in text) == (width >= 120)
    assert ("gpu2: Connection refused" in text) == (width < 80)
    assert "Connection refused" in text


def test_adding_nodes_prints_their_inventory(
    fake: FakeDaemon, capsys: Captured, tmp_path: Path
) -> None:
    (tmp_path / "key").touch()
    lines = f"username: me\nip: h\nport: 22\nssh_key_path: {tmp_path}/key\n"
    for name in ("gpu1", "gpu2"):
        (tmp_path / f"{name}.yaml").write_text(lines)
    files = [str(tmp_path / f"{name}.yaml") for name in ("gpu1", "gpu2")]
    fake.answers["POST /v1/nodes"] = (200, {"configured": True, "changed": True})
    fake.answers["POST /v1/nodes/refresh"] = (200, {"nodes": [HERE, AFAR, SILENT]})
    assert main(["nodes", "add", *files]) == 1
    out, err = capsys.readouterr()
    assert out == "gpu1 is up: 2 x T4, 8 cores, 4 GiB of memory free\n"
    assert err.count("config.toml also defines") == 2
    assert "gpu2 cannot be reached" in err
    asked = [body["name"] for body in fake.bodies("/v1/nodes")]
    assert asked == ["gpu1", "gpu2"]
    assert fake.bodies("/v1/nodes")[0]["key"] == f"{tmp_path}/key"
    assert main(["nodes", "add", *files, "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)["nodes"]
    assert [each["name"] for each in shown] == ["gpu1", "gpu2"]


@pytest.mark.parametrize(
    "argv",
    [
        ["add"], ["add", "gpu1"], ["add", "gpu1", "h", "x"], ["add", "gpu1", "h", "--key", "/no"],
        ["add", "nothere.yaml"], ["add", "a.yaml", "h"], ["remove"], ["frob"], ["list", "x"],
    ],
)  # fmt: skip
def test_invalid_nodes_are_rejected_before_any_request(
    fake: FakeDaemon, capsys: Captured, argv: list[str]
) -> None:
    assert main(["nodes", *argv]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert fake.requests == []


def test_removing_a_node_names_the_abandoned_jobs(fake: FakeDaemon, capsys: Captured) -> None:
    reply = {"name": "gpu1", "lost": [4, 5], "configured": True}
    fake.answers["POST /v1/nodes/remove"] = (200, reply)
    assert main(["nodes", "rm", "gpu1", "--force"]) == 0
    assert fake.bodies("/v1/nodes/remove") == [{"name": "gpu1", "force": True}]
    printed = capsys.readouterr().err
    assert "removed gpu1; 2 jobs abandoned there" in printed
    assert "config.toml defines gpu1" in printed


def test_gpus_of_several_nodes_are_named_with_their_node(
    fake: FakeDaemon, capsys: Captured
) -> None:
    there = {**GPU, "node": "gpu1", "state": "unreachable", "utilization": None}
    fake.answers["GET /v1/gpus"] = (200, {"gpus": [GPU, there], "note": None})
    assert main(["gpus", "--no-header"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["box/0", "gpu1/0"]
    for asked, found in (("0", 2), ("gpu1/0", 1), ("gpu1", 1), ("box/0,gpu1", 2)):
        assert main(["gpus", "--no-header", "--id", asked]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert (len(lines), "/0" in lines[0]) == (found, True)
    assert main(["gpus", "--id", "gpu1/1"]) == 3
    alone = {"gpus": [there], "machines": ["box", "gpu1"], "note": None}
    fake.answers["GET /v1/gpus"] = (200, alone)
    assert main(["gpus", "--no-header"]) == 0
    assert capsys.readouterr().out.split()[0] == "gpu1/0"


def test_a_node_is_drained_by_its_name(fake: FakeDaemon, capsys: Captured) -> None:
    devices = ["box/gpu:0", "b/cpu:pool", "b/mem:pool"]
    reply = {"devices": devices, "machines": ["b"], "running": []}
    for verb, printed in (
        ("drain", "draining b, box/gpu:0"),
        ("undrain", "using b, box/gpu:0 again"),
    ):
        fake.answers[f"POST /v1/{verb}"] = (200, reply)
        assert main([verb, "b", "box/0"]) == 0
        assert capsys.readouterr().err == f"stoker: {printed}\n"


def test_a_change_on_an_unreachable_node_is_reported_as_delayed(
    fake: FakeDaemon, capsys: Captured
) -> None:
    done = [{"id": n, "label": str(n), "state": "COMPLETING", "unreachable": ["a"]} for n in (7, 8)]
    fake.answers["POST /v1/cancel"] = (200, {"done": done, "skipped": []})
    assert main(["cancel", "7-8"]) == 0
    printed = capsys.readouterr().err
    assert "cancelled 7-8\n" in printed
    assert "when a answers" in printed
    assert "stoker nodes remove a --force" in printed


def test_the_queue_names_the_unreachable_node_and_trims_causes(
    fake: FakeDaemon, capsys: Captured
) -> None:
    shown_text = "waits for a, unreachable for 1:30"
    waiting = view(43, reason="NodeUnreachable", reason_text=shown_text)
    again = view(44, reason="BeginTime", node="a")
    failed = view(7, **{**FAILED, "cause": "it is not there (/x/nosuch)."})
    fake.answers["GET /v1/jobs"] = listing(waiting, again, failed)
    main([])
    out = capsys.readouterr().out
    assert f"({shown_text})" in out
    assert "(BeginTime)" in out
    assert "(/x/nosuch), " in out


def test_jobs_on_several_or_unreachable_nodes(fake: FakeDaemon, capsys: Captured) -> None:
    parts = [{"node": name, "devices": {"gpu": ["0", "1"]}} for name in ("a", "b")]
    request = {**view(1)["request"], "gpus": "2", "machines": 2}
    since = "2026-11-15T20:00:00Z"
    gang = view(42, **RUNNING, parts=parts, nodes=["a", "b"], unreachable=True,
                unreachable_since=since, request=request,
                reason_text="b has been unreachable for 5:00")  # fmt: skip
    fake.answers["GET /v1/jobs"] = listing(gang)
    assert main(["--no-header"]) == 0
    row = capsys.readouterr().out
    assert " 2x2  a:0,1 b:0,1 (unreachable for " in row
    assert main(["show", "42"]) == 0
    shown = capsys.readouterr().out
    assert "RUNNING: b has been unreachable for 5:00" in shown
    assert "gpu 0,1 on a" in shown
    assert "gpu 0,1 on b" in shown
    assert "machines 2" in shown


def test_drain_and_undrain(fake: FakeDaemon, capsys: Captured) -> None:
    fake.answers["POST /v1/drain"] = (
        200, {"devices": ["box/gpu:2"], "running": [12], "labels": ["5_7"]},
    )  # fmt: skip
    fake.answers["POST /v1/undrain"] = (200, {"devices": ["box/gpu:2"]})
    assert main(["drain", "2,3", "--reason", "hot"]) == 0
    assert fake.bodies("/v1/drain") == [{"devices": ["2", "3"], "reason": "hot"}]
    assert "still running there: 5_7\n" in capsys.readouterr().err
    assert main(["undrain", "all"]) == 0
    assert main(["drain"]) == 2


def test_history_filters_and_csv(fake: FakeDaemon, capsys: Captured) -> None:
    fake.answers["GET /v1/history"] = (200, {"jobs": [view(7, **FAILED)], "more": 0})
    argv = ["history", "--since", "2026-11-01T00:00:00Z", "--state", "f", "--limit", "9"]
    assert main(argv) == 0
    query = fake.requests[0][1]
    assert "state=FAILED" in query
    assert "since=2026-11-01T00%3A00%3A00Z" in query
    assert "limit=9" in query
    assert capsys.readouterr().out.splitlines()[1].split()[:7] == [
        "7", "train", "ana", "FAILED", "0:00", "1", "3",
    ]  # fmt: skip
    main(["history", "--csv"])
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.startswith("id,label,name")
    assert row.startswith("7,7,train")


def test_csv_holds_no_python(fake: FakeDaemon, capsys: Captured) -> None:
    past = [{"attempt": 0, "cause": "exit 3", "exit_code": None}]
    job = view(7, labels=["a", "b"], attempts=past, devices={"gpu": ["0"]}, dismissed=True)
    fake.answers["GET /v1/history"] = (200, {"jobs": [job], "more": 0})
    main(["history", "--csv"])
    row = next(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert json.loads(row["attempts"]) == past
    assert json.loads(row["labels"]) == ["a", "b"]
    assert json.loads(row["devices"]) == {"gpu": ["0"]}
    assert row["dismissed"] == "true"
    main(["history", "-o", "past,labels", "--no-header"])
    assert "'" not in capsys.readouterr().out


def test_a_backup_gets_an_absolute_path(
    fake: FakeDaemon, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    fake.answers["POST /v1/backup"] = (200, {"path": "x", "bytes": 5})
    assert main(["db", "backup", "copy.db"]) == 0
    assert fake.bodies("/v1/backup") == [{"path": str(home / "copy.db")}]
    assert main(["db", "restore"]) == 2


def test_every_verb_has_a_json_form(
    fake: FakeDaemon, home: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    fake.answers["GET /v1/jobs"] = listing(view(5))
    fake.answers["POST /v1/jobs"] = (200, {**SUBMITTED, "first": None})
    for argv in (
        ["db", "path"], ["completion", "bash"], ["daemon", "install"], ["logs", "--path", "5"],
        ["daemon", "install", "--print"], ["run", "--dry-run", "true"],
    ):  # fmt: skip
        assert main([*argv[:1], "--json", *argv[1:]]) == 0
        assert json.loads(capsys.readouterr().out)
    assert main(["queue", "--json", "--watch"]) == 2
    assert "--watch cannot be combined" in json.loads(capsys.readouterr().out)["error"]["message"]


@pytest.mark.parametrize(
    ("argv", "running", "printed"),
    [
        ([], [], ""),
        ([], [7], "; 1 job continues, and the next daemon recovers it"),
        ([], [7, 8], "; 2 jobs continue, and the next daemon recovers them"),
        (["--cancel"], [7], "; 1 job was cancelled"),
        (["--drain"], [], ""),
    ],
)
def test_daemon_stop_waits_until_the_process_has_ended(
    fake: FakeDaemon, capsys: Captured, argv: list[str], running: list[int], printed: str
) -> None:
    process = subprocess.Popen(["sleep", "30"])

    def stop(_: Any) -> tuple[int, Any]:
        process.terminate()
        return 200, {"running": running, "text": "..."}

    fake.answers["GET /v1/daemon"] = (200, {"pid": process.pid})
    fake.answers["POST /v1/daemon/stop"] = stop
    assert main(["daemon", "stop", *argv]) == 0
    assert os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    process.wait()
    assert capsys.readouterr().err == f"stoker: stopped the daemon (pid {process.pid}){printed}\n"


def test_a_daemon_that_does_not_end_is_reported(
    fake: FakeDaemon, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.cli.admin.daemon.STOP_SECONDS", 0.05)
    fake.answers["GET /v1/daemon"] = (200, {"pid": os.getpid()})
    fake.answers["POST /v1/daemon/stop"] = (200, {"running": [], "text": ""})
    assert main(["daemon", "stop"]) == 1
    assert "has not stopped yet" in capsys.readouterr().err


def test_daemon_status(fake: FakeDaemon, capsys: Captured) -> None:
    fake.answers["GET /v1/daemon"] = (200, {"pid": 7, "counts": {"RUNNING": 2}})
    assert main(["daemon", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pid"] == 7
    assert main(["daemon", "status"]) == 0
    assert "2 running" in capsys.readouterr().out


def test_daemon_status_without_one(home: Path, capsys: Captured) -> None:
    assert main(["daemon", "status"]) == 4
    assert main(["daemon", "stop"]) == 0
    assert main(["daemon", "frobnicate"]) == 2


def test_the_unit_keeps_jobs_alive(home: Path, capsys: Captured) -> None:
    assert main(["daemon", "install", "--print", "--resources", "{gpu:2, a: 50%}"]) == 0
    text = capsys.readouterr().out
    assert "KillMode=process" in text
    assert "Delegate=yes" in text
    assert f"STOKER_HOME={home}" in text
    assert '--resources "{gpu:2, a: 50%%}"' in text
    assert main(["daemon", "install"]) == 0
    assert "linger" in capsys.readouterr().err
