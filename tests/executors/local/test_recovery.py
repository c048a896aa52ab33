"""Recovery of attempts while their supervisor writes and ends: every order of steps."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from executors.recording_sink import RecordingSink
from specs import spec_of
from stoker.core.events import (
    AttemptLost,
    Event,
    ProcessExited,
    ProcessStarted,
    StartCancelled,
    StartFailed,
)
from stoker.core.model.job import AttemptId, Job, JobState
from stoker.executors.launch import container
from stoker.executors.launch.paths import ExecutorPaths
from stoker.executors.linux import process_tree as tree
from stoker.executors.linux import procfs
from stoker.executors.local import claims
from stoker.executors.local import recovery as recovery_module
from stoker.executors.local.attempt import LocalAttempt
from stoker.executors.local.executor import LocalExecutor
from stoker.executors.local.recovery import COMPLETE
from stoker.executors.local.supervisor import BOOT, start_ticks
from stoker.executors.port import RecoverableAttempt
from stoker.wire import RLIMIT_LOCKS
from virtual_reactor import VirtualReactor

JOB, SUPERVISOR, TICKS = 2**22 + 1, 2**22 + 2, 777
"""Pids that no real process can have, and the start time of both."""
PID_LINE = f"pid {JOB} {TICKS} 12.5 1700000000.250 keeper {SUPERVISOR} {TICKS}\n"
EXIT_LINE = "exit 0 13.000 1700000001.000\n"
MOMENTS = 8
"""Each step happens before the first, the second, … or the last observation."""


def opened(executor: LocalExecutor) -> RecordingSink:
    """Have an executor report to a new sink."""
    sink = RecordingSink()
    executor.open(sink)
    return sink


def reported(executor: LocalExecutor) -> list[Event]:
    """Return the events that an executor has reported."""
    assert isinstance(executor._sink, RecordingSink)
    return executor._sink.events


def recoverable(job: Job) -> RecoverableAttempt:
    """Return what a new daemon knows of a job."""
    return RecoverableAttempt(job, spec_of(), "/dev/null")


@pytest.mark.parametrize(("text", "stays"), [("this boot", True), ("", True), ("another", False)])
def test_claims_are_complete_for_one_boot_only(tmp_path: Path, text: str, stays: bool) -> None:
    mark = tmp_path / COMPLETE
    recovery_module.discard_old_mark(str(tmp_path), "this boot")
    mark.write_text(text)
    recovery_module.discard_old_mark(str(tmp_path), "this boot")
    assert mark.exists() is stays


class RecoveryScenario:
    """A job and its supervisor, which take one step before each chosen observation."""

    def __init__(self, base: Path, steps: list[str], moments: tuple[int, ...]) -> None:
        self.run, self.exits = base / "run", base / "exits"
        for path in (self.run, self.exits):
            path.mkdir(parents=True)
        (self.exits / str(SUPERVISOR)).touch()
        self.script = list(zip(moments, steps, strict=True))
        self.observed = 0
        self.job, self.supervisor = "S", "S"
        self.reactor = VirtualReactor()
        places = ExecutorPaths(str(self.run), str(self.exits), str(base), str(base))
        self.executor = LocalExecutor(
            places, "install", [], self.reactor, lambda _: None, lambda _: None
        )
        self.sink = opened(self.executor)

    # -- steps of job and supervisor ---------------------------------------------------------

    def observe(self) -> None:
        """Do the steps that are due before the next observation."""
        while self.script and self.script[0][0] <= self.observed:
            self.step(self.script.pop(0)[1])
        self.observed += 1

    def step(self, what: str) -> None:
        claim = self.run / "7.0"
        match what:
            case "write pid":
                self._append(claim, PID_LINE)
            case "end":
                self.job = "Z"
            case "write claim":
                self._append(claim, EXIT_LINE)
            case "write exits":
                self._append(self.exits / str(SUPERVISOR), f"7.0 {EXIT_LINE}")
            case "reap":
                self.job = ""
            case "fail":
                self.job = ""
                self._append(claim, "failed python4: not found\n")
            case "withdraw":
                self.job = ""
                self._append(claim, "withdrawn\n")
            case "leave":
                self.supervisor = ""

    @staticmethod
    def _append(path: Path, text: str) -> None:
        if path.exists():  # a removed run directory is not created again
            with path.open("a") as file:
                file.write(text)

    # -- observations ------------------------------------------------------------------

    def open(self, path: str, mode: str = "r", **more: Any) -> Any:
        self.observe()
        return open(path, mode, **more)

    def read_proc(self, path: str, _limit: int = -1) -> bytes:
        self.observe()
        for pid, name in ((JOB, "job"), (SUPERVISOR, "stoker-superv")):
            state = self.job if pid == JOB else self.supervisor
            if path == f"/proc/{pid}/stat" and state:
                fields = [state, "1", str(pid), str(pid), *["0"] * 15, str(TICKS)]
                return f"{pid} ({name}) {' '.join(fields)}".encode()
        raise ProcessLookupError

    def pidfd_open(self, pid: int) -> int:
        self.observe()
        if not self.job:
            raise ProcessLookupError
        return os.eventfd(0, os.EFD_CLOEXEC)

    def snapshot(self, *_: object) -> tree.Snapshot:
        self.observe()
        seen = tree.Snapshot.__new__(tree.Snapshot)
        seen.processes, seen._index, seen.complete = {}, {}, True
        if self.job:
            limit = b"%d" % tree.mark_of("install.7.0")
            process = tree.Process(1, JOB, JOB, TICKS, self.job == "Z", limit, None)
            seen.processes[JOB] = process
            if not process.ended:
                seen._index["limit", limit] = {JOB}
        return seen

    # -- the new daemon -----------------------------------------------------------------

    def recover(self, job: Job) -> list[Event]:
        """Recover, then take turns until the attempt has ended; return its events."""
        self.executor.recover([recoverable(job)])
        now = recovery_module.time.clock_gettime(BOOT)
        for _ in range(MOMENTS * 4):
            self.observe()
            if not self.executor.attempts:
                break
            for callback in list(self.reactor.callbacks.values()):
                if self.job in ("Z", ""):
                    callback()
            now += 1  # seconds: timeouts expire, too
            self.executor.termination.step(now)
        ends = AttemptLost | ProcessExited | StartCancelled | StartFailed
        return [event for event in self.sink.events if isinstance(event, ends)]


@pytest.fixture
def scenarios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RecoveryScenario]:
    number = itertools.count()

    def scenario(steps: list[str], moments: tuple[int, ...]) -> RecoveryScenario:
        made = RecoveryScenario(tmp_path / str(next(number)), steps, moments)
        monkeypatch.setattr(claims, "open", made.open, raising=False)
        monkeypatch.setattr(procfs, "read_path", made.read_proc)
        monkeypatch.setattr(os, "pidfd_open", made.pidfd_open)
        monkeypatch.setattr(made.executor, "snapshot", made.snapshot, raising=False)
        return made

    return scenario


def running(started: bool = True) -> Job:
    """A job that the journal says is running."""
    return Job(
        id=7, spec="", name="", user="", submitted_at=0.0, started_at=1.0 if started else None,
        state=JobState.RUNNING if started else JobState.CONFIGURING,
    )  # fmt: skip


def orders(steps: int) -> Iterator[tuple[int, ...]]:
    """Every way in which steps can fall between observations, each after the one before it."""
    return itertools.combinations_with_replacement(range(MOMENTS), steps)


RECORD_FIRST = ["end", "write claim", "write exits", "reap", "leave"]
REAP_FIRST = ["end", "reap", "write claim", "write exits", "leave"]
"""The order of earlier versions."""


@pytest.mark.parametrize("steps", [RECORD_FIRST, REAP_FIRST])
def test_an_attempt_that_ends_while_it_is_recovered_is_never_lost(
    scenarios: Callable[..., RecoveryScenario], steps: list[str]
) -> None:
    for moments in orders(len(steps)):
        scenario = scenarios(steps, moments)
        (scenario.run / COMPLETE).touch()
        (scenario.run / "7.0").write_text(PID_LINE)
        ends = scenario.recover(running())
        assert [getattr(end, "code", end) for end in ends] == [0], moments


@pytest.mark.parametrize("signalled", [True, False])
def test_an_exit_after_a_restart_says_whether_the_attempt_was_signalled(
    scenarios: Callable[..., RecoveryScenario], signalled: bool
) -> None:
    """A daemon may die between the request and the signal; the attempt then ends as usual."""
    scenario = scenarios(RECORD_FIRST, (3,) * len(RECORD_FIRST))
    (scenario.run / COMPLETE).touch()
    claim = scenario.run / "7.0"
    claim.write_text(PID_LINE)
    if signalled:
        claims.note_signal(str(claim))
    (end,) = scenario.recover(running())
    assert isinstance(end, ProcessExited)
    assert (end.code, end.uncaught) == (0, not signalled)


def test_a_signal_is_noted_only_in_a_claim_that_exists(tmp_path: Path) -> None:
    claims.note_signal(str(tmp_path / "7.0"))
    assert not (tmp_path / "7.0").exists()


def test_an_attempt_that_starts_and_ends_while_it_is_recovered_is_never_lost(
    scenarios: Callable[..., RecoveryScenario],
) -> None:
    steps = ["write pid", *RECORD_FIRST]
    for moments in orders(len(steps)):
        scenario = scenarios(steps, moments)
        (scenario.run / COMPLETE).touch()
        (scenario.run / "7.0").write_text(f"keeper {SUPERVISOR} {TICKS}\n")
        ends = scenario.recover(running(started=False))
        assert [getattr(end, "code", end) for end in ends] == [0], moments


def test_without_its_run_directory_an_attempt_that_ends_meanwhile_is_not_lost(
    scenarios: Callable[..., RecoveryScenario],
) -> None:
    for moments in orders(len(RECORD_FIRST)):
        ends = scenarios(RECORD_FIRST, moments).recover(running())
        assert [getattr(end, "code", end) for end in ends] == [0], moments


@pytest.mark.parametrize(("step", "kind"), [("fail", StartFailed), ("withdraw", StartCancelled)])
def test_a_start_that_fails_during_recovery_is_reported_as_failed(
    scenarios: Callable[..., RecoveryScenario], step: str, kind: type
) -> None:
    for moments in orders(2):
        scenario = scenarios([step, "leave"], moments)
        (scenario.run / COMPLETE).touch()
        (scenario.run / "7.0").write_text(f"keeper {SUPERVISOR} {TICKS}\n")
        assert [type(end) for end in scenario.recover(running(started=False))] == [kind], moments


def test_a_supervisor_that_is_stopped_is_waited_for(
    scenarios: Callable[..., RecoveryScenario],
) -> None:
    scenario = scenarios(["end", *RECORD_FIRST[1:]], (0, 500, 500, 500, 500))
    (scenario.run / COMPLETE).touch()
    (scenario.run / "7.0").write_text(PID_LINE)
    assert (
        scenario.recover(running()) == []
    )  # half a minute later: a zombie, and it may be recorded
    scenario.observed = 500
    assert [getattr(end, "code", end) for end in scenario.recover(running())] == [0]


def test_without_supervisor_and_record_an_attempt_is_lost(
    scenarios: Callable[..., RecoveryScenario],
) -> None:
    for moments in orders(3):
        scenario = scenarios(["leave", "end", "reap"], moments)
        (scenario.run / COMPLETE).touch()
        (scenario.run / "7.0").write_text(PID_LINE)
        assert [type(end) for end in scenario.recover(running())] == [AttemptLost], moments


def test_an_attempt_with_a_revoked_claim_and_no_conclusion_is_not_started_again(
    scenarios: Callable[..., RecoveryScenario],
) -> None:
    """An earlier daemon found no run directory, revoked the claim, and was killed too early."""
    scenario = scenarios(["leave", "reap"], (0, 0))
    (scenario.run / "7.0").write_text("taken\n")
    assert [type(end) for end in scenario.recover(running())] == [AttemptLost]
    scenario = scenarios(["leave", "reap"], (0, 0))
    (scenario.run / "7.0").write_text("taken\n")
    assert [type(end) for end in scenario.recover(running(started=False))] == [AttemptLost]


@pytest.mark.parametrize("leaves", [False, True])
def test_the_claim_of_a_lost_attempt_stays_while_an_older_supervisor_may_start_it(
    scenarios: Callable[..., RecoveryScenario], leaves: bool
) -> None:
    """Neither run directory nor process: a stopped supervisor may have an unread start message."""
    scenario = scenarios(["reap", "leave"], (0, 0 if leaves else 500))
    assert [type(end) for end in scenario.recover(running())] == [AttemptLost]
    assert (scenario.run / "7.0").read_text() == "taken\n"
    assert bool(scenario.executor.unacknowledged) is leaves


def test_a_zombie_that_is_not_reaped_counts_as_a_start(
    scenarios: Callable[..., RecoveryScenario],
) -> None:
    """Neither run directory nor supervisor exist, and init does not reap."""
    scenario = scenarios(["leave", "end"], (0, 0))
    assert [type(end) for end in scenario.recover(running())] == [AttemptLost]


def test_an_empty_claim_of_a_started_attempt_counts_as_a_start(
    scenarios: Callable[..., RecoveryScenario],
) -> None:
    scenario = scenarios(["leave", "reap"], (0, 0))
    (scenario.run / COMPLETE).touch()
    (scenario.run / "7.0").touch()  # the disk was full when its supervisor wrote to it
    assert [type(end) for end in scenario.recover(running())] == [AttemptLost]


def test_an_attempt_without_a_claim_was_never_started(
    scenarios: Callable[..., RecoveryScenario],
) -> None:
    scenario = scenarios(["reap"], (0,))
    (scenario.run / COMPLETE).touch()
    assert [type(end) for end in scenario.recover(running(started=False))] == [StartCancelled]
    # Its claim prevents a later start by a slow supervisor.
    assert (scenario.run / "7.0").read_text() == "taken\n"


def test_an_empty_claim_that_the_daemon_writes_to_first_starts_nothing(
    scenarios: Callable[..., RecoveryScenario],
) -> None:
    """Its supervisor was stopped after it had created the claim."""
    scenario = scenarios(["reap"], (0,))
    (scenario.run / COMPLETE).touch()
    (scenario.run / "7.0").touch()
    assert [type(end) for end in scenario.recover(running(started=False))] == [StartCancelled]
    assert (scenario.run / "7.0").read_text() == "taken\n"


def test_an_empty_claim_that_its_supervisor_writes_to_first_is_waited_for(
    scenarios: Callable[..., RecoveryScenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = scenarios(RECORD_FIRST, (35, 35, 35, 35, 35))
    scenario.job = ""
    (scenario.run / COMPLETE).touch()
    (scenario.run / "7.0").touch()

    def late(path: str) -> bool:
        Path(path).write_text(f"keeper {SUPERVISOR} {TICKS}\n{PID_LINE}")
        scenario.job = "S"
        return claims.revoke_empty_claim(path)

    monkeypatch.setattr(recovery_module, "revoke_empty_claim", late)
    ends = scenario.recover(running(started=False))
    assert [getattr(end, "code", end) for end in ends] == [0]


@pytest.fixture
def executor(tmp_path: Path) -> LocalExecutor:
    """An executor whose only supervisor was killed."""
    for name in ("run", "exits"):
        (tmp_path / name).mkdir()
    places = ExecutorPaths(
        str(tmp_path / "run"), str(tmp_path / "exits"), str(tmp_path), str(tmp_path)
    )
    executor = LocalExecutor(
        places, f"x{os.getpid()}", [], VirtualReactor(), lambda _: None, lambda _: None
    )
    opened(executor)
    return executor


def orphaned(executor: LocalExecutor, claim: str) -> list[Event]:
    """Return the events of an attempt that a killed supervisor was about to start."""
    token = executor.token(AttemptId(7, 0))
    attempt = executor.attempts[AttemptId(7, 0)] = LocalAttempt(
        AttemptId(7, 0), token, supervisor=SUPERVISOR
    )
    Path(executor.paths.run, "7.0").write_text(claim)
    executor.recovery.take_orphan(attempt)
    executor.termination.step(recovery_module.time.clock_gettime(BOOT))
    for callback in list(executor.reactor.callbacks.values()):  # type: ignore[attr-defined]
        callback()
    executor.termination.step(recovery_module.time.clock_gettime(BOOT))
    return reported(executor)


def test_a_start_that_a_killed_supervisor_did_not_make_is_cancelled(
    executor: LocalExecutor,
) -> None:
    facts = orphaned(executor, f"keeper {SUPERVISOR} {TICKS}\n")
    assert [type(fact) for fact in facts] == [StartCancelled]
    assert executor.attempts == {}


def make_zombie(executor: LocalExecutor, script: str) -> int:
    """Return a zombie of attempt 7.0 that became our child when its supervisor was killed."""
    soft, hard = resource.getrlimit(RLIMIT_LOCKS)
    resource.setrlimit(RLIMIT_LOCKS, (tree.mark_of(executor.token(AttemptId(7, 0))), hard))
    child = os.posix_spawn("/bin/sh", ["sh", "-c", script], {}, setsid=True)
    resource.setrlimit(RLIMIT_LOCKS, (soft, hard))
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    return child


def test_orphans_that_the_daemon_inherits_are_reaped_when_their_attempt_ends(
    executor: LocalExecutor,
) -> None:
    first, second = make_zombie(executor, "exit 3"), make_zombie(executor, "exit 0")
    facts = orphaned(executor, f"keeper {SUPERVISOR} {TICKS}\n")
    assert [getattr(fact, "code", None) for fact in facts] == [None, 3]
    for pid in (first, second):
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def test_an_exit_is_known_if_its_supervisor_was_killed_before_it_wrote_a_pid(
    executor: LocalExecutor,
) -> None:
    make_zombie(executor, "exit 3")
    facts = orphaned(executor, f"keeper {SUPERVISOR} {TICKS}\n")
    assert [type(fact) for fact in facts] == [ProcessStarted, ProcessExited]
    assert isinstance(facts[1], ProcessExited)
    assert facts[1].code == 3


def test_many_exits_are_recovered_with_few_scans_of_all_processes(
    executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans, snapshot = [], executor.snapshot
    monkeypatch.setattr(executor, "snapshot", lambda *_: scans.append(1) or snapshot())
    jobs = [msgspec.structs.replace(running(), id=id) for id in range(100)]
    lines = [f"{job.id}.0 {EXIT_LINE}" for job in jobs]
    Path(executor.paths.exits, str(SUPERVISOR)).write_text("".join(lines))
    executor.recover([recoverable(job) for job in jobs])
    executor.termination.step(recovery_module.time.clock_gettime(BOOT))
    assert [fact.code for fact in reported(executor) if isinstance(fact, ProcessExited)] == [
        0
    ] * 100
    assert len(scans) <= 3


def test_an_attempt_has_ended_when_its_exit_is_recorded_and_no_process_is_left(
    executor: LocalExecutor,
) -> None:
    environment = {tree.TOKEN: executor.token(AttemptId(2, 0))}
    child = os.posix_spawn("/bin/sleep", ["sleep", "60"], environment)
    try:
        Path(executor.paths.exits, str(SUPERVISOR)).write_text(f"1.0 {EXIT_LINE}2.0 {EXIT_LINE}")
        assert executor.recovery.fully_ended(
            [AttemptId(1, 0), AttemptId(2, 0), AttemptId(3, 0)]
        ) == {(1, 0)}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_processes_in_a_container_are_killed_before_those_of_its_engine(
    executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the engine can remove the container."""
    environment, now = (
        {tree.TOKEN: executor.token(AttemptId(7, 0))},
        recovery_module.time.clock_gettime(BOOT),
    )
    engine, inside = (os.posix_spawn("/bin/sleep", ["sleep", "60"], environment) for _ in range(2))
    monkeypatch.setattr(tree, "in_other_namespaces", lambda pids: [inside])
    executor.attempts[AttemptId(7, 0)] = LocalAttempt(
        AttemptId(7, 0), executor.token(AttemptId(7, 0)), pid=engine, kill_at=now
    )
    executor.termination.active.add(AttemptId(7, 0))
    executor.termination.step(now)
    assert os.waitpid(inside, 0)[1] == signal.SIGKILL
    executor.termination.step(now + 1)
    assert os.waitpid(engine, os.WNOHANG) == (0, 0)
    executor.termination.step(now + container.REMOVAL_SECONDS)
    assert os.waitpid(engine, 0)[1] == signal.SIGKILL


