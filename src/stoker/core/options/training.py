"""Options of training jobs: epochs, sizes, shared and elastic GPUs, containers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from stoker.core.model.resources import GpuRequest, parse_gpus
from stoker.core.model.spec import Container, Mount, Spec, Training
from stoker.core.model.units import THOUSAND, BadValue, parse_amount, parse_duration
from stoker.core.options import values

GPU_COUNTS = ("gpus", "gpus_per_node", "gpus_per_task", "gres")
GPU_KINDS = ("gpu_model", "gpus_min_vram", "gpu_memory", "use_gpus", "prefer_gpus", "avoid_gpus")
GPU_RANGE = r"([\d.]*\d)\.\.([\d.]*)"
MAX_GPUS_PER_NODE = 64 * THOUSAND
"""Thousandths; more than any node has: an elastic job may get all GPUs of a node."""
RESERVED_TARGETS = {
    "/snapshots": "is the directory of checkpoints; set it with --snapshots-dir",
    "/stoker": "is reserved for stoker",
}
"""Directories in a container that cannot be mounted, and why."""


def training_fields(given: values.Given, before: Spec | None) -> dict[str, Any]:
    """Return the fields of the spec that were given; `before` is the spec that an edit changes."""
    fields: dict[str, Any] = {}
    if given.has_any(TRAINING_OPTIONS) or is_gpu_range(given):
        training = before.training if before is not None else None
        changes = values.parse_fields(TRAINING_FIELDS, given.words)
        fields["training"] = replace(training or Training(), **changes)
    if given.has_any(CONTAINER_OPTIONS):
        fields["container"] = _container(given, before.container if before is not None else None)
    if given.has_any(("requeue", "no_requeue")):
        fields["non_preemptible"] = given.is_set("no_requeue")
        fields["requeueable"] = given.is_set("requeue") and not fields["non_preemptible"]
    return fields


def _expected_duration(text: str, what: str) -> int | None:
    seconds = parse_duration(text, what) if text else None
    if seconds == 0:
        raise BadValue(f"{what} must be longer than 0; write 3h or 90m.")
    return seconds


def _directory(text: str, what: str) -> str | None:
    if text and (not text.startswith("/") or "\0" in text):
        raise BadValue(f"{what} '{text}' must be an absolute directory.")
    return text.rstrip("/") or "/" if text else None


TRAINING_FIELDS: values.FieldParsers = {
    "epochs": ("epochs", values.parse_optional_count),
    "batch_size": ("batch_size", values.parse_optional_count),
    "training_set_size": ("set_size", values.parse_optional_count),
    "expect": ("expected", _expected_duration),
    "snapshots_dir": ("snapshots", _directory),
    "distributed": ("distributed", values.parse_switch),
}
TRAINING_OPTIONS = {*TRAINING_FIELDS, "single_gpu", "exclusive_gpu"}
"""Options that make a training job."""
CONTAINER_OPTIONS = {"image", "mount", "ports", "workdir"}


# --------------------------------------------------------------------------------- GPUs


def parse_gpu_range(text: str) -> GpuRequest:
    """Parse a number of GPUs, or a range: `1..4`, `a100:2..8`, `1..` without an upper limit."""
    text = text.strip()
    head, colon, tail = text.rpartition(":")
    match = re.fullmatch(GPU_RANGE, tail)
    if not match:
        return parse_gpus(text)
    min_gpus = parse_amount(match[1], "--gpus")
    max_gpus = parse_amount(match[2], "--gpus") if match[2] else MAX_GPUS_PER_NODE
    if min_gpus % THOUSAND or max_gpus % THOUSAND or not min_gpus:
        raise BadValue(f"--gpus '{text}' is not a range of whole GPUs; write 1..4.")
    if max_gpus < min_gpus:
        raise BadValue(f"--gpus '{text}' is reversed; write the smaller number first.")
    request = parse_gpus(f"{head}{colon}{min_gpus // THOUSAND}")
    return replace(request, max_amount=max_gpus if max_gpus > min_gpus else None)


def is_gpu_range(given: values.Given) -> bool:
    """Whether `--gpus` is a range: only a training job can change the number of its GPUs."""
    number = given.words.get("gpus", "").strip().rpartition(":")[2]
    return re.fullmatch(GPU_RANGE, number) is not None


def training_gpu_request(
    request: GpuRequest | None, given: values.Given, before: Spec | None
) -> GpuRequest | None:
    """Return the GPU request of a training job: by default shareable; elastic with epochs."""
    is_edit = before is not None and before.training is not None
    words = given.words
    if not is_edit and not given.has_any(TRAINING_OPTIONS):
        return request
    counted = any(words.get(key) for key in GPU_COUNTS)
    if given.is_set("single_gpu"):
        single = request is None or (request.amount <= THOUSAND and request.max_amount is None)
        if counted and not single:
            raise BadValue("--single-gpu and --gpus contradict each other; leave one of them out.")
        if not counted:
            request = replace(request or GpuRequest(THOUSAND), amount=THOUSAND)
        request = replace(request, max_amount=None) if request is not None else None
    elif before is None and not counted and not given.is_set("exclusive"):
        elastic = bool(words.get("epochs")) and not words.get("share")
        request = request or GpuRequest(THOUSAND)
        request = replace(request, max_amount=MAX_GPUS_PER_NODE if elastic else None)
    if request is None or not request.amount:
        return request
    fractional = bool(request.amount % THOUSAND) or request.fixed_share is not None
    if given.is_set("exclusive_gpu") and fractional:
        raise BadValue("--exclusive-gpu asks for whole GPUs, not for a part of one.")
    chosen = counted or not is_edit or "exclusive_gpu" in words or "single_gpu" in words
    if not chosen:
        return request
    exclusive = given.is_set("exclusive_gpu") or given.is_set("exclusive")
    if is_edit and "exclusive_gpu" not in words:
        # Sharing was chosen at submission; another number of GPUs does not change it.
        old = before.request.gpus if before is not None else None
        exclusive = old is not None and not old.shareable and not old.amount % THOUSAND
    return replace(request, shareable=not fractional and not exclusive)


def needs_no_gpu(given: values.Given) -> bool:
    """Whether a training job does not mention GPUs, so that it may run without one."""
    if given.is_set("gpu_if_any"):
        return True
    if not given.has_any(TRAINING_OPTIONS) or given.is_set("single_gpu"):
        return False
    return not any(
        given.words.get(key) for key in (*GPU_COUNTS, *GPU_KINDS, "share", "mem_per_gpu")
    )


# --------------------------------------------------------------------------- containers


def _container(given: values.Given, before: Container | None) -> Container:
    words = given.words
    if "image" in words and not words["image"]:
        raise BadValue("--image is empty; give the name of an image.")
    image = words.get("image") or (before.image if before is not None else "")
    if not image:
        only = "mount" if "mount" in given.lists else "ports"
        raise BadValue(f"--{only} needs a container; add --image.")
    if not re.fullmatch(r"\w[^\s\0]{0,511}", image):
        raise BadValue(f"--image '{image[:80]}' is not a valid image name.")
    changes: dict[str, Any] = {"image": image}
    if "mount" in given.lists:
        mounts = tuple(parse_mount(text) for text in given.lists["mount"] if text)
        if target := _first_repeated([mount.target for mount in mounts]):
            raise BadValue(f"--mount has {target} twice.")
        changes["mounts"] = mounts
    if "ports" in words:
        changes["ports"] = parse_ports(words["ports"]) if words["ports"] else ()
    if "workdir" in words:
        changes["in_job_directory"] = words["workdir"] != "image"
    return replace(before or Container(image), **changes)


def _first_repeated(items: Sequence[object]) -> object | None:
    return next((item for item in items if items.count(item) > 1), None)


def parse_mount(text: str) -> Mount:
    """Parse `SRC:DST` or `SRC:DST:ro`; with `optional`, a missing directory is not mounted."""
    source, _, tail = text.partition(":")
    target, _, how = tail.partition(":")
    words = {word for word in how.split(",") if word}
    if not source or not target or words - {"ro", "rw", "optional"} or {"ro", "rw"} <= words:
        raise BadValue(f"--mount '{text}' is not valid; write SRC:DST or SRC:DST:ro.")
    for path in (source, target):
        if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
            raise BadValue(f"--mount '{text}': {path} is not an absolute path.")
    target = target.rstrip("/")
    if not target:
        raise BadValue(f"--mount '{text}' would hide all of the image.")
    for taken, why in RESERVED_TARGETS.items():
        if target == taken or target.startswith(f"{taken}/"):
            raise BadValue(f"--mount '{text}': {taken} {why}.")
    return Mount(source, target, "ro" in words, "optional" in words)


def parse_ports(text: str) -> tuple[tuple[int, int], ...]:
    """Parse `31346:6006,31347:8888`: pairs of host port and container port."""
    ports: list[tuple[int, int]] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,5}):(\d{1,5})\s*", part, re.ASCII)
        if not match or not all(0 < int(number) < 65536 for number in match.groups()):
            raise BadValue(f"--ports '{text}' is not valid; write 31346:6006,31347:8888.")
        ports.append((int(match[1]), int(match[2])))
    if port := _first_repeated([port for port, _ in ports]):
        raise BadValue(f"--ports '{text}' has host port {port} twice.")
    return tuple(ports)
