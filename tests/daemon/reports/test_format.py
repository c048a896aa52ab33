"""Reports of training attempts: what is read of them, whatever is in them, and what follows."""

import json
import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.monitor_fixture import STARTED, MonitorFixture
from stoker.core import events as e
from stoker.core.cluster import Placement
from stoker.core.events import NodeAdded
from stoker.core.job import AttemptId, Job, Progress, Spec, Stop
from stoker.core.lifecycle import JobState
from stoker.core.rest import Away
from stoker.daemon.reports import format as reports
from stoker.daemon.reports import watcher as watcher_module
from stoker.daemon.reports.format import TrainingReport
from stoker.daemon.training import monitor, report_events
from stoker.daemon.training.cleanup import (
    REMOVING_PREFIX,
    ReportCleanup,
    expired_checkpoints,
    remove,
)
from stoker.store.port import JobQuery, StoredJob


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "READ_INTERVAL_SECONDS", 0.0)


@pytest.fixture
def stage(tmp_path: Path) -> MonitorFixture:
    return MonitorFixture(tmp_path)


HELLO = {"k": "hello", "t": 1001.0, "pid": 5, "v": 1}


def start(epoch: int, at: float = 1010.0) -> dict[str, Any]:
    return {"k": "start", "e": epoch, "t": at}


def end(epoch: int, took: float = 2.0) -> dict[str, Any]:
    return {"k": "end", "e": epoch, "d": took, "n": 10, "s": took / 10, "t": 1020.0}


def kinds(facts: list[e.Event]) -> list[str]:
    return [type(fact).__name__ for fact in facts]


def counted(facts: list[e.Event]) -> list[int]:
    return [fact.done for fact in facts if isinstance(fact, e.EpochsCounted)]


# -- counting ----------------------------------------------------------------------------


def test_an_epoch_is_counted_once_when_the_next_one_starts(
    stage: MonitorFixture,
) -> None:
    stage.write(HELLO)
    assert stage.heed() == []  # one that never begins an epoch cannot stop at one
    stage.write(start(0), end(0, 2.0))
    assert kinds(stage.heed()) == ["TrainingBegan"]
    stage.write(start(1), end(1, 4.0), start(2))
    (fact,) = stage.heed()
    assert isinstance(fact, e.EpochsCounted)
    assert (fact.done, fact.seconds, fact.step, fact.warmup) == (2, 3.0, pytest.approx(0.3), 10.0)
    stage.write(end(2, 6.0), start(3))
    (fact,) = stage.heed()
    assert isinstance(fact, e.EpochsCounted)
    assert (fact.done, fact.seconds, fact.warmup) == (3, 6.0, None)
    assert stage.heed() == []


def test_the_total_of_epochs_is_published_with_the_first_counted_epoch(
    stage: MonitorFixture,
) -> None:
    stage.write(HELLO, {**start(0), "n": 30}, end(0), {**start(1), "n": 30})
    *_, fact = stage.heed()
    assert isinstance(fact, e.EpochsCounted)
    assert (fact.done, fact.total) == (1, 30)


@pytest.mark.parametrize(("code", "done"), [(0, [1]), (1, [])])
def test_a_clean_end_counts_the_last_epoch_and_another_does_not(
    stage: MonitorFixture, code: int, done: list[int]
) -> None:
    stage.write(HELLO, start(0), end(0))
    told = stage.exit(code)
    assert kinds(told)[0] == "TrainingBegan"  # it was never heard before
    assert kinds(told)[-1] == "ProcessExited"
    assert counted(told) == done


def test_events_of_a_short_job_are_between_its_start_and_its_end(stage: MonitorFixture) -> None:
    stage.job.started_at, stage.job.state = None, JobState.CONFIGURING
    stage.write(HELLO, start(0), end(0), start(1), end(1))
    told = stage.heed(
        e.ProcessStarted(at=1005.0, job=7, attempt=0, pid=5, boot=1.0),
        e.ProcessExited(at=1030.0, job=7, attempt=0, code=0),
    )
    assert kinds(told) == ["ProcessStarted", "TrainingBegan", "EpochsCounted", "ProcessExited"]
    assert isinstance(told[2], e.EpochsCounted)
    assert (told[2].done, told[2].warmup) == (2, 5.0)


