"""Reports of training attempts: any content, what is read of it, and the events."""

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
from stoker.core.events import NodeAdded
from stoker.core.model.job import AttemptId, Job, JobState, Progress, StopRequest
from stoker.core.model.resources import Placement
from stoker.core.model.spec import Spec
from stoker.core.state.record import Unreachable
from stoker.daemon.reports import format as reports
from stoker.daemon.reports.format import TrainingReport
from stoker.daemon.training import monitor, report_events
from stoker.daemon.training.cleanup import (
    REMOVING_PREFIX,
    ReportCleanup,
    expired_checkpoints,
    remove,
)
from stoker.executors.linux import report_watcher as watcher_module
from stoker.store.port import JobQuery, StoredJob


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "READ_INTERVAL_SECONDS", 0.0)


@pytest.fixture
def fixture(tmp_path: Path) -> MonitorFixture:
    return MonitorFixture(tmp_path)


HELLO = {"k": "hello", "t": 1001.0, "pid": 5, "v": 1}


def start(epoch: int, at: float = 1010.0) -> dict[str, Any]:
    return {"k": "start", "e": epoch, "t": at}


def end(epoch: int, took: float = 2.0) -> dict[str, Any]:
    return {"k": "end", "e": epoch, "d": took, "n": 10, "s": took / 10, "t": 1020.0}


def kinds(given: list[e.Event]) -> list[str]:
    return [type(event).__name__ for event in given]


def counted(given: list[e.Event]) -> list[int]:
    return [event.done for event in given if isinstance(event, e.EpochsCounted)]


# -- counting ----------------------------------------------------------------------------


def test_an_epoch_is_counted_once_when_the_next_one_starts(
    fixture: MonitorFixture,
) -> None:
    fixture.write(HELLO)
    assert fixture.run_turn() == []  # without an epoch it cannot stop at one
    fixture.write(start(0), end(0, 2.0))
    assert kinds(fixture.run_turn()) == ["TrainingBegan"]
    fixture.write(start(1), end(1, 4.0), start(2))
    (event,) = fixture.run_turn()
    assert isinstance(event, e.EpochsCounted)
    assert (event.done, event.seconds, event.step, event.warmup) == (
        2,
        3.0,
        pytest.approx(0.3),
        10.0,
    )
    fixture.write(end(2, 6.0), start(3))
    (event,) = fixture.run_turn()
    assert isinstance(event, e.EpochsCounted)
    assert (event.done, event.seconds, event.warmup) == (3, 6.0, None)
    assert fixture.run_turn() == []


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([float("nan")], ()),
        ([float("nan")] * 2, ("loss",)),
        ([0.5, float("inf"), float("-inf")], ("loss",)),
        ([float("inf")] * 3, ()),  # as a best value before there is one
        ([float("nan"), float("nan"), 0.5], ()),
        ([0.5, float("nan"), 0.5, float("nan")], ()),
    ],
)
def test_metrics_that_are_not_numbers_twice_in_a_row(
    fixture: MonitorFixture, values: list[float], found: tuple[str, ...]
) -> None:
    for value in values:
        fixture.write({"k": "metrics", "v": {"loss": value, "lr": 0.1}})
    fixture.run_turn()
    sample = fixture.monitor.sample(7)
    assert sample is not None
    assert sample.nan_metrics == found


def test_a_sample_changes_with_each_report(fixture: MonitorFixture) -> None:
    assert fixture.monitor.sample(7) is None
    seen = []
    for line in (
        {"k": "hello"}, {"k": "start", "e": 0, "t": STARTED + 1, "n": 2}, {"k": "end", "e": 0},
        {"k": "start", "e": 1, "t": STARTED + 2, "n": 2}, {"k": "end", "e": 1},
    ):  # fmt: skip
        fixture.write(line)
        fixture.run_turn()
        sample = fixture.monitor.sample(7)
        assert sample is not None
        seen.append(sample)
    assert len({sample.progress for sample in seen}) == len(seen)
    assert [sample.is_done for sample in seen] == [False] * 4 + [True]


