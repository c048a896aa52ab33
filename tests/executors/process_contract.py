"""The contract of executors.port.Executor for executors of real processes, in real time.

A test module derives a class from ProcessContract and gives it a fixture `bed`. `contract.py` has
what can be checked in virtual time only.
"""

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from executors.recording_sink import RecordingSink
from specs import spec_of
from stoker.core.cluster import Placement
from stoker.core.events import Event, ProcessExited, ProcessStarted, StartCalledOff
from stoker.core.job import AttemptId, Job
from stoker.core.launch import Launch
from stoker.core.lifecycle import JobState
from stoker.executors.port import Barrier, Executor, RecoverableAttempt

GRACE_SECONDS = 0.5


class ExecutorBed(ABC):
    """An executor, the place where it runs attempts, and the daemon around it."""

    executor: Executor
    sink: RecordingSink

    def __init__(self, place: Path, install: str) -> None:
        self.place, self.install = place, install
        (place / "work").mkdir()
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Create the executor of a new daemon, with a new sink."""

    @abstractmethod
    def turn(self) -> None:
        """Let the daemon do what there is to do."""

    @abstractmethod
    def records(self) -> list[str]:
        """Return what proves starts and ends of attempts where these run."""

    def launch(self, script: str, job: int = 1) -> Launch:
        """Return the launch of a shell script."""
        token = f"{self.install}.{job}.0"
        return Launch(
            job=job, attempt=0, argv=("sh", "-c", script), directory=str(self.place / "work"),
            umask=0o22, environment="e", extra={"STOKER_TOKEN": token},
            out=str(self.place / f"{job}.out"), err=None, script=None, terminal=False, gpus=(),
            placement=Placement("here", ()),
        )  # fmt: skip

    def until(self, condition: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Turn until a condition holds; return its value."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, self.sink.events
            self.turn()
        return value

    def reported(self, kind: type[Event], job: int = 1) -> list[Any]:
        """Return the events of one kind about one job."""
        return [e for e in self.sink.events if isinstance(e, kind) and e.job == job]  # type: ignore[attr-defined]

    def exit_of(self, job: int = 1) -> ProcessExited:
        """Return the first reported exit of a job."""
        exited: ProcessExited = self.until(lambda: self.reported(ProcessExited, job))[0]
        return exited

    def restart(self, *launches: Launch) -> None:
        """Replace the daemon by another one, which recovers these attempts."""
        self.executor.close()
        self.open()
        self.executor.recover([recoverable(launch) for launch in launches])


def recoverable(launch: Launch) -> RecoverableAttempt:
    """Return what the journal knows of a started attempt."""
    job = Job(
        id=launch.job, spec="", name="", user="", submitted_at=0.0, started_at=1.0,
        attempt=launch.attempt, state=JobState.RUNNING, placement=launch.placement,
    )  # fmt: skip
    spec = spec_of(directory=launch.directory)
    return RecoverableAttempt(job, spec, launch.out, launch.err)


def alive(pid: int) -> bool:
    """Return whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