def test_a_report_before_the_start_event_waits_for_it(stage: MonitorFixture) -> None:
    stage.job.started_at, stage.job.state = None, JobState.CONFIGURING
    stage.write(HELLO, start(0), start(1))
    assert stage.heed() == []
    assert stage.trainings.tick() is not None
    stage.job.started_at, stage.job.state = STARTED, JobState.RUNNING
    assert kinds(stage.heed()) == ["TrainingBegan", "EpochsCounted"]


def test_a_requested_stop_is_marked_and_its_epochs_are_counted(stage: MonitorFixture) -> None:
    stage.write(HELLO, start(0), end(0), {"k": "stopped", "e": 1, "t": 1.0})
    told = stage.exit(75)
    assert counted(told) == [1]
    assert isinstance(told[-1], e.ProcessExited)
    assert told[-1].stopped


def test_what_a_wrapper_begins_again_after_the_stop_does_not_count(stage: MonitorFixture) -> None:
    stopped = {"k": "stopped", "e": 1, "t": 1.0}
    again = {"k": "stopped", "e": 3, "t": 2.0}
    stage.write(HELLO, start(0), end(0), stopped, HELLO, start(1), end(1), start(2), again)
    told = stage.exit(0)
    assert isinstance(told[-1], e.ProcessExited)
    assert (told[-1].stopped, counted(told)) == (True, [1])


def lingers(stage: MonitorFixture) -> list[e.Event]:
    """What is told of an attempt whose process lives on."""
    return [fact for fact in stage.heed() if isinstance(fact, e.StopOverdue)]


