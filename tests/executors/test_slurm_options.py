"""Options of a Slurm cluster, and rows of squeue."""

from pathlib import Path

import pytest

from stoker import places
from stoker.core.model.resources import GPU
from stoker.core.model.units import BadValue
from stoker.executors.slurm.commands import SlurmCommands, SlurmError, error_text, parse_row
from stoker.executors.slurm.options import (
    SlurmOptions,
    SlurmPilotShape,
    cluster_addition,
    describe,
    parse_options,
    parse_pilot,
)


def test_a_shape_becomes_options_of_sbatch_and_resources() -> None:
    shape = parse_pilot("gpus=a100:2 cores=8 mem=32G time=90m max=4 idle=5m")
    assert shape == SlurmPilotShape(2, "a100", 8, 32768, 5400, 4, 300)
    assert shape.sbatch_options() == [
        "--nodes=1", "--ntasks=1", "--cpus-per-task=8", "--gres=gpu:a100:2", "--mem=32768M",
        "--time=90",
    ]  # fmt: skip
    facts = shape.node_facts("lab")
    assert facts.on_demand == 4
    assert [device.model for device in facts.types[GPU]] == ["a100", "a100"]
    assert [device.memory for device in facts.types[GPU]] == [None, None]
    [gpu] = parse_pilot("gpus=1 vram=16G time=1h").node_facts("lab").types[GPU]
    assert gpu.memory == 16384
    assert describe(SlurmOptions(shape)) == (
        "up to 4 allocations of 2 a100 GPUs, 8 cores, 32768 MiB of memory for 1.5 h, released"
        " after 5 min without jobs"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpus=2", "--pilot needs time="),
        ("gpus=x time=1h", "gpus takes a whole number"),
        ("time=10s", "time= must be at least 5 min"),
        ("time=0", "time= must be at least 5 min"),
        ("time=1h time=2h", "time is given twice"),
        (
            "time=1h colour=red",
            "not one of gpus, time, max, idle, cores, mem, vram",
        ),
    ],
)
def test_an_invalid_shape_is_rejected(text: str, expected: str) -> None:
    with pytest.raises(BadValue, match="--pilot") as error:
        cluster_addition("lab", {"pilot": text}, False, 0.0)
    assert expected in str(error.value)


def test_options_that_stoker_sets_itself_are_rejected() -> None:
    assert parse_options({"sbatch": "-p gpu -A 'my account'"}).sbatch[-1] == "my account"
    with pytest.raises(BadValue, match="stoker sets --job-name itself"):
        parse_options({"sbatch": "--job-name=mine"})
    with pytest.raises(BadValue, match="stoker sets -N itself"):
        parse_options({"sbatch": "-p gpu -N2"})
    with pytest.raises(BadValue, match="no option 'color'"):
        parse_options({"color": "red"})


def test_attempts_of_a_priority_get_further_options() -> None:
    given = '{"10": "--qos=high", "-5": "-p low"}'
    options = parse_options({"sbatch": "-p gpu", "priority_options": given})
    found = [" ".join(options.given_options(priority)) for priority in (-9, 0, 10, 99)]
    assert found == ["-p gpu", "-p gpu -p low", "-p gpu --qos=high", "-p gpu --qos=high"]
    with pytest.raises(BadValue, match="priority_options: 'high' is not a priority"):
        parse_options({"priority_options": '{"high": "--qos=high"}'})
    with pytest.raises(BadValue, match="stoker sets --array itself"):
        parse_options({"priority_options": '{"1": "--array=1-9"}'})


def test_a_cluster_without_pilots_gets_one_slurm_job_per_attempt() -> None:
    assert parse_options({}).hands_over
    assert not parse_options({"pilot": "time=1h"}).hands_over
    assert parse_options({"ahead": "20"}).ahead == 20
    expected = "one Slurm job per attempt, at most 20 of them waiting"
    assert describe(parse_options({"ahead": "20"})) == expected
    with pytest.raises(BadValue, match="from 1 to 200, not '0'"):
        parse_options({"ahead": "0"})
    both = parse_options({"ahead": "20", "pilot": "time=1h"})
    assert both.has_pilots
    assert both.hands_over
    assert describe(both).endswith("for each attempt that these cannot run, at most 20 waiting")


def test_a_row_of_squeue() -> None:
    row = parse_row("12|stoker-a-lab-b|PENDING||N/A|1794966613|Resources")
    assert row is not None
    assert (row.id, row.name, row.start, row.end) == ("12", "stoker-a-lab-b", 1794966613.0, None)
    assert row.is_pending
    assert not row.has_ended
    assert parse_row("a banner of the login node") is None


def test_the_errors_of_a_command_are_one_message() -> None:
    text = "sbatch: error: bad partition x\nsbatch: error: Batch job submission failed: y\n"
    assert error_text(text) == "bad partition x; Batch job submission failed: y"
    assert error_text("bash: sbatch: not found\n") == "bash: sbatch: not found"


def test_commands_that_are_not_installed_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "env").symlink_to("/usr/bin/env")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match="squeue was not found here; add the cluster with --ssh"):
        SlurmCommands().jobs()


def test_variables_of_a_surrounding_job_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "100")
    argv = SlurmCommands().argv(["squeue"])
    assert "SLURM_MEM_PER_NODE" in argv
    assert "SLURM_CONF" not in argv


def test_commands_of_stoker_with_these_names_are_not_called(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{places.slurm_commands_dir()}:/usr/bin:/bin")
    assert "PATH=/usr/bin:/bin" in SlurmCommands().argv(["squeue"])
