"""Attempts whose Slurm jobs the controller has forgotten: Slurm's accounting knows their ends."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import require
from e2e.daemon_fixture import until
from executors.contract import FIRST, SECOND
from slurm import accounting
from slurm.handover_bench import HandoverBench
from slurm.slurm_cluster import TOOLS, Service, SlurmCluster, user_name
from stoker.core import events as e
from stoker.executors.slurm.commands import SlurmCommands
from stoker.executors.slurm.handover import job_tracker
from stoker.executors.slurm.handover.executor import HandoverExecutor
from stoker.executors.slurm.options import parse_options

# The shortest that Slurm knows: it looks for old jobs every ten seconds.
FORGETFUL = {"MinJobAge": "2"}


@pytest.fixture(scope="module", params=["accounting", "none"])
def shared_slurm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SlurmCluster]:
    """A cluster that forgets ended jobs soon, with and without accounting."""
    require(*TOOLS)
    base = tmp_path_factory.mktemp("slurm")
    services: list[Service] = []
    settings = FORGETFUL
    if request.param == "limits":
        settings = {"AccountingStorageEnforce": "limits"}
    if request.param != "none":
        require(*accounting.TOOLS)
        services.append(accounting.Accounting(base, user_name()))
    cluster = SlurmCluster(base, settings=settings, services=services)
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def bench(
    shared_slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HandoverBench]:
    for name, value in shared_slurm.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(job_tracker, "MISSING_SECONDS", 0.5)
    shared_slurm.set_home(tmp_path)
    made = HandoverBench(tmp_path, tmp_path, options="-p low")
    try:
        yield made
    finally:
        made.stop()
        shared_slurm.cancel_all()


def test_a_job_that_vanished_from_squeue_is_lost_as_accounting_says(
    shared_slurm: SlurmCluster, bench: HandoverBench
) -> None:
    has_accounting = "AccountingStoragePort" in (shared_slurm.base / "slurm.conf").read_text()
    # Slurm sends TERM to each process: after that of a sleep alone, a script would go on.
    bench.executor.start(bench.script(FIRST, "while :; do sleep 1; done"))
    bench.until(lambda: bench.of(FIRST, e.ProcessStarted))
    cancelled = shared_slurm.run("sbatch", "--parsable", "-J", "other", "--wrap", "sleep 100")
    bench.stop()
    shared_slurm.run("scancel", cancelled.strip())
    preemptor = shared_slurm.occupy("-p", "high")
    shared_slurm.run("scancel", preemptor)
    until(lambda: not shared_slurm.jobs("all"), 40)
    bench.restart(FIRST)
    lost = bench.until(lambda: bench.of(FIRST, e.AttemptLost))[0]
    assert lost.preempted == has_accounting
    assert ("PREEMPTED" in lost.why) == has_accounting
    # sacct prints `CANCELLED by 0`.
    states = SlurmCommands().ended_states()
    assert states.get("other") == ("CANCELLED" if has_accounting else None)


@pytest.mark.parametrize("shared_slurm", ["limits"], indirect=True)
def test_a_submit_limit_and_a_wrong_account_are_reported_and_nothing_is_submitted(
    shared_slurm: SlurmCluster, bench: HandoverBench
) -> None:
    executor = bench.executor
    assert isinstance(executor, HandoverExecutor)
    # In the database of these tests, associations begin with limits of zero.
    for attempt, options, reason in (
        (FIRST, "-p low", "AssocMaxSubmitJobLimit"),
        (SECOND, "-p low -A wrong", "Invalid account"),
    ):
        executor.options = parse_options({"sbatch": options})
        executor.start(bench.launch(attempt, seconds=1.0))
        refused = bench.until(lambda attempt=attempt: bench.of(attempt, e.StartCancelled))[0]
        assert reason in refused.why
        assert refused.delay > 0
        assert executor.ahead == 1
    assert shared_slurm.jobs("all") == []
