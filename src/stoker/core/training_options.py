"""The options of training jobs: epochs, sizes, shared and elastic GPUs, images."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from stoker.core.job import Container, Mount, Spec, Training
from stoker.core.request import GpuAsk, parse_gpus
from stoker.core.units import THOUSAND, BadValue, parse_amount, parse_duration

SWITCHES = {"single_gpu", "exclusive_gpu", "distributed", "gpu_if_any"}
LISTS = {"mount"}
MAKES_IT_TRAINING = {
    "epochs", "batch_size", "training_set_size", "expect", "single_gpu", "exclusive_gpu",
    "snapshots_dir", "distributed",
}  # fmt: skip
KNOWN = MAKES_IT_TRAINING | {"image", "mount", "ports", "workdir", "gpu_if_any"}
GPU_COUNTS = ("gpus", "gpus_per_node", "gpus_per_task", "gres")
GPU_KINDS = ("gpu_model", "gpus_min_vram", "gpu_memory", "use_gpus", "prefer_gpus", "avoid_gpus")
ALL_OF_A_MACHINE = 64 * THOUSAND
"""No machine has more GPUs: an elastic job may have as many as there are."""
OURS_INSIDE = {
    "/snapshots": "is the directory of checkpoints; set it with --snapshots-dir",
    "/stoker": "is reserved for stoker",
}
"""Directories in a container that are taken."""
LONGEST_IMAGE = 512


def on(options: Mapping[str, Any], key: str) -> bool:
    """Whether a switch is set."""
    return options.get(key) not in (None, False, "false", "no", "0")


def fields_of(
    words: Mapping[str, str], options: Mapping[str, Any], before: Spec | None
) -> dict[str, Any]:
    """The fields of the spec that were mentioned; `before` is the job that an edit changes."""
    found: dict[str, Any] = {}
    training = _training(words, options, before.training if before is not None else None)
    if training is not None:
        found["training"] = training
    container = _container(words, options, before.container if before is not None else None)
    if container is not None:
        found["container"] = container
    if "requeue" in words or "no_requeue" in words:
        found["steady"] = on(options, "no_requeue")
        found["restartable"] = on(options, "requeue") and not found["steady"]
    return found


# ----------------------------------------------------------------------------- training


def _training(
    words: Mapping[str, str], options: Mapping[str, Any], before: Training | None
) -> Training | None:
    if not MAKES_IT_TRAINING & set(words):
        return None
    found = before or Training()
    for key, field in (
        ("epochs", "epochs"),
        ("batch_size", "batch_size"),
        ("training_set_size", "set_size"),
    ):
        if key in words:
            found = replace(found, **{field: _count(words[key], _flag(key))})
    if "expect" in words:
        seconds = parse_duration(words["expect"], "--expect") if words["expect"] else None
        if seconds == 0:
            raise BadValue("--expect must be longer than 0; write 3h or 90m.")
        found = replace(found, expected=seconds)
    if "snapshots_dir" in words:
        found = replace(found, snapshots=_directory(words["snapshots_dir"], "--snapshots-dir"))
    if "distributed" in words:
        found = replace(found, distributed=on(options, "distributed"))
    return found


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _count(text: str, what: str) -> int | None:
    """A number from one on; an empty text takes back what was said before."""
    text = text.strip()
    if not text:
        return None
    if not re.fullmatch(r"\d{1,12}", text, re.ASCII) or not int(text):
        raise BadValue(f"{what} '{text[:20]}' is not a whole number of at least 1.")
    return int(text)


def _directory(text: str, what: str) -> str | None:
    if text and (not text.startswith("/") or "\0" in text):
        raise BadValue(f"{what} '{text}' must be an absolute directory.")
    return text.rstrip("/") or "/" if text else None


# --------------------------------------------------------------------------------- GPUs


def parse_ask(text: str) -> GpuAsk:
    """Read a number of GPUs, or a range of them: `1..4`, `a100:2..8`, `1..` for all there are."""
    text = text.strip()
    head, colon, tail = text.rpartition(":")
    match = re.fullmatch(r"([\d.]*\d)\.\.([\d.]*)", tail)
    if not match:
        return parse_gpus(text)
    least, most = parse_amount(match[1], "--gpus"), ALL_OF_A_MACHINE
    if match[2]:
        most = parse_amount(match[2], "--gpus")
    if least % THOUSAND or most % THOUSAND or not least:
        raise BadValue(f"--gpus '{text}' is not a range of whole GPUs; write 1..4.")
    if most < least:
        raise BadValue(f"--gpus '{text}' is reversed; write the smaller number first.")
    ask = parse_gpus(f"{head}{colon}{least // THOUSAND}")
    return replace(ask, most=most if most > least else None)


def shaped(
    ask: GpuAsk | None, words: Mapping[str, str], options: Mapping[str, Any], before: Spec | None
) -> GpuAsk | None:
    """The GPUs of a training job: shared by memory, and any number of them, unless it says no."""
    was = before is not None and before.training is not None
    if not was and not MAKES_IT_TRAINING & set(words):
        return ask
    counted = any(words.get(key) for key in GPU_COUNTS)
    if on(options, "single_gpu"):
        if counted and ask is not None and (ask.amount > THOUSAND or ask.most is not None):
            raise BadValue("--single-gpu and --gpus contradict each other; leave one of them out.")
        if not counted:
            ask = replace(ask or GpuAsk(THOUSAND), amount=THOUSAND)
        ask = replace(ask, most=None) if ask is not None else None
    elif before is None and not counted and not on(options, "exclusive"):
        elastic = bool(words.get("epochs")) and not words.get("share")
        ask = ask or GpuAsk(THOUSAND)
        ask = replace(ask, most=ALL_OF_A_MACHINE if elastic else None)
    if ask is None or not ask.amount:
        return ask
    divided = bool(ask.amount % THOUSAND) or ask.share is not None
    if on(options, "exclusive_gpu") and divided:
        raise BadValue("--exclusive-gpu asks for whole GPUs, not for a part of one.")
    fresh = counted or not was or "exclusive_gpu" in words or "single_gpu" in words
    if not fresh:
        return ask
    alone = on(options, "exclusive_gpu") or on(options, "exclusive")
    if was and "exclusive_gpu" not in words:
        # Whether it shares was said when it was submitted; a new number does not take it back.
        asked = before.request.gpus if before is not None else None
        alone = asked is not None and not asked.beside and not asked.amount % THOUSAND
    return replace(ask, beside=not divided and not alone)


def several(ask: GpuAsk | None, machines: int) -> GpuAsk | None:
    """The same on several machines, each of which has an equal and fixed part."""
    if ask is None or ask.most is None or machines == 1:
        return ask
    if ask.most != ALL_OF_A_MACHINE:
        raise BadValue("A range of GPUs works on one node only; with --nodes, give a number.")
    return replace(ask, most=None)


def needs_no_gpu(words: Mapping[str, str], options: Mapping[str, Any]) -> bool:
    """Whether a training job said nothing about GPUs, so that it also runs without one."""
    if on(options, "gpu_if_any"):
        return True
    if not MAKES_IT_TRAINING & set(words) or on(options, "single_gpu"):
        return False
    return not any(words.get(key) for key in (*GPU_COUNTS, *GPU_KINDS, "share", "mem_per_gpu"))


# --------------------------------------------------------------------------- containers


def _container(
    words: Mapping[str, str], options: Mapping[str, Any], before: Container | None
) -> Container | None:
    mentioned = {"image", "mount", "ports", "workdir"} & set(options)
    if not mentioned:
        return None
    if "image" in mentioned and not words.get("image"):
        raise BadValue("--image is empty; give the name of an image.")
    image = words.get("image") or (before.image if before is not None else "")
    if not image:
        only = "mount" if "mount" in mentioned else "ports"
        raise BadValue(f"--{only} needs a container; add --image.")
    if not re.fullmatch(r"[\w][^\s\0]*", image) or len(image) > LONGEST_IMAGE:
        raise BadValue(f"--image '{image[:80]}' is not a valid image name.")
    found = replace(before, image=image) if before is not None else Container(image)
    if "mount" in options:
        found = replace(found, mounts=_mounts(options["mount"]))
    if "ports" in words:
        found = replace(found, ports=parse_ports(words["ports"]) if words["ports"] else ())
    if "workdir" in words:
        found = replace(found, here=words["workdir"] != "image")
    return found


def _mounts(value: Any) -> tuple[Mount, ...]:
    listed = [value] if isinstance(value, str) else list(value or ())
    found = tuple(parse_mount(str(each)) for each in listed if each)
    targets = [mount.target for mount in found]
    for target in targets:
        if targets.count(target) > 1:
            raise BadValue(f"--mount has {target} twice.")
    return found


def parse_mount(text: str) -> Mount:
    """Read `SRC:DST`, `SRC:DST:ro`; `optional` leaves it out where there is no such directory."""
    source, _, rest = text.partition(":")
    target, _, how = rest.partition(":")
    words = {word for word in how.split(",") if word}
    if not source or not target or words - {"ro", "rw", "optional"} or {"ro", "rw"} <= words:
        raise BadValue(f"--mount '{text}' is not valid; write SRC:DST or SRC:DST:ro.")
    for path in (source, target):
        if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
            raise BadValue(f"--mount '{text}': {path} is not an absolute path.")
    target = target.rstrip("/")
    if not target:
        raise BadValue(f"--mount '{text}' would hide all of the image.")
    for taken, why in OURS_INSIDE.items():
        if target == taken or target.startswith(f"{taken}/"):
            raise BadValue(f"--mount '{text}': {taken} {why}.")
    return Mount(source, target, "ro" in words, "optional" in words)


def parse_ports(text: str) -> tuple[tuple[int, int], ...]:
    """Read `31346:6006,31347:8888`: ports of the machine, each with one in the container."""
    found: list[tuple[int, int]] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,5}):(\d{1,5})\s*", part, re.ASCII)
        if not match or not all(0 < int(number) < 65536 for number in match.groups()):
            raise BadValue(f"--ports '{text}' is not valid; write 31346:6006,31347:8888.")
        found.append((int(match[1]), int(match[2])))
    outside = [port for port, _ in found]
    for port in outside:
        if outside.count(port) > 1:
            raise BadValue(f"--ports '{text}' has host port {port} twice.")
    return tuple(found)