def late(executor: LocalExecutor, claim: str) -> list[Event]:
    """Return the events of an attempt that had a claim when a supervisor was to start it."""
    attempt = executor.attempts[AttemptId(7, 0)] = LocalAttempt(
        AttemptId(7, 0), executor.token(AttemptId(7, 0)), supervisor=SUPERVISOR
    )
    Path(executor.paths.run, "7.0").write_text(claim)
    executor.recovery.on_late_start(attempt)
    executor.termination.step(recovery_module.time.clock_gettime(BOOT))
    return reported(executor)


def test_a_start_with_a_revoked_claim_is_repeated_with_the_next_number(
    executor: LocalExecutor,
) -> None:
    assert [type(fact) for fact in late(executor, "taken\n")] == [StartCancelled]


def test_a_start_by_an_earlier_daemons_supervisor_is_recovered(
    executor: LocalExecutor,
) -> None:
    me, ticks = os.getpid(), start_ticks(os.getpid())
    mine = f"pid {me} {ticks} 12.5 1700000000.250 keeper {me} {ticks}\n"
    facts = late(executor, f"keeper {me} {ticks}\n{mine}")
    assert [type(fact) for fact in facts] == [ProcessStarted]
    attempt = executor.attempts[AttemptId(7, 0)]
    assert attempt.pid == me
    assert attempt.pidfd >= 0
    executor.forget(attempt)


