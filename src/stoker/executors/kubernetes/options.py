"""Options of a Kubernetes cluster: how it is reached, and what its pods and pilots are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from stoker.core.events import NodeAdded
from stoker.core.model.units import BadValue, approximate_duration
from stoker.executors.kubernetes.handover.pod_template import PodTemplate, VolumeRule
from stoker.executors.pilot_shape import (
    COMMON_WORDS,
    MAX_AHEAD,
    MIN_AHEAD,
    PilotShape,
    WordTable,
    check_time_limit,
    parse_ahead,
    parse_json,
    parse_priorities,
    parse_words,
)

SCHEME = "kubernetes://"
MAX_NAME_LENGTH = 30
"""Of a cluster, whose name is a part of the names and labels of pods."""
KEYS = (
    "pilot", "ahead", "context", "namespace", "kubeconfig", "image", "volumes",
    "priority_classes", "node_selector", "tolerations", "pull_secrets", "queue", "service_account",
    "report_address", "runtime_class", "pinned_pods",
)  # fmt: skip
"""Options of its node; maps and lists are JSON."""
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
TOLERATION_KEYS = ("key", "operator", "value", "effect", "tolerationSeconds")


class KubernetesPilotShape(PilotShape, frozen=True):
    """One pod that joins as a node, and how many of them there may be.

    `model` is the value of the node label `nvidia.com/gpu.product`.
    """

    image: str = ""


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
    runtime_class: str = ""
    """The RuntimeClass of all pods; empty: the default of the nodes."""
    report_address: str = ""
    """HOST:PORT at which pods reach this daemon; empty: training reports come by their logs."""
    pinned_pods: bool = True
    """Whether jobs with an image share the GPUs of pilots, in pods beside them."""
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

    @property
    def pins_pods(self) -> bool:
        """Whether jobs with an image run in pods beside pilots."""
        return self.has_pilots and self.pinned_pods

    def template(self, cluster: str) -> PodTemplate:
        """Return what all pods of the cluster have in common."""
        return PodTemplate(
            cluster, self.image, self.volumes, self.node_selector, self.tolerations,
            self.pull_secrets, self.priority_classes, self.queue,
            service_account=self.service_account, runtime_class=self.runtime_class,
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
        priority_classes=tuple(
            (least, _name(name, "priority_classes"))
            for least, name in parse_priorities(
                options.get("priority_classes", "{}"), "priority_classes"
            )
        ),
        node_selector=_labels(_json(options, "node_selector", dict)),
        tolerations=_tolerations(_json(options, "tolerations", list)),
        pull_secrets=tuple(
            _name(each, "pull_secrets") for each in _json(options, "pull_secrets", list)
        ),
        queue=_name(options.get("queue", ""), "queue"),
        service_account=_name(options.get("service_account", ""), "service_account"),
        runtime_class=_name(options.get("runtime_class", ""), "runtime_class"),
        report_address=_address(options.get("report_address", "")),
        pinned_pods=_boolean(options.get("pinned_pods", "true"), "pinned_pods"),
        ahead=parse_ahead(options["ahead"]) if "ahead" in options else None,
    )


def _boolean(text: str, key: str) -> bool:
    if text not in ("true", "false"):
        raise BadValue(f"{key} is true or false, not '{text}'.")
    return text == "true"


def _address(text: str) -> str:
    """Return the address of a port, which may be empty; raise BadValue."""
    host, _, port = text.rpartition(":")
    is_port = port.isdecimal() and 0 < int(port) < 1 << 16
    if text and not (is_port and _HOST.fullmatch(host)):
        raise BadValue(f"report_address takes HOST:PORT, not '{text}'.")
    return text


def cluster_addition(
    name: str, options: Mapping[str, str], shared: bool, at: float, configured: bool = False
) -> NodeAdded:
    """Return the event that adds a cluster; raise BadValue."""
    if len(name) > MAX_NAME_LENGTH or not _DNS_NAME.fullmatch(name):
        raise BadValue(
            f"'{name}' cannot be the name of a Kubernetes cluster: use at most {MAX_NAME_LENGTH}"
            " lower-case letters, digits and dashes."
        )
    check_time_limit(parse_options(options).pilot)
    return NodeAdded(
        at=at, name=name, address=SCHEME, executor="kubernetes", options=dict(options),
        shared=shared, configured=configured,
    )  # fmt: skip


# -- maps ---------------------------------------------------------------------------------


def _json(options: Mapping[str, str], key: str, kind: type) -> Any:
    """Return a map or a list that is stored as JSON."""
    return parse_json(options[key], key, kind) if key in options else kind()


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
    """Parse `gpus=4 image=IMAGE max=8 idle=5m cores=8 mem=32G time=8h vram=40G`.

    Without a number of cores, a pod has as many as GPUs.
    """
    fields = {"image": image, **parse_words(text, _PILOT_WORDS)}
    shape = KubernetesPilotShape(**{"cores": max(fields["gpus"], 1), **fields})
    if not shape.image:
        raise BadValue("--pilot needs image=, the container image of its pods.")
    if not _LABEL_VALUE.fullmatch(shape.model):
        raise BadValue(
            f"--pilot: '{shape.model}' is not a value of the label nvidia.com/gpu.product."
        )
    return shape


_PILOT_WORDS: WordTable = {
    "gpus": COMMON_WORDS["gpus"],
    "image": ("image", lambda text, _: text),
    **COMMON_WORDS,
}


def describe(options: KubernetesOptions) -> str:
    """Return what a cluster provides as a phrase."""
    waiting = options.ahead or f"{MIN_AHEAD} to {MAX_AHEAD}"
    if not options.has_pilots:
        return f"one pod per attempt, at most {waiting} of them pending"
    shape = options.pilot
    count = f"{shape.max_pilots} pod{'s' * (shape.max_pilots != 1)}"
    idle = approximate_duration(shape.idle_seconds)
    text = f"up to {count} of {shape.describe()}, deleted after {idle} without jobs"
    if options.hands_over:
        text += f"; a pod for each attempt that these cannot run, at most {waiting} pending"
    if shape.gpus and not shape.gpu_memory:
        text += "; without vram=, jobs that come before the first pod share no GPU by memory"
    return text
