"""PodTemplate: what the pods of a cluster have in common, as its options say."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class UnsupportedRequest(Exception):
    """The cluster cannot run this job as it is configured; the text tells users why."""


class LacksGpus(UnsupportedRequest):
    """The pods beside this pilot cannot be given its GPUs; another node may run the job."""


class VolumeRule(Struct, frozen=True):
    """Paths of this host that pods have too, in a volume."""

    prefix: str
    """The directory here."""
    claim: str = ""
    """The PersistentVolumeClaim with its content; empty: a directory of every node."""
    path: str = ""
    """The directory in the claim or on the nodes."""


class PilotHost(Struct, frozen=True):
    """The pilot that holds the GPUs of pinned pods."""

    pod: str
    """The name of its pod."""
    uid: str
    node: str
    """The node of Kubernetes that it runs on."""


class PodTemplate(Struct, frozen=True):
    """What the pods of a cluster have in common."""

    cluster: str
    image: str = ""
    """The image of jobs that name none."""
    volumes: tuple[VolumeRule, ...] = ()
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, Any], ...] = ()
    pull_secrets: tuple[str, ...] = ()
    priority_classes: tuple[tuple[int, str], ...] = ()
    """The PriorityClass of jobs with at least this priority, in ascending order."""
    queue: str = ""
    """The LocalQueue of Kueue."""
    gpu_resource: str = "nvidia.com/gpu"
    service_account: str = ""
    runtime_class: str = ""
    annotations: dict[str, str] = {}
    host: PilotHost | None = None
    """The pilot beside which the pods run, on its node and with its GPUs; None: anywhere."""

    def priority_class(self, priority: int) -> str | None:
        """Return the PriorityClass for the priority of a job, if there is one."""
        names = [name for least, name in self.priority_classes if least <= priority]
        return names[-1] if names else None