def test_a_claim_is_deleted_only_when_its_end_is_acknowledged(
    executor: LocalExecutor,
) -> None:
    claims_of = [Path(executor.paths.run, name) for name in ("7.0", "8.0")]
    for claim in claims_of:
        claim.write_text(PID_LINE + EXIT_LINE)
    for attempt in (AttemptId(7, 0), AttemptId(8, 0)):
        executor.expect_acknowledgement(attempt)
    executor.acknowledge([AttemptId(7, 0), AttemptId(9, 0)])
    executor.close()
    assert [claim.exists() for claim in claims_of] == [False, True]


def test_a_claim_that_prevents_a_start_stays_until_the_host_restarts(
    scenarios: Callable[..., RecoveryScenario],
) -> None:
    """A supervisor that was stopped before it created its file may still start the attempt."""
    scenario = scenarios(["leave"], (0,))
    blocks, over, earlier = (scenario.run / name for name in ("5.0", "6.0", "7.0"))
    blocks.write_text("taken\n")
    over.write_text(PID_LINE + EXIT_LINE)
    earlier.write_text("taken\n")
    os.utime(earlier, (1.0, 1.0))  # an earlier boot
    scenario.executor.recovery.remove_claims(8)
    assert (blocks.exists(), over.exists(), earlier.exists()) == (True, False, False)


