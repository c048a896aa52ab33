"""What UserExecutor does beyond the contract: processes that end, are refused or lie."""

import json
import os
import secrets
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from executors.contract import FIRST, LONG, SECOND
from executors.recording_sink import RecordingSink
from executors.user_bench import UserBench
from specs import launch_of
from stoker.core import events as e
from stoker.core.model.job import AttemptId, JobState
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.executors.linux.gpu_locks import GpuLocks
from stoker.executors.user import processes, wire
from stoker.executors.user.executor import UserExecutor

ANA, BEN = 4001, 4002


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[UserBench]:
    made = UserBench(tmp_path, tmp_path, f"c{secrets.token_hex(4)}")
    yield made
    made.stop()


# ------------------------------------------------------------------------ processes that end


def test_the_end_of_an_attempt_is_reported_after_the_process_was_killed(bench: UserBench) -> None:
    bench.executor.start(bench.launch(FIRST, seconds=100.0, code=3))
    bench.until_running(FIRST)
    bench.kill_process()
    assert bench.exit(FIRST).code == 3
    assert bench.starts(FIRST) == 1


def test_a_start_that_a_killed_process_has_not_read_is_called_off(bench: UserBench) -> None:
    bench.executor.start(bench.launch(FIRST, seconds=1.0))
    bench.exit(FIRST)
    os.kill(bench.pids[-1], signal.SIGSTOP)
    bench.executor.start(bench.launch(SECOND, seconds=1.0))
    bench.wait(5)
    bench.kill_process()
    assert isinstance(bench.end(SECOND), e.StartCancelled)
    assert bench.starts(SECOND) == 0


def test_a_termination_goes_on_after_the_process_was_killed(bench: UserBench) -> None:
    bench.executor.start(bench.launch(FIRST, LONG, ignores_term=True))
    bench.until_running(FIRST)
    bench.kill_process()
    bench.executor.terminate(FIRST, grace=0.0)  # lost, unless its end was noticed before
    bench.states[FIRST] = JobState.COMPLETING
    assert bench.exit(FIRST).signal == signal.SIGKILL


def test_no_exit_is_lost_when_supervisors_and_process_are_killed(bench: UserBench) -> None:
    bench.executor.start(bench.launch(FIRST, LONG))
    bench.until_running(FIRST)
    for pid in map(int, os.listdir(bench.directory / "exits")):
        os.kill(pid, signal.SIGKILL)
    bench.kill_process()
    bench.executor.terminate(FIRST, grace=0.0)
    assert isinstance(bench.end(FIRST), e.ProcessExited | e.AttemptLost)
    assert bench.starts(FIRST) == 1


def test_a_process_ends_when_the_daemon_does(bench: UserBench) -> None:
    bench.executor.start(bench.launch(FIRST, seconds=200.0, code=3))
    bench.until_running(FIRST)
    bench.stop()  # waits for its end
    bench.restart(FIRST)
    assert bench.exit(FIRST).code == 3


def test_a_user_without_attempts_needs_no_process(
    bench: UserBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "IDLE_SECONDS", 0.05)
    bench.executor.start(bench.launch(FIRST, seconds=1.0))
    bench.exit(FIRST)
    bench.executor.acknowledge([FIRST])
    bench.until(lambda: not bench.executor.processes.pids())
    bench.executor.start(bench.launch(SECOND, seconds=1.0, code=2))
    assert bench.exit(SECOND).code == 2
    assert len(bench.pids) == 2


# ------------------------------------------------------------------------------------- files


def test_the_whole_report_arrives_before_the_exit(bench: UserBench) -> None:
    report = bench.directory / "training" / str(FIRST) / "report"
    line = json.dumps({"k": "hello"})
    script = f"mkdir -p {report.parent}; for i in 1 2 3; do echo '{line}' >>{report}; done"
    order: list[str] = []
    bench.executor.start(bench.script(FIRST, script))
    sink, event = bench.sink, bench.sink.event
    sink.event = lambda each: (order.append(type(each).__name__), event(each))  # type: ignore[method-assign]
    data = sink.report_data
    sink.report_data = lambda *each: (order.append("data"), data(*each))  # type: ignore[method-assign]
    bench.exit(FIRST)
    assert order[-1] == "ProcessExited"
    received = b"".join(each[3] for each in sink.reports)
    assert received.decode().splitlines() == [line] * 3
    bench.executor.acknowledge([FIRST])
    bench.until(lambda: not report.parent.exists())