def test_the_total_of_epochs_is_published_with_the_first_counted_epoch(
    fixture: MonitorFixture,
) -> None:
    fixture.write(HELLO, {**start(0), "n": 30}, end(0), {**start(1), "n": 30})
    *_, event = fixture.run_turn()
    assert isinstance(event, e.EpochsCounted)
    assert (event.done, event.total) == (1, 30)


@pytest.mark.parametrize(("code", "done"), [(0, [1]), (1, [])])
def test_a_clean_end_counts_the_last_epoch_and_another_does_not(
    fixture: MonitorFixture, code: int, done: list[int]
) -> None:
    fixture.write(HELLO, start(0), end(0))
    events = fixture.exit(code)
    assert kinds(events)[0] == "TrainingBegan"  # not reported before
    assert kinds(events)[-1] == "ProcessExited"
    assert counted(events) == done


def test_events_of_a_short_job_are_between_its_start_and_its_end(fixture: MonitorFixture) -> None:
    fixture.job.started_at, fixture.job.state = None, JobState.CONFIGURING
    fixture.write(HELLO, start(0), end(0), start(1), end(1))
    events = fixture.run_turn(
        e.ProcessStarted(at=1005.0, job=7, attempt=0, pid=5, boot=1.0),
        e.ProcessExited(at=1030.0, job=7, attempt=0, code=0),
    )
    assert kinds(events) == ["ProcessStarted", "TrainingBegan", "EpochsCounted", "ProcessExited"]
    assert isinstance(events[2], e.EpochsCounted)
    assert (events[2].done, events[2].warmup) == (2, 5.0)


def test_a_report_before_the_start_event_waits_for_it(fixture: MonitorFixture) -> None:
    fixture.job.started_at, fixture.job.state = None, JobState.CONFIGURING
    fixture.write(HELLO, start(0), start(1))
    assert fixture.run_turn() == []
    assert fixture.seconds_until_due() is not None
    fixture.job.started_at, fixture.job.state = STARTED, JobState.RUNNING
    assert kinds(fixture.run_turn()) == ["TrainingBegan", "EpochsCounted"]


def test_a_requested_stop_is_marked_and_its_epochs_are_counted(fixture: MonitorFixture) -> None:
    fixture.write(HELLO, start(0), end(0), {"k": "stopped", "e": 1, "t": 1.0})
    events = fixture.exit(75)
    assert counted(events) == [1]
    assert isinstance(events[-1], e.ProcessExited)
    assert events[-1].stopped


def test_epochs_that_a_wrapper_starts_after_the_stop_do_not_count(fixture: MonitorFixture) -> None:
    stopped = {"k": "stopped", "e": 1, "t": 1.0}
    again = {"k": "stopped", "e": 3, "t": 2.0}
    fixture.write(HELLO, start(0), end(0), stopped, HELLO, start(1), end(1), start(2), again)
    events = fixture.exit(0)
    assert isinstance(events[-1], e.ProcessExited)
    assert (events[-1].stopped, counted(events)) == (True, [1])


def lingers(fixture: MonitorFixture) -> list[e.Event]:
    """Events of an attempt with a living process."""
    return [event for event in fixture.run_turn() if isinstance(event, e.PreemptionTimedOut)]


