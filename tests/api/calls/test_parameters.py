"""Parameters of calls, with our names and submitit's."""

import signal
from datetime import timedelta
from pathlib import Path

import pytest
from submitit import AutoExecutor, LocalExecutor, SlurmExecutor

import stoker
from stoker.api.arguments import options
from stoker.api.calls import parameters
from stoker.api.calls.parameters import Settings
from stoker.api.errors import UnknownOption
from stoker.cli.options.job import JOB
from stoker.core.model.units import parse_duration
from stoker.core.options.submit import KNOWN_OPTIONS


def settled(checkpoints: bool = False, **given: object) -> Settings:
    return parameters.build_settings(parameters.check(given), checkpoints=checkpoints)


def test_every_flag_of_the_command_line_is_a_keyword() -> None:
    flags = {
        name.removeprefix("--").replace("-", "_")
        for option in JOB
        for name in option.names
        if name.startswith("--")
    }
    only_typed = {"resource", "pty", "stashed"}
    assert flags - only_typed == options.OPTION_NAMES | {"array"}


def test_every_keyword_is_known_to_the_daemon() -> None:
    assert {options.ALIASES.get(name, name) for name in options.OPTION_NAMES} <= KNOWN_OPTIONS


def test_submitits_names() -> None:
    found = settled(
        timeout_min=90, gpus_per_node=2, cpus_per_task=4, mem_gb=16, tasks_per_node=1, nodes=1,
        array_parallelism=3, name="train", stderr_to_stdout=False,
    )  # fmt: skip
    assert found.options == {
        "time": "5400s", "gpus": "2", "cpus": "4", "mem": "16G", "name": "train",
    }  # fmt: skip
    assert (found.max_running, found.merge_stderr) == (3, False)


def test_slurms_names_are_used_where_they_mean_something_and_passed_over_elsewhere() -> None:
    found = settled(
        timeout_min=5, slurm_time=10, slurm_partition="dev", slurm_array_parallelism=2,
        slurm_srun_args=["-x"], slurm_use_srun=False, local_setup=[], local_timeout_min=1,
    )  # fmt: skip
    assert found.options == {"time": "600s", "queue": "dev"}
    assert found.max_running == 2


@pytest.mark.parametrize("prefix", ["slurm", "local"])
def test_all_of_submitits_names_are_known(prefix: str) -> None:
    kinds = {"slurm": SlurmExecutor, "local": LocalExecutor}
    for name in kinds[prefix]._valid_parameters() | AutoExecutor._valid_parameters():
        parameters.check({f"{prefix}_{name}": 1})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("slurm_partion", "slurm_partition"),
        ("slurm_srun_arg", "slurm_srun_args"),
        ("local_setups", "local_setup"),
        ("debug_timeout", "debug_timeout_min"),
    ],
)
def test_a_misspelt_name_behind_a_prefix_is_not_swallowed(name: str, meant: str) -> None:
    with pytest.raises(UnknownOption, match=f"Did you mean {meant}") as caught:
        parameters.check({name: "dev"})
    assert caught.value.valid[0] == meant
    with pytest.raises(UnknownOption, match="'slurm_zzzz'"):
        parameters.check({"slurm_zzzz": 1})


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
def test_several_processes_for_one_call_are_rejected(name: str) -> None:
    with pytest.raises(stoker.UsageError, match=f"{name} must be 1, not 2"):
        settled(**{name: 2})


@pytest.mark.parametrize("value", [0, -1, "many"])
def test_an_array_parallelism_of_zero_is_rejected(value: object) -> None:
    with pytest.raises(stoker.UsageError, match="array_parallelism"):
        settled(array_parallelism=value)


@pytest.mark.parametrize("name", ["timeout_min", "mem_gb", "max_num_timeout", "signal_delay_s"])
@pytest.mark.parametrize("value", ["long", -1, float("nan")])
def test_values_that_are_not_numbers_are_rejected(name: str, value: object) -> None:
    with pytest.raises(stoker.UsageError, match=f"{name} must"):
        settled(**{name: value})


def test_a_call_with_a_checkpoint_gets_a_signal_before_its_limit() -> None:
    found = settled(checkpoints=True)
    assert (found.options["signal"], found.options["requeue"]) == ("USR2@60", True)
    assert (found.signal, found.signal_delay, found.timeouts) == (signal.SIGUSR2, 60, 3)


def test_a_short_call_gets_its_signal_late_enough() -> None:
    assert settled(checkpoints=True, timeout_min=1).options["signal"] == "USR2@15"
    assert settled(checkpoints=True, time="10s").signal_delay == 2
    assert settled(checkpoints=True, time=10, signal_delay_s=90).signal_delay == 90


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ({"timeout_min": 0.05, "signal_delay_s": 30}, "signal_delay_s"),
        ({"time": "1:00:00", "signal_delay_s": 3600}, "signal_delay_s"),
        ({"time": "1m30s", "signal": "USR1@90"}, "signal"),
    ],
)
def test_a_signal_before_the_start_is_rejected(printed: dict[str, object], name: str) -> None:
    with pytest.raises(stoker.UsageError, match=f"{name}: .* would never be called"):
        settled(checkpoints=True, **printed)
    settled(**printed)  # it is nothing to a call that cannot be saved


@pytest.mark.parametrize(
    "text", ["90", "5:30", "1:30:00", "2-12", "1-02:03:04", "90m", "1d12h", "1.5h", "2 hours"]
)
def test_a_limit_is_as_long_as_the_daemon_takes_it(text: str) -> None:
    assert parameters._time_limit_seconds(text) == parse_duration(text)


def test_a_limit_that_is_none() -> None:
    assert [parameters._time_limit_seconds(text) for text in ("soon", "5x", "", None)] == [None] * 4


def test_a_signal_without_a_time_comes_in_time() -> None:
    assert settled(checkpoints=True, signal="USR1", time="20s").options["signal"] == "USR1@5"


def test_given_signals_and_retries_are_kept() -> None:
    found = settled(checkpoints=True, signal="SIGUSR1@30", retries=2)
    assert found.options == {"signal": "SIGUSR1@30", "retries": "2"}
    assert (found.signal, found.signal_delay) == (signal.SIGUSR1, 30)


def test_jobs_and_futures_can_be_depended_on() -> None:
    job = stoker.Job(id=5, label="5", name="x", state="PENDING")
    assert options.as_options({"dependency": [job, 6]}) == {"dependency": "afterok:5:6"}
    assert options.as_options({"dependency": job}) == {"dependency": "afterok:5"}
    assert options.as_options({"dependency": "afterany:7"}) == {"dependency": "afterany:7"}
