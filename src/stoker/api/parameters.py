"""The parameters of an Executor: submitit's names, and those of a submission."""

from __future__ import annotations

import os
import re
import signal as signals
from collections.abc import Mapping
from typing import Any

import msgspec

from stoker.api.errors import UnknownOption, UsageError
from stoker.api.options import NAMES, as_options

SUBMITIT = frozenset(
    {
        "timeout_min", "mem_gb", "tasks_per_node", "array_parallelism", "stderr_to_stdout",
        "max_num_timeout", "signal_delay_s", "python", "cluster",
    }
)  # fmt: skip
"""What is said in submitit's words, or is about calls only."""
VALID = NAMES | SUBMITIT
SLURM = {
    "time": "timeout_min",
    "mem": "mem",
    "num_gpus": "gpus",
    "ntasks_per_node": "tasks_per_node",
}
"""Slurm's names in submitit that are called differently here."""
OF_SLURM = frozenset({
    "account", "array_parallelism", "comment", "constraint", "cpus_per_task", "dependency",
    "exclude", "exclusive", "gpus_per_node", "gpus_per_task", "gres", "job_name", "mail_type",
    "mail_user", "max_num_timeout", "mem", "mem_per_cpu", "mem_per_gpu", "nodelist", "nodes",
    "ntasks_per_node", "num_gpus", "partition", "python", "qos", "signal_delay_s",
    "stderr_to_stdout", "time",
})  # fmt: skip
"""What submitit's executor for Slurm takes, after `slurm_`, and means something here."""
PASSED_OVER = {
    "slurm_": frozenset({
        "additional_parameters", "cpus_per_gpu", "max_pickle_size_gb", "setup", "srun_args",
        "teardown", "use_srun", "wckey",
    }),
    "local_": VALID | {"max_pickle_size_gb", "setup"},
    "debug_": VALID | {"max_pickle_size_gb", "setup"},
}  # fmt: skip
"""Parameters for one kind of submitit's executors that mean nothing here."""
SECONDS = 60
"""How long before its end, or before it has to go, a call that can be saved is told."""
TIMEOUTS = 3


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the parameters come to."""

    options: dict[str, object]
    """Those of a submission, as the API takes them."""
    at_once: int | None = None
    """How many members of an array run at a time."""
    one_log: bool = True
    timeouts: int = TIMEOUTS
    signal: int | None = None
    signal_delay: int = SECONDS
    python: str | None = None


def check(given: Mapping[str, object]) -> dict[str, object]:
    """Return parameters under their own names; a misspelt one is an error that lists them all."""
    found: dict[str, object] = {}
    slurm: dict[str, object] = {}
    for name, value in given.items():
        if name.startswith("stoker_") and name.removeprefix("stoker_") in VALID:
            slurm[name.removeprefix("stoker_")] = value
        elif name in VALID:
            found[name] = value
        else:
            slurm.update(_of_one_kind(name, value))
    found.update(slurm)
    return found


def _of_one_kind(name: str, value: object) -> dict[str, object]:
    """Read a parameter for one kind of submitit's executors."""
    head, _, rest = name.partition("_")
    prefix, bare = f"{head}_", SLURM.get(rest, rest)
    if prefix not in PASSED_OVER:
        raise UnknownOption(name, VALID, "parameter")
    if prefix == "slurm_" and bare in VALID:
        return {bare: value}
    if rest not in PASSED_OVER[prefix]:
        known = PASSED_OVER[prefix] | (OF_SLURM if prefix == "slurm_" else frozenset())
        raise UnknownOption(name, (prefix + each for each in known), "parameter", prefix)
    return {}