def test_a_stopped_attempt_that_still_runs_is_overdue_once(
    fixture: MonitorFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture.write(HELLO, start(0), end(0), {"k": "stopped", "e": 1, "t": 1.0})
    assert lingers(fixture) == []
    wait = fixture.seconds_until_due()
    assert wait is not None
    assert 0 < wait <= report_events.STOP_GRACE_SECONDS
    fixture.open_monitor()  # the next daemon reads it again
    monkeypatch.setattr(report_events, "STOP_GRACE_SECONDS", 0.0)
    assert lingers(fixture) == []
    (event,) = lingers(fixture)
    assert isinstance(event, e.PreemptionTimedOut)
    assert (event.job, event.attempt, event.has_saved) == (7, 0, True)
    assert lingers(fixture) == []
    assert fixture.seconds_until_due() is None


def test_a_suspended_or_unreachable_attempt_is_not_overdue(
    fixture: MonitorFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_events, "STOP_GRACE_SECONDS", 0.0)
    fixture.write(HELLO, start(0), {"k": "stopped", "e": 0, "t": 1.0})
    fixture.job.state = JobState.SUSPENDED
    assert lingers(fixture) == []
    fixture.job.state = JobState.RUNNING
    fixture.state.record.unreachable["here"] = Unreachable(1.0, 1.0, "silent")
    assert lingers(fixture) == []
    del fixture.state.record.unreachable["here"]
    assert len(lingers(fixture)) == 1


def test_an_attempt_that_ends_in_time_is_not_overdue(
    fixture: MonitorFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_events, "STOP_GRACE_SECONDS", 0.0)
    fixture.write(HELLO, start(0), {"k": "stopped", "e": 0, "t": 1.0})
    fixture.job.state = JobState.COMPLETING
    assert lingers(fixture) == []
    del fixture.state.running[7]
    assert lingers(fixture) == []


def metrics(**values: Any) -> dict[str, Any]:
    return {"k": "metrics", "e": 0, "t": 1.0, "v": values}


def published_metrics(given: list[e.Event]) -> list[dict[str, float] | None]:
    return [event.metrics for event in given if isinstance(event, e.EpochsCounted)]


def test_changed_metrics_are_published_with_epochs(fixture: MonitorFixture) -> None:
    fixture.write(HELLO, start(0), metrics(loss=3, note="warm"), end(0))
    assert published_metrics(fixture.run_turn()) == []
    fixture.write(start(1))
    assert published_metrics(fixture.run_turn()) == [{"loss": 3.0}]
    fixture.write(end(1), start(2))
    assert published_metrics(fixture.run_turn()) == [None]
    fixture.write(metrics(loss=2.5, acc=0.5))
    assert published_metrics(fixture.run_turn()) == []
    fixture.open_monitor()
    fixture.write(end(2), start(3))
    assert published_metrics(fixture.run_turn()) == [{"loss": 2.5, "acc": 0.5}]
    events = fixture.exit(1)
    assert kinds(events) == ["ProcessExited"]


def test_the_last_metrics_are_published_before_the_end_without_an_epoch(
    fixture: MonitorFixture,
) -> None:
    fixture.write(HELLO, metrics(loss=1.0))
    events = fixture.exit(1)
    assert kinds(events) == ["EpochsCounted", "ProcessExited"]
    assert (counted(events), published_metrics(events)) == ([0], [{"loss": 1.0}])
    assert isinstance(events[0], e.EpochsCounted)
    assert events[0].warmup is None


def test_an_attempt_without_metrics_leaves_those_of_the_one_before(fixture: MonitorFixture) -> None:
    fixture.job.progress = Progress(metrics={"loss": 1.0})
    fixture.write(HELLO, start(0), end(0))
    assert published_metrics(fixture.exit(0)) == [None]
    assert fixture.job.progress is not None
    assert fixture.job.progress.metrics == {"loss": 1.0}


def test_the_number_of_metrics_and_the_length_of_names_are_limited(fixture: MonitorFixture) -> None:
    fixture.write(HELLO, metrics(**{f"{n:03}" * 22: n for n in range(40)}))
    (events,) = published_metrics(fixture.exit(0))
    assert events is not None
    assert (len(events), {len(name) for name in events}) == (32, {64})
    assert list(events.values()) == [float(n) for n in range(8, 40)]


def test_saved_epochs_of_a_lost_attempt_are_counted(fixture: MonitorFixture) -> None:
    fixture.write(HELLO, start(0), end(0), start(1), end(1))
    events = fixture.run_turn(e.AttemptLost(at=2.0, job=7, attempt=0, why="gone"))
    assert kinds(events) == ["TrainingBegan", "EpochsCounted", "AttemptLost"]
    assert counted(events) == [1]


def test_no_more_epochs_are_counted_than_requested(tmp_path: Path) -> None:
    fixture = MonitorFixture(tmp_path, epochs=3)
    fixture.write(HELLO, start(0), start(9))
    assert counted(fixture.run_turn()) == [3]


def test_reports_of_other_attempts_are_ignored(fixture: MonitorFixture) -> None:
    fixture.job.attempt = 1
    fixture.write(HELLO, start(5))
    old = e.ProcessExited(at=2000.0, job=7, attempt=0, code=0)
    assert fixture.run_turn(old) == [old]
    assert fixture.monitor.live(7) == {}
    del fixture.state.running[7]
    fixture.job.attempt, fixture.job.state = 0, JobState.COMPLETED
    assert fixture.run_turn(old) == [old]


# -- invalid content -----------------------------------------------------------------------

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
    fixture: MonitorFixture, line: bytes
) -> None:
    fixture.write(HELLO, start(0), end(0), line, start(1))
    assert counted(fixture.run_turn()) == [1]
    assert counted(fixture.exit(1)) == []


