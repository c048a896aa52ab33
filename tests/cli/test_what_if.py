"""`stoker what-if` with a real daemon, which is not changed."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from e2e.daemon_fixture import until
from stoker.client.client import Client
from stoker.client.errors import UsageError

Run = Callable[..., Any]
pytestmark = pytest.mark.e2e

GPUS = 2


@pytest.fixture
def lab(stoker: Run) -> Run:
    """Two GPUs; two jobs have ended, two run, and three wait."""
    stoker("daemon", "start", "--resources", f"{{gpu:{GPUS}}}", check=True)
    stoker("submit", "--gpus", "1", "--name", "done", "sleep 0.1", check=True)
    stoker("submit", "--gpus", "2", "--name", "done", "sleep 0.1", check=True)
    stoker("wait", "1-2", check=True)
    for name, gpus, limit in (
        ("left", 1, "10m"), ("right", 1, "20m"), ("wide", 2, "30m"), ("first", 1, "40m"),
        ("second", 1, "40m"),
    ):  # fmt: skip
        stoker("submit", "--gpus", gpus, "--time", limit, "--name", name, "sleep 600", check=True)
    until(lambda: running(stoker) == GPUS)
    return stoker


def running(stoker: Run) -> int:
    states = [job["state"] for job in json.loads(stoker("queue", "--json").stdout)["jobs"]]
    return states.count("RUNNING")


def what_if_reply(stoker: Run, *args: object) -> dict[str, Any]:
    done = stoker("what-if", *args, "--json", timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def by_name(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {job["name"]: job for job in found["today"]}


def test_limits_and_reservations_hold_in_the_simulation(lab: Run) -> None:
    lab("reserve", "--devices", "0", "--from", "now+30minutes", "--for", "5h", check=True)
    lab("limit", "queue:default", "--max-running", "2", check=True)
    with_reservation = by_name(what_if_reply(lab, "--add", "gpus=2"))
    wide, first = (with_reservation[name]["before"] for name in ("wide", "first"))
    assert seconds_until(wide["starts_at"]) > 4 * 3600
    assert seconds_until(first["starts_at"]) < 3600
    after = [with_reservation[name]["after"]["starts_at"] for name in ("first", "second")]
    assert min(map(seconds_until, after)) > 0


def seconds_until(text: str) -> float:
    """Return the seconds from now to a time of the reply."""
    return datetime.fromisoformat(text).timestamp() - datetime.now(UTC).timestamp()


def test_the_shift_of_each_job_is_listed(lab: Run) -> None:
    """Three questions to one lab, since a daemon takes its time to start."""
    more = what_if_reply(lab, "--add", "gpus=2")
    assert more["gpus"] == {"before": 2, "after": 4}
    assert [run["policy"] for run in more["past"]["runs"]] == ["today", "2 more GPUs"]
    jobs = by_name(more)
    assert jobs["left"]["before"] == jobs["left"]["after"]
    assert jobs["wide"]["after"]["ends_at"] < jobs["wide"]["before"]["ends_at"]

    reply = Client().open("GET", "/v1/what-if?add=gpus=2", None, 60, retry=False)
    same = json.loads(reply.read())
    assert (same["change"], set(by_name(same))) == (more["change"], set(jobs))

    jobs = by_name(what_if_reply(lab, "--priority", "second=high"))
    assert jobs["second"]["after"]["ends_at"] < jobs["second"]["before"]["ends_at"]
    assert jobs["first"]["after"]["ends_at"] >= jobs["second"]["after"]["ends_at"]

    node = json.loads(lab("nodes", "--json").stdout)["nodes"][0]["name"]
    without = what_if_reply(lab, "--remove", f"node={node}")
    assert len(without["lost"]) == 7
    assert all(job["after"] == {"starts_at": None, "ends_at": None} for job in without["today"])


def test_another_policy_is_compared_on_the_screen_and_in_a_page(lab: Run, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = lab("what-if", "--policy", "sjf", "--html", page, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("what if: policy sjf\n\nthe last 7 days: 7 jobs on 1 node")
    assert "mean wait" in done.stdout
    assert "today: 5 jobs; earlier: " in done.stdout
    assert "note: sjf" in done.stdout
    assert "note: Assumed: " in done.stdout
    assert f"stoker: wrote {page}" in done.stderr
    assert "what if: policy sjf" in page.read_text()
    states = [job["state"] for job in json.loads(lab("queue", "--json").stdout)["jobs"]]
    assert states.count("PENDING") == 3
    assert json.loads(lab("policy", "--json").stdout)[0]["policy"] != "sjf"


MISTAKES = (
    ("", "No change given.", 2),
    ("later", "takes options and PARAMETER=VALUE, not 'later'", 2),
    ("--policy best", "There is no policy 'best'", 2),
    ("--policy planer", "Did you mean planner?", 2),
    ("--policy fifo quantum=20m", "fifo has no parameter quantum", 2),
    ("--policy planner quantum=", "write a parameter as NAME=VALUE", 2),
    ("--policy planner quantum=20m quantum=5m", "quantum is given twice", 2),
    ("--priority 1=high --priority 1=low", "1 is given twice", 2),
    ("--add gpus=1 quantum=20m", "Parameters need --policy", 2),
    ("--add 3", "--add 3 cannot be read; write --add gpus=4", 2),
    ("--add gpus=0", "write a number of GPUs", 2),
    ("--add node=2by8", "is not NODESxGPUS", 2),
    ("--remove node=nowhere", "There is no node 'nowhere'; there are ", 3),
    ("--remove nowhere", "write --remove node=NAME", 2),
    ("--priority 1", "cannot be read; write 42=high", 2),
    ("--priority 1=soon", "cannot be read; write 42=high", 2),
    ("--priority 99=high", "no job", 3),
    ("--policy fifo --days 0", "--days takes a number of days above 0", 2),
)


def test_invalid_arguments_are_reported_in_one_line(stoker: Run) -> None:
    stoker("daemon", "start", "--resources", "{gpu:1}", check=True)
    stoker("run", "--gpus", "1", "sleep 0.1", check=True)
    for typed, printed, code in MISTAKES:
        done = stoker("what-if", *typed.split())
        assert done.returncode == code, (typed, done.stderr)
        assert printed in done.stderr
        assert done.stderr.count("\n") == 1


def test_what_if_without_state_is_rejected(stoker: Run, home: Path) -> None:
    done = stoker("what-if", "--policy", "fifo")
    assert done.returncode == 3
    assert "Start with: stoker submit" in done.stderr
    assert not any(home.iterdir())


def test_the_route_checks_its_arguments(stoker: Run) -> None:
    stoker("daemon", "start", check=True)
    for query, message in (
        ("", "Name a change"),
        ("policy=--help", "'policy' cannot be"),
        ("policy=a&policy=b", "too often"),
        ("add=gpus=1;reboot", "'add' cannot be"),
        ("remove=node=%0A", "'remove' cannot be"),
        ("parameter=--html=x", "'parameter' cannot be"),
        ("policy=nonsense", "nonsense"),
        ("days=x&policy=fifo", "days"),
    ):
        with pytest.raises(UsageError, match=message):
            Client().open("GET", f"/v1/what-if?{query}", None, 60, retry=False)