def settled(given: Mapping[str, Any], *, checkpoints: bool) -> Settings:
    """Read checked parameters; `checkpoints` is true of calls that can be stopped and go on."""
    rest = {name: value for name, value in given.items() if value is not None}
    own = {name: rest.pop(name) for name in SUBMITIT & set(rest)}
    _one_machine(own, rest)
    options = as_options(rest, "parameter")
    if "gpus_per_node" in options:
        options["gpus"] = options.pop("gpus_per_node")
    if "timeout_min" in own:
        options["time"] = f"{round(_number(own, 'timeout_min') * 60)}s"
    if "mem_gb" in own:
        options["mem"] = f"{_number(own, 'mem_gb'):g}G"
    delay = int(_number(own, "signal_delay_s", SECONDS))
    if checkpoints:
        limit = _seconds(options.get("time"))
        if limit is not None and "signal_delay_s" not in own:
            delay = max(1, min(SECONDS, limit // 4))
        # USR1 is what NCCL listens to.
        name, _, seconds = str(options.get("signal", "USR2")).partition("@")
        options["signal"] = f"{name}@{seconds or delay}"
        said = "signal_delay_s" if not seconds else "signal"
        _check_in_time(limit, seconds or own.get("signal_delay_s"), said)
        if not {"requeue", "no_requeue", "retries", "retry_on"} & set(options):
            options["requeue"] = True
    number, delay = _signal(options.get("signal"), delay)
    return Settings(
        options=options,
        at_once=positive(own.get("array_parallelism"), "array_parallelism"),
        one_log=bool(own.get("stderr_to_stdout", True)),
        timeouts=int(_number(own, "max_num_timeout", TIMEOUTS)),
        signal=number,
        signal_delay=delay,
        python=os.fspath(own["python"]) if "python" in own else None,
    )


def _one_machine(own: Mapping[str, Any], rest: dict[str, Any]) -> None:
    """Refuse calls that several processes should do: their result is one."""
    for name, value in (
        ("tasks_per_node", own.get("tasks_per_node", 1)),
        ("nodes", rest.pop("nodes", 1)),
        ("ntasks", rest.pop("ntasks", 1)),
        ("ntasks_per_node", rest.pop("ntasks_per_node", 1)),
    ):
        if str(value) != "1":
            raise UsageError(
                f"A call is one process on one node, so {name} must be 1, not {value}. "
                "For more, have it start them, or use Client.submit with a command."
            )


def _number(own: Mapping[str, Any], name: str, default: float = 0) -> float:
    value = own.get(name, default)
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name} must be a number, not {value!r}.") from None
    if not 0 <= found < float("inf"):
        raise UsageError(f"{name} must not be {value!r}.")
    return found


def positive(value: object, name: str) -> int | None:
    """Return how many, None where nothing was said."""
    if value is None:
        return None
    if not isinstance(value, int) or value < 1:
        raise UsageError(f"{name} must be a whole number of at least 1, not {value!r}.")
    return value


def _check_in_time(limit: int | None, delay: Any, name: str) -> None:
    """A warning that would come before the call begins does not come at all."""
    if limit and delay is not None and str(delay).isdecimal() and int(delay) >= limit:
        raise UsageError(
            f"{name}: {delay} s before the end of a call limited to {limit} s is before its start, "
            "so checkpoint() would never be called. Use a shorter delay or a longer time limit."
        )


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_WORDS = re.compile(r"([\d.]+)\s*([smhdw])[a-z]*\s*", re.IGNORECASE)
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def _seconds(text: object) -> int | None:
    """Return how long a time limit is, None where only the daemon can tell."""
    if not isinstance(text, str):
        return None
    clock = _CLOCK.fullmatch(text.strip())
    if clock is not None:
        fields = [int(field) for field in clock.groups()[1:] if field is not None]
        if clock[1] is None and len(fields) < 3:
            fields.insert(0, 0)  # a bare number is minutes, as in Slurm
        hours, minutes, seconds = (*fields, 0, 0)[:3]
        return int(clock[1] or 0) * 86400 + hours * 3600 + minutes * 60 + seconds
    if not re.fullmatch(f"(?:{_WORDS.pattern})+", text.strip(), re.IGNORECASE):
        return None
    found = (float(number) * _UNITS[unit.lower()] for number, unit in _WORDS.findall(text))
    return round(sum(found))


def _signal(text: object, delay: int) -> tuple[int | None, int]:
    """Read `USR2@60` as the runner needs it; what is wrong with it, the daemon says."""
    if not isinstance(text, str):
        return None, delay
    name, _, seconds = text.removeprefix("B:").partition("@")
    word = name.upper().removeprefix("SIG")
    number = signals.Signals.__members__.get(f"SIG{word}")
    found = int(word) if word.isdecimal() else int(number) if number is not None else None
    return found, int(seconds) if seconds.isdecimal() else delay