def test_implausible_times_are_not_published(fixture: MonitorFixture) -> None:
    wrong = b'{"k":"end","e":0,"d":NaN,"s":-1}\n{"k":"end","e":1,"d":1e300,"s":Infinity}\n'
    fixture.write(HELLO, start(0, at=1e300), wrong, end(2, 8.0), start(3))
    events = fixture.run_turn()[-1]
    assert isinstance(events, e.EpochsCounted)
    assert (events.seconds, events.step, events.warmup) == (8.0, pytest.approx(0.8), None)


def test_epochs_never_go_back(fixture: MonitorFixture) -> None:
    fixture.job.progress = Progress(epochs=5, epochs_at_start=5, accepts_stop=True)
    fixture.write(HELLO, start(2), end(2), start(3))
    assert fixture.run_turn() == []
    fixture.write(start(6), start(4))
    assert counted(fixture.run_turn()) == [6]


@pytest.mark.parametrize("what", ["fifo", "link", "directory"])
def test_only_regular_files_are_read(fixture: MonitorFixture, tmp_path: Path, what: str) -> None:
    fixture.directory.mkdir()
    path = fixture.directory / "report"
    if what == "fifo":
        os.mkfifo(path)
        os.mkfifo(fixture.directory / "steps")
    elif what == "link":
        (tmp_path / "other").write_text(json.dumps(HELLO) + "\n")
        path.symlink_to(tmp_path / "other")
    else:
        path.mkdir()
    assert fixture.run_turn() == []
    assert kinds(fixture.exit()) == ["ProcessExited"]


def test_a_report_of_any_size_is_read_in_pieces_and_its_end_counts(
    fixture: MonitorFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: sizes.append(size) or pread(fd, size, at))
    filler = b'{"k":"metrics","e":0,"t":1.0,"v":{"loss":1.0}}\n' * 200_000
    fixture.write(HELLO, start(0), filler, start(1), end(1), {"k": "stopped", "e": 2})
    assert kinds(fixture.run_turn()) == ["TrainingBegan"]  # of the first piece
    events = fixture.exit(75)
    assert counted(events) == [2]
    assert isinstance(events[-1], e.ProcessExited)
    assert events[-1].stopped
    assert max(sizes) <= reports.CHUNK
    assert sum(sizes) <= reports.MAX_BACKLOG + 2 * reports.CHUNK


