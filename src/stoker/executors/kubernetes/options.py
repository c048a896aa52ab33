"""Options of a Kubernetes cluster: how it is reached, and what its pods and pilots are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from stoker.core.events import NodeAdded
from stoker.core.model.hardware import POOL_PREFIX, DeviceFacts, NodeFacts
from stoker.core.model.resources import CPU, GPU, MEMORY
from stoker.core.model.units import (
    THOUSAND,
    BadValue,
    approximate_duration,
    parse_duration,
    parse_memory,
)
from stoker.core.placement.horizon import END_GRACE_SECONDS
from stoker.executors.kubernetes.handover.pod_template import PodTemplate, VolumeRule

SCHEME = "kubernetes://"
MIN_AHEAD, MAX_AHEAD = 8, 200
"""Attempts that may be pending in the cluster."""
START_SECONDS, MIN_SECONDS = 60, 300
"""Time until a job starts in a new pilot, and the shortest time limit that is of use."""
DEFAULT_IDLE_SECONDS, DEFAULT_MAX_PILOTS = 300, 1
MAX_COUNT = 4096
"""Of GPUs, cores and pods in --pilot."""
MAX_NAME_LENGTH = 30
"""Of a cluster, whose name is a part of the names and labels of pods."""
KEYS = (
    "pilot", "ahead", "context", "namespace", "kubeconfig", "image", "volumes",
    "priority_classes", "node_selector", "tolerations", "pull_secrets", "queue", "service_account",
    "report_address",
)  # fmt: skip
"""Options of its node; maps and lists are JSON."""
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
TOLERATION_KEYS = ("key", "operator", "value", "effect", "tolerationSeconds")


class KubernetesPilotShape(Struct, frozen=True):
    """One pod that joins as a node, and how many of them there may be."""

    gpus: int = 0
    model: str = ""
    """The value of the node label `nvidia.com/gpu.product`."""
    gpu_memory: int = 0
    """MiB of a GPU, for pods without a GPU driver; 0: unknown."""
    cores: int = 0
    """0: as many as GPUs, at least one."""
    memory: int = 0
    """MiB; 0: no limit of its own."""
    seconds: int = 0
    """Time limit of a pod; 0: none."""
    max_pilots: int = DEFAULT_MAX_PILOTS
    idle_seconds: int = DEFAULT_IDLE_SECONDS
    """A pod without jobs is deleted after this time."""
    image: str = ""

    @property
    def core_count(self) -> int:
        """Cores that a pod requests."""
        return self.cores or max(self.gpus, 1)

    @property
    def usable_seconds(self) -> float:
        """The longest time limit of a job that can start in a new pod."""
        if not self.seconds:
            return float("inf")
        return self.seconds - END_GRACE_SECONDS - START_SECONDS

    def node_facts(self, name: str) -> NodeFacts:
        """Return the resources that such a node has, as far as they are declared."""
        cores = self.core_count * THOUSAND
        types: dict[str, tuple[DeviceFacts, ...]] = {CPU: (DeviceFacts(POOL_PREFIX, cores),)}
        if self.memory:
            types[MEMORY] = (DeviceFacts(POOL_PREFIX, self.memory),)
        if self.gpus:
            types[GPU] = tuple(
                DeviceFacts(
                    str(index), index=index, model=self.model or None,
                    memory=self.gpu_memory or None,
                )
                for index in range(self.gpus)
            )  # fmt: skip
        limit = max(int(self.usable_seconds), 1) if self.seconds else 0
        return NodeFacts(name, types, on_demand=self.max_pilots, max_seconds=limit)


class KubernetesOptions(Struct, frozen=True):
    """What a user says of a Kubernetes cluster."""

    pilot: KubernetesPilotShape
    context: str = ""
    """The context of the kubeconfig; empty: its current one."""
    namespace: str = ""
    """Empty: that of the context."""
    kubeconfig: str = ""
    """Its path; empty: $KUBECONFIG, ~/.kube/config, or the service account of the daemon's pod."""
    image: str = ""
    """The image of pods whose job or pilot names none."""
    volumes: tuple[VolumeRule, ...] = ()
    priority_classes: tuple[tuple[int, str], ...] = ()
    """The PriorityClass of jobs with at least this priority, in ascending order."""
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, Any], ...] = ()
    pull_secrets: tuple[str, ...] = ()
    queue: str = ""
    """The LocalQueue of Kueue."""
    service_account: str = ""
    report_address: str = ""
    """HOST:PORT at which pods reach this daemon; empty: training reports come by their logs."""
    ahead: int | None = None
    """Attempts that may be pending there; None: about twice as many as run there."""

    @property
    def has_pilots(self) -> bool:
        """Whether pods are requested that join as nodes."""
        return self.pilot.max_pilots > 0

    @property
    def hands_over(self) -> bool:
        """Whether attempts become pods: all, or those that no pilot can run."""
        return not self.has_pilots or self.ahead is not None

    def template(self, cluster: str) -> PodTemplate:
        """Return what all pods of the cluster have in common."""
        return PodTemplate(
            cluster, self.image, self.volumes, self.node_selector, self.tolerations,
            self.pull_secrets, self.priority_classes, self.queue,
            service_account=self.service_account,
        )  # fmt: skip


