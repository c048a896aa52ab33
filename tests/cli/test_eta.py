"""`stoker eta`: its output, and forecasts of a real daemon."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from client.fake_daemon import FakeDaemon, view
from e2e.daemon_fixture import DaemonFixture, Run, until
from stoker.cli.output import estimates, times
from stoker.main import main

Captured = pytest.CaptureFixture[str]


def later(seconds: float) -> str:
    return times.iso(time.time() + seconds + 0.5)


def span(
    low: float, likely: float | None, high: float | None, kind: str = "runs", basis: str = "x"
) -> dict[str, Any]:
    return {
        "kind": kind,
        "basis": basis,
        "low": later(low),
        "likely": None if likely is None else later(likely),
        "high": None if high is None else later(high),
    }


def foreseen(id: int, **more: Any) -> dict[str, Any]:
    return {
        "id": id, "label": str(id), "name": "train", "user": "ana", "state": "PENDING",
        "start": None, "end": None, "never": None, **more,
    }  # fmt: skip


def reply(*jobs: dict[str, Any], **more: Any) -> tuple[int, Any]:
    return 200, {
        "jobs": list(jobs), "more": 0, "at": later(-12.5), "age": 12.0, "futures": 9,
        "horizon": later(2.2 * HOUR), "newer": False, **more,
    }  # fmt: skip


HOUR = 3600.0


def runs() -> dict[str, Any]:
    end = span(2.2 * HOUR, 3.2 * HOUR, 5.2 * HOUR, "epochs", "its measured epochs")
    return foreseen(1, state="RUNNING", end=end)


def waits() -> dict[str, Any]:
    start, end = span(2.2 * HOUR, 3.2 * HOUR, 5.2 * HOUR), span(3.2 * HOUR, 6.2 * HOUR, None)
    return foreseen(2, start=start, end=end)


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
    assert first.endswith("its measured epochs")
    assert "in 3 h (2 h - 5 h)" in second
    assert "in 6 h (3 h - ?)" in second
    assert "after in 2 h" not in third
    assert "after 2 h" in third
    assert fourth.endswith("it is held")
    assert " ago, from 9 simulated futures" in err


def test_a_stale_forecast_is_printed_with_the_reason(fake: FakeDaemon, capsys: Captured) -> None:
    trouble = "the forecast process failed: it was killed by SIGKILL"
    fake.answers["GET /v1/eta"] = reply(runs(), newer=True, trouble=trouble)
    assert main(["eta"]) == 0
    printed = capsys.readouterr().err
    assert (
        f" ago, from 9 simulated futures; {trouble}; a newer forecast is being computed" in printed
    )


def test_one_job_in_sentences(fake: FakeDaemon, capsys: Captured) -> None:
    fake.answers["GET /v1/eta"] = reply(waits())
    assert main(["eta", "2"]) == 0
    first, starts, ends = capsys.readouterr().out.splitlines()
    assert fake.requests[-1][1] == "/v1/eta?select=2"
    assert first == "Job 2 train is PENDING."
    assert starts.startswith("It should start in about 3 h, at ")
    assert " (between " in starts
    assert ends.startswith("It should end in about 6 h, at ")
    assert "(not before " in ends
    assert ends.endswith(", from x.")


def test_the_basis_is_marked_in_columns_and_named_in_sentences() -> None:
    similar = span(HOUR, 2.2 * HOUR, 3.2 * HOUR, "similar", "2 runs of a.py with other arguments")
    assert estimates.estimate_cell(similar) == "in ~2 h (60 min - 3 h)"
    assert estimates.estimate_cell(similar, ranged=False) == "in ~2 h"
    assert estimates.estimate_sentence(similar).startswith("in about 2 h, at ")
    assert estimates.estimate_sentence(similar).endswith(
        ", from 2 runs of a.py with other arguments"
    )
    bound = span(HOUR, 2.2 * HOUR, 2.2 * HOUR, "limit", "its time limit")
    assert estimates.estimate_cell(bound) == "in <2 h"
    assert estimates.estimate_sentence(bound).startswith("in 2 h at the latest, at ")
    assert estimates.estimate_cell(bound, verbose=True).startswith("<")


def test_what_has_not_happened_is_never_now() -> None:
    late = span(-60, -50, -40)
    assert estimates.estimate_cell(late) == "in 1 s"
    assert estimates.estimate_sentence(late).startswith("in about 1 s, at ")


def test_what_lies_too_far_ahead(fake: FakeDaemon, capsys: Captured) -> None:
    far = foreseen(2, start=span(86400 * 3.2, None, None), end=span(86400 * 4.2, None, None))
    fake.answers["GET /v1/eta"] = reply(far)
    main(["eta", "2"])
    assert "later than was simulated" in capsys.readouterr().out
    assert estimates.estimate_cell(far["start"]) == "after 3 days"
    fake.answers["GET /v1/eta"] = reply(foreseen(2, never="it is held"))
    main(["eta", "2"])
    assert "There is no estimate: it is held." in capsys.readouterr().out


def test_a_limit_of_zero_is_rejected(fake: FakeDaemon, capsys: Captured) -> None:
    assert main(["eta", "--limit", "0"]) == 2
    assert (
        capsys.readouterr().err == "stoker: --limit takes a whole number of at least 1, not '0'.\n"
    )
    assert not fake.requests


def test_with_nothing_queued_no_daemon_is_needed(home: Path, capsys: Captured) -> None:
    assert main(["eta"]) == 0
    assert "nothing queued" in capsys.readouterr().err
    assert not any(home.iterdir())


def test_the_queue_has_an_eta_column_if_there_is_a_forecast(
    fake: FakeDaemon, capsys: Captured
) -> None:
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


def test_the_eta_column_shows_the_age_of_the_forecast(fake: FakeDaemon, capsys: Captured) -> None:
    for seconds, heading in ((30, "ETA "), (300, "ETA (5 min old)")):
        known = {"at": later(-seconds), "end": waits()["end"], "never": None}
        jobs = {"jobs": [view(3), view(2, foreseen=known)], "more": 0, "counts": {}}
        fake.answers["GET /v1/jobs"] = 200, jobs
        main(["queue"])
        assert heading in capsys.readouterr().out.splitlines()[0]


# ------------------------------------------------------------------------- a real daemon


@pytest.mark.e2e
def test_all_commands_print_one_estimate(home: Path, stoker: Run) -> None:
    box = DaemonFixture(home, stoker).start("{gpu:1}")
    first = box.submit("--gpus", "1", "-t", "2h", "sleep", "600")
    second = box.submit("--gpus", "1", "-t", "1h", "sleep", "600")
    until(lambda: box.job(first)["state"] == "RUNNING")
    assert "foreseen" not in box.job(second), "a client that polls does not cause a forecast"

    done = stoker("eta", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    holds, queued = answer["jobs"]
    assert answer["futures"] == 9
    assert answer["age"] >= 0
    assert (holds["label"], queued["label"]) == (first, second)
    assert holds["start"] is None
    assert holds["end"]["kind"] == "limit"
    assert holds["end"]["basis"] == "its time limit"
    assert holds["end"]["low"] < holds["end"]["likely"] == holds["end"]["high"]
    assert queued["start"]["likely"] == holds["end"]["likely"], "it starts when the GPU is free"
    assert queued["start"]["basis"] == "time limits of the jobs ahead"

    listed = {job["label"]: job for job in json.loads(stoker("queue", "--json").stdout)["jobs"]}
    shown = json.loads(stoker("show", second, "--json").stdout)
    explained = json.loads(stoker("why", second, "--json").stdout)
    for each in (listed[second], shown, explained):
        assert each["foreseen"]["start"] == queued["start"]
        assert each["foreseen"]["end"] == queued["end"]
        assert each["expected_start"] == queued["start"]["likely"]
        assert each["expected_end"] == queued["end"]["likely"]
    assert " in <2 h " in stoker("queue").stdout
    for command in ("eta", "show", "why"):
        assert "in 2 h at the latest, at " in stoker(command, second).stdout

    third = box.submit("--gpus", "1", "sleep", "600")
    assert third in [job["label"] for job in json.loads(stoker("eta", "--json").stdout)["jobs"]]
    stoker("hold", third)
    assert "it is held" in stoker("eta", third).stdout
    done = stoker("eta", "99")
    assert done.returncode != 0
    assert "99" in done.stderr