def test_a_truncated_report_is_read_from_its_start(fixture: MonitorFixture) -> None:
    fixture.write(HELLO, start(0), end(0), start(1))
    assert counted(fixture.run_turn()) == [1]
    os.truncate(fixture.directory / "report", 0)
    fixture.write(start(2))
    assert counted(fixture.exit(1)) == [2]


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
    fixture = MonitorFixture(tmp_path_factory.mktemp("home"))
    events: list[e.Event] = []
    for line in lines:
        fixture.write(line)
        what = data.draw(st.sampled_from(["nothing", "turn", "restart"]))
        if what == "restart":
            fixture.monitor.close()
            fixture.open_monitor()
        if what != "nothing":
            events += fixture.run_turn()
    events += fixture.exit(1)
    fixture.monitor.close()
    once = TrainingReport()
    once.feed(b"".join(lines))
    assert kinds(events).count("TrainingBegan") == (once.epoch is not None)
    assert counted(events) == sorted(set(counted(events)))
    assert max(counted(events), default=0) == once.counted
    assert isinstance(events[-1], e.ProcessExited)
    assert events[-1].stopped == once.stopped


# -- polling -------------------------------------------------------------------------------


def test_a_busy_report_is_read_at_intervals_and_at_the_end_of_its_attempt(
    fixture: MonitorFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "READ_INTERVAL_SECONDS", 3600.0)
    fixture.write(HELLO, start(0))
    assert kinds(fixture.run_turn()) == ["TrainingBegan"]
    fixture.write(start(0), start(1))
    assert fixture.run_turn() == []
    wait = fixture.seconds_until_due()
    assert wait is not None
    assert wait > 3000
    assert counted(fixture.exit(1)) == [1]


def test_a_watch_that_the_kernel_ends_as_it_is_renewed_is_renewed_again(
    fixture: MonitorFixture,
) -> None:
    """It may return the number of a watch that is about to end, and then end that."""
    fixture.write(HELLO, start(0))
    assert kinds(fixture.run_turn()) == ["TrainingBegan"]
    watcher = fixture.monitor.watcher
    assert watcher.inotify is not None
    for watch in [watch for watch, job in watcher.jobs.items() if job]:
        watcher.inotify.unwatch(watch)  # although it was renewed
    fixture.run_turn()
    fixture.write(start(1))
    assert counted(fixture.run_turn()) == [1]


def test_without_a_report_nothing_is_polled(fixture: MonitorFixture) -> None:
    assert fixture.run_turn() == []
    assert fixture.seconds_until_due() is None
    fixture.write(HELLO)
    fixture.run_turn()
    assert fixture.seconds_until_due() is None


def test_without_inotify_reports_are_polled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(watcher_module, "Inotify", refused)
    monkeypatch.setattr(watcher_module, "POLL_SECONDS", 0.0)
    fixture = MonitorFixture(tmp_path)
    assert fixture.run_turn() == []
    fixture.write(HELLO, start(0))
    assert kinds(fixture.run_turn()) == ["TrainingBegan"]
    fixture.write(start(1))
    assert counted(fixture.run_turn()) == [1]
    assert fixture.seconds_until_due() is not None
    fixture.state.running.clear()
    fixture.run_turn()
    assert fixture.seconds_until_due() is None


def test_at_the_limit_of_watches_reports_are_polled(
    fixture: MonitorFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: str) -> int:
        raise OSError(28, "No space left on device", path)

    assert fixture.monitor.watcher.inotify is not None
    monkeypatch.setattr(fixture.monitor.watcher.inotify, "watch_file", refused)
    monkeypatch.setattr(watcher_module, "POLL_SECONDS", 0.0)
    fixture.write(HELLO, start(0))
    assert kinds(fixture.run_turn()) == ["TrainingBegan"]
    assert fixture.monitor.watcher.inotify is None
    fixture.write(start(1))
    assert counted(fixture.run_turn()) == [1]


# -- requests --------------------------------------------------------------------------------


