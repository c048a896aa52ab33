"""The objects of one attempt in the API: its pod, its service, the training library. Pure."""

from __future__ import annotations

import functools
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from stoker.core.launch.launch import Launch
from stoker.core.launch.training_env import TRAINING_MARK
from stoker.core.model.job import AttemptId
from stoker.core.model.resources import CPU, GPU, MEMORY, DeviceAllocation
from stoker.core.model.units import THOUSAND
from stoker.executors.kubernetes.api.pods import CONTAINER
from stoker.executors.kubernetes.handover.library import library_volume
from stoker.executors.kubernetes.handover.pod_template import (
    LacksGpus,
    PilotHost,
    PodTemplate,
    UnsupportedRequest,
)
from stoker.executors.kubernetes.handover.volumes import PodVolumes
from stoker.executors.launch import container

DOMAIN = "stoker.dev"
INSTALL, CLUSTER, JOB, ATTEMPT, RANK = (
    f"{DOMAIN}/{name}" for name in ("install", "cluster", "job", "attempt", "rank")
)
"""Labels."""
HOST = f"{DOMAIN}/host"
"""Label of a pinned pod: the name of the pilot that holds its GPUs."""
KUEUE = "kueue.x-k8s.io"
REVOKED = f"{DOMAIN}/revoked"
"""Label of a pod that only occupies a name, so that no pod can be created with it."""
FINALIZER = f"{DOMAIN}/recorded"
"""Holds a pod until the end of its attempt is on disk here."""
NO_SCHEDULER = f"{DOMAIN}/none"
SHELL = "/bin/sh"
REPORTS, LIBRARY, SNAPSHOTS = "/stoker/reports", "/stoker/lib", "/snapshots"
JOB_SCRIPT = f"{REPORTS}/.job"
TERM_ALL = "kill -CONT -1; kill -TERM -1"
"""Signals every process of a container but the first."""
REPORT_ACCESS = "STOKER_REPORT_ACCESS"
"""A variable for the wrapper, which the job does not get."""
NOTE_END = f": >{REPORTS}/.ending; : >{REPORTS}/.cancelled"
"""Tells the wrapper that the container is removed soon after its end, and ends a wait for others.
"""
WARNING_SECONDS = 120
"""Time that a training job has to stop at a checkpoint when the cluster ends its pod."""
STOP_THEN_TERM = f"""\
{NOTE_END}
echo "the cluster ends the pod" >{REPORTS}/stop
left={WARNING_SECONDS}
while [ $left -gt 0 ] && kill -0 "$(cat {REPORTS}/.pid)"; do
    left=$((left - 1))
    sleep 1
done
{TERM_ALL}"""
"""Asks the training library to stop at a checkpoint before the processes are signalled."""
FIRST_NODE_PORT, LAST_NODE_PORT = 30000, 32767
MAX_SCRIPT_BYTES = 120 << 10
"""A script is a variable until the container has written it to a file."""
DEADLINE_MARGIN_SECONDS = 900
"""Beyond the time limit, which stoker enforces itself: the kubelet counts pulling the image too."""
PRODUCT = "nvidia.com/gpu.product"
"""Label of nodes with the model of their GPUs."""
_PACKAGE = Path(__file__).parent


class PodIdentity(Struct, frozen=True):
    """Which installation and cluster an attempt belongs to."""

    install: str
    cluster: str
    attempt: AttemptId
    rank: int | None = None

    @property
    def name(self) -> str:
        """The name of the pod: a part has only one, so it cannot start twice."""
        return self.group if self.rank is None else f"{self.group}-{self.rank}"

    @property
    def group(self) -> str:
        """The name of the pods of a gang, without the rank."""
        return f"stoker-{self.install[:8]}-{self.attempt.job}-{self.attempt.attempt}"

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the pod."""
        return {
            INSTALL: self.install[:8],
            CLUSTER: self.cluster,
            JOB: str(self.attempt.job),
            ATTEMPT: str(self.attempt.attempt),
            **({} if self.rank is None else {RANK: str(self.rank)}),
        }

    @property
    def nonce(self) -> str:
        """Begins the lines that the wrapper adds to the log."""
        text = f"{self.install}.{self.attempt}.{self.rank}".encode()
        return f"~stoker{hashlib.blake2b(text, digest_size=8).hexdigest()}"


def selector(install: str, cluster: str) -> str:
    """Return the label selector of all pods of a cluster's attempts."""
    return f"{INSTALL}={install[:8]},{CLUSTER}={cluster},{ATTEMPT}"