def test_control_files_are_written_by_the_process(bench: UserBench) -> None:
    bench.executor.start(bench.launch(FIRST, LONG))
    bench.until_running(FIRST)
    bench.executor.send_control(FIRST, 0, "stop", "another job")
    path = bench.directory / "training" / str(FIRST) / "stop"
    bench.until(path.exists)
    assert path.read_text() == "another job\n"
    bench.executor.terminate(FIRST, 0.0)
    bench.exit(FIRST)


def test_files_are_read_with_the_rights_of_the_user(bench: UserBench) -> None:
    path, fifo = bench.base / "file", bench.base / "fifo"
    path.write_text("0123456789")
    os.mkfifo(fifo)
    found: list[wire.FileData] = []
    read, uid = bench.executor.read_file, os.getuid()
    for name, offset in ((path, 3), (path, -4), (fifo, 0), (bench.base / "none", 0)):
        read(uid, str(name), offset, 100, found.append)
    bench.until(lambda: len(found) == 4)
    found.sort(key=lambda each: each.request)
    assert [each.data for each in found] == [b"3456789", b"6789", b"", b""]
    assert [each.size for each in found] == [10, 10, -1, -1]
    assert found[2].error == "not a regular file"


# ----------------------------------------------------------------- refusals and hostile processes


