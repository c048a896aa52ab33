"""Failures of Slurm, its nodes and the daemon: each attempt that is handed over runs at most once,
and its end is reported.
"""

import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, alive, kill, until
from executors.contract import ENDS, FIRST, SECOND
from slurm.handover_bench import HandoverBench
from slurm.slurm_cluster import SlurmCluster
from slurm.test_failures import wrap
from stoker.core import events as e
from stoker.core.model.job import AttemptId
from stoker.executors.slurm import monitor
from stoker.executors.slurm.commands import SlurmCommands
from stoker.executors.slurm.handover import job_tracker
from stoker.executors.slurm.handover.executor import HandoverExecutor
from stoker.executors.slurm.options import parse_options

FOREVER = "echo {id} >>$HOME/ran; while :; do sleep 1; done"


@pytest.fixture
def bench(
    slurm: SlurmCluster, idle: DaemonFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HandoverBench]:
    """A cluster in which lost jobs are noticed at once."""
    monkeypatch.setattr(job_tracker, "RECORD_SECONDS", 0.5)
    monkeypatch.setattr(job_tracker, "MISSING_SECONDS", 1.0)
    monkeypatch.setattr(monitor, "FAILED_SECONDS", 0.3)
    monkeypatch.setattr(monitor, "STEADY_SECONDS", 0.5)
    made = HandoverBench(tmp_path, idle.user, options="-p low")
    try:
        yield made
    finally:
        made.stop()


def run_forever(bench: HandoverBench, attempt: AttemptId = FIRST) -> None:
    """Start an attempt that does not end by itself, and wait until it runs."""
    bench.executor.start(bench.script(attempt, FOREVER.format(id=attempt)))
    bench.until(lambda: bench.of(attempt, e.ProcessStarted) and bench.starts(attempt))


def end(bench: HandoverBench, attempt: AttemptId = FIRST) -> e.Event:
    """Wait for the end of an attempt; it is reported once."""
    bench.until(lambda: bench.of(attempt, *ENDS))
    bench.wait(20)
    [ended] = bench.of(attempt, *ENDS)
    return ended


def run_once(bench: HandoverBench) -> None:
    """Check that the first attempt ran, or that it never runs and the second one does."""
    ended = end(bench)
    if isinstance(ended, e.ProcessExited):
        assert (ended.code, bench.starts(FIRST)) == (3, 1)
        return
    assert isinstance(ended, e.StartCancelled), ended
    bench.executor.start(bench.launch(SECOND, seconds=1.0, code=3))
    assert bench.exit(SECOND).code == 3
    assert (bench.starts(FIRST), bench.starts(SECOND)) == (0, 1)


def slurm_job(slurm: SlurmCluster) -> str:
    """Return the id of the only job that runs."""
    return slurm.only_job("RUNNING")


# -- what Slurm does to a job -----------------------------------------------------------


def test_a_job_that_slurm_ends_at_its_own_limit_has_reached_its_time_limit(
    slurm: SlurmCluster, bench: HandoverBench
) -> None:
    run_forever(bench)
    slurm.run("scontrol", "update", f"JobId={slurm_job(slurm)}", "EndTime=now+1")
    until(lambda: ["TIMEOUT"] in slurm.jobs("TIMEOUT", "%T"), 45)  # it looks every 30 s
    ended = end(bench)
    assert isinstance(ended, e.AttemptLost)
    assert "TIMEOUT" in ended.why
    assert len(bench.of(FIRST, e.TimeLimitReached)) == 1


class OtherHost(SlurmCommands):
    """Commands on a host that does not see the processes of the cluster's nodes."""

    def argv(self, words: Sequence[str], environment: dict[str, str] | None = None) -> list[str]:
        return ["unshare", "--pid", "--fork", "--mount-proc", *super().argv(words, environment)]


def test_a_node_that_fails_is_no_failure_of_its_attempt_although_the_script_lives_on(
    slurm: SlurmCluster, bench: HandoverBench
) -> None:
    bench.stop()
    bench.commands = OtherHost()
    bench.restart()
    run_forever(bench)
    [started] = bench.of(FIRST, e.ProcessStarted)
    assert isinstance(started, e.ProcessStarted)
    [node], pid = started.hosts, started.pid
    assert pid is not None
    slurm.end_daemon(node, signal.SIGKILL)
    try:
        slurm.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        ended = end(bench)
        assert isinstance(ended, e.AttemptLost)
        assert ended.preempted
        assert "NODE_FAIL" in ended.why
        bench.executor.start(bench.launch(SECOND, seconds=1.0, code=3))
        assert bench.exit(SECOND).code == 3
        assert alive(pid)
    finally:
        kill(pid)
        slurm.start_node(node)


