"""The verbs of the command line from Python, with a real daemon."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import stoker
from e2e.daemon_fixture import DaemonFixture, until

SOON = 30.0
HOLD = "until [ -e {} ]; do sleep 0.02; done"


def test_a_command_by_words_and_by_line(client: stoker.Client, box: DaemonFixture) -> None:
    words = client.run(["sh", "-c", 'echo "$0 $1"', "a b", "c"], name="words", timeout=SOON)
    line = client.run("echo $((1 + 2)); exit 3", timeout=SOON)
    assert (words.state, words.name, words.result) == ("COMPLETED", "words", 0)
    assert client.logs(words) == "a b c\n"
    assert (line.state, line.exit_code, line.cause, line.ok) == ("FAILED", 3, "exit 3", False)
    assert client.logs(line.id, tail=1) == "3\n"
    assert client.logs(line, attempt=0) == "3\n"
    with pytest.raises(stoker.NotFound, match=f"There is no attempt 9 of job {line.label}"):
        client.logs(line, attempt=9)
    assert words.ended_at is not None
    assert datetime.now(UTC) - words.ended_at < timedelta(hours=1)
    assert words.directory == str(box.user)
    assert words.raw["shell"] == "/bin/sh"


def test_keywords_match_the_flags(client: stoker.Client) -> None:
    job = client.submit(
        ["true"], gpus=2, time=timedelta(minutes=90), name="x", label=["a"], priority=3,
        hold=True, env={"GREETING": "hello"}, comment="note",
    )  # fmt: skip
    assert (job.name, job.time_limit, job.labels, job.priority) == ("x", 5400, ["a"], 3)
    assert (job.state, job.reason, job.comment) == ("PENDING", "JobHeldUser", "note")
    assert job.raw["request"]["gpus"] == "2"
    edited = client.edit(job, name="y", priority=4)
    assert [each.label for each in edited.done] == [job.label]
    assert client.show(job).name == "y"
    client.release(job)
    assert client.wait(job, timeout=SOON)[0].gpus != []


def test_arrays_and_lines_are_lists(client: stoker.Client) -> None:
    array = client.submit("echo $STOKER_ARRAY_INDEX", array="0-2%1")
    lines = client.submit_lines(["exit 0", "exit 4"])
    assert [job.index for job in array] == [0, 1, 2]
    assert {job.array for job in array} == {array[0].id}
    ended = client.wait(array, lines, timeout=SOON)
    assert [job.result for job in ended] == [0, 0, 0, 0, 4]
    assert client.logs(array[2]) == "2\n"
    assert [job.label for job in client.jobs(job for job in array)] == [job.label for job in array]
    assert client.jobs([]) == [], "none of none, not all that there are"
    assert client.show(array[0]).label == array[0].label


def test_waiting_for_one_of_several_and_not_for_ever(client: stoker.Client, tmp_path: Path) -> None:
    slow = client.submit(HOLD.format(tmp_path / "go"))
    quick = client.submit("true")
    found = client.wait(slow, quick, any=True, timeout=SOON)
    assert [job.finished for job in found] == [False, True]
    with pytest.raises(TimeoutError):
        client.wait(slow, timeout=0.1)
    assert client.show(slow).state == "RUNNING"
    assert [job.label for job in client.jobs(state="RUNNING")] == [slow.label]
    (tmp_path / "go").touch()
    assert client.wait(slow, timeout=SOON)[0].ok


def test_a_job_that_can_never_start_is_not_waited_for(client: stoker.Client) -> None:
    failed = client.run("exit 1", timeout=SOON)
    waits = client.submit("true", dependency=failed)
    with pytest.raises(stoker.StokerError, match=f"Job {waits.label} can never start: ."):
        client.wait(waits, timeout=SOON)
    client.cancel(waits)
    client.dismiss(failed)


def test_the_verbs_that_change_jobs(client: stoker.Client, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job = client.submit(HOLD.format(go), gpus=4)
    until(lambda: client.show(job).state == "RUNNING")
    first, second = client.submit("true", gpus=4), client.submit("true", gpus=4)
    assert client.why(first).reason == "Resources"
    assert client.why(first).nodes[0].constraints[0].name == "gpus"
    assert client.move(second).done[0].label == second.label
    assert client.why(second).position == 1
    assert client.hold(first).done[0].label == first.label
    assert client.pause(job).done
    assert client.show(job).state == "SUSPENDED"
    assert client.resume(job).done
    assert client.kill(job).done
    assert client.wait(job, second, timeout=SOON)[0].state == "CANCELLED"
    assert client.cancel(first).done
    skipped = client.cancel(first).skipped[0]
    assert (skipped.label, bool(skipped.why)) == (first.label, True)
    go.touch()
    assert client.retry(job).done
    assert client.wait(job, timeout=SOON)[0].attempt == 1


def test_a_custom_signal(client: stoker.Client) -> None:
    job = client.submit(["sleep", "300"])
    until(lambda: client.show(job).pid)
    assert client.kill(job, signal=signal.SIGUSR1).done
    ended = client.wait(job, timeout=SOON)[0]
    assert (ended.cause, ended.result) == ("killed by SIGUSR1", 138)
    client.dismiss(job)


def test_the_output_of_a_job_as_it_is_written(client: stoker.Client, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job = client.submit(f"echo one; {HOLD.format(go)}; printf two")
    lines = client.follow(job)
    assert next(lines) == "one"
    go.touch()
    assert list(lines) == ["two"]


def test_nodes_and_gpus(client: stoker.Client) -> None:
    gpus = client.gpus()
    assert [gpu.id for gpu in gpus] == ["0", "1", "2", "3"]
    assert gpus[0].jobs == []
    [node] = client.nodes()
    assert (node.state, node.address, node.resources["gpu"].total) == ("up", None, "4")
    drained = client.drain("1", reason="broken fan")
    assert drained.devices == [f"{node.name}/gpu:1"]
    assert client.gpus()[1].state == "drained"
    assert client.undrain(1).devices == drained.devices


def test_history(client: stoker.Client) -> None:
    job = client.run("exit 9", name="historic", timeout=SOON)
    assert [each.id for each in client.history(name="historic")] == [job.id]
    assert client.history(name="historic", since=datetime.now(UTC) + timedelta(days=1)) == []
    client.dismiss(job)


def test_errors_have_the_class_of_their_code(client: stoker.Client) -> None:
    with pytest.raises(stoker.NotFound, match=r"There is no job 999999\.") as missing:
        client.show(999999)
    assert (missing.value.code, missing.value.exit_code) == ("not_found", 3)
    with pytest.raises(stoker.Impossible, match="Cannot be satisfied: 99 GPUs requested"):
        client.submit("true", gpus=99)
    with pytest.raises(stoker.UsageError, match="is not a duration"):
        client.submit("true", time="soon")
    with pytest.raises(TypeError, match=r"There is no option 'gpu'\. Did you mean gpus"):
        client.submit("true", gpu=1)  # type: ignore[call-overload]
    with pytest.raises(stoker.UsageError, match="matches 2 jobs"):
        client.show(client.submit_lines(["true", "true"]))


def test_events_go_on_after_the_daemon_was_killed(
    client: stoker.Client, box: DaemonFixture
) -> None:
    events = client.events()
    job = client.submit("true")
    assert _until(events, "ProcessExited", job.id)
    box.crash()
    box.up()
    other = client.submit("true")
    last = _until(events, "ProcessExited", other.id)
    again = next(client.events(after=last.seq - 1))
    assert (again.seq, again.kind, again.job) == (last.seq, "ProcessExited", other.id)
    assert again.at.tzinfo is not None
    assert again.raw["code"] == 0


def _until(events: Iterator[stoker.Event], kind: str, job: int) -> stoker.Event:
    return next(event for event in events if (event.kind, event.job) == (kind, job))


def test_a_daemon_is_started_unless_it_is_not_to_be(
    box: DaemonFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nowhere = stoker.Client(tmp_path / "daemon.sock", start=False)
    with pytest.raises(stoker.Unreachable, match="No daemon is running"):
        nowhere.jobs()
    box.stoker("daemon", "stop")
    assert stoker.Client().run("true", timeout=SOON).ok


def test_importing_stoker_imports_nothing_else() -> None:
    code = (
        "import sys; bare = set(sys.modules); import stoker; assert 'Client' in dir(stoker);"
        "print(sorted(set(sys.modules) - bare)); stoker.Client"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "['stoker']\n"


def test_every_public_name_is_importable() -> None:
    assert set(stoker.api.__all__) == stoker.API
    for name in stoker.API:
        assert getattr(stoker, name) is getattr(stoker.api, name)
    with pytest.raises(AttributeError, match="no attribute 'Cleint'"):
        stoker.Cleint  # type: ignore[attr-defined]  # noqa: B018


def test_a_job_that_submits_does_not_pass_on_what_it_is(
    client: stoker.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_JOB_ID", "7")
    monkeypatch.setenv("STOKER_TOKEN", "secret")
    job = client.run("echo [$STOKER_TOKEN] $STOKER_HOME", timeout=SOON)
    printed = client.logs(job)
    assert "secret" not in printed
    assert os.environ["STOKER_HOME"] in printed
