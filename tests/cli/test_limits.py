"""`stoker limit`, `stoker reserve` and `stoker share` with a real daemon."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from stoker import wire

Run = Callable[..., Any]
pytestmark = pytest.mark.e2e


@pytest.fixture
def two(stoker: Run) -> Run:
    """The command, with a daemon that has two declared GPUs."""
    started = stoker("daemon", "start", "--resources", "{gpu:2,cpu:8}")
    assert started.returncode == 0, started.stderr
    return stoker


def states(stoker: Run) -> list[str]:
    jobs = json.loads(stoker("queue", "--json", check=True).stdout)["jobs"]
    return [job["state_code"] for job in sorted(jobs, key=lambda job: int(job["id"]))]


def test_limits_of_a_queue_count_at_once_and_after_a_restart(two: Run) -> None:
    done = two("limit", "queue:default", "--max-gpus", "1", "--max-pending", "1", check=True)
    assert "queue:default: at most 1 GPUs, 1 pending" in done.stderr
    for _ in range(2):
        two("submit", "--gpus", "1", "sleep", "600", check=True)
    refused = two("submit", "sleep", "1")
    assert (refused.returncode, refused.stdout) == (wire.EXIT_FAILED, "")
    assert "1 pending" in refused.stderr
    assert "queue default may use 1 GPU at a time, and uses 1" in two("why", "2").stdout
    two("daemon", "restart", check=True)
    header, row = two("limit", check=True).stdout.splitlines()
    assert header.split()[:4] == ["SUBJECT", "GPUS", "RUNNING", "PENDING"]
    assert row.split()[:4] == ["queue:default", "1/1", "-", "1/1"]
    assert "no limits" in two("limit", "queue:default", "--clear", check=True).stderr
    two("limit", check=True)
    assert json.loads(two("limit", "--json").stdout) == []
    assert states(two).count("PD") == 0


@pytest.mark.parametrize(
    "typed",
    ["limit --max-gpus 1", "limit a b", "limit ana --max-gpus 1", "limit queue:x --max-time soon",
     "reserve --gpus 1", "reserve --for 1h", "reserve x", "reserve --gpus 1 --for 1h --cancel r1",
     "share ana", "share ana x", "share ana 0", "share --clear", "share ana 2"],
)  # fmt: skip
def test_wrong_input_is_a_sentence_and_a_usage_error(two: Run, typed: str) -> None:
    done = two(*typed.split())
    assert done.returncode == wire.EXIT_USAGE
    (line,) = done.stderr.splitlines()
    assert line.startswith("stoker: ")


def test_a_reservation_is_made_listed_honoured_and_cancelled(two: Run) -> None:
    made = two("reserve", "--devices", "0,1", "--for", "1h", "--queue", "demo", check=True)
    assert "for queue:demo (r1)" in made.stderr
    two("submit", "--gpus", "1", "--time", "1", "sleep", "600", check=True)
    two("submit", "--gpus", "1", "--queue", "demo", "sleep", "600", check=True)
    assert "(Reservation)" in two("queue").stdout
    assert "reserved for queue demo (r1) for another 60 min" in two("why", "1").stdout
    assert states(two)[0] == "PD"
    conflict = two("reserve", "--gpus", "1", "--for", "1h")
    assert conflict.returncode == wire.EXIT_FAILED
    (view,) = json.loads(two("reserve", "--json", check=True).stdout)
    assert (view["name"], len(view["gpus"]), view["subjects"]) == ("r1", 2, ["queue:demo"])
    two("daemon", "restart", check=True)
    assert "r1" in two("reserve", check=True).stdout
    two("reserve", "--cancel", "r1", check=True)
    assert "PD" not in states(two)
    assert two("reserve", "--cancel", "r1").returncode == wire.EXIT_NOT_FOUND
