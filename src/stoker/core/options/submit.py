"""Options of submit and edit, parsed into fields of a spec and a resource request."""

from __future__ import annotations

import itertools
import re
import signal as signals
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from stoker.core.model.dependency import parse_dependency
from stoker.core.model.resources import (
    ResourceRequest,
)
from stoker.core.model.spec import EarlySignal, Retry, Spec
from stoker.core.model.units import (
    THOUSAND,
    BadValue,
    parse_amount,
    parse_duration,
    parse_time,
)
from stoker.core.options import training as training_options
from stoker.core.options.resources import parse_request, parse_tasks
from stoker.core.options.retry import parse_retry
from stoker.core.options.transfer import transfer_fields
from stoker.core.options.values import is_set, parse_count, parse_integer

Options = dict[str, Any]
MAX_ARRAY_SIZE = 100_000
"""Members of one array: a larger one is a typing error."""


class ParseContext(Struct):
    """What the parser needs besides the options."""

    now: float
    resolve: Callable[[str], list[int]]
    """Return the ids that a selector means."""
    singleton: Callable[[str], list[int]]
    """Return the unfinished jobs of this user with a name."""


class ParsedOptions(Struct):
    """Parsed options; `fields` has the fields of the spec that were given."""

    fields: dict[str, Any]
    request: ResourceRequest
    priority: int | None = None
    held: bool = False
    begin_at: float | None = None
    indexes: tuple[int, ...] | None = None
    set_env: tuple[tuple[str, str], ...] = ()
    export: str = "ALL"
    warnings: list[str] = []
    needs_no_gpu: bool = False
    """Whether it may run on a cluster without GPUs, although it requests one."""


KNOWN_OPTIONS = {
    "name", "output", "error", "chdir", "time", "queue", "nodes", "ntasks", "ntasks_per_node",
    "cpus", "mem", "mem_per_cpu", "mem_per_gpu", "gpus", "gpus_per_node", "gpus_per_task", "gres",
    "gpu_memory", "gpus_min_vram", "gpu_model", "use_gpus", "prefer_gpus", "avoid_gpus",
    "resources", "constraint", "nodelist", "exclude", "exclusive", "array", "dependency", "begin",
    "deadline", "hold", "priority", "nice", "qos", "account", "requeue", "no_requeue", "retries",
    "retry_on", "signal", "export", "mail_type", "mail_user", "comment", "label", "group", "env",
    "slurm_env", "no_slurm_env", "delay", "pty", "on_end", "time_request", "explicit", "feed",
    "client", "share", "verbatim", "send", "no_send", "bring", "no_bring", "bring_into",
    "leave_out", "if_unreachable", "no_threads", "open_mode",
} | training_options.KNOWN_OPTIONS  # fmt: skip