def test_a_claim_that_prevents_a_start_stays_also_when_its_attempt_is_lost(
    scenarios: Callable[..., RecoveryScenario],
) -> None:
    scenario = scenarios(["leave", "reap"], (0, 0))
    claim = scenario.run / "7.0"
    claim.write_text("taken\n")
    assert [type(end) for end in scenario.recover(running(started=False))] == [AttemptLost]
    scenario.executor.acknowledge([AttemptId(7, 0)])
    assert claim.exists()


EARLIER_SUPERVISOR = """
import os, subprocess, sys, time
run, exits, token = sys.argv[1:]
with open("/proc/self/comm", "w") as comm:
    comm.write("stoker-keeper")
me = os.getpid()
log = open(f"{exits}/{me}", "ab", buffering=0)
ticks = lambda pid: open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[19]
claim = open(f"{run}/7.0", "w", buffering=1)
claim.write(f"keeper {me} {ticks(me)} [\\"here\\",[]]\\n")
job = subprocess.Popen(["sh", "-c", "read line; exit 5"], env={"STOKER_TOKEN": token},
                       stdin=sys.stdin, start_new_session=True)
claim.write(f"pid {job.pid} {ticks(job.pid)} 12.5 1700000000.250 keeper {me} {ticks(me)}\\n")
print("ready", flush=True)
job.wait()
claim.write("exit 1280 13.000 1700000001.000\\nused 4.500 300\\n")
log.write(b"7.0 exit 1280 13.000 1700000001.000\\n")
"""
"""What the supervisor of commit 47ffc1b does, with its process name and claim."""