def host_selector(install: str, pilot: str) -> str:
    """Return the label selector of the pinned pods of a pilot."""
    return f"{INSTALL}={install[:8]},{HOST}={pilot}"


def parse_attempt(labels: Mapping[str, str]) -> AttemptId | None:
    """Return the attempt of a pod by its labels."""
    job, attempt = labels.get(JOB, ""), labels.get(ATTEMPT, "")
    are_numbers = job.isdecimal() and attempt.isdecimal() and len(job + attempt) < 20
    return AttemptId(int(job), int(attempt)) if are_numbers else None


class PodRequest(Struct, frozen=True):
    """What a pod is built from."""

    identity: PodIdentity
    launch: Launch
    template: PodTemplate
    variables: Sequence[str]
    """`NAME=VALUE` each."""
    grace: float
    script: str | None = None
    """The text of its script."""
    library: Mapping[str, Any] | None = None
    """The ConfigMap with the training library."""
    barrier_seconds: int = 0
    report_access: str = ""
    """Server, fingerprint and token for reports over HTTP; empty: through the log."""
    products: Sequence[str] = ()
    """Models of the cluster's GPUs, as its nodes are labelled."""


def build_pod(request: PodRequest) -> dict[str, Any]:
    """Return the pod of an attempt; raise UnsupportedRequest if it cannot run there."""
    launch, template, identity = request.launch, request.template, request.identity
    image = launch.container.image if launch.container is not None else template.image
    if not image:
        raise UnsupportedRequest(
            f"jobs on {template.cluster} run in containers: name an image with --image, or one for"
            f" all jobs when the cluster is added"
        )
    _check_ports(launch)
    volumes, resources = PodVolumes(template.volumes, template.cluster), _resources(request)
    _add_files(volumes, request, resources)
    grace = max(math.ceil(request.grace), 1) + (
        WARNING_SECONDS if launch.spec.training is not None else 0
    )
    warning = _escaped(
        STOP_THEN_TERM if launch.spec.training is not None else f"{NOTE_END}; {TERM_ALL}"
    )
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace,
        "containers": [
            {
                "name": CONTAINER,
                "image": image,
                "command": _command(request),
                "env": _environment(request),
                "resources": resources,
                "volumeMounts": volumes.mounts,
                "lifecycle": {"preStop": {"exec": {"command": [SHELL, "-c", warning]}}},
                **_working_directory(launch),
            }
        ],
        "volumes": volumes.volumes,
    }
    if launch.spec.limit is not None:
        spec["activeDeadlineSeconds"] = launch.spec.limit + grace + DEADLINE_MARGIN_SECONDS
    spec |= _scheduling(request)
    labels, annotations = identity.labels, dict(template.annotations)
    metadata: dict[str, Any] = {
        "name": identity.name, "labels": labels, "finalizers": [FINALIZER],
    }  # fmt: skip
    if template.host is not None:  # the pilot has what Kueue admits
        labels[HOST] = template.host.pod
        metadata["ownerReferences"] = [_owner(template.host.pod, template.host.uid)]
    elif template.queue:
        labels[f"{KUEUE}/queue-name"] = template.queue
        if identity.rank is not None and launch.placement is not None:
            # Kueue admits all pods of a group or none. None is replaced: a new attempt is a group.
            labels[f"{KUEUE}/pod-group-name"] = identity.group
            annotations[f"{KUEUE}/pod-group-total-count"] = str(len(launch.placement.parts))
            annotations[f"{KUEUE}/retriable-in-group"] = "false"
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def build_tombstone(identity: PodIdentity, image: str) -> dict[str, Any]:
    """Return a pod that is never scheduled: while it exists, the attempt cannot be created."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": identity.name, "labels": identity.labels | {REVOKED: "true"}},
        "spec": {
            "schedulerName": NO_SCHEDULER,
            "restartPolicy": "Never",
            "containers": [{"name": CONTAINER, "image": image or "none"}],
        },
    }


def build_service(
    identity: PodIdentity, uid: str, ports: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """Return the service that publishes the ports of a pod, and is deleted with it."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": identity.name,
            "labels": identity.labels,
            "ownerReferences": [_owner(identity.name, uid)],
        },
        "spec": {
            "type": "NodePort",
            "selector": identity.labels,
            "ports": [
                {"name": f"p{outside}", "nodePort": outside, "port": inside, "targetPort": inside}
                for outside, inside in ports
            ],
        },
    }


