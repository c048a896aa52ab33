"""Many attempts of one shape, handed over to a real Slurm by one call of sbatch."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture
from slurm.handover_bench import HandoverBench
from slurm.slurm_cluster import SlurmCluster
from slurm.test_failures import wrap
from stoker.core import events as e
from stoker.core.model.job import AttemptId
from stoker.executors.slurm.handover import executor as handover_executor
from stoker.executors.slurm.handover import submissions
from stoker.executors.slurm.handover.executor import HandoverExecutor

MANY = [AttemptId(id, 0) for id in range(1, 26)]


@pytest.fixture
def bench(
    slurm: SlurmCluster, idle: DaemonFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HandoverBench]:
    """A cluster; calls of sbatch are counted, and refuse arrays while a flag is set."""
    refusal = "Invalid job array specification"
    wrap(
        idle, "sbatch",
        f'echo "$*" >>{tmp_path}/calls\n'
        f'[ -e {tmp_path}/refuses ] && case "$*" in *--array=*)\n'
        f'cat >/dev/null; echo "sbatch: error: Batch job submission failed: {refusal}" >&2\n'
        'exit 1 ;; esac\nexec $REAL "$@"', monkeypatch,
    )  # fmt: skip
    # Long enough for all requests to be written on a busy host; the last one ends it.
    monkeypatch.setattr(submissions, "GATHER_SECONDS", 10.0)
    made = HandoverBench(tmp_path, idle.user)
    try:
        yield made
    finally:
        made.stop()


def calls(bench: HandoverBench) -> list[str]:
    lines = (bench.base / "calls").read_text().splitlines()
    return [line for line in lines if "--job-name=stoker-" in line]


def exits(bench: HandoverBench) -> dict[int, int | None]:
    found = [event for event in bench.sink.events if isinstance(event, e.ProcessExited)]
    assert len(found) == len({event.job for event in found})
    return {event.job: event.code for event in found}


def test_an_array_runs_each_attempt_once_and_a_new_daemon_finds_its_tasks(
    slurm: SlurmCluster, bench: HandoverBench
) -> None:
    blocker = slurm.occupy()
    for id in MANY:
        lines = f"echo {id} >>$HOME/ran; echo array=$SLURM_ARRAY_TASK_ID; exit {id.job}"
        bench.executor.start(bench.script(id, lines))
    bench.until(lambda: sum(isinstance(each, e.AttemptQueued) for each in bench.sink.events) == 25)
    assert len(calls(bench)) == 1
    queued = next(each for each in bench.sink.events if isinstance(each, e.AttemptQueued))
    assert queued.external_id.endswith(f"_{queued.job - 1}")
    bench.executor.terminate(MANY[3], 0.0)
    bench.until(lambda: bench.of(MANY[3], e.StartCancelled))
    rest = [id for id in MANY if id != MANY[3]]
    bench.restart(*rest)
    slurm.run("scancel", blocker)
    bench.until(lambda: len(exits(bench)) == len(rest))
    assert exits(bench) == {id.job: id.job for id in rest}
    assert [bench.starts(id) for id in rest] == [1] * len(rest)
    assert bench.starts(MANY[3]) == 0
    assert Path(bench.launches[MANY[0]].out).read_text() == "array=\n"
    assert len(calls(bench)) == 1


def test_attempts_of_a_refused_array_are_submitted_one_by_one(
    slurm: SlurmCluster, bench: HandoverBench
) -> None:
    (bench.base / "refuses").touch()
    for id in MANY[:21]:
        bench.executor.start(bench.launch(id, seconds=1.0))
    bench.until(lambda: len(exits(bench)) == 21)
    assert len(calls(bench)) == 22


def test_attempts_behind_others_in_slurms_queue_are_gathered(
    slurm: SlurmCluster, bench: HandoverBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.occupy()
    first, second = MANY[:10], MANY[10:20]
    for id in first:
        bench.executor.start(bench.launch(id, seconds=1.0))
    bench.until(lambda: sum(isinstance(each, e.AttemptQueued) for each in bench.sink.events) == 10)
    monkeypatch.setattr(submissions, "QUEUED_GATHER_SECONDS", 5.0)
    for id in second:
        bench.executor.start(bench.launch(id, seconds=1.0))
        bench.wait(2)
    bench.until(lambda: sum(isinstance(each, e.AttemptQueued) for each in bench.sink.events) == 20)
    assert len(calls(bench)) == 2


def test_more_attempts_may_wait_while_many_short_ones_start(
    slurm: SlurmCluster, bench: HandoverBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = bench.executor
    assert isinstance(executor, HandoverExecutor)
    monkeypatch.setattr(handover_executor, "STARTS_SECONDS", 1000.0)
    assert executor.ahead == 8
    for id in MANY[:9]:
        executor.start(bench.launch(id, seconds=1.0))
    bench.until(lambda: len(exits(bench)) == 9)
    assert executor.ahead == 32
    monkeypatch.setattr(handover_executor, "STARTS_SECONDS", 0.0)
    assert executor.ahead == 8
