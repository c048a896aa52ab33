"""The keywords of a submission, named like the options of the command line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict

from stoker.api.arguments.inputs import single_selectors
from stoker.api.errors import UnknownOption
from stoker.client import submit_environment
from stoker.client.errors import UsageError

Amount = int | float | str
Time = int | str | timedelta
"""Minutes, a text such as `90m` or `1-12`, or a timedelta."""
Moment = str | datetime | timedelta
Names = str | Sequence[str]


class JobOptions(TypedDict, total=False):
    """Options of a job; see `stoker help submit`."""

    gpus: Amount
    gpu_memory: Amount
    gpus_min_vram: Amount
    min_vram: Amount
    gpu_model: str
    use_gpus: Names
    prefer_gpus: Names
    avoid_gpus: Names
    gpus_per_node: Amount
    gpus_per_task: Amount
    gres: str
    cpus: Amount
    cpus_per_task: Amount
    mem: Amount
    memory: Amount
    mem_per_cpu: Amount
    mem_per_gpu: Amount
    resources: Mapping[str, Amount] | str
    exclusive: bool
    time: Time
    time_request: Time
    name: str
    job_name: str
    label: Names
    group: str
    comment: str
    output: str | os.PathLike[str]
    error: str | os.PathLike[str]
    open_mode: str
    chdir: str | os.PathLike[str]
    env: Mapping[str, str] | Sequence[str]
    export: Names
    slurm_env: bool
    no_slurm_env: bool
    priority: int
    nice: int
    queue: str
    partition: str
    qos: str
    account: str
    dependency: Any
    begin: Moment
    delay: Moment
    deadline: Moment
    hold: bool
    retries: int
    retry_on: Names
    requeue: bool
    no_requeue: bool
    signal: str
    on_end: str
    nodes: int | str
    ntasks: int
    ntasks_per_node: int
    constraint: str
    nodelist: Names
    exclude: Names
    send: Names
    no_send: bool
    bring: Names
    no_bring: bool
    bring_into: str | os.PathLike[str]
    leave_out: Names
    if_unreachable: str
    epochs: int
    batch_size: int
    training_set_size: int
    expect: Time
    snapshots_dir: str | os.PathLike[str]
    single_gpu: bool
    exclusive_gpu: bool
    image: str
    mount: Names
    ports: Names
    mail_type: str
    mail_user: str
    notify: Names
    alarm: Names


ALIASES = {
    "min_vram": "gpus_min_vram",
    "cpus_per_task": "cpus",
    "memory": "mem",
    "job_name": "name",
    "partition": "queue",
}
"""Alternative names, as on the command line."""
OPTION_NAMES = frozenset(JobOptions.__annotations__)
LIST_OPTIONS = frozenset({"label", "env", "send", "bring", "leave_out", "mount", "notify", "alarm"})
PATH_OPTIONS = frozenset({"output", "error"})
ABSOLUTE_PATHS = frozenset({"chdir", "bring_into", "snapshots_dir"})
"""Directories that are relative to the current directory."""


def as_options(given: Mapping[str, object], what: str = "option") -> dict[str, object]:
    """Return options as the HTTP API takes them; None and False mean not given."""
    options: dict[str, object] = {}
    for name, value in given.items():
        if name not in OPTION_NAMES and name != "array":
            raise UnknownOption(name, OPTION_NAMES | {"array"}, what)
        if value is None or value is False:
            continue
        key = ALIASES.get(name, name)
        options[key] = _as_list(key, value) if key in LIST_OPTIONS else _value(key, value)
    return options


def submission(options: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a submission besides `what`."""
    job_options = as_options(options)
    directory = job_options.get("chdir")
    environment, _ = submit_environment.environment(os.environ)
    fields = submit_environment.submit_fields(
        environment, directory if isinstance(directory, str) else None
    )
    return {"options": job_options, **fields}


def _value(key: str, value: object) -> object:
    if value is True or (key == "resources" and isinstance(value, str)):
        return value
    if isinstance(value, Mapping):
        return {str(name): str(amount) for name, amount in value.items()}
    if key == "dependency":
        return _dependency(value)
    if isinstance(value, timedelta):
        return f"{round(value.total_seconds())}s"
    if isinstance(value, datetime):
        return value.astimezone().isoformat()
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return ",".join(map(str, value))
    text = str(value)
    if key in ABSOLUTE_PATHS:
        return _absolute_path(text, filled_in=key == "bring_into")
    return os.path.expanduser(text) if key in PATH_OPTIONS else text


def _absolute_path(text: str, *, filled_in: bool) -> str:
    directory = os.getcwd()
    if filled_in:
        directory = directory.replace("%", "%%")  # only % in the option is replaced
    return os.path.normpath(os.path.join(directory, os.path.expanduser(text)))


def _as_list(key: str, value: object) -> list[str]:
    if isinstance(value, Mapping):
        for name, text in value.items():
            if text is None:
                raise UsageError(f"{key}: {name} has no value. Give it a text, or leave it out.")
        return [f"{name}={text}" for name, text in value.items()]
    if isinstance(value, str | os.PathLike):
        return [os.fspath(value)]
    if not isinstance(value, Iterable) or isinstance(value, bytes):
        raise UsageError(f"{key} must be a text or a list of texts, not {value!r}.")
    return [os.fspath(item) if isinstance(item, os.PathLike) else str(item) for item in value]


def _dependency(value: object) -> str:
    """Return `afterok:5:6` for jobs, futures and ids; a text is unchanged."""
    if isinstance(value, str):
        return value
    return "afterok:" + ":".join(single_selectors([value]))
