"""Options and output of training jobs, with a fake daemon."""

import json
from pathlib import Path
from typing import Any

import pytest

from client.fake_daemon import FakeDaemon, view
from conftest import Run
from stoker.main import main

Captured = pytest.CaptureFixture[str]
TRAINING: dict[str, Any] = {
    "uuid": "0123abcd-7", "epochs_done": 3, "epochs": 10, "batch_size": 32,
    "training_set_size": None, "snapshots": None, "checkpoints": "/c/0123abcd-7",
    "listening": True, "preemptions": 1, "stopping": {"why": "job 8 is more urgent", "by": "8"},
    "overran": True, "epoch_seconds": 130.0, "step_seconds": 0.2, "expected_seconds": 7200,
    "estimate_seconds": 36000.0, "remaining_seconds": 900.0, "ran_seconds": 400.0,
    "memory_reserved": 3300,
    "memory_peak": 3000, "memory_now": 2900, "shortages": 1, "elastic": [1, 4], "gpus_wanted": 2,
    "shares": True, "family": "ana: train", "speedups": [[1, 130.0], [2, 70.0]], "epoch": 3,
    "step": 41, "metrics": {"loss": 0.25},
}  # fmt: skip


def trains(number: int = 7, **changes: Any) -> dict[str, Any]:
    """A running training job as the API shows it."""
    request = {**view(number)["request"], "gpu_memory": 6000, "most_gpus": "4"}
    running = {"state": "RUNNING", "state_code": "R", "node": "box", "request": request}
    return view(number, **{**running, "training": {**TRAINING, **changes}})


def answer(fake: FakeDaemon, *views: dict[str, Any]) -> None:
    listing = {"jobs": list(views), "more": 0, "counts": {}}
    fake.answers |= {"GET /v1/jobs": (200, listing), "GET /v1/history": (200, listing)}


def facts(text: str) -> dict[str, str]:
    lines = [line[2:] for line in text.splitlines()[1:]]
    return {line[:15].rstrip(): line[16:] for line in lines}


def test_show_has_all_of_a_training_job(fake: FakeDaemon, capsys: Captured) -> None:
    answer(fake, trains())
    assert main(["show", "7"]) == 0
    found = facts(capsys.readouterr().out)
    assert found["requests"] == "gpus 1..4, gpu memory 6000 MiB"
    assert found["epochs"] == f"{'█' * 6}{'░' * 14} 3 of 10; epoch 4, step 41; 2 min each"
    assert found["time left"] == "about 15 min (you expected 2 h in all)"
    assert found["memory"] == (
        "6000 MiB asked for, 3300 MiB set aside, 3000 MiB seen at most, 2900 MiB now, on each GPU"
    )
    assert "for job 8" in found["stopping"]
    assert found["preempted"] == "1 time"
    assert found["ran short"] == "of GPU memory, 1 time"
    assert found["may have"] == "1 to 4 GPUs; 2 wanted now"
    assert found["speed"] == "1 GPU: 2 min, 2 GPUs: 70 s (1.9x)"
    assert found["metrics"] == "loss 0.25"
    assert found["checkpoints"] == "/c/0123abcd-7"


WISH = {"why": "job 8 needs room", "by": "8"}


@pytest.mark.parametrize(
    ("changes", "stop", "expected"),
    [
        ({"state": "SUSPENDED"}, WISH, "when it is resumed for job 8: job 8 needs room"),
        (
            {"devices": {"gpu": ["0", "1"]}}, WISH,
            "at the end of its epoch or of the next for job 8: job 8 needs room",
        ),
        (
            {},
            {**WISH, "ignored": True},
            "asked to stop for job 8 but has not stopped: job 8 needs room",
        ),
        ({"state": "COMPLETING"}, WISH, "as soon as it can for job 8: job 8 needs room"),
    ],
    ids=["paused", "several", "ignored", "ending"],
)  # fmt: skip
def test_show_prints_when_a_job_stops(
    fake: FakeDaemon,
    capsys: Captured,
    changes: dict[str, Any],
    stop: dict[str, Any],
    expected: str,
) -> None:
    answer(fake, {**trains(stopping=stop), **changes})
    assert main(["show", "7"]) == 0
    assert facts(capsys.readouterr().out)["stopping"] == expected


def test_show_has_metrics_that_are_no_numbers(fake: FakeDaemon, capsys: Captured) -> None:
    answer(fake, trains(metrics={"loss": "nan", "acc": 0.125}))
    assert main(["show", "7"]) == 0
    assert facts(capsys.readouterr().out)["metrics"] == "loss nan, acc 0.125"


def test_show_reports_a_job_that_exceeds_its_expected_time(
    fake: FakeDaemon, capsys: Captured
) -> None:
    answer(fake, trains())
    assert main(["show", "7"]) == 0
    late = facts(capsys.readouterr().out)["late"]
    assert "2 h said, about 10 h measured" in late
    answer(fake, trains(expected_seconds=None))
    assert main(["show", "7"]) == 0
    late = facts(capsys.readouterr().out)["late"]
    assert "from its epochs" in late