def test_a_stopped_attempt_that_still_runs_is_overdue_once(
    stage: MonitorFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.write(HELLO, start(0), end(0), {"k": "stopped", "e": 1, "t": 1.0})
    assert lingers(stage) == []
    wait = stage.trainings.tick()
    assert wait is not None
    assert 0 < wait <= report_events.STOP_GRACE_SECONDS
    stage.listen()  # the next daemon hears it anew
    monkeypatch.setattr(report_events, "STOP_GRACE_SECONDS", 0.0)
    assert lingers(stage) == []
    (fact,) = lingers(stage)
    assert isinstance(fact, e.StopOverdue)
    assert (fact.job, fact.attempt, fact.has_saved) == (7, 0, True)
    assert lingers(stage) == []
    assert stage.trainings.tick() is None


def test_a_suspended_or_unreachable_attempt_is_not_overdue(
    stage: MonitorFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_events, "STOP_GRACE_SECONDS", 0.0)
    stage.write(HELLO, start(0), {"k": "stopped", "e": 0, "t": 1.0})
    stage.job.state = JobState.SUSPENDED
    assert lingers(stage) == []
    stage.job.state = JobState.RUNNING
    stage.state.rest.away["here"] = Away(1.0, 1.0, "silent")
    assert lingers(stage) == []
    del stage.state.rest.away["here"]
    assert len(lingers(stage)) == 1


def test_an_attempt_that_ends_in_time_is_not_overdue(
    stage: MonitorFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_events, "STOP_GRACE_SECONDS", 0.0)
    stage.write(HELLO, start(0), {"k": "stopped", "e": 0, "t": 1.0})
    stage.job.state = JobState.COMPLETING
    assert lingers(stage) == []
    del stage.state.running[7]
    assert lingers(stage) == []


def metrics(**values: Any) -> dict[str, Any]:
    return {"k": "metrics", "e": 0, "t": 1.0, "v": values}


def told_metrics(facts: list[e.Event]) -> list[dict[str, float] | None]:
    return [fact.metrics for fact in facts if isinstance(fact, e.EpochsCounted)]


def test_changed_metrics_are_published_with_epochs(stage: MonitorFixture) -> None:
    stage.write(HELLO, start(0), metrics(loss=3, note="warm"), end(0))
    assert told_metrics(stage.heed()) == []
    stage.write(start(1))
    assert told_metrics(stage.heed()) == [{"loss": 3.0}]
    stage.write(end(1), start(2))
    assert told_metrics(stage.heed()) == [None]
    stage.write(metrics(loss=2.5, acc=0.5))
    assert told_metrics(stage.heed()) == []
    stage.listen()
    stage.write(end(2), start(3))
    assert told_metrics(stage.heed()) == [{"loss": 2.5, "acc": 0.5}]
    told = stage.exit(1)
    assert kinds(told) == ["ProcessExited"]


def test_the_last_metrics_are_published_before_the_end_without_an_epoch(
    stage: MonitorFixture,
) -> None:
    stage.write(HELLO, metrics(loss=1.0))
    told = stage.exit(1)
    assert kinds(told) == ["EpochsCounted", "ProcessExited"]
    assert (counted(told), told_metrics(told)) == ([0], [{"loss": 1.0}])
    assert isinstance(told[0], e.EpochsCounted)
    assert told[0].warmup is None


def test_an_attempt_without_metrics_leaves_those_of_the_one_before(stage: MonitorFixture) -> None:
    stage.job.progress = Progress(metrics={"loss": 1.0})
    stage.write(HELLO, start(0), end(0))
    assert told_metrics(stage.exit(0)) == [None]
    assert stage.job.progress is not None
    assert stage.job.progress.metrics == {"loss": 1.0}


def test_only_so_many_metrics_with_names_of_a_length(stage: MonitorFixture) -> None:
    stage.write(HELLO, metrics(**{f"{n:03}" * 22: n for n in range(40)}))
    (told,) = told_metrics(stage.exit(0))
    assert told is not None
    assert (len(told), {len(name) for name in told}) == (32, {64})
    assert list(told.values()) == [float(n) for n in range(8, 40)]


def test_saved_epochs_of_a_lost_attempt_are_counted(stage: MonitorFixture) -> None:
    stage.write(HELLO, start(0), end(0), start(1), end(1))
    told = stage.heed(e.AttemptLost(at=2.0, job=7, attempt=0, why="gone"))
    assert kinds(told) == ["TrainingBegan", "EpochsCounted", "AttemptLost"]
    assert counted(told) == [1]


def test_no_more_epochs_are_counted_than_requested(tmp_path: Path) -> None:
    stage = MonitorFixture(tmp_path, epochs=3)
    stage.write(HELLO, start(0), start(9))
    assert counted(stage.heed()) == [3]


def test_reports_of_other_attempts_are_ignored(stage: MonitorFixture) -> None:
    stage.job.attempt = 1
    stage.write(HELLO, start(5))
    old = e.ProcessExited(at=2000.0, job=7, attempt=0, code=0)
    assert stage.heed(old) == [old]
    assert stage.trainings.live(7) == {}
    del stage.state.running[7]
    stage.job.attempt, stage.job.state = 0, JobState.COMPLETED
    assert stage.heed(old) == [old]


# -- whatever is in it ---------------------------------------------------------------------

NONSENSE = [
    b"\n", b"garbage\n", b"\xff\xfe\x00\n", b"[" * 4000 + b"\n", b"{}\n", b"[]\n", b"null\n",
    b'{"k":"start"}\n', b'{"k":"start","e":-1}\n', b'{"k":"start","e":1e30}\n',
    b'{"k":"start","e":"3"}\n', b'{"k":"start","e":3.5}\n', b'{"k":"start","e":true}\n',
    b'{"k":"start","e":' + b"9" * 400 + b"}\n", b'{"k":"start","e":NaN}\n',
    b'{"k":"stopped","e":null}\n', b'{"k":"metrics","v":7}\n', b'{"k":["start"],"e":4}\n',
    b'{"k":"start","e":4,"x":"' + b"y" * 5000 + b'"}\n',
]  # fmt: skip


@pytest.mark.parametrize("line", NONSENSE)
def test_an_invalid_line_is_skipped_and_the_next_line_counts(
    stage: MonitorFixture, line: bytes
) -> None:
    stage.write(HELLO, start(0), end(0), line, start(1))
    assert counted(stage.heed()) == [1]
    assert counted(stage.exit(1)) == []


def test_implausible_times_are_not_published(stage: MonitorFixture) -> None:
    wrong = b'{"k":"end","e":0,"d":NaN,"s":-1}\n{"k":"end","e":1,"d":1e300,"s":Infinity}\n'
    stage.write(HELLO, start(0, at=1e300), wrong, end(2, 8.0), start(3))
    told = stage.heed()[-1]
    assert isinstance(told, e.EpochsCounted)
    assert (told.seconds, told.step, told.warmup) == (8.0, pytest.approx(0.8), None)


def test_epochs_never_go_back(stage: MonitorFixture) -> None:
    stage.job.progress = Progress(epochs=5, since=5, listening=True)
    stage.write(HELLO, start(2), end(2), start(3))
    assert stage.heed() == []
    stage.write(start(6), start(4))
    assert counted(stage.heed()) == [6]


@pytest.mark.parametrize("what", ["fifo", "link", "directory"])
def test_only_regular_files_are_read(stage: MonitorFixture, tmp_path: Path, what: str) -> None:
    stage.directory.mkdir()
    path = stage.directory / "report"
    if what == "fifo":
        os.mkfifo(path)
        os.mkfifo(stage.directory / "steps")
    elif what == "link":
        (tmp_path / "other").write_text(json.dumps(HELLO) + "\n")
        path.symlink_to(tmp_path / "other")
    else:
        path.mkdir()
    assert stage.heed() == []
    assert kinds(stage.exit()) == ["ProcessExited"]


def test_a_report_of_any_size_is_read_in_pieces_and_its_end_counts(
    stage: MonitorFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, most, at: asked.append(most) or pread(fd, most, at))
    filler = b'{"k":"metrics","e":0,"t":1.0,"v":{"loss":1.0}}\n' * 200_000
    stage.write(HELLO, start(0), filler, start(1), end(1), {"k": "stopped", "e": 2})
    assert kinds(stage.heed()) == ["TrainingBegan"]  # of the first piece
    told = stage.exit(75)
    assert counted(told) == [2]
    assert isinstance(told[-1], e.ProcessExited)
    assert told[-1].stopped
    assert max(asked) <= reports.CHUNK
    assert sum(asked) <= reports.MAX_BACKLOG + 2 * reports.CHUNK


def test_a_truncated_report_is_read_from_its_start(stage: MonitorFixture) -> None:
    stage.write(HELLO, start(0), end(0), start(1))
    assert counted(stage.heed()) == [1]
    os.truncate(stage.directory / "report", 0)
    stage.write(start(2))
    assert counted(stage.exit(1)) == [2]


PIECES = st.lists(
    st.one_of(
        st.just(json.dumps(HELLO).encode() + b"\n"),
        st.integers(0, 6).map(lambda n: json.dumps(start(n)).encode() + b"\n"),
        st.integers(0, 6).map(lambda n: json.dumps(end(n)).encode() + b"\n"),
        st.integers(0, 6).map(lambda n: json.dumps({"k": "stopped", "e": n}).encode() + b"\n"),
        st.integers(0, 6).map(lambda n: json.dumps({"k": "stop_at", "e": n}).encode() + b"\n"),
        st.sampled_from(NONSENSE),
        st.binary(max_size=20),
        st.integers(4090, 4100).map(lambda n: b"x" * n),
    ),
    max_size=12,
)  # fmt: skip


@given(PIECES, st.lists(st.integers(0, 20_000), max_size=8))
def test_a_report_in_any_pieces_has_the_same_content(lines: list[bytes], cuts: list[int]) -> None:
    data = b"".join(lines)
    whole, parts = TrainingReport(), TrainingReport()
    whole.feed(data)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for a, b in pairwise(places):
        parts.feed(data[a:b])
    assert vars(parts) == vars(whole)


@settings(max_examples=50)
@given(data=st.data(), lines=PIECES)
def test_a_restarted_daemon_publishes_every_event_once(
    data: st.DataObject, lines: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    stage = MonitorFixture(tmp_path_factory.mktemp("home"))
    told: list[e.Event] = []
    for line in lines:
        stage.write(line)
        what = data.draw(st.sampled_from(["nothing", "turn", "restart"]))
        if what == "restart":
            stage.trainings.close()
            stage.listen()
        if what != "nothing":
            told += stage.heed()
    told += stage.exit(1)
    stage.trainings.close()
    once = TrainingReport()
    once.feed(b"".join(lines))
    assert kinds(told).count("TrainingBegan") == (once.epoch is not None)
    assert counted(told) == sorted(set(counted(told)))
    assert max(counted(told), default=0) == once.counted
    assert isinstance(told[-1], e.ProcessExited)
    assert told[-1].stopped == once.stopped


# -- when it is read -----------------------------------------------------------------------


def test_a_busy_report_is_read_at_intervals_and_at_the_end_of_its_attempt(
    stage: MonitorFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "READ_INTERVAL_SECONDS", 3600.0)
    stage.write(HELLO, start(0))
    assert kinds(stage.heed()) == ["TrainingBegan"]
    stage.write(start(0), start(1))
    assert stage.heed() == []
    wait = stage.trainings.tick()
    assert wait is not None
    assert wait > 3000
    assert counted(stage.exit(1)) == [1]


def test_a_watch_that_the_kernel_ends_as_it_is_renewed_is_renewed_again(
    stage: MonitorFixture,
) -> None:
    """It may give us the number of the watch that is just about to end, and then end that."""
    stage.write(HELLO, start(0))
    assert kinds(stage.heed()) == ["TrainingBegan"]
    watcher = stage.trainings.watcher
    assert watcher.inotify is not None
    for watch in [watch for watch, job in watcher.jobs.items() if job]:
        watcher.inotify.unwatch(watch)  # behind the back of whoever has just renewed it
    stage.heed()
    stage.write(start(1))
    assert counted(stage.heed()) == [1]


def test_without_a_report_nothing_is_polled(stage: MonitorFixture) -> None:
    assert stage.heed() == []
    assert stage.trainings.tick() is None
    stage.write(HELLO)
    stage.heed()
    assert stage.trainings.tick() is None


def test_without_inotify_reports_are_polled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(watcher_module, "Inotify", refused)
    monkeypatch.setattr(watcher_module, "POLL_SECONDS", 0.0)
    stage = MonitorFixture(tmp_path)
    assert stage.heed() == []
    stage.write(HELLO, start(0))
    assert kinds(stage.heed()) == ["TrainingBegan"]
    stage.write(start(1))
    assert counted(stage.heed()) == [1]
    assert stage.trainings.tick() is not None
    stage.state.running.clear()
    assert stage.trainings.tick() is None


def test_at_the_limit_of_watches_reports_are_polled(
    stage: MonitorFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: str) -> int:
        raise OSError(28, "No space left on device", path)

    assert stage.trainings.watcher.inotify is not None
    monkeypatch.setattr(stage.trainings.watcher.inotify, "watch_file", refused)
    monkeypatch.setattr(watcher_module, "POLL_SECONDS", 0.0)
    stage.write(HELLO, start(0))
    assert kinds(stage.heed()) == ["TrainingBegan"]
    assert stage.trainings.watcher.inotify is None
    stage.write(start(1))
    assert counted(stage.heed()) == [1]


# -- speaking --------------------------------------------------------------------------------


def test_a_stop_request_is_a_file_and_a_new_daemon_repeats_it(stage: MonitorFixture) -> None:
    stage.job.progress = Progress(listening=True, stop=Stop("job 9 needs\nits GPU", 1.0))
    stage.trainings.stops.send(7, 0)
    stop = stage.directory / "stop"
    assert stop.read_text() == "job 9 needs its GPU\n"
    assert stage.directory.stat().st_mode & 0o777 == 0o700
    stop.unlink()
    stage.trainings.stops.send(7, 1)
    assert not stop.exists()
    stage.listen()
    assert stop.exists()
    assert [path.name for path in stage.directory.iterdir()] == ["stop"]


def test_a_stop_request_is_withdrawn_unless_a_stop_epoch_is_agreed(
    stage: MonitorFixture,
) -> None:
    stop = stage.directory / "stop"
    stage.trainings.stops.send(7, 0)
    stage.trainings.stops.withdraw(7, 1)  # another attempt
    assert stop.exists()
    stage.trainings.stops.withdraw(7, 0)
    stage.trainings.stops.withdraw(7, 0)
    assert not stop.exists()
    stage.trainings.stops.send(7, 0)
    (stage.directory / "stop_at").write_text("3")
    stage.trainings.stops.withdraw(7, 0)
    assert stop.exists()
    (stage.directory / "stop_at").unlink()
    stage.write(HELLO, start(0), {"k": "stop_at", "e": 2, "t": 1.0})
    stage.heed()
    stage.trainings.stops.withdraw(7, 0)
    assert stop.exists()
    afar(stage, "there")
    stage.trainings.stops.withdraw(7, 0)
    assert stop.exists()


def test_a_stop_request_that_cannot_be_written_is_logged(
    stage: MonitorFixture, caplog: pytest.LogCaptureFixture
) -> None:
    stage.directory.write_text("in the way")
    stage.trainings.stops.send(7, 0)
    assert "stop for job 7: " in caplog.text


def afar(stage: MonitorFixture, *nodes: str) -> None:
    """Place the job on these machines, of which all but `here` are elsewhere."""
    parts = [Placement(node, ()) for node in nodes]
    stage.job.placement = Placement(nodes[0], (), tuple(parts[1:]))
    for node in set(nodes) - {"here"}:
        stage.state.rest.remotes[node] = NodeAdded(at=1.0, name=node, address=node)


def test_the_stop_epoch_is_forwarded_to_the_other_nodes_once(
    stage: MonitorFixture,
) -> None:
    afar(stage, "here", "there", "elsewhere")
    stage.write(HELLO, start(0), {"k": "stop_at", "e": 2, "t": 1.0})
    stage.heed()
    stage.write(start(1))
    stage.heed()
    assert stage.couriers.told == [("stop_at", (7, 0), 1, "2"), ("stop_at", (7, 0), 2, "2")]
    told = stage.exit(75, part=1)
    assert isinstance(told[-1], e.ProcessExited)
    assert told[-1].stopped
    told = stage.exit(1, part=2)
    assert isinstance(told[-1], e.ProcessExited)
    assert not told[-1].stopped
    stage.write({"k": "stopped", "e": 2, "t": 1.0})
    told = stage.exit(75, part=0)
    assert counted(told) == [2]
    assert isinstance(told[-1], e.ProcessExited)
    assert told[-1].stopped


def test_a_report_of_a_remote_node_counts_as_a_local_one(stage: MonitorFixture) -> None:
    afar(stage, "there", "here")
    stage.write(HELLO, start(4))  # not of the part that speaks for all
    assert stage.heed() == []
    data = "".join(json.dumps(line) + "\n" for line in (HELLO, start(0), end(0), start(1))).encode()
    stage.trainings.on_report_data(AttemptId(7, 0), 1, data)
    stage.trainings.on_report_data(AttemptId(7, 1), 0, data)
    assert stage.heed() == []
    stage.trainings.on_report_data(AttemptId(7, 0), 0, data[:50], 0)
    stage.trainings.on_report_data(AttemptId(7, 0), 0, data[20:], 20)
    assert kinds(stage.heed()) == ["TrainingBegan", "EpochsCounted"]
    stage.job.progress = Progress(listening=True, stop=Stop("make room", 1.0))
    stage.trainings.stops.send(7, 0)
    assert stage.couriers.told == [("stop", (7, 0), 0, "make room")]
    stage.trainings.on_report_data(AttemptId(7, 0), None, b'{"k":"stop_at","e":3}\n')
    stage.heed()
    assert (stage.directory / "stop_at").read_text() == "3\n"


def test_live_values_are_the_latest_steps_and_metrics(stage: MonitorFixture) -> None:
    assert stage.trainings.live(7) == {}
    metrics = b'{"k":"metrics","e":0,"t":1012.0,"v":{"loss":NaN,"acc":0.5,"x":[1],"big":1e400}}\n'
    stage.write(HELLO, start(0), metrics, {"k": "metrics", "e": 0, "v": {"acc": 0.75}})
    steps = json.dumps({"e": 0, "n": 300, "s": 0.25, "t": 1015.0}).ljust(127) + "\n"
    (stage.directory / "steps").write_text(steps)
    stage.heed()
    live = stage.trainings.live(7)
    assert live.pop("metrics") == {"loss": "nan", "acc": 0.75, "big": "inf"}
    assert live == {"epoch": 0, "step": 300, "step_seconds": 0.25, "at": 1015.0}
    stage.write(start(1, at=1020.0))
    stage.heed()
    assert (stage.trainings.live(7)["epoch"], stage.trainings.live(7)["step"]) == (1, None)
    (stage.directory / "steps").write_text("{" * 300)
    assert stage.trainings.live(7)["at"] == 1020.0


# -- what is over ------------------------------------------------------------------------------


def test_reports_go_when_their_job_is_over_or_a_later_attempt_has_ended(
    stage: MonitorFixture,
) -> None:
    stage.write(HELLO)
    stage.heed()
    cleanup = stage.trainings.cleanup
    stage.job.attempt, stage.job.state = 1, JobState.PENDING  # the first attempt has ended
    seen = e.WaitOver(at=1.0, job=7)
    stage.trainings.on_events([seen])
    assert cleanup.take_removable() == []
    stage.job.attempt = 2
    stage.trainings.on_events([seen])
    assert cleanup.take_removable() == [str(stage.directory)]
    cleanup.add(AttemptId(7, 1))
    stage.job.state = JobState.CANCELLED
    stage.trainings.on_events([e.JobCancelled(at=1.0, job=7)])
    assert cleanup.take_removable() == [str(stage.home / "training" / "7.1")]
    assert cleanup._attempts == {}


def test_a_sweep_removes_what_belongs_to_no_unfinished_job_and_nothing_else(
    stage: MonitorFixture, tmp_path: Path
) -> None:
    root = tmp_path / "training"
    names = ["7.0", "3.0", "3.1", "99.0", "notes", "1.x"]
    for name in names:
        (root / name).mkdir()
    (root / "4.0").symlink_to(tmp_path)
    cleanup = ReportCleanup(str(root), lambda _: False)
    cleanup.scan(stage.state)
    remove(cleanup.take_removable())
    assert sorted(path.name for path in root.iterdir()) == ["1.x", "7.0", "99.0", "notes"]
    assert cleanup._attempts == {7: {0}}


class Records:
    """The finished jobs of a store."""

    def __init__(self, ended: dict[int, float], spec: Spec) -> None:
        self.ended, self.spec = ended, spec

    def find_jobs(self, query: JobQuery) -> list[StoredJob]:
        return [
            StoredJob(Job(id, "s", "t", "u", 1.0, state=JobState.COMPLETED, ended_at=at), self.spec)
            for id, at in self.ended.items()
            if id in (query.ids or ())
        ]


def test_checkpoints_of_ours_go_two_weeks_after_the_end_of_their_job(
    stage: MonitorFixture, tmp_path: Path
) -> None:
    root, day, now = tmp_path / "checkpoints", 86400.0, time.time()
    touched: Callable[[Path, float], None] = lambda path, days: os.utime(  # noqa: E731
        path, (now - days * day, now - days * day)
    )
    for name, days in {
        "abcdef01-3": 20.0, "abcdef01-4": 20.0, "abcdef01-5": 20.0, "abcdef01-6": 3.0,
        "abcdef01-7": 20.0, "ffffffff-3": 20.0, "mine": 20.0, f"{REMOVING_PREFIX}2": 0.0,
    }.items():  # fmt: skip
        (root / name / "deep").mkdir(parents=True)
        touched(root / name, days)
    ended = {3: now - 15 * day, 4: now - 13 * day, 6: now - 15 * day}
    records: Any = Records(ended, stage.state.specs["s"])
    remove(expired_checkpoints(str(root), "abcdef012345", stage.state, records, now))
    # 4 is too young, nobody knows of 5, 6 was touched, 7 runs, the others are not ours.
    assert sorted(path.name for path in root.iterdir()) == [
        "abcdef01-4", "abcdef01-5", "abcdef01-6", "abcdef01-7", "ffffffff-3", "mine",
    ]  # fmt: skip
