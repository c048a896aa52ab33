"""`stoker eta`: what it says, and a real daemon that looks ahead."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from client.fake_daemon import FakeDaemon, view
from e2e.box import Box, Run, until
from stoker.cli import eta, times
from stoker.main import main

Captured = pytest.CaptureFixture[str]


def later(seconds: float) -> str:
    return times.iso(time.time() + seconds + 0.5)


def span(low: float, likely: float | None, high: float | None) -> dict[str, Any]:
    return {
        "low": later(low),
        "likely": None if likely is None else later(likely),
        "high": None if high is None else later(high),
    }


def foreseen(id: int, **more: Any) -> dict[str, Any]:
    return {
        "id": id, "label": str(id), "name": "train", "user": "ana", "state": "PENDING",
        "start": None, "end": None, "basis": None, "never": None, **more,
    }  # fmt: skip


def reply(*jobs: dict[str, Any], **more: Any) -> tuple[int, Any]:
    return 200, {
        "jobs": list(jobs), "more": 0, "at": later(-12.5), "age": 12.0, "futures": 9,
        "horizon": later(2.2 * HOUR), "newer": False, **more,
    }  # fmt: skip


HOUR = 3600.0


def runs() -> dict[str, Any]:
    end = span(2.2 * HOUR, 3.2 * HOUR, 5.2 * HOUR)
    return foreseen(1, state="RUNNING", end=end, basis="its epochs so far")


def waits() -> dict[str, Any]:
    start, end = span(2.2 * HOUR, 3.2 * HOUR, 5.2 * HOUR), span(3.2 * HOUR, 6.2 * HOUR, None)
    return foreseen(2, start=start, end=end, basis="x")


def test_a_table_of_all_with_its_age(fake: FakeDaemon, capsys: Captured) -> None:
    fake.answers["GET /v1/eta"] = reply(
        runs(), waits(), foreseen(3), foreseen(4, never="it is held")
    )
    assert main(["eta"]) == 0
    out, err = capsys.readouterr()
    heading, first, second, third, fourth = out.splitlines()
    assert heading.split() == ["JOBID", "NAME", "USER", "STATE", "STARTS", "ENDS", "FROM"]
    assert "RUNNING" in first
    assert "in 3 h (2 h - 5 h)" in first
    assert first.endswith("its epochs so far")
    assert "in 3 h (2 h - 5 h)" in second
    assert "in 6 h (3 h - ?)" in second
    assert "after in 2 h" not in third
    assert "after 2 h" in third
    assert fourth.endswith("it is held")
    assert " ago, from 9 possible futures" in err


def test_an_answer_that_could_not_be_renewed_says_why(fake: FakeDaemon, capsys: Captured) -> None:
    trouble = "the forecast process failed: it was killed by SIGKILL"
    fake.answers["GET /v1/eta"] = reply(runs(), newer=True, trouble=trouble)
    assert main(["eta"]) == 0
    said = capsys.readouterr().err
    assert f" ago, from 9 possible futures; {trouble}; a newer answer is being worked out" in said


def test_one_job_in_sentences(fake: FakeDaemon, capsys: Captured) -> None:
    fake.answers["GET /v1/eta"] = reply(waits())
    assert main(["eta", "2"]) == 0
    first, starts, ends, basis = capsys.readouterr().out.splitlines()
    assert fake.requests[-1][1] == "/v1/eta?select=2"
    assert first == "Job 2 train is PENDING."
    assert starts.startswith("It should start in 3 h, at ")
    assert " (between " in starts
    assert ends.startswith("It should end in 6 h, at ")
    assert "(not before " in ends
    assert basis == "That goes by x."


def test_what_lies_too_far_ahead(fake: FakeDaemon, capsys: Captured) -> None:
    far = foreseen(2, start=span(86400 * 3.2, None, None), end=span(86400 * 4.2, None, None))
    fake.answers["GET /v1/eta"] = reply(far)
    main(["eta", "2"])
    assert "later than can be foreseen" in capsys.readouterr().out
    assert eta.span(far["start"]) == "after 3 days"
    nobody_knows = foreseen(2, start=span(0, None, None), end=span(0, None, None))
    assert eta.span(nobody_knows["start"]) == "not foreseeable"
    fake.answers["GET /v1/eta"] = reply(nobody_knows)
    main(["eta", "2"])
    assert "It should start when nobody can foresee." in capsys.readouterr().out


def test_no_job_at_all_cannot_be_asked_for(fake: FakeDaemon, capsys: Captured) -> None:
    assert main(["eta", "--limit", "0"]) == 2
    assert (
        capsys.readouterr().err == "stoker: --limit takes a whole number of at least 1, not '0'.\n"
    )
    assert not fake.requests


def test_with_nothing_queued_no_daemon_is_needed(home: Path, capsys: Captured) -> None:
    assert main(["eta"]) == 0
    assert "nothing queued" in capsys.readouterr().err
    assert not any(home.iterdir())


def test_the_queue_has_a_column_if_there_is_an_answer(fake: FakeDaemon, capsys: Captured) -> None:
    known = {"end": waits()["end"], "start": None, "basis": "x", "never": None}
    jobs = {"jobs": [view(2, foreseen=known), view(3)], "more": 0, "counts": {}}
    fake.answers["GET /v1/jobs"] = 200, jobs
    fake.answers["GET /v1/eta"] = reply()
    main(["queue"])
    heading, first, _ = capsys.readouterr().out.splitlines()
    assert "ETA" in heading
    assert "in 6 h (3 h - ?)" in first
    assert not fake.bodies("/v1/eta")
    main(["queue", "--eta"])
    assert len(fake.bodies("/v1/eta")) == 1


def test_the_column_says_how_old_it_is(fake: FakeDaemon, capsys: Captured) -> None:
    for seconds, heading in ((30, "ETA "), (300, "ETA (5 min old)")):
        known = {"at": later(-seconds), "end": waits()["end"], "never": None}
        jobs = {"jobs": [view(3), view(2, foreseen=known)], "more": 0, "counts": {}}
        fake.answers["GET /v1/jobs"] = 200, jobs
        main(["queue"])
        assert heading in capsys.readouterr().out.splitlines()[0]


# ------------------------------------------------------------------------- a real daemon


@pytest.mark.e2e
def test_a_daemon_looks_ahead_when_it_is_asked(home: Path, stoker: Run) -> None:
    box = Box(home, stoker).start("{gpu:1}")
    first = box.submit("--gpus", "1", "-t", "2h", "sleep", "600")
    second = box.submit("--gpus", "1", "-t", "1h", "sleep", "600")
    until(lambda: box.job(first)["state"] == "RUNNING")
    plain = json.loads(stoker("queue", "--json").stdout)["jobs"]
    assert not any("foreseen" in job for job in plain)

    done = stoker("eta", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    holds, queued = answer["jobs"]
    assert answer["futures"] == 9
    assert answer["age"] >= 0
    assert (holds["label"], queued["label"]) == (first, second)
    assert holds["start"] is None
    assert holds["end"]["low"] <= holds["end"]["likely"] <= holds["end"]["high"]
    assert queued["start"] == holds["end"], "it starts when the GPU is free"
    assert queued["basis"] == "its time limit"

    listed = {job["label"]: job for job in json.loads(stoker("queue", "--json").stdout)["jobs"]}
    assert listed[second]["foreseen"]["end"] == queued["end"]
    assert listed[second]["expected_start"] == queued["start"]["likely"]

    assert "expected end" in stoker("show", second).stdout

    third = box.submit("--gpus", "1", "sleep", "600")
    assert third in [job["label"] for job in json.loads(stoker("eta", "--json").stdout)["jobs"]]
    stoker("hold", third)
    assert "it is held" in stoker("eta", third).stdout
    done = stoker("eta", "99")
    assert done.returncode != 0
    assert "99" in done.stderr