class Scene:
    """An executor with processes of two users that a test plays."""

    def __init__(self, tmp_path: Path) -> None:
        self.reactor, self.sink = EpollReactor(), RecordingSink()
        self.requested: list[int] = []
        self.groups: list[tuple[int, str, list[list[int]]]] = []
        self.removed: list[tuple[int, str]] = []
        self.executor = UserExecutor(
            "install", self.reactor, lambda _: b"A=1\0", lambda _: None, lambda _: [],
            self.requested.append, gpu_locks=GpuLocks(str(tmp_path / "locks")),
            create_group=lambda *group: self.groups.append(group),
            remove_group=lambda *group: self.removed.append(group),
        )  # fmt: skip
        self.executor.open(self.sink)
        self._ends: list[socket.socket] = []

    def close(self) -> None:
        self.executor.close()
        self.reactor.close()
        for end in self._ends:
            end.close()

    def connect(self, uid: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.executor.on_process(uid, 1, ours)
        self._ends.append(theirs)
        return theirs

    def start(self, attempt: AttemptId, uid: int | None, **fields: Any) -> None:
        self.executor.start(launch_of(job=attempt.job, attempt=attempt.attempt, uid=uid, **fields))

    def sent(self, process: socket.socket) -> list[wire.Message]:
        """Return what a process has been sent that is about attempts."""
        data, messages = process.recv(1 << 20), []
        while data:
            end = 4 + int.from_bytes(data[:4], "little")
            messages.append(msgspec.msgpack.decode(data[4:end], type=wire.ToProcess))
            data = data[end:]
        others = (wire.Configure, wire.Recover, wire.KeepEnvironment)
        return [message for message in messages if not isinstance(message, others)]

    def say(self, process: socket.socket, message: wire.Message) -> None:
        data = msgspec.msgpack.encode(message)
        process.sendall(len(data).to_bytes(4, "little") + data)
        self.reactor.wait(1.0)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


def test_one_process_is_requested_for_all_starts_of_a_user(scene: Scene) -> None:
    scene.start(FIRST, ANA)
    scene.start(SECOND, ANA)
    scene.start(AttemptId(8, 0), BEN)
    assert scene.requested == [ANA, BEN]


def test_a_start_that_was_not_sent_is_cancelled_by_a_termination(scene: Scene) -> None:
    scene.start(FIRST, ANA)
    scene.executor.terminate(FIRST, 10.0)
    assert [type(event) for event in scene.sink.events] == [e.StartCancelled]
    assert not scene.executor.has_attempts()


def test_starts_of_a_user_that_is_refused_are_called_off_with_the_reason(scene: Scene) -> None:
    scene.start(FIRST, ANA)
    scene.executor.on_refused(ANA, "the account has expired")
    scene.start(SECOND, ANA)
    scene.executor.on_refused(ANA, "the account has expired")
    (first, second) = scene.sink.events
    assert isinstance(first, e.StartCancelled)
    assert isinstance(second, e.StartCancelled)
    assert first.why == "the account has expired"
    assert 0 < first.delay < second.delay


def test_a_job_without_a_user_is_never_started(scene: Scene) -> None:
    scene.start(FIRST, None)
    assert [type(event) for event in scene.sink.events] == [e.StartCancelled]
    assert scene.requested == []


def test_a_process_says_nothing_about_attempts_of_another_user(scene: Scene) -> None:
    scene.start(FIRST, ANA)
    scene.connect(ANA)
    ben = scene.connect(BEN)
    exited = e.ProcessExited(at=1.0, job=FIRST.job, attempt=FIRST.attempt, code=0)
    scene.say(ben, wire.Happened(exited))
    scene.say(ben, wire.ReportData(FIRST, 0, b"{}\n"))
    scene.say(ben, wire.Ready(FIRST, 0, 1))
    assert (scene.sink.events, scene.sink.reports, scene.sink.ready_parts) == ([], [], [])
    assert scene.executor.has_attempts()


def test_a_process_cannot_name_a_time_before_the_start_or_a_process_of_others(
    scene: Scene,
) -> None:
    scene.start(FIRST, ANA)
    ana = scene.connect(ANA)
    started = e.ProcessStarted(
        at=1e12, job=FIRST.job, attempt=FIRST.attempt, pid=1, boot=1e12, part=5
    )
    exited = e.ProcessExited(at=1.0, job=FIRST.job, attempt=FIRST.attempt, code=0)
    scene.say(ana, wire.Happened(started))
    scene.say(ana, wire.Happened(exited))
    (first, last) = scene.sink.events
    assert isinstance(first, e.ProcessStarted)
    assert (first.pid, first.part) == (None, None)
    assert last.at <= first.at < 1e11
    assert last.at > 1e9
    assert first.boot < 1e11


def test_a_start_waits_for_its_device_group_and_what_follows_waits_for_the_start(
    scene: Scene,
) -> None:
    scene.executor.on_gate("/groups")
    ana = scene.connect(ANA)
    visible = {"CUDA_VISIBLE_DEVICES": "1,3"}
    scene.start(FIRST, ANA, gpus=("GPU-b", "GPU-d"), gpu_minors=(1, 300), extra=visible)
    scene.executor.suspend(FIRST)
    scene.start(SECOND, ANA)
    [without] = scene.sent(ana)
    assert isinstance(without, wire.Start)
    assert without.launch.id == SECOND
    scene.executor.on_gate("/groups")  # the gate was killed before it answered
    assert scene.groups == [(ANA, str(FIRST), [[195, 1]])] * 2
    scene.executor.on_device_group(ANA, str(FIRST), "/groups/user-4001/x", "")
    start, suspend = scene.sent(ana)
    assert isinstance(start, wire.Start)
    assert start.launch.device_group == "/groups/user-4001/x"
    assert start.launch.extra == {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-d"}
    assert suspend == wire.Suspend(FIRST)


def test_a_start_without_its_device_group_is_called_off(scene: Scene) -> None:
    scene.executor.on_gate("/groups")
    ana = scene.connect(ANA)
    scene.start(FIRST, ANA, gpu_minors=(1,))
    scene.executor.on_device_group(ANA, str(FIRST), "", "too many groups")
    scene.start(SECOND, ANA, gpu_minors=(2,))
    scene.executor.terminate(SECOND, 10.0)
    scene.executor.on_device_group(ANA, str(SECOND), "/groups/user-4001/y", "")
    first, second = scene.sink.events
    assert isinstance(first, e.StartCancelled)
    assert isinstance(second, e.StartCancelled)
    assert (first.why, first.delay > 0) == ("no device group: too many groups", True)
    assert not scene.executor.has_attempts()
    scene.executor.on_gate("")
    scene.start(FIRST, ANA, gpu_minors=(1,))
    [sent] = scene.sent(ana)
    assert isinstance(sent, wire.Start)
    assert scene.executor.notes


def test_only_device_groups_of_attempts_that_are_under_way_are_kept(
    scene: Scene, tmp_path: Path
) -> None:
    for user in (ANA, BEN):
        for name in (str(FIRST), str(SECOND), "other"):
            (tmp_path / f"user-{user}" / name).mkdir(parents=True)
    (tmp_path / "no-gpus").mkdir()
    (tmp_path / "user-x" / "1.0").mkdir(parents=True)
    scene.start(FIRST, ANA)
    scene.executor.on_gate(str(tmp_path))
    kept = (ANA, str(FIRST))
    names = (str(FIRST), str(SECOND), "other")
    assert set(scene.removed) == {(uid, name) for uid in (ANA, BEN) for name in names} - {kept}


@pytest.mark.parametrize(
    "frame",
    [b"\xff\xff\xff\xff", b"\x01\x00\x00\x00\xc1", b"\x05\x00\x00\x00\x91\xa4Stop"],
    ids=["too long", "no msgpack", "unknown kind"],
)
def test_a_process_that_sends_anything_else_is_replaced(scene: Scene, frame: bytes) -> None:
    scene.start(FIRST, ANA)
    ana = scene.connect(ANA)
    ana.sendall(frame)
    scene.reactor.wait(1.0)
    assert not scene.executor.processes.pids()
    while scene.requested != [ANA, ANA]:
        scene.reactor.wait(1.0)