def parse_options(
    options: Options, context: ParseContext, before: Spec | None = None
) -> ParsedOptions:
    """Parse the options of submit or edit; `before` is the spec that an edit changes."""
    unknown = sorted(set(options) - KNOWN_OPTIONS)
    if unknown:
        raise BadValue(f"There is no option '{unknown[0]}'; see stoker submit --help.")
    for key in _LISTS & set(options):
        if not isinstance(options[key], str | list | dict):
            raise BadValue(f"--{key} takes text, or a list of it.")
    words = {key: _text(key, value) for key, value in options.items() if key not in _LISTS}
    fields = _plain_fields(words, options)
    fields |= training_options.spec_fields(words, options, before)
    if {"ntasks", "ntasks_per_node"} & set(words):
        fields["tasks"] = parse_tasks(words, before.request if before is not None else None)[1]
    parsed = ParsedOptions(fields=fields, request=parse_request(words, options, before))
    parsed.needs_no_gpu = before is None and training_options.needs_no_gpu(words, options)
    if "priority" in words:
        parsed.priority = parse_integer(words["priority"], "--priority")
    elif "nice" in words:
        parsed.priority = -parse_integer(words["nice"] or "100", "--nice")
    parsed.held = is_set(options, "hold")
    for key in ("begin", "delay"):
        if key in words:
            begin = parse_time(words[key], context.now, f"--{key}")
            parsed.begin_at = begin if begin > context.now else None
    if "deadline" in words:
        fields["deadline_at"] = parse_time(words["deadline"], context.now, "--deadline")
        if fields["deadline_at"] <= context.now:
            raise BadValue(f"--deadline '{words['deadline']}' has already passed.")
        if context.now + (fields.get("limit") or 0) > fields["deadline_at"]:
            raise BadValue("The time limit is longer than the time until --deadline.")
    if "array" in words:
        parsed.indexes, fields["array_limit"] = parse_array(words["array"])
        fields["array_size"] = len(parsed.indexes)
        fields["array_range"] = _array_range(parsed.indexes)
    if "dependency" in words:
        name = words.get("name", "")
        fields["dependency"] = parse_dependency(
            words["dependency"], context.resolve, lambda: context.singleton(name)
        )
    parsed.export = words.get("export", "ALL")
    parsed.set_env = tuple(_assignments(options.get("env", [])))
    exported = [name for name, _ in parsed.set_env]
    if parsed.export.upper() not in ("ALL", "NONE"):
        exported += [part.partition("=")[0] for part in parsed.export.split(",") if part]
    fields["exported_variables"] = (
        tuple(name for name in dict.fromkeys(exported) if name != "ALL") or None
    )
    parsed.warnings = _ignored_options(words)
    return parsed


_LISTS = {"label", "env", "send", "bring", "leave_out"} | training_options.LISTS
_SWITCHES = {"exclusive", "hold", "requeue", "no_requeue", "slurm_env", "no_slurm_env", "pty",
             "explicit", "verbatim", "no_threads", "no_send", "no_bring",
             } | training_options.SWITCHES  # fmt: skip


def _text(key: str, value: Any) -> str:
    if value is True or (key in _SWITCHES and value in ("", None)):
        return "true"
    if isinstance(value, (list, dict)) and key != "resources":
        raise BadValue(f"--{key.replace('_', '-')} takes one value.")
    if value is None or value is False:
        return ""
    return value if isinstance(value, str) else str(value)


def _plain_fields(words: dict[str, str], options: Options) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, field in (
        ("name", "name"), ("output", "output"), ("error", "error"), ("chdir", "directory"),
        ("queue", "queue"), ("comment", "comment"), ("group", "group"), ("on_end", "on_end"),
        ("feed", "feed"), ("client", "client"), ("account", "account"),
    ):  # fmt: skip
        if key in words:
            if "\0" in words[key]:
                raise BadValue(f"--{key} holds a zero byte.")
            fields[field] = words[key] or None
    if "name" in fields:
        fields["name"] = (fields["name"] or "")[:200].replace("\n", " ")
    if "queue" in fields and not re.fullmatch(r"[\w.:-]{1,64}", fields["queue"] or ""):
        raise BadValue(f"Queue '{fields['queue']}' is not a name; use letters, digits, . and -.")
    if "time" in words:
        fields["limit"] = parse_duration(words["time"], "--time") or None
    if "open_mode" in words:
        fields["truncate_output"] = parse_open_mode(words["open_mode"])
    if "signal" in words:
        fields["early_signal"] = parse_early_signal(words["signal"])
    labels = options.get("label", [])
    if labels:
        listed = [labels] if isinstance(labels, str) else labels
        fields["labels"] = tuple(str(label) for label in listed)
    if {"retries", "retry_on", "requeue", "no_requeue"} & set(words):
        rule = parse_retry(words.get("retries"), words.get("retry_on"), is_set(options, "requeue"))
        fields["retry"] = Retry() if is_set(options, "no_requeue") else rule
    fields |= transfer_fields(words, options)
    if "slurm_env" in words or "no_slurm_env" in words:
        fields["slurm"] = is_set(options, "slurm_env") and not is_set(options, "no_slurm_env")
    for key in ("pty", "verbatim"):
        if key in words:
            fields[key] = is_set(options, key)
    if "cpus" in words and not is_set(options, "no_threads"):
        cores = parse_amount(words["cpus"], "--cpus")
        fields["threads"] = max(cores // THOUSAND, 1) if cores else None
    return fields


def _assignments(value: Any) -> list[tuple[str, str]]:
    listed = [value] if isinstance(value, str) else value
    if isinstance(listed, dict):
        listed = [f"{name}={text}" for name, text in listed.items()]
    pairs = []
    for assignment in listed:
        name, equals, text = str(assignment).partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name) or "\0" in text:
            raise BadValue(f"--env '{assignment}' is not an assignment; write NAME=VALUE.")
        pairs.append((name, text))
    return pairs