def _owner(name: str, uid: str) -> dict[str, str]:
    """Return what has an object deleted with a pod."""
    return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}


# -- the container ------------------------------------------------------------------------


@functools.cache
def wrapper() -> str:
    """Return the text of wrapper.sh without comments and indentation."""
    lines = (_PACKAGE / "wrapper.sh").read_text().splitlines()
    return "\n".join(line for line in map(str.strip, lines) if line and not line.startswith("#"))


def _command(request: PodRequest) -> list[str]:
    launch = request.launch
    flags = ("r" if launch.needs_report_directory else "") + ("e" if has_own_stderr(launch) else "")
    if request.template.host is not None and launch.gpus:
        flags += "g"
    script = JOB_SCRIPT if request.script is not None else None
    return [
        SHELL, "-c", _escaped(wrapper()), "stoker", request.identity.nonce, flags,
        str(request.barrier_seconds), *map(_escaped, container.inner_command(launch, script)),
    ]  # fmt: skip


def has_own_stderr(launch: Launch) -> bool:
    """Whether stderr goes to another file than stdout."""
    return launch.err is not None and launch.err != launch.out


def _escaped(text: str) -> str:
    """Return a text in which the kubelet expands nothing: it replaces `$(NAME)` and `$$`."""
    return text.replace("$", "$$")


def _environment(request: PodRequest) -> list[dict[str, Any]]:
    launch = request.launch
    values = dict(line.split("=", 1) for line in request.variables)
    values["STOKER_REPORTS"] = REPORTS
    if request.template.host is not None:
        values |= _pilot_gpus(launch)
    if launch.container is not None:
        root = f"{SNAPSHOTS}/{os.path.basename(launch.checkpoints)}"
        values["STOKER_CHECKPOINT_DIR"] = root
    if request.script is not None:
        if len(request.script.encode()) > MAX_SCRIPT_BYTES:
            raise UnsupportedRequest("the script has more than 120 KiB; put it into the image")
        values["STOKER_SCRIPT_TEXT"] = request.script
    if request.report_access:
        values[REPORT_ACCESS] = request.report_access
    variables: list[dict[str, Any]] = [
        {"name": name, "value": _escaped(value)} for name, value in values.items()
    ]
    if "NODELIST" in values and request.identity.rank is None:
        node = {"fieldRef": {"fieldPath": "spec.nodeName"}}
        variables = [each for each in variables if each["name"] != "NODELIST"]
        return [*variables, {"name": "NODELIST", "valueFrom": node}]
    return variables


def _pilot_gpus(launch: Launch) -> dict[str, str]:
    """Return the variables by which the container runtime, and CUDA, give GPUs of the pilot."""
    names = {item.device for item in _allocations(launch) if item.type == GPU}
    known = [uuid for uuid in launch.gpus if uuid.startswith(("GPU-", "MIG-"))]
    if len(known) != len(names):
        raise LacksGpus(
            "the UUIDs of the pilot's GPUs are not known: its image has no nvidia-smi, and"
            " NVIDIA_VISIBLE_DEVICES does not list them"
        )
    gpus = ",".join(known)
    return {"NVIDIA_VISIBLE_DEVICES": gpus or "void", "CUDA_VISIBLE_DEVICES": gpus}


def _working_directory(launch: Launch) -> dict[str, str]:
    if launch.container is not None and not launch.container.in_job_directory:
        return {}
    return {"workingDir": launch.directory}


