"""`stoker usage`, and the line at the end of run and wait."""

import json

import pytest

from cli.pty_screen import PtyScreen
from client.fake_daemon import FakeDaemon, view
from conftest import Run
from stoker.cli.output.usage_text import usage_line


def group(key: str, **more: object) -> dict[str, object]:
    fields = {
        "key": key, "jobs": 3, "failed": 1, "gpu_hours": 2.5, "wasted_gpu_hours": 0.5,
        "measured_gpu_hours": 2.0, "busy_gpu_hours": 1.5, "utilization": 75.0, "kwh": 1.25,
        "cpu_hours": 3.5, "rss_peak": 2048,
        "wait_p50": 61.0, "wait_p90": 3600.0, "cost": None,
    }  # fmt: skip
    return {**fields, **more}


@pytest.fixture
def reply(fake: FakeDaemon) -> dict[str, object]:
    groups = [group("ana"), group("bo\x1b[31m", utilization=None, kwh=None, wait_p50=None)]
    reply = {"by": "user", "since": None, "until": None, "groups": groups, "total": group("total"),
             "energy": "", "currency": "EUR"}  # fmt: skip
    fake.answers["GET /v1/usage"] = (200, reply)
    return reply


def test_groups_are_a_table_with_a_total(reply: dict[str, object], stoker: Run) -> None:
    lines = stoker("usage", "--by", "user").stdout.splitlines()
    assert lines[0].split() == [
        "USER", "JOBS", "FAILED", "GPU-H", "BUSY", "WASTED", "KWH", "CPU-H", "MEM", "WAIT50",
        "WAIT90",
    ]  # fmt: skip
    assert lines[1].split() == ["ana", "3", "1", "2.50", "75%", "0.50", "1.25", "3.50", "2G",
                                "1:01", "1:00:00"]  # fmt: skip
    assert lines[2].split()[4:7] == ["-", "0.50", "-"]
    assert "\x1b" not in lines[2]
    assert lines[3].startswith("total")


def test_csv_json_and_cost(reply: dict[str, object], stoker: Run) -> None:
    assert json.loads(stoker("usage", "--json").stdout)["groups"][0]["key"] == "ana"
    assert stoker("usage", "--csv").stdout.splitlines()[1].startswith("ana,3,1,2.5,")
    reply["total"] = group("total", cost=3.5)
    reply["groups"] = [group("ana", cost=3.5)]
    lines = stoker("usage").stdout.splitlines()
    assert (lines[0].split()[-1], lines[1].split()[-1], len(lines)) == ("EUR", "3.50", 2)


def total(**more: object) -> dict[str, object]:
    fields = {"gpu_seconds": 8640.0, "utilization": 83.2, "energy_joules": 3.96e6}
    return {"attempts": [{"seconds": 4320.0}], "total": {**fields, **more}}


def test_the_line_of_a_job() -> None:
    assert usage_line("42", total()) == "42 done: 1:12:00 on 2 GPUs = 2.4 GPU-h, 83 % busy, 1.1 kWh"
    assert usage_line("42", total(utilization=None, energy_joules=None, gpu_seconds=2160.0)) == (
        "42 done: 1:12:00 on 0.5 GPUs = 0.6 GPU-h"
    )
    assert usage_line("42", total(gpu_seconds=30.0)) is None
    assert usage_line("42", total(gpu_seconds=4320.0 * 128, energy_joules=None), 1) == (
        "42 failed: 1:12:00 on 128 GPUs = 154 GPU-h, 83 % busy"
    )


def test_wait_ends_with_the_line_on_a_terminal_only(fake: FakeDaemon, stoker: Run) -> None:
    done = view(1, state="COMPLETED", result=0, request={"gpus": "2"})
    fake.answers |= {
        "GET /v1/jobs": (200, {"jobs": [done], "more": 0, "counts": {}}),
        "POST /v1/wait": (200, {"finished": True, "jobs": [done], "stuck": []}),
        "GET /v1/jobs/1/usage": (200, total()),
    }
    assert stoker("wait", "1").stderr == ""
    screen = PtyScreen("wait", "1")
    try:
        screen.shows("1 done: 1:12:00 on 2 GPUs")
        assert screen.end() == 0
    finally:
        screen.close()
