"""What can be said of a call, in our words and in submitit's."""

import signal
from datetime import timedelta
from pathlib import Path

import pytest

import stoker
from stoker.api import options, parameters
from stoker.api.errors import UnknownOption
from stoker.api.parameters import Settings
from stoker.cli.jobflags import JOB
from stoker.core.options import KNOWN


def settled(checkpoints: bool = False, **given: object) -> Settings:
    return parameters.settled(parameters.check(given), checkpoints=checkpoints)


def test_every_flag_of_the_command_line_is_a_keyword() -> None:
    flags = {
        name.removeprefix("--").replace("-", "_")
        for option in JOB
        for name in option.names
        if name.startswith("--")
    }
    only_typed = {"resource", "pty", "stashed"}
    assert flags - only_typed == options.NAMES | {"array"}


def test_every_keyword_is_known_to_the_daemon() -> None:
    assert {options.ALIASES.get(name, name) for name in options.NAMES} <= KNOWN


def test_submitits_names() -> None:
    found = settled(
        timeout_min=90, gpus_per_node=2, cpus_per_task=4, mem_gb=16, tasks_per_node=1, nodes=1,
        array_parallelism=3, name="train", stderr_to_stdout=False,
    )  # fmt: skip
    assert found.options == {
        "time": "5400s", "gpus": "2", "cpus": "4", "mem": "16G", "name": "train",
    }  # fmt: skip
    assert (found.at_once, found.one_log) == (3, False)


def test_slurms_names_are_used_where_they_mean_something_and_passed_over_elsewhere() -> None:
    found = settled(
        timeout_min=5, slurm_time=10, slurm_partition="dev", slurm_array_parallelism=2,
        slurm_srun_args=["-x"], slurm_use_srun=False, local_setup=[],
    )  # fmt: skip
    assert found.options == {"time": "600s", "queue": "dev"}
    assert found.at_once == 2


def test_our_own_names_and_values() -> None:
    found = settled(
        gpus=0.5, time=timedelta(hours=1), env={"A": "1"}, label=["x", "y"], nodelist=["a", "b"],
        chdir=Path("/tmp"), hold=False, requeue=True, comment=None,
    )  # fmt: skip
    assert found.options == {
        "gpus": "0.5", "time": "3600s", "env": ["A=1"], "label": ["x", "y"], "nodelist": "a,b",
        "chdir": "/tmp", "requeue": True,
    }  # fmt: skip


def test_a_misspelt_parameter_lists_the_valid_ones_the_nearest_first() -> None:
    with pytest.raises(TypeError, match="Did you mean timeout_min") as caught:
        parameters.check({"timeout_mins": 3})
    assert isinstance(caught.value, stoker.StokerError)
    assert isinstance(caught.value, UnknownOption)
    assert (caught.value.exit_code, caught.value.valid[0]) == (2, "timeout_min")
    assert set(caught.value.valid) == parameters.VALID


def test_a_misspelt_option_of_a_submission() -> None:
    with pytest.raises(stoker.UsageError, match="Did you mean priority"):
        options.as_options({"priorty": 3})


@pytest.mark.parametrize("name", ["tasks_per_node", "nodes", "ntasks"])
def test_several_processes_for_one_call_are_refused(name: str) -> None:
    with pytest.raises(stoker.UsageError, match=f"{name} must be 1, not 2"):
        settled(**{name: 2})


@pytest.mark.parametrize("value", [0, -1, "many"])
def test_no_call_at_a_time_is_refused(value: object) -> None:
    with pytest.raises(stoker.UsageError, match="array_parallelism"):
        settled(array_parallelism=value)


@pytest.mark.parametrize("name", ["timeout_min", "mem_gb", "max_num_timeout", "signal_delay_s"])
@pytest.mark.parametrize("value", ["long", -1, float("nan")])
def test_what_is_no_number_is_refused(name: str, value: object) -> None:
    with pytest.raises(stoker.UsageError, match=f"{name} must"):
        settled(**{name: value})


def test_a_call_that_can_be_saved_is_told_before_it_has_to_go() -> None:
    found = settled(checkpoints=True)
    assert (found.options["signal"], found.options["requeue"]) == ("USR2@60", True)
    assert (found.signal, found.signal_delay, found.timeouts) == (signal.SIGUSR2, 60, 3)


def test_a_short_one_is_told_late_enough() -> None:
    assert settled(checkpoints=True, timeout_min=1).options["signal"] == "USR2@15"
    assert settled(checkpoints=True, time="10s").signal_delay == 2
    assert settled(checkpoints=True, time=10, signal_delay_s=90).signal_delay == 90


def test_what_was_said_about_signals_and_retries_stays() -> None:
    found = settled(checkpoints=True, signal="SIGUSR1@30", retries=2)
    assert found.options == {"signal": "SIGUSR1@30", "retries": "2"}
    assert (found.signal, found.signal_delay) == (signal.SIGUSR1, 30)


def test_jobs_and_futures_can_be_depended_on() -> None:
    job = stoker.Job(id=5, label="5", name="x", state="PENDING")
    assert options.as_options({"dependency": [job, 6]}) == {"dependency": "afterok:5:6"}
    assert options.as_options({"dependency": job}) == {"dependency": "afterok:5"}
    assert options.as_options({"dependency": "afterany:7"}) == {"dependency": "afterany:7"}


def test_selectors_of_jobs_ids_and_lists() -> None:
    job = stoker.Job(id=9, label="7_2", name="x", state="PENDING")
    assert options.selectors([job, 3, "last", [4, range(5, 7)]]) == ["7_2", "3", "last", "4", "5", "6"]  # noqa: E501  # fmt: skip
