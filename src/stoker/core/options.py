"""What people ask for on a command line, read once into exact values."""

from __future__ import annotations

import itertools
import re
import signal as signals
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from stoker.core import training_options
from stoker.core.carrying import afar
from stoker.core.dependency import parse_dependency
from stoker.core.job import EarlySignal, Retry, Spec, Tasks
from stoker.core.request import GpuAsk, Request, parse_gpus, parse_models, parse_names
from stoker.core.retry import parse_retry
from stoker.core.units import (
    THOUSAND,
    BadValue,
    parse_amount,
    parse_duration,
    parse_memory,
    parse_moment,
)

Options = dict[str, Any]
LARGEST_ARRAY = 100_000


class Context(Struct):
    """What reading needs to know besides the words."""

    now: float
    resolve: Callable[[str], list[int]]
    """Ids behind a selector."""
    singleton: Callable[[str], list[int]]
    """Unfinished jobs of this user with this name."""


class Wanted(Struct):
    """What the options come to. `fields` are those of the spec that were mentioned."""

    fields: dict[str, Any]
    request: Request
    priority: int | None = None
    held: bool = False
    begin_at: float | None = None
    indexes: tuple[int, ...] | None = None
    set_env: tuple[tuple[str, str], ...] = ()
    export: str = "ALL"
    warnings: list[str] = []
    needs_no_gpu: bool = False
    """Whether it also runs where there is no GPU at all, though it would take one."""


KNOWN = {
    "name", "output", "error", "chdir", "time", "queue", "nodes", "ntasks", "ntasks_per_node",
    "cpus", "mem", "mem_per_cpu", "mem_per_gpu", "gpus", "gpus_per_node", "gpus_per_task", "gres",
    "gpu_memory", "gpus_min_vram", "gpu_model", "use_gpus", "prefer_gpus", "avoid_gpus",
    "resources", "constraint", "nodelist", "exclude", "exclusive", "array", "dependency", "begin",
    "deadline", "hold", "priority", "nice", "qos", "account", "requeue", "no_requeue", "retries",
    "retry_on", "signal", "export", "mail_type", "mail_user", "comment", "label", "group", "env",
    "slurm_env", "no_slurm_env", "delay", "pty", "on_end", "time_request", "explicit", "feed",
    "client", "share", "verbatim", "send", "no_send", "bring", "no_bring", "bring_into",
    "leave_out", "if_unreachable", "no_threads",
} | training_options.KNOWN  # fmt: skip


def read(options: Options, context: Context, before: Spec | None = None) -> Wanted:
    """Read submit or edit options; `before` is what an edit starts from."""
    unknown = sorted(set(options) - KNOWN)
    if unknown:
        raise BadValue(f"There is no option '{unknown[0]}'; see stoker submit --help.")
    for key in _LISTS & set(options):
        if not isinstance(options[key], str | list | dict):
            raise BadValue(f"--{key} takes text, or a list of it.")
    words = {key: _text(key, value) for key, value in options.items() if key not in _LISTS}
    fields = _plain_fields(words, options)
    fields |= training_options.fields_of(words, options, before)
    if {"ntasks", "ntasks_per_node"} & set(words):
        fields["tasks"] = _tasks(words, before.request if before is not None else None)[1]
    wanted = Wanted(fields=fields, request=_request(words, options, before))
    wanted.needs_no_gpu = before is None and training_options.needs_no_gpu(words, options)
    if "priority" in words:
        wanted.priority = _integer(words["priority"], "--priority")
    elif "nice" in words:
        wanted.priority = -_integer(words["nice"] or "100", "--nice")
    wanted.held = _on(options, "hold")
    for key in ("begin", "delay"):
        if key in words:
            moment = parse_moment(words[key], context.now, f"--{key}")
            wanted.begin_at = moment if moment > context.now else None
    if "deadline" in words:
        fields["deadline_at"] = parse_moment(words["deadline"], context.now, "--deadline")
        if fields["deadline_at"] <= context.now:
            raise BadValue(f"--deadline '{words['deadline']}' has already passed.")
        if context.now + (fields.get("limit") or 0) > fields["deadline_at"]:
            raise BadValue("The time limit is longer than the time until --deadline.")
    if "array" in words:
        wanted.indexes, fields["array_limit"] = parse_array(words["array"])
        fields["array_size"] = len(wanted.indexes)
        fields["array_range"] = _array_range(wanted.indexes)
    if "dependency" in words:
        name = words.get("name", "")
        fields["dependency"] = parse_dependency(
            words["dependency"], context.resolve, lambda: context.singleton(name)
        )
    wanted.export = words.get("export", "ALL")
    wanted.set_env = tuple(_assignments(options.get("env", [])))
    asked = [name for name, _ in wanted.set_env]
    if wanted.export.upper() not in ("ALL", "NONE"):
        asked += [part.partition("=")[0] for part in wanted.export.split(",") if part]
    fields["asked"] = tuple(name for name in dict.fromkeys(asked) if name != "ALL") or None
    wanted.warnings = _ignored(words)
    return wanted


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