def test_a_stop_request_is_a_file_and_a_new_daemon_repeats_it(fixture: MonitorFixture) -> None:
    fixture.job.progress = Progress(
        accepts_stop=True, stop=StopRequest("job 9 needs\nits GPU", 1.0)
    )
    fixture.monitor.stops.send(7, 0)
    stop = fixture.directory / "stop"
    assert stop.read_text() == "job 9 needs its GPU\n"
    assert fixture.directory.stat().st_mode & 0o777 == 0o700
    stop.unlink()
    fixture.monitor.stops.send(7, 1)
    assert not stop.exists()
    fixture.open_monitor()
    assert stop.exists()
    assert [path.name for path in fixture.directory.iterdir()] == ["stop"]


def test_a_stop_request_is_withdrawn_unless_a_stop_epoch_is_agreed(
    fixture: MonitorFixture,
) -> None:
    stop = fixture.directory / "stop"
    fixture.monitor.stops.send(7, 0)
    fixture.monitor.stops.withdraw(7, 1)  # another attempt
    assert stop.exists()
    fixture.monitor.stops.withdraw(7, 0)
    fixture.monitor.stops.withdraw(7, 0)
    assert not stop.exists()
    fixture.monitor.stops.send(7, 0)
    (fixture.directory / "stop_at").write_text("3")
    fixture.monitor.stops.withdraw(7, 0)
    assert stop.exists()
    (fixture.directory / "stop_at").unlink()
    fixture.write(HELLO, start(0), {"k": "stop_at", "e": 2, "t": 1.0})
    fixture.run_turn()
    fixture.monitor.stops.withdraw(7, 0)
    assert stop.exists()
    place_on(fixture, "there")
    fixture.monitor.stops.withdraw(7, 0)
    assert stop.exists()


def test_a_stop_request_that_cannot_be_written_is_logged(
    fixture: MonitorFixture, caplog: pytest.LogCaptureFixture
) -> None:
    fixture.directory.write_text("in the way")
    fixture.monitor.stops.send(7, 0)
    assert "stop for job 7: " in caplog.text


def place_on(fixture: MonitorFixture, *nodes: str) -> None:
    """Place the job on these nodes; all except `here` are remote."""
    parts = [Placement(node, ()) for node in nodes]
    fixture.job.placement = Placement(nodes[0], (), tuple(parts[1:]))
    for node in set(nodes) - {"here"}:
        fixture.state.record.remotes[node] = NodeAdded(at=1.0, name=node, address=node)


def test_the_stop_epoch_is_forwarded_to_the_other_nodes_once(
    fixture: MonitorFixture,
) -> None:
    place_on(fixture, "here", "there", "elsewhere")
    fixture.write(HELLO, start(0), {"k": "stop_at", "e": 2, "t": 1.0})
    fixture.run_turn()
    fixture.write(start(1))
    fixture.run_turn()
    assert fixture.executor.control_files == [
        ("stop_at", (7, 0), 1, "2"),
        ("stop_at", (7, 0), 2, "2"),
    ]
    events = fixture.exit(75, part=1)
    assert isinstance(events[-1], e.ProcessExited)
    assert events[-1].stopped
    events = fixture.exit(1, part=2)
    assert isinstance(events[-1], e.ProcessExited)
    assert not events[-1].stopped
    fixture.write({"k": "stopped", "e": 2, "t": 1.0})
    events = fixture.exit(75, part=0)
    assert counted(events) == [2]
    assert isinstance(events[-1], e.ProcessExited)
    assert events[-1].stopped


def test_a_report_of_a_remote_node_counts_as_a_local_one(fixture: MonitorFixture) -> None:
    place_on(fixture, "there", "here")
    fixture.write(HELLO, start(4))  # not of the first part
    assert fixture.run_turn() == []
    data = "".join(json.dumps(line) + "\n" for line in (HELLO, start(0), end(0), start(1))).encode()
    fixture.monitor.on_report_data(AttemptId(7, 0), 1, data, 0)
    fixture.monitor.on_report_data(AttemptId(7, 1), 0, data, 0)
    assert fixture.run_turn() == []
    fixture.monitor.on_report_data(AttemptId(7, 0), 0, data[:50], 0)
    fixture.monitor.on_report_data(AttemptId(7, 0), 0, data[20:], 20)
    assert kinds(fixture.run_turn()) == ["TrainingBegan", "EpochsCounted"]
    fixture.job.progress = Progress(accepts_stop=True, stop=StopRequest("preempted", 1.0))
    fixture.monitor.stops.send(7, 0)
    assert fixture.executor.control_files == [("stop", (7, 0), 0, "preempted")]
    stop_at = b'{"k":"stop_at","e":3}\n'
    fixture.monitor.on_report_data(AttemptId(7, 0), None, stop_at, len(data))
    fixture.run_turn()
    assert (fixture.directory / "stop_at").read_text() == "3\n"


