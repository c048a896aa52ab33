"""Options of submit and edit, parsed into fields of a spec and a resource request."""

from __future__ import annotations

import itertools
import re
import signal as signals
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from stoker.core.model.alarm import parse_rule
from stoker.core.model.dependency import parse_dependency
from stoker.core.model.resources import ResourceRequest
from stoker.core.model.spec import EarlySignal, Retry, Spec
from stoker.core.model.units import THOUSAND, BadValue, parse_amount, parse_duration, parse_time
from stoker.core.options import training, values
from stoker.core.options.notify import parse_mail, parse_target
from stoker.core.options.resources import GPU_FIELDS, parse_request
from stoker.core.options.transfer import TRANSFER_OPTIONS, transfer_fields

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


def _name(text: str, what: str) -> str:
    return (values.parse_text(text, what) or "")[:200].replace("\n", " ")


def _queue(text: str, what: str) -> str:
    if not re.fullmatch(r"[\w.:-]{1,64}", text):
        raise BadValue(f"Queue '{text}' is not a name; use letters, digits, . and -.")
    return text


FIELDS: values.FieldParsers = {
    "name": ("name", _name),
    "chdir": ("directory", values.parse_text),
    "queue": ("queue", _queue),
    "time": ("limit", lambda text, what: parse_duration(text, what) or None),
    "signal": ("early_signal", lambda text, _: parse_early_signal(text)),
    "pty": ("pty", values.parse_switch),
    "verbatim": ("verbatim", values.parse_switch),
    "open_mode": ("truncate_output", lambda text, _: parse_open_mode(text)),
    **{
        key: (key, values.parse_text)
        for key in ("output", "error", "comment", "group", "on_end", "feed", "client", "account")
    },
}
WITHOUT_EFFECT = {
    "qos": "has no effect",
    "constraint": "has no effect; use --gpu-model",
    "time_request": "has no effect; use --time",
}
"""Options that are accepted for sbatch scripts, and the warning about each."""
LISTS = {"label", "env", "alarm", "notify", "send", "bring", "leave_out", "mount", "resources"}
SWITCHES = {
    "exclusive", "hold", "requeue", "no_requeue", "slurm_env", "no_slurm_env", "pty", "explicit",
    "verbatim", "no_threads", "no_send", "no_bring", "single_gpu", "exclusive_gpu", "distributed",
    "gpu_if_any",
}  # fmt: skip
KNOWN_OPTIONS = {
    *FIELDS, *GPU_FIELDS, *LISTS, *SWITCHES, *training.TRAINING_OPTIONS, *TRANSFER_OPTIONS,
    *training.CONTAINER_OPTIONS, *WITHOUT_EFFECT, "mail_type", "mail_user", "nodes", "ntasks",
    "ntasks_per_node", "cpus", "mem", "mem_per_cpu", "mem_per_gpu", "gpus", "gpus_per_node",
    "gpus_per_task", "gres", "gpu_model", "nodelist", "exclude", "array", "dependency", "begin",
    "deadline", "priority", "nice", "retries", "retry_on", "export", "delay", "share",
    "if_unreachable",
}  # fmt: skip


def parse_options(
    options: Options, context: ParseContext, before: Spec | None = None
) -> ParsedOptions:
    """Parse the options of submit or edit; `before` is the spec that an edit changes."""
    given = _given(options)
    words = given.words
    fields = values.parse_fields(FIELDS, words) | _other_fields(given) | transfer_fields(given)
    fields |= training.training_fields(given, before)
    request, tasks = parse_request(given, before)
    if tasks is not None:
        fields["tasks"] = tasks
    parsed = ParsedOptions(fields=fields, request=request)
    parsed.needs_no_gpu = before is None and training.needs_no_gpu(given)
    if "priority" in words:
        parsed.priority = values.parse_integer(words["priority"], "--priority")
    elif "nice" in words:
        parsed.priority = -values.parse_integer(words["nice"] or "100", "--nice")
    parsed.held = given.is_set("hold")
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
    parsed.set_env = tuple(map(_assignment, given.lists.get("env", [])))
    exported = [name for name, _ in parsed.set_env]
    if parsed.export.upper() not in ("ALL", "NONE"):
        exported += [part.partition("=")[0] for part in parsed.export.split(",") if part]
    names = tuple(name for name in dict.fromkeys(exported) if name != "ALL")
    fields["exported_variables"] = names or None
    parsed.warnings = [
        f"{values.flag(key)} {why}" for key, why in WITHOUT_EFFECT.items() if words.get(key)
    ]
    mail, warnings = parse_mail(words.get("mail_type"), words.get("mail_user"))
    parsed.warnings += warnings
    targets = tuple(map(parse_target, given.lists.get("notify", ()))) + mail
    if targets:
        fields["notify"] = targets
    return parsed