def test_a_node_without_the_home_directory_fails_the_start_and_says_so(
    slurm: SlurmCluster,
    bench: HandoverBench,
    idle: DaemonFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrap(idle, "sbatch", 'sed "1aHOME=/nowhere" | $REAL "$@"', monkeypatch)
    bench.executor.start(bench.launch(FIRST, seconds=1.0, code=3))
    ended = end(bench)
    assert isinstance(ended, e.StartFailed)
    assert "must share the home directory" in ended.why
    assert bench.starts(FIRST) == 0


def test_an_attempt_cannot_be_requeued_by_slurm(slurm: SlurmCluster, bench: HandoverBench) -> None:
    bench.executor.start(bench.launch(FIRST, seconds=100.0, code=3))
    bench.until(lambda: bench.of(FIRST, e.ProcessStarted))
    done = subprocess.run(
        ["scontrol", "requeue", slurm_job(slurm)], capture_output=True, text=True, check=False
    )
    assert "disabled" in done.stderr
    assert bench.exit(FIRST).code == 3
    assert bench.starts(FIRST) == 1


def test_an_attempt_that_slurm_ends_for_its_memory_lacked_memory(
    slurm: SlurmCluster, idle: DaemonFixture, bench: HandoverBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster of the tests cannot enforce memory: the state is put into a real row."""
    wrap(idle, "squeue", '$REAL "$@" | sed "s/|CANCELLED|/|OUT_OF_MEMORY|/"', monkeypatch)
    run_forever(bench)
    slurm.run("scancel", slurm_job(slurm))
    ended = end(bench)
    assert isinstance(ended, e.ProcessExited)
    assert (ended.memory, ended.signal) == ("host", 9)


# -- a controller that fails ------------------------------------------------------------


def test_a_controller_that_is_killed_after_its_acknowledgement_loses_nothing(
    slurm: SlurmCluster, idle: DaemonFixture, bench: HandoverBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It forgets the job and gives its id to another one."""
    pid, acknowledged = slurm.pid("slurmctld"), idle.user / "acknowledged"
    wrap(
        idle, "sbatch",
        f'[ ! -e {acknowledged} ] || exec $REAL "$@"\n$REAL "$@" && kill -9 {pid}\n'
        f"touch {acknowledged}", monkeypatch,
    )  # fmt: skip
    bench.executor.start(bench.launch(FIRST, seconds=20.0, code=3))
    bench.until(acknowledged.exists)
    slurm.kill_controller()
    slurm.start_controller()
    run_once(bench)


def test_a_squeue_that_fails_for_long_changes_nothing(
    slurm: SlurmCluster, idle: DaemonFixture, bench: HandoverBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag, calls = idle.user / "fails", idle.user / "calls"
    failure = "slurm_load_jobs error: Socket timed out on send/recv operation"
    wrap(
        idle, "squeue",
        f'[ -e {flag} ] || exec $REAL "$@"\necho >>{calls}; echo "{failure}" >&2; exit 1',
        monkeypatch,
    )  # fmt: skip
    run_forever(bench)
    bench.executor.start(bench.launch(SECOND, seconds=1.0, code=3))
    flag.touch()
    bench.until(lambda: calls.exists() and calls.read_text().count("\n") >= 6)
    assert "Socket timed out" in bench.sink.downs[-1]
    assert bench.exit(SECOND).code == 3  # by its record
    assert not bench.of(FIRST, *ENDS)
    ups = len(bench.sink.ups)
    flag.unlink()
    bench.until(lambda: len(bench.sink.ups) > ups)
    bench.executor.terminate(FIRST, 0.0)
    assert bench.exit(FIRST).signal is not None
    assert (bench.starts(FIRST), bench.starts(SECOND)) == (1, 1)


def test_one_refusal_stops_those_that_would_follow_and_lets_others_go_first(
    slurm: SlurmCluster, idle: DaemonFixture, bench: HandoverBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, executor = idle.user / "calls", bench.executor
    assert isinstance(executor, HandoverExecutor)
    wrap(idle, "sbatch", f'echo >>{calls}; exec $REAL "$@"', monkeypatch)
    ids = [AttemptId(id, 0) for id in range(1, 6)]
    slurm.run("scontrol", "update", "PartitionName=low", "State=INACTIVE")
    try:
        for id in ids:
            executor.start(bench.launch(id, seconds=1.0))
        ends = [end(bench, id) for id in ids]
        assert calls.read_text() == "\n"
        assert all("partition not available" in cancelled(each).why for each in ends)
        assert sorted(cancelled(each).delay for each in ends) == [0, 0, 0, 0, 20]
        assert executor.ahead == 1
        executor.start(bench.launch(AttemptId(1, 1), seconds=1.0))
        assert cancelled(end(bench, AttemptId(1, 1))).delay == 40
    finally:
        slurm.run("scontrol", "update", "PartitionName=low", "State=UP")
    executor.start(bench.launch(AttemptId(2, 1), seconds=1.0))
    assert bench.exit(AttemptId(2, 1)).code == 0
    assert executor.ahead == 8


def cancelled(event: e.Event) -> e.StartCancelled:
    assert isinstance(event, e.StartCancelled)
    return event


def test_of_two_partitions_that_of_the_priority_counts(
    slurm: SlurmCluster, bench: HandoverBench
) -> None:
    executor = bench.executor
    assert isinstance(executor, HandoverExecutor)
    executor.options = parse_options(
        {"sbatch": "-p wrong", "priority_options": '{"0": "--partition=high"}'}
    )
    executor.start(bench.script(FIRST, "touch $HOME/begun; sleep 2"))
    bench.until((bench.home / "begun").exists)
    assert slurm.jobs(format="%P") == [["high"]]
    assert bench.exit(FIRST).code == 0


# -- a full disk ------------------------------------------------------------------------


def test_a_full_home_directory_delays_the_start_and_loses_nothing(
    slurm: SlurmCluster, idle: DaemonFixture, bench: HandoverBench
) -> None:
    home, filler = idle.user / ".stoker", idle.user / ".stoker/filler"
    bench.stop()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", home], check=True)
    try:
        bench.restart()
        bench.executor.start(bench.launch(FIRST, seconds=1.0))
        assert bench.exit(FIRST).code == 0
        fill(filler)
        bench.executor.start(bench.launch(SECOND, seconds=1.0))
        ended = end(bench, SECOND)
        assert isinstance(ended, e.StartCancelled)
        assert "no space left" in ended.why
        filler.unlink()
        # It fills up while the attempt waits for its batch job, which cannot claim it.
        third, blocker = AttemptId(7, 2), slurm.occupy("-p", "high")
        bench.executor.start(bench.launch(third, seconds=1.0))
        bench.until(lambda: bench.of(third, e.AttemptQueued))
        fill(filler)
        slurm.run("scancel", blocker)
        over = ("COMPLETED,FAILED", "%j")
        bench.until(lambda: any(name.endswith(f"-{third}") for [name] in slurm.jobs(*over)))
        bench.wait(100)
        assert not bench.of(third, *ENDS)
        filler.unlink()
        assert isinstance(end(bench, third), e.StartCancelled)
        assert [bench.starts(id) for id in (FIRST, SECOND, third)] == [1, 0, 0]
    finally:
        bench.stop()
        subprocess.run(["umount", "-l", home], check=True)


def fill(path: Path) -> None:
    """Write a file until its file system is full."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 512)
        except OSError:
            pass


# -- a daemon that is killed ------------------------------------------------------------


def is_written(bench: HandoverBench) -> bool:
    return bool(list(bench.home.glob(".stoker/run/*/*.request")))


KILL_POINTS: dict[str, Callable[[HandoverBench], object]] = {
    "planned": lambda _: True,
    "request written": is_written,
    "sbatch called": lambda bench: (bench.home / "called").exists(),
    "sbatch accepted": lambda bench: (bench.home / "accepted").exists(),
    "queued": lambda bench: bench.of(FIRST, e.AttemptQueued),
    "begun": lambda bench: bench.claims(),
    "running": lambda bench: bench.of(FIRST, e.ProcessStarted),
    "ended": lambda bench: bench.of(FIRST, e.ProcessExited),
}
"""Steps of a start, and how a test learns that they were reached."""


@pytest.mark.parametrize("point", KILL_POINTS)
def test_a_daemon_that_is_killed_during_a_start_doubles_and_loses_nothing(
    slurm: SlurmCluster,
    idle: DaemonFixture,
    bench: HandoverBench,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    held = idle.user / "held"
    if point == "sbatch called":
        held.touch()
    wrap(
        idle, "sbatch",
        f"touch {idle.user}/called; tries=100\n"
        f"while [ -e {held} ] && [ $tries -gt 0 ]; do sleep 0.1; tries=$((tries - 1)); done\n"
        f'$REAL "$@"; touch {idle.user}/accepted', monkeypatch,
    )  # fmt: skip
    blocker = slurm.occupy("-p", "high") if point == "queued" else None
    bench.executor.start(bench.launch(FIRST, seconds=30.0, code=3))
    if point != "planned":
        bench.until(lambda: KILL_POINTS[point](bench))
    bench.restart(FIRST)
    if blocker is not None:
        slurm.run("scancel", blocker)
    if point == "sbatch called":
        bench.wait(30)  # the new daemon has decided before the old submission arrives
        held.unlink()
        bench.until((idle.user / "accepted").exists)
    run_once(bench)