def test_show_omits_unknown_fields(fake: FakeDaemon, capsys: Captured) -> None:
    nothing = {key: None for key in TRAINING if key not in {"uuid", "checkpoints", "epochs_done"}}
    changes = {**nothing, "epochs_done": 0, "preemptions": 0, "shortages": 0, "speedups": [],
               "metrics": {}, "overran": False}  # fmt: skip
    plain = trains(**changes)
    plain["request"] = view(7)["request"]
    answer(fake, plain)
    assert main(["show", "7"]) == 0
    found = facts(capsys.readouterr().out)
    unknown = {"epochs", "checkpoints", "time left", "memory", "stopping", "speed", "metrics"}
    assert not {*unknown, "may have"} & set(found)


def test_show_has_the_container(fake: FakeDaemon, capsys: Captured) -> None:
    mount = {"source": "/a", "target": "/b", "read_only": True, "optional": False}
    image = {"image": "img:1", "mounts": [mount], "ports": [[31346, 6006]]}
    answer(fake, view(7, container=image, restartable=False, training=None))
    assert main(["show", "7"]) == 0
    found = facts(capsys.readouterr().out)
    assert (found["image"], found["mount"]) == ("img:1", "/a at /b (read-only)")
    assert found["ports"] == "31346 is 6006 inside"


def test_the_queue_shows_epochs_of_training_jobs(fake: FakeDaemon, capsys: Captured) -> None:
    answer(fake, trains(), view(9, training=None))
    assert main(["queue"]) == 0
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split() == (
        ["JOBID", "NAME", "USER", "ST", "TIME", "LEFT", "EPOCHS", "GPUS", "NODE/REASON"]
    )
    assert first.split()[3:8] == ["R", "0:00", "15:00", "3/10", "1..4"]
    assert second.split()[3:8] == ["PD", "0:00", "-", "-", "1"]
    answer(fake, view(9, training=None))
    assert main(["queue"]) == 0
    assert "EPOCHS" not in capsys.readouterr().out


def test_history_shows_epochs(fake: FakeDaemon, capsys: Captured) -> None:
    answer(fake, {**trains(epochs=None), "result": 0, "state": "COMPLETED", "state_code": "CD"})
    assert main(["history"]) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split()[4:7] == ["TIME", "EPOCHS", "GPUS"]
    assert line.split()[5] == "3"


def test_why_names_the_jobs_that_are_preempted(fake: FakeDaemon, capsys: Captured) -> None:
    coming = ["job 7 stops for this job at the end of its epoch, about 3 min"]
    reply = {"id": 8, "label": "8", "state": "PENDING", "reason": "Resources", "nodes": [],
             "text": "needs 1 GPU", "coming": coming}  # fmt: skip
    fake.answers["GET /v1/jobs/8/why"] = (200, reply)
    assert main(["why", "8"]) == 0
    assert (
        "Job 7 stops for this job at the end of its epoch, about 3 min.\n"
        in capsys.readouterr().out
    )


def test_paths_are_sent_as_absolute_paths(
    fake: FakeDaemon, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = home.parent / "user"
    monkeypatch.chdir(user)
    reply = {"first": 1, "last": 1, "count": 1, "label": "1", "warnings": []}
    fake.answers["POST /v1/jobs"] = (200, reply)
    typed = ["--snapshots-dir", "~/s", "--image", "i", "--mount", "d:/x:ro", "--mount", "odd"]
    assert main(["submit", *typed, "--ports", "1:2", "--single-gpu", "python", "x.py"]) == 0
    (body,) = fake.bodies("/v1/jobs")
    assert body["options"] == {
        "snapshots_dir": f"{user}/s", "image": "i", "mount": [f"{user}/d:/x:ro", "odd"],
        "ports": "1:2", "single_gpu": True,
    }  # fmt: skip


def test_an_edit_keeps_and_changes_what_was_submitted(stoker: Run, home: Path) -> None:
    stoker("daemon", "start", "--resources", "{gpu:4,cpu:4}", check=True)
    submitted = ("--hold", "--epochs", 5, "--batch-size", 8, "--exclusive-gpu", "--requeue", "true")
    stoker("submit", *submitted, check=True)
    stoker("edit", "last", "--epochs", 9, "--gpus", "1..2", "--expect", "3h", check=True)
    found = json.loads(stoker("show", "last", "--json").stdout)
    training = found["training"]
    assert (training["epochs"], training["batch_size"]) == (9, 8)
    assert (training["elastic"], training["shares"]) == ([1, 2], False)
    assert (training["expected_seconds"], found["restartable"]) == (3 * 3600, True)
    for bad in (("--epochs", "0"), ("--gpus", "2..1"), ("--snapshots-dir", "/no/such"),
                ("--ports", "1:2"), ("--expect", "soon")):  # fmt: skip
        done = stoker("edit", "last", *bad)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert json.loads(stoker("show", "last", "--json").stdout)["training"] == training
