"""The parameters of an Executor: submitit's names, and those of a submission."""

from __future__ import annotations

import os
import re
import signal as signals
from collections.abc import Mapping
from typing import Any

import msgspec

from stoker.api.arguments.options import OPTION_NAMES, as_options
from stoker.api.errors import UnknownOption
from stoker.client.errors import UsageError

SUBMITIT_NAMES = frozenset(
    {
        "timeout_min", "mem_gb", "tasks_per_node", "array_parallelism", "stderr_to_stdout",
        "max_num_timeout", "signal_delay_s", "python", "cluster",
    }
)  # fmt: skip
"""Parameters with submitit's names, or for calls only."""
VALID = OPTION_NAMES | SUBMITIT_NAMES
SLURM_ALIASES = {
    "time": "timeout_min",
    "mem": "mem",
    "num_gpus": "gpus",
    "ntasks_per_node": "tasks_per_node",
}
"""Names of submitit's Slurm parameters that are different here."""
SLURM_NAMES = frozenset({
    "account", "array_parallelism", "comment", "constraint", "cpus_per_task", "dependency",
    "exclude", "exclusive", "gpus_per_node", "gpus_per_task", "gres", "job_name", "mail_type",
    "mail_user", "max_num_timeout", "mem", "mem_per_cpu", "mem_per_gpu", "nodelist", "nodes",
    "ntasks_per_node", "num_gpus", "partition", "python", "qos", "signal_delay_s",
    "stderr_to_stdout", "time",
})  # fmt: skip
"""Parameters of submitit's Slurm executor, after `slurm_`, that have an effect."""
IGNORED = {
    "slurm_": frozenset({
        "additional_parameters", "cpus_per_gpu", "max_pickle_size_gb", "setup", "srun_args",
        "teardown", "use_srun", "wckey",
    }),
    "local_": VALID | {"max_pickle_size_gb", "setup"},
    "debug_": VALID | {"max_pickle_size_gb", "setup"},
}  # fmt: skip
"""Parameters of submitit's executors, by prefix, that are ignored."""
SIGNAL_DELAY_SECONDS = 60
"""How long before its time limit or preemption a call with a checkpoint gets a signal."""
MAX_TIMEOUTS = 3


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that the parameters make."""

    options: dict[str, object]
    """Options of the submission, as the HTTP API takes them."""
    max_running: int | None = None
    """Maximum number of running tasks of an array."""
    merge_stderr: bool = True
    timeouts: int = MAX_TIMEOUTS
    signal: int | None = None
    signal_delay: int = SIGNAL_DELAY_SECONDS
    python: str | None = None


def check(given: Mapping[str, object]) -> dict[str, object]:
    """Return parameters without prefixes; raise UnknownOption for an unknown one."""
    plain: dict[str, object] = {}
    prefixed: dict[str, object] = {}
    for name, value in given.items():
        if name.startswith("stoker_") and name.removeprefix("stoker_") in VALID:
            prefixed[name.removeprefix("stoker_")] = value
        elif name in VALID:
            plain[name] = value
        else:
            prefixed.update(_executor_parameter(name, value))
    plain.update(prefixed)
    return plain


def _executor_parameter(name: str, value: object) -> dict[str, object]:
    """Return a parameter with a prefix of submitit under its plain name; {} if ignored."""
    head, _, suffix = name.partition("_")
    prefix, plain = f"{head}_", SLURM_ALIASES.get(suffix, suffix)
    if prefix not in IGNORED:
        raise UnknownOption(name, VALID, "parameter")
    if prefix == "slurm_" and plain in VALID:
        return {plain: value}
    if suffix not in IGNORED[prefix]:
        known = IGNORED[prefix] | (SLURM_NAMES if prefix == "slurm_" else frozenset())
        raise UnknownOption(name, (prefix + other for other in known), "parameter", prefix)
    return {}


def build_settings(given: Mapping[str, Any], *, checkpoints: bool) -> Settings:
    """Return the settings for checked parameters; `checkpoints`: the calls can be resumed."""
    others = {name: value for name, value in given.items() if value is not None}
    submitit = {name: others.pop(name) for name in SUBMITIT_NAMES & set(others)}
    _check_single_process(submitit, others)
    options = as_options(others, "parameter")
    if "gpus_per_node" in options:
        options["gpus"] = options.pop("gpus_per_node")
    if "timeout_min" in submitit:
        options["time"] = f"{round(_number(submitit, 'timeout_min') * 60)}s"
    if "mem_gb" in submitit:
        options["mem"] = f"{_number(submitit, 'mem_gb'):g}G"
    delay = int(_number(submitit, "signal_delay_s", SIGNAL_DELAY_SECONDS))
    if checkpoints:
        limit = _time_limit_seconds(options.get("time"))
        if limit is not None and "signal_delay_s" not in submitit:
            delay = max(1, min(SIGNAL_DELAY_SECONDS, limit // 4))
        # NCCL uses SIGUSR1.
        name, _, seconds = str(options.get("signal", "USR2")).partition("@")
        options["signal"] = f"{name}@{seconds or delay}"
        source = "signal_delay_s" if not seconds else "signal"
        _check_signal_delay(limit, seconds or submitit.get("signal_delay_s"), source)
        if not {"requeue", "no_requeue", "retries", "retry_on"} & set(options):
            options["requeue"] = True
    number, delay = _signal(options.get("signal"), delay)
    return Settings(
        options=options,
        max_running=positive_int(submitit.get("array_parallelism"), "array_parallelism"),
        merge_stderr=bool(submitit.get("stderr_to_stdout", True)),
        timeouts=int(_number(submitit, "max_num_timeout", MAX_TIMEOUTS)),
        signal=number,
        signal_delay=delay,
        python=os.fspath(submitit["python"]) if "python" in submitit else None,
    )


def _check_single_process(submitit: Mapping[str, Any], others: dict[str, Any]) -> None:
    """Raise if a call should run in several processes: it has one result."""
    for name, value in (
        ("tasks_per_node", submitit.get("tasks_per_node", 1)),
        ("nodes", others.pop("nodes", 1)),
        ("ntasks", others.pop("ntasks", 1)),
        ("ntasks_per_node", others.pop("ntasks_per_node", 1)),
    ):
        if str(value) != "1":
            raise UsageError(
                f"A call is one process on one node, so {name} must be 1, not {value}. "
                "For more, have it start them, or use Client.submit with a command."
            )


def _number(submitit: Mapping[str, Any], name: str, default: float = 0) -> float:
    value = submitit.get(name, default)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name} must be a number, not {value!r}.") from None
    if not 0 <= number < float("inf"):
        raise UsageError(f"{name} must not be {value!r}.")
    return number


def positive_int(value: object, name: str) -> int | None:
    """Return a whole number of at least 1; None if it was not given."""
    if value is None:
        return None
    if not isinstance(value, int) or value < 1:
        raise UsageError(f"{name} must be a whole number of at least 1, not {value!r}.")
    return value


def _check_signal_delay(limit: int | None, delay: Any, name: str) -> None:
    """Raise if the signal would be sent before the call starts: then it is never sent."""
    if limit and delay is not None and str(delay).isdecimal() and int(delay) >= limit:
        raise UsageError(
            f"{name}: {delay} s before the end of a call limited to {limit} s is before its start, "
            "so checkpoint() would never be called. Use a shorter delay or a longer time limit."
        )


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_UNIT_PATTERN = re.compile(r"([\d.]+)\s*([smhdw])[a-z]*\s*", re.IGNORECASE)
_CLOCK_PATTERN = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def _time_limit_seconds(text: object) -> int | None:
    """Return the seconds of a time limit; None for forms that only the daemon parses."""
    if not isinstance(text, str):
        return None
    clock = _CLOCK_PATTERN.fullmatch(text.strip())
    if clock is not None:
        fields = [int(field) for field in clock.groups()[1:] if field is not None]
        if clock[1] is None and len(fields) < 3:
            fields.insert(0, 0)  # a bare number is minutes, as in Slurm
        hours, minutes, seconds = (*fields, 0, 0)[:3]
        return int(clock[1] or 0) * 86400 + hours * 3600 + minutes * 60 + seconds
    if not re.fullmatch(f"(?:{_UNIT_PATTERN.pattern})+", text.strip(), re.IGNORECASE):
        return None
    seconds_of_parts = (
        float(number) * _UNITS[unit.lower()] for number, unit in _UNIT_PATTERN.findall(text)
    )
    return round(sum(seconds_of_parts))


def _signal(text: object, delay: int) -> tuple[int | None, int]:
    """Return signal number and delay of `USR2@60`; the daemon reports errors in it."""
    if not isinstance(text, str):
        return None, delay
    name, _, seconds = text.removeprefix("B:").partition("@")
    short = name.upper().removeprefix("SIG")
    known = signals.Signals.__members__.get(f"SIG{short}")
    number = int(short) if short.isdecimal() else int(known) if known is not None else None
    return number, int(seconds) if seconds.isdecimal() else delay