class ProcessContract:
    """What every executor must do; a fixture `bed` provides one."""

    def test_the_exit_code_and_the_output_of_an_attempt_arrive(self, bed: ExecutorBed) -> None:
        launch = bed.launch("echo hello; exit 7")
        bed.executor.start(launch)
        assert (bed.exit_of().code, bed.exit_of().signal) == (7, None)
        assert len(bed.reported(ProcessStarted)) == 1
        assert Path(launch.out).read_text() == "hello\n"
        assert not bed.executor.has_attempts()

    def test_an_attempt_is_started_once_whatever_daemons_do(self, bed: ExecutorBed) -> None:
        launch = bed.launch(f"echo ran >>{bed.place}/ran; sleep 1")
        bed.executor.start(launch)
        bed.until(lambda: bed.reported(ProcessStarted))
        bed.restart()
        bed.executor.start(launch)
        bed.until(lambda: bed.sink.events)
        bed.until(lambda: not bed.executor.has_attempts())
        assert (bed.place / "ran").read_text() == "ran\n"

    def test_terminate_ends_the_whole_tree(self, bed: ExecutorBed) -> None:
        child = f"trap '' TERM; echo \\$\\$ >{bed.place}/child; while :; do sleep 0.1; done"
        bed.executor.start(bed.launch(f'setsid sh -c "{child}" & sleep 60'))
        bed.until(lambda: (bed.place / "child").exists() and bed.reported(ProcessStarted))
        pid = int(bed.until((bed.place / "child").read_text))
        bed.executor.terminate(AttemptId(1, 0), GRACE_SECONDS)
        exited = bed.exit_of()
        assert signal.SIGTERM in (exited.signal, (exited.code or 0) - 128)
        bed.until(lambda: not alive(pid))

    def test_a_signal_reaches_a_process_that_handles_it(self, bed: ExecutorBed) -> None:
        ready = bed.place / "ready"
        script = f"trap 'exit 9' USR1; touch {ready}; while :; do sleep 0.05; done"
        bed.executor.start(bed.launch(script))
        bed.until(lambda: ready.exists() and bed.reported(ProcessStarted))
        bed.executor.signal(AttemptId(1, 0), signal.SIGUSR1)
        assert bed.exit_of().code == 9

    def test_an_attempt_survives_its_daemon_and_is_recovered(self, bed: ExecutorBed) -> None:
        launch = bed.launch(f"until [ -e {bed.place}/go ]; do sleep 0.05; done; exit 3")
        bed.executor.start(launch)
        pid = bed.until(lambda: bed.reported(ProcessStarted))[0].pid
        bed.restart(launch)
        assert bed.until(lambda: bed.reported(ProcessStarted))[0].pid == pid
        (bed.place / "go").touch()
        assert bed.exit_of().code == 3

    def test_an_end_is_reported_to_every_daemon_until_it_is_acknowledged(
        self, bed: ExecutorBed
    ) -> None:
        launch = bed.launch("exit 4")
        bed.executor.start(launch)
        assert bed.exit_of().code == 4
        bed.restart(launch)
        assert bed.exit_of().code == 4
        assert bed.records()
        bed.executor.acknowledge([AttemptId(2, 0)])
        bed.turn()
        assert bed.records(), "another attempt was acknowledged"
        bed.executor.acknowledge([AttemptId(1, 0)])
        bed.until(lambda: not bed.records())

    def test_a_part_waits_at_its_barrier_until_it_is_released(self, bed: ExecutorBed) -> None:
        ran = bed.place / "ran"
        bed.executor.start(bed.launch(f'echo "$MEET" >{ran}'), Barrier(rank=0, timeout=60))
        ((attempt, rank, port),) = bed.until(lambda: bed.sink.ready_parts)
        assert (attempt, rank, port > 0) == ((1, 0), 0, True)
        assert not ran.exists()
        bed.executor.release(AttemptId(1, 0), {"MEET": "here"})
        assert bed.exit_of().code == 0
        assert ran.read_text() == "here\n"

    def test_a_part_that_is_given_up_at_its_barrier_never_runs(self, bed: ExecutorBed) -> None:
        ran = bed.place / "ran"
        bed.executor.start(bed.launch(f"touch {ran}"), Barrier(rank=0, timeout=60))
        bed.until(lambda: bed.sink.ready_parts)
        bed.executor.release(AttemptId(1, 0), None)
        bed.until(lambda: bed.reported(StartCalledOff))
        assert not os.path.exists(ran)

    def test_calls_about_unknown_attempts_are_ignored(self, bed: ExecutorBed) -> None:
        unknown, executor = AttemptId(77, 3), bed.executor
        executor.terminate(unknown, 0.0)
        executor.signal(unknown, signal.SIGUSR1)
        executor.suspend(unknown)
        executor.resume(unknown)
        executor.release(unknown, None)
        executor.send_control(unknown, 0, "stop", "because")
        executor.acknowledge([unknown])
        bed.turn()
        assert bed.sink.events == []