def test_an_attempt_of_an_earlier_version_is_recovered_with_its_exit_code(
    executor: LocalExecutor,
) -> None:
    (Path(executor.paths.run) / COMPLETE).touch()
    token = executor.token(AttemptId(7, 0))
    command = [sys.executable, "-c", EARLIER_SUPERVISOR]
    with subprocess.Popen(
        [*command, executor.paths.run, executor.paths.exits, token],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as earlier:  # fmt: skip
        assert earlier.stdin is not None
        assert earlier.stdout is not None
        assert earlier.stdout.readline() == b"ready\n"
        assert executor.exit_log.supervisors() == {earlier.pid}, "by its open exit log"
        executor.recover([recoverable(running())])
        assert [type(event) for event in reported(executor)] == [ProcessStarted]
        earlier.stdin.close()
        earlier.wait()
    for callback in list(executor.reactor.callbacks.values()):  # type: ignore[attr-defined]
        callback()
    executor.termination.step(recovery_module.time.clock_gettime(BOOT))
    _, exited = reported(executor)
    assert isinstance(exited, ProcessExited)
    assert (exited.job, exited.code) == (7, 5)
    assert (exited.cpu_seconds, exited.rss_peak) == (4.5, 300)
    assert executor.exit_log.supervisors() == set()