def parse_options(options: Mapping[str, str]) -> KubernetesOptions:
    """Parse the options of a node of the kind `kubernetes`; raise BadValue."""
    unknown = sorted(set(options) - set(KEYS))
    if unknown:
        known = f"{', '.join(KEYS[:-1])} or {KEYS[-1]}"
        raise BadValue(f"A Kubernetes cluster has no option '{unknown[0]}': {known}.")
    image = options.get("image", "")
    if "pilot" in options:
        pilot = parse_pilot(options["pilot"], image)
    else:
        pilot = KubernetesPilotShape(max_pilots=0)
    return KubernetesOptions(
        pilot=pilot,
        context=options.get("context", ""),
        namespace=_name(options.get("namespace", ""), "namespace"),
        kubeconfig=options.get("kubeconfig", ""),
        image=image,
        volumes=parse_volumes(_json(options, "volumes", dict)),
        priority_classes=_priority_classes(_json(options, "priority_classes", dict)),
        node_selector=_labels(_json(options, "node_selector", dict)),
        tolerations=_tolerations(_json(options, "tolerations", list)),
        pull_secrets=tuple(
            _name(each, "pull_secrets") for each in _json(options, "pull_secrets", list)
        ),
        queue=_name(options.get("queue", ""), "queue"),
        service_account=_name(options.get("service_account", ""), "service_account"),
        report_address=_address(options.get("report_address", "")),
        ahead=parse_ahead(options["ahead"]) if "ahead" in options else None,
    )


def _address(text: str) -> str:
    """Return the address of a port, which may be empty; raise BadValue."""
    host, _, port = text.rpartition(":")
    is_port = port.isdecimal() and 0 < int(port) < 1 << 16
    if text and not (is_port and _HOST.fullmatch(host)):
        raise BadValue(f"report_address takes HOST:PORT, not '{text}'.")
    return text


def parse_ahead(text: str) -> int:
    """Parse the number of attempts that may be pending in the cluster; raise BadValue."""
    if not text.isdecimal() or not 0 < int(text) <= MAX_AHEAD:
        raise BadValue(f"--ahead takes a whole number from 1 to {MAX_AHEAD}, not '{text}'.")
    return int(text)


def cluster_addition(
    name: str, options: Mapping[str, str], shared: bool, at: float, configured: bool = False
) -> NodeAdded:
    """Return the event that adds a cluster; raise BadValue."""
    if len(name) > MAX_NAME_LENGTH or not _DNS_NAME.fullmatch(name):
        raise BadValue(
            f"'{name}' cannot be the name of a Kubernetes cluster: use at most {MAX_NAME_LENGTH}"
            " lower-case letters, digits and dashes."
        )
    parse_options(options)
    return NodeAdded(
        at=at, name=name, address=SCHEME, executor="kubernetes", options=dict(options),
        shared=shared, configured=configured,
    )  # fmt: skip


# -- maps ---------------------------------------------------------------------------------


def _json(options: Mapping[str, str], key: str, kind: type) -> Any:
    """Return a map or a list that is stored as JSON."""
    try:
        value = json.loads(options[key]) if key in options else kind()
    except ValueError:
        raise BadValue(f"{key} is not valid JSON.") from None
    if not isinstance(value, kind):
        raise BadValue(f"{key} must be a {'table' if kind is dict else 'list'}.")
    return value


def parse_volumes(given: Mapping[str, Any]) -> tuple[VolumeRule, ...]:
    """Parse `{"/home": "pvc:homes/students", "/data": "hostPath:/srv/data"}`; raise BadValue."""
    rules = []
    for prefix, text in given.items():
        kind, _, source = text.partition(":") if isinstance(text, str) else ("", "", "")
        if not prefix.startswith("/") or ".." in prefix.split("/"):
            raise BadValue(f"volumes: '{prefix}' is not an absolute path.")
        if kind == "pvc":
            claim, slash, path = source.partition("/")
            if claim and _DNS_NAME.fullmatch(claim) and ".." not in path.split("/"):
                rules.append(VolumeRule(prefix, claim, path if slash else ""))
                continue
        if kind.lower() == "hostpath" and source.startswith("/"):
            rules.append(VolumeRule(prefix, path=source))
            continue
        raise BadValue(
            f"volumes: {prefix} takes pvc:CLAIM, pvc:CLAIM/DIRECTORY or hostPath:/DIRECTORY, not"
            f" '{text}'."
        )
    return tuple(rules)