def test_live_values_are_the_latest_steps_and_metrics(fixture: MonitorFixture) -> None:
    assert fixture.monitor.live(7) == {}
    metrics = b'{"k":"metrics","e":0,"t":1012.0,"v":{"loss":NaN,"acc":0.5,"x":[1],"big":1e400}}\n'
    fixture.write(HELLO, start(0), metrics, {"k": "metrics", "e": 0, "v": {"acc": 0.75}})
    steps = json.dumps({"e": 0, "n": 300, "s": 0.25, "t": 1015.0}).ljust(127) + "\n"
    (fixture.directory / "steps").write_text(steps)
    fixture.run_turn()
    live = fixture.monitor.live(7)
    live_metrics = live.pop("metrics")
    assert live_metrics == {"loss": "nan", "acc": 0.75, "big": "inf"}
    assert live == {"epoch": 0, "step": 300, "step_seconds": 0.25}
    fixture.write(start(1, at=1020.0))
    fixture.run_turn()
    assert fixture.monitor.live(7) == {"epoch": 1, "metrics": live_metrics}
    (fixture.directory / "steps").write_text("{" * 300)
    assert fixture.monitor.live(7) == {"epoch": 1, "metrics": live_metrics}


# -- cleanup -----------------------------------------------------------------------------------


def test_reports_are_removed_after_their_job_or_a_later_attempt_has_ended(
    fixture: MonitorFixture,
) -> None:
    fixture.write(HELLO)
    fixture.run_turn()
    cleanup = fixture.monitor.cleanup
    fixture.job.attempt, fixture.job.state = 1, JobState.PENDING  # the first attempt has ended
    seen = e.BeginTimeReached(at=1.0, job=7)
    fixture.monitor.on_events([seen])
    assert cleanup.take_removable() == []
    fixture.job.attempt = 2
    fixture.monitor.on_events([seen])
    assert cleanup.take_removable() == [str(fixture.directory)]
    cleanup.add(AttemptId(7, 1))
    fixture.job.state = JobState.CANCELLED
    fixture.monitor.on_events([e.JobCancelled(at=1.0, job=7)])
    assert cleanup.take_removable() == [str(fixture.home / "training" / "7.1")]
    assert cleanup._attempts == {}


def test_a_cleanup_removes_only_reports_without_an_unfinished_job(
    fixture: MonitorFixture, tmp_path: Path
) -> None:
    root = tmp_path / "training"
    names = ["7.0", "3.0", "3.1", "99.0", "notes", "1.x"]
    for name in names:
        (root / name).mkdir()
    (root / "4.0").symlink_to(tmp_path)
    cleanup = ReportCleanup(str(root), lambda _: False)
    cleanup.scan(fixture.state)
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


def test_our_checkpoints_are_removed_two_weeks_after_the_end_of_their_job(
    fixture: MonitorFixture, tmp_path: Path
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
    records: Any = Records(ended, fixture.state.specs["s"])
    remove(expired_checkpoints(str(root), "abcdef012345", fixture.state, records, now))
    # 4 is too recent, 5 is unknown, 6 was changed, 7 runs, the others are not ours.
    assert sorted(path.name for path in root.iterdir()) == [
        "abcdef01-4", "abcdef01-5", "abcdef01-6", "abcdef01-7", "ffffffff-3", "mine",
    ]  # fmt: skip