def parse_array(text: str) -> tuple[tuple[int, ...], int | None]:
    """Parse Slurm's `0-15:4%4` or `1,3,7-9`: the indexes, and the limit of running members."""
    listed, percent, limit = text.strip().partition("%")
    if percent and not (limit.isdecimal() and len(limit) <= 7 and int(limit)):
        raise BadValue(f"--array '{text}' has no number after '%'; write 0-15%4.")
    indexes: dict[int, None] = {}
    for part in listed.split(","):
        match = re.fullmatch(r"\s*(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?\s*", part)
        if not match:
            raise BadValue(f"--array '{text}' is not a list; write 0-15, 0-15:4%4 or 1,3,7.")
        first, last, step = (int(piece) if piece else None for piece in match.groups())
        if first is None or (last is not None and last < first) or step == 0:
            raise BadValue(f"--array '{part}' is empty; write the smaller index first.")
        if last is not None and (last - first) // (step or 1) >= MAX_ARRAY_SIZE:
            raise BadValue(f"--array '{text}' is too large; at most {MAX_ARRAY_SIZE} members.")
        indexes.update(
            dict.fromkeys(range(first, (last if last is not None else first) + 1, step or 1))
        )
    if len(indexes) > MAX_ARRAY_SIZE:
        raise BadValue(f"--array '{text}' is too large; at most {MAX_ARRAY_SIZE} members.")
    return tuple(sorted(indexes)), int(limit) if percent else None


def _array_range(indexes: tuple[int, ...]) -> tuple[int, int, int]:
    """Return first index, last index and step; a list without one step has step 1, as in Slurm."""
    steps = {after - before for before, after in itertools.pairwise(indexes)}
    return indexes[0], indexes[-1], steps.pop() if len(steps) == 1 else 1


def parse_signal(text: str) -> int:
    """Parse `USR1`, `SIGUSR1` or `10`."""
    word = text.strip().upper()
    if word.isdecimal() and 0 < int(word) < 65:
        return int(word)
    try:
        return int(signals.Signals[word if word.startswith("SIG") else f"SIG{word}"])
    except KeyError:
        raise BadValue(f"There is no signal '{text}'; write USR1, TERM or a number.") from None


def parse_open_mode(text: str) -> bool:
    """Parse Slurm's `--open-mode=append|truncate`; return True for truncate."""
    for mode in ("append", "truncate"):
        if text and mode.startswith(text.lower()):
            return mode == "truncate"
    raise BadValue(f"--open-mode is append or truncate, not '{text}'.")


def parse_early_signal(text: str) -> EarlySignal:
    """Parse Slurm's `--signal=[B:]USR1[@120]`."""
    to_script = text[:2] in ("B:", "b:")
    name, _, seconds = (text[2:] if to_script else text).partition("@")
    return EarlySignal(parse_signal(name), parse_count(seconds or "60", "--signal"), to_script)


WITHOUT_EFFECT = {
    "qos": "has no effect",
    "mail_type": "is not sent; use --on-end or the on_end hook",
    "mail_user": "is not sent; use --on-end or the on_end hook",
    "constraint": "has no effect; use --gpu-model",
    "time_request": "has no effect; use --time",
}
"""Options that are accepted for sbatch scripts, and the warning about each."""


def _ignored_options(words: dict[str, str]) -> list[str]:
    given = ((key, why) for key, why in WITHOUT_EFFECT.items() if words.get(key))
    return [f"--{key.replace('_', '-')} {why}" for key, why in given]