def _priority_classes(given: Mapping[str, Any]) -> tuple[tuple[int, str], ...]:
    classes = []
    for least, name in given.items():
        try:
            classes.append((int(least), _name(name, "priority_classes")))
        except ValueError:
            raise BadValue(
                f'priority_classes: \'{least}\' is not a priority; write "10" = "high".'
            ) from None
    return tuple(sorted(classes))


def _labels(given: Mapping[str, Any]) -> dict[str, str]:
    for name, value in given.items():
        if not isinstance(value, str) or not _LABEL_VALUE.fullmatch(value):
            raise BadValue(f"node_selector: {name} = '{value}' is not the value of a label.")
    return dict(given)


def _tolerations(given: list[Any]) -> tuple[dict[str, Any], ...]:
    for each in given:
        if not isinstance(each, dict) or set(each) - set(TOLERATION_KEYS):
            known = ", ".join(TOLERATION_KEYS)
            raise BadValue(f"tolerations: {json.dumps(each)} must be a table with {known}.")
    return tuple(given)


def _name(text: Any, key: str) -> str:
    """Return the name of an object of Kubernetes, which may be empty."""
    if not isinstance(text, str) or (text and not _DNS_NAME.fullmatch(text)):
        raise BadValue(f"{key}: '{text}' is not a name that Kubernetes accepts.")
    return text


# -- pilots -------------------------------------------------------------------------------


def parse_pilot(text: str, image: str = "") -> KubernetesPilotShape:
    """Parse `gpus=4 image=IMAGE max=8 idle=5m cores=8 mem=32G time=8h vram=40G`."""
    values: dict[str, str] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals or not value or name not in ("gpus", "image", *_PARSERS):
            known = ", ".join(("gpus", "image", *_PARSERS))
            raise BadValue(f"--pilot: '{word}' is not one of {known}, each with =VALUE.")
        if name in values:
            raise BadValue(f"--pilot: {name} is given twice.")
        values[name] = value
    image = values.pop("image", image)
    if not image:
        raise BadValue("--pilot needs image=, the container image of its pods.")
    model, _, gpus = values.pop("gpus", "0").rpartition(":")
    if not _LABEL_VALUE.fullmatch(model):
        raise BadValue(f"--pilot: '{model}' is not a value of the label nvidia.com/gpu.product.")
    fields = {
        field: parse(values[name], name)
        for name, (field, parse) in _PARSERS.items()
        if name in values
    }
    count = 0 if gpus == "0" else _count(gpus, "gpus")
    return KubernetesPilotShape(count, model, image=image, **fields)


def _count(text: str, name: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= MAX_COUNT:
        raise BadValue(f"--pilot: {name} takes a whole number from 1 to {MAX_COUNT}, not '{text}'.")
    return int(text)


def _limit(text: str, name: str) -> int:
    seconds = int(parse_duration(text, name))
    if seconds < MIN_SECONDS:
        least = approximate_duration(MIN_SECONDS)
        raise BadValue(f"--pilot: time= must be at least {least}: no job starts near the end.")
    return seconds


def _idle(text: str, name: str) -> int:
    return int(parse_duration(text, name))


_PARSERS: dict[str, tuple[str, Callable[[str, str], int]]] = {
    "time": ("seconds", _limit),
    "max": ("max_pilots", _count),
    "idle": ("idle_seconds", _idle),
    "cores": ("cores", _count),
    "mem": ("memory", parse_memory),
    "vram": ("gpu_memory", parse_memory),
}


def describe(options: KubernetesOptions) -> str:
    """Return what a cluster provides as a phrase."""
    waiting = options.ahead or f"{MIN_AHEAD} to {MAX_AHEAD}"
    if not options.has_pilots:
        return f"one pod per attempt, at most {waiting} of them pending"
    shape = options.pilot
    parts = [f"{shape.gpus} {shape.model} GPU{'s' * (shape.gpus != 1)}".replace("  ", " ")]
    parts = parts if shape.gpus else []
    parts.append(f"{shape.core_count} core{'s' * (shape.core_count != 1)}")
    parts += [f"{shape.memory} MiB of memory"] if shape.memory else []
    count = f"{shape.max_pilots} pod{'s' * (shape.max_pilots != 1)}"
    limit = f" for {approximate_duration(shape.seconds)}" if shape.seconds else ""
    idle = approximate_duration(shape.idle_seconds)
    text = f"up to {count} of {', '.join(parts)}{limit}, deleted after {idle} without jobs"
    if options.hands_over:
        text += f"; a pod for each attempt that these cannot run, at most {waiting} pending"
    return text