def _given(options: Options) -> values.Given:
    unknown = sorted(set(options) - KNOWN_OPTIONS)
    if unknown:
        raise BadValue(f"There is no option '{unknown[0]}'; see stoker submit --help.")
    return values.Given(
        {key: _word(key, value) for key, value in options.items() if key not in LISTS},
        {key: _list(key, value) for key, value in options.items() if key in LISTS},
    )


def _word(key: str, value: Any) -> str:
    if value is True or (key in SWITCHES and value == ""):
        return "true"
    if isinstance(value, (list, dict)):
        raise BadValue(f"{values.flag(key)} takes one value.")
    return "" if value is None or value is False else str(value)


def _list(key: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"{name}={text}" for name, text in value.items()]
    if not isinstance(value, str | list):
        raise BadValue(f"{values.flag(key)} takes text, or a list of it.")
    return [value] if isinstance(value, str) else list(map(str, value))


def _other_fields(given: values.Given) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    words = given.words
    if labels := given.lists.get("label"):
        fields["labels"] = tuple(labels)
    if alarms := given.lists.get("alarm"):
        fields["alarms"] = tuple(parse_rule(text, "--alarm") for text in alarms)
    if given.has_any(("retries", "retry_on", "requeue", "no_requeue")):
        rule = parse_retry(words.get("retries"), words.get("retry_on"), given.is_set("requeue"))
        fields["retry"] = Retry() if given.is_set("no_requeue") else rule
    if given.has_any(("slurm_env", "no_slurm_env")):
        fields["slurm"] = given.is_set("slurm_env") and not given.is_set("no_slurm_env")
    if "cpus" in words and not given.is_set("no_threads"):
        cores = parse_amount(words["cpus"], "--cpus")
        fields["threads"] = max(cores // THOUSAND, 1) if cores else None
    return fields


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name) or "\0" in value:
        raise BadValue(f"--env '{text}' is not an assignment; write NAME=VALUE.")
    return name, value


def parse_array(text: str) -> tuple[tuple[int, ...], int | None]:
    """Parse Slurm's `0-15:4%4` or `1,3,7-9`: the indexes, and the limit of running members."""
    listed, percent, limit = text.strip().partition("%")
    if percent and not (limit.isdecimal() and len(limit) <= 7 and int(limit)):
        raise BadValue(f"--array '{text}' has no number after '%'; write 0-15%4.")
    indexes: set[int] = set()
    for part in listed.split(","):
        match = re.fullmatch(r"\s*(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?\s*", part)
        if not match:
            raise BadValue(f"--array '{text}' is not a list; write 0-15, 0-15:4%4 or 1,3,7.")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or not step:
            raise BadValue(f"--array '{part}' is empty; write the smaller index first.")
        indexes.update(range(first, last + 1, step)[: MAX_ARRAY_SIZE + 1])
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
    count = values.parse_count(seconds or "60", "--signal")
    return EarlySignal(parse_signal(name), count, to_script)


def parse_retry(limit_text: str | None, on_text: str | None, requeue: bool | None) -> Retry:
    """Parse `--retries 3 --retry-on oom,lost,exit:3` and Slurm's `--requeue`."""
    if limit_text is not None and not (limit_text.isdecimal() and len(limit_text) <= 6):
        raise BadValue(f"--retries '{limit_text}' is not a count; write a whole number.")
    on: list[str] = []
    for typed in filter(None, (w.strip().lower() for w in (on_text or "").split(","))):
        is_code = typed.isdecimal() and len(typed) <= 3
        word = f"exit:{int(typed)}" if is_code else typed
        known = word in ("any", "fail", "oom", "lost", "timeout", "signal")
        if not known and not re.fullmatch(r"exit:\d{1,3}", word):
            raise BadValue(
                f"--retry-on '{word}' is not known; "
                "write any, fail, oom, lost, timeout, signal or an exit code."
            )
        on.append(word)
    if limit_text is not None:
        return Retry(int(limit_text), tuple(on) or ("any",))
    if on:
        return Retry(3, tuple(on))
    return Retry(3, ("lost",)) if requeue else Retry()