def _on(options: Options, key: str) -> bool:
    return options.get(key) not in (None, False, "false", "no", "0")


def _integer(text: str, what: str) -> int:
    if not re.fullmatch(r"[+-]?\d+", text.strip(), re.ASCII):
        raise BadValue(f"{what} '{text}' is not a whole number.")
    if len(text.strip().lstrip("+-")) > 9:
        raise BadValue(f"{what} '{text[:20]}' is too large a number.")
    return int(text)


def _count(text: str, what: str) -> int:
    number = _integer(text, what)
    if number < 1:
        raise BadValue(f"{what} must be at least 1.")
    return number


def _plain_fields(words: dict[str, str], options: Options) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, field in (
        ("name", "name"), ("output", "output"), ("error", "error"), ("chdir", "directory"),
        ("queue", "queue"), ("comment", "comment"), ("group", "group"), ("on_end", "on_end"),
        ("feed", "feed"), ("client", "door"), ("account", "account"),
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
    if "signal" in words:
        fields["warning"] = parse_warning(words["signal"])
    labels = options.get("label", [])
    if labels:
        listed = [labels] if isinstance(labels, str) else labels
        fields["labels"] = tuple(str(label) for label in listed)
    if {"retries", "retry_on", "requeue", "no_requeue"} & set(words):
        rule = parse_retry(words.get("retries"), words.get("retry_on"), _on(options, "requeue"))
        fields["retry"] = Retry() if _on(options, "no_requeue") else rule
    fields |= afar(words, options)
    if "slurm_env" in words or "no_slurm_env" in words:
        fields["slurm"] = _on(options, "slurm_env") and not _on(options, "no_slurm_env")
    for key in ("pty", "verbatim"):
        if key in words:
            fields[key] = _on(options, key)
    if "cpus" in words and not _on(options, "no_threads"):
        cores = parse_amount(words["cpus"], "--cpus")
        fields["threads"] = max(cores // THOUSAND, 1) if cores else None
    return fields


def _request(words: dict[str, str], options: Options, before: Spec | None) -> Request:
    base = before.request if before is not None else None
    nodes, layout = _tasks(words, base)
    tasks = -(-layout.total // nodes) if layout is not None else 1
    ask = _gpu_ask(words, options, base.gpus if base else None, tasks)
    ask = training_options.shaped(ask, words, options, before)
    cpus = base.cpus if base else 0
    if "cpus" in words:
        cpus = parse_amount(words["cpus"], "--cpus") * tasks
    elif tasks > 1:
        cpus = tasks * THOUSAND
    elif base is None and not (ask and ask.amount) and not _on(options, "exclusive"):
        cpus = THOUSAND  # a job without GPUs is bounded by the cores
    memory = base.memory if base else 0
    if "mem" in words:
        memory = parse_memory(words["mem"], "--mem")
    elif "mem_per_cpu" in words:
        memory = parse_memory(words["mem_per_cpu"], "--mem-per-cpu") * max(cpus // THOUSAND, 1)
    elif "mem_per_gpu" in words:
        gpus = -(-ask.amount // THOUSAND) if ask else 0
        memory = parse_memory(words["mem_per_gpu"], "--mem-per-gpu") * gpus
    named = base.named if base else ()
    if "resources" in options:
        named = _named(options["resources"])
        taken = {"gpu", "cpu", "mem"} & {name for name, _ in named}
        for name in taken:
            raise BadValue(f"Ask for {name} with --{'gpus' if name == 'gpu' else name}.")
    if nodes > 1 and ask is not None and words.get("gpus") and not words.get("gpus_per_node"):
        if ask.amount % (nodes * THOUSAND):
            raise BadValue(
                f"--gpus {words['gpus']} cannot be divided evenly among {nodes} nodes;"
                " use --gpus-per-node."
            )
        ask = replace(ask, amount=ask.amount // nodes)
    ask = training_options.several(ask, nodes)
    return Request(
        gpus=ask,
        cpus=cpus,
        memory=memory,
        named=named,
        exclusive=_on(options, "exclusive") or bool(base and base.exclusive),
        nodes=_machines(words, "nodelist", base.nodes if base else ()),
        not_nodes=_machines(words, "exclude", base.not_nodes if base else ()),
        machines=nodes,
    )


def _machines(words: dict[str, str], key: str, before: tuple[str, ...]) -> tuple[str, ...]:
    """Machines by name; none if nothing is named, and as before if it is not mentioned."""
    if key not in words:
        return before
    return parse_names(words[key], f"--{key}") if words[key] else ()


def _tasks(words: dict[str, str], base: Request | None) -> tuple[int, Tasks | None]:
    """Return the number of nodes, and the tasks if a number of them is requested."""
    nodes = base.machines if base else 1
    if words.get("nodes"):
        nodes = _count(words["nodes"].partition("-")[0], "--nodes")
    total = _count(words["ntasks"], "--ntasks") if words.get("ntasks") else None
    per_node = None
    if words.get("ntasks_per_node"):
        per_node = _count(words["ntasks_per_node"], "--ntasks-per-node")
        if total is not None and not words.get("nodes"):
            nodes = -(-total // per_node)
    if total is None and per_node is None:
        return nodes, None
    gpus = words.get("gpus_per_task")
    each = parse_gpus(gpus).amount // THOUSAND if gpus else None
    return nodes, Tasks(total or nodes * (per_node or 1), per_node, each or None)


def _gpu_ask(
    words: dict[str, str], options: Options, base: GpuAsk | None, tasks: int
) -> GpuAsk | None:
    ask = base
    for key in ("gpus", "gpus_per_node", "gpus_per_task"):
        if words.get(key):
            ranged = key != "gpus_per_task"
            ask = (training_options.parse_ask if ranged else parse_gpus)(words[key])
    if words.get("gpus_per_task") and ask:
        ask = replace(ask, amount=ask.amount * tasks)
    if words.get("gres"):
        ask = _gres(words["gres"]) or ask
    changes: dict[str, Any] = {}
    if words.get("gpu_model"):
        changes["model"], changes["models"] = parse_models(words["gpu_model"], "--gpu-model")
    if words.get("gpus_min_vram"):
        changes["min_vram"] = parse_memory(words["gpus_min_vram"], "--gpus-min-vram")
    if words.get("gpu_memory"):
        changes["memory"] = parse_memory(words["gpu_memory"], "--gpu-memory")
    for key, field in (("use_gpus", "only"), ("prefer_gpus", "prefer"), ("avoid_gpus", "avoid")):
        if words.get(key):
            changes[field] = parse_names(words[key], f"--{key.replace('_', '-')}")
    if _on(options, "explicit"):
        changes["despite_strangers"] = True
    if words.get("share"):
        share = parse_amount(words["share"], "share")
        if not changes.get("only") or not 0 < share <= THOUSAND:
            raise BadValue("share applies to each GPU in use_gpus and is at most 1.")
        changes |= {"share": share, "amount": share * len(changes["only"])}
    if changes:
        ask = replace(ask or GpuAsk(THOUSAND), **changes)
    return ask if ask is None or ask.amount or changes else None


def _gres(text: str) -> GpuAsk | None:
    """Slurm's `--gres=gpu:a100:2`; other generic resources are not ours."""
    for part in text.split(","):
        words = part.strip().split(":")
        if words[0] == "gpu":
            return parse_gpus(":".join(words[1:]) or "1")
    raise BadValue(f"--gres '{text}' has no gpu; write gpu:2 or gpu:a100:2.")


def _named(value: Any) -> tuple[tuple[str, int], ...]:
    if isinstance(value, str):
        pairs = []
        for part in filter(None, (piece.strip() for piece in value.strip("{} ").split(","))):
            name, equals, amount = part.replace(":", "=", 1).partition("=")
            if not equals:
                raise BadValue(f"--resources '{part}' has no amount; write licence=1.")
            pairs.append((name.strip(" '\""), amount.strip(" '\"")))
    elif isinstance(value, dict):
        pairs = [(str(name), str(amount)) for name, amount in value.items()]
    else:
        raise BadValue("--resources takes names with amounts, such as licence=1.")
    for name, _ in pairs:
        if not re.fullmatch(r"[A-Za-z_][\w.-]{0,63}", name):
            raise BadValue(f"Resource '{name}' is not a name; use letters, digits, _, - and .")
    found = {name: parse_amount(amount, name) for name, amount in pairs}
    return tuple(sorted((name, amount) for name, amount in found.items() if amount))


def _assignments(value: Any) -> list[tuple[str, str]]:
    listed = [value] if isinstance(value, str) else value
    if isinstance(listed, dict):
        listed = [f"{name}={text}" for name, text in listed.items()]
    pairs = []
    for each in listed:
        name, equals, text = str(each).partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name) or "\0" in text:
            raise BadValue(f"--env '{each}' is not an assignment; write NAME=VALUE.")
        pairs.append((name, text))
    return pairs


def parse_array(text: str) -> tuple[tuple[int, ...], int | None]:
    """Read Slurm's `0-15:4%4` or `1,3,7-9`: the indexes, and how many may run at once."""
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
        if last is not None and (last - first) // (step or 1) >= LARGEST_ARRAY:
            raise BadValue(f"--array '{text}' is too large; at most {LARGEST_ARRAY} members.")
        indexes.update(
            dict.fromkeys(range(first, (last if last is not None else first) + 1, step or 1))
        )
    if len(indexes) > LARGEST_ARRAY:
        raise BadValue(f"--array '{text}' is too large; at most {LARGEST_ARRAY} members.")
    return tuple(sorted(indexes)), int(limit) if percent else None


def _array_range(indexes: tuple[int, ...]) -> tuple[int, int, int]:
    """Return first index, last index and step; a list without one step has step 1, as in Slurm."""
    steps = {after - before for before, after in itertools.pairwise(indexes)}
    return indexes[0], indexes[-1], steps.pop() if len(steps) == 1 else 1


def parse_signal(text: str) -> int:
    """Read `USR1`, `SIGUSR1` or `10`."""
    word = text.strip().upper()
    if word.isdecimal() and 0 < int(word) < 65:
        return int(word)
    try:
        return int(signals.Signals[word if word.startswith("SIG") else f"SIG{word}"])
    except KeyError:
        raise BadValue(f"There is no signal '{text}'; write USR1, TERM or a number.") from None


def parse_warning(text: str) -> EarlySignal:
    """Read Slurm's `--signal=[B:]USR1[@120]`."""
    name, _, seconds = text.removeprefix("B:").removeprefix("b:").partition("@")
    return EarlySignal(parse_signal(name), _count(seconds or "60", "--signal"))


WITHOUT_EFFECT = {
    "qos": "has no effect",
    "mail_type": "is not sent; use --on-end or the on_end hook",
    "mail_user": "is not sent; use --on-end or the on_end hook",
    "constraint": "has no effect; use --gpu-model",
    "time_request": "has no effect; use --time",
}
"""Options that are accepted for sbatch scripts, and the warning about each."""


def _ignored(words: dict[str, str]) -> list[str]:
    given = ((key, why) for key, why in WITHOUT_EFFECT.items() if words.get(key))
    return [f"--{key.replace('_', '-')} {why}" for key, why in given]