def _resources(request: PodRequest) -> dict[str, dict[str, str]]:
    """Return requests and limits: cores are requested only, memory and GPUs are limits too."""
    amounts = total_amounts(request.launch)
    requests, limits = {}, {}
    if request.template.host is not None:  # the pilot has requested them for all
        memory = amounts.get(MEMORY, 0)
        return {
            "requests": {"cpu": "0", "memory": "0"},
            "limits": {"memory": f"{memory}Mi"} if memory else {},
        }
    if cores := amounts.get(CPU, 0):
        requests["cpu"] = f"{cores * 1000 // THOUSAND}m"
    if memory := amounts.get(MEMORY, 0):
        requests["memory"] = limits["memory"] = f"{memory}Mi"
    if gpus := amounts.get(GPU, 0) // THOUSAND:
        requests[request.template.gpu_resource] = limits[request.template.gpu_resource] = str(gpus)
    return {"requests": requests, "limits": limits}


def total_amounts(launch: Launch) -> dict[str, int]:
    """Return the amounts of an attempt's placement by resource type."""
    amounts: dict[str, int] = {}
    for item in _allocations(launch):
        amounts[item.type] = amounts.get(item.type, 0) + item.amount
    return amounts


def _allocations(launch: Launch) -> Sequence[DeviceAllocation]:
    return launch.placement.allocations if launch.placement is not None else ()


# -- files and network --------------------------------------------------------------------


def _add_files(volumes: PodVolumes, request: PodRequest, resources: dict[str, Any]) -> None:
    launch = request.launch
    memory = resources["limits"].get("memory")
    shared = {"medium": "Memory"} | ({"sizeLimit": memory} if memory else {})
    volumes.add("shm", "/dev/shm", emptyDir=shared)  # noqa: S108 - in a container of its own
    volumes.add("reports", REPORTS, emptyDir={})
    if request.library is not None:
        volumes.add("library", LIBRARY, read_only=True, **library_volume(request.library))
    box = launch.container
    for mount in box.mounts if box is not None else ():
        if mount.optional and not mount.expected:
            continue
        volumes.add_path(mount.source, mount.target, "the directory", mount.read_only)
    if TRAINING_MARK in launch.extra:
        root = os.path.dirname(launch.checkpoints)
        target = SNAPSHOTS if box is not None else root
        volumes.add_path(root, target, "the directory of the job's checkpoints")
    if box is None or box.in_job_directory:
        if launch.transfer.send:
            volumes.add_path(launch.directory, launch.directory, "the job's directory")
        else:
            volumes.add("work", launch.directory, emptyDir={})


def _check_ports(launch: Launch) -> None:
    for outside, _ in launch.container.ports if launch.container is not None else ():
        if not FIRST_NODE_PORT <= outside <= LAST_NODE_PORT:
            raise UnsupportedRequest(
                f"port {outside} cannot be published: Kubernetes gives NodePorts from"
                f" {FIRST_NODE_PORT} to {LAST_NODE_PORT} only"
            )


def _scheduling(request: PodRequest) -> dict[str, Any]:
    template, launch = request.template, request.launch
    spec: dict[str, Any] = {}
    if template.node_selector:
        spec["nodeSelector"] = dict(template.node_selector)
    if template.tolerations:
        spec["tolerations"] = list(template.tolerations)
    if template.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in template.pull_secrets]
    if template.service_account:
        spec["serviceAccountName"] = template.service_account
    if template.runtime_class:
        spec["runtimeClassName"] = template.runtime_class
    if (name := template.priority_class(launch.priority)) is not None:
        spec["priorityClassName"] = name
    if template.host is not None:
        spec["affinity"] = _beside(template.host)
    elif launch.spec.request.gpu_models:
        spec["affinity"] = _model_affinity(request)
    return spec


def _beside(host: PilotHost) -> dict[str, Any]:
    """Return what has the scheduler choose the node of a pilot.

    It still binds volumes then, and heeds taints, which it would not with `nodeName`.
    """
    field = {"key": "metadata.name", "operator": "In", "values": [host.node]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _model_affinity(request: PodRequest) -> dict[str, Any]:
    wanted = request.launch.spec.request.gpu_models
    products = [name for name in request.products if any(model in name.lower() for model in wanted)]
    if not products:
        raise UnsupportedRequest(
            f"no node of {request.template.cluster} has the label {PRODUCT} with"
            f" {' or '.join(wanted)}, or listing nodes is not permitted"
        )
    term = {"matchExpressions": [{"key": PRODUCT, "operator": "In", "values": products}]}
    required = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
