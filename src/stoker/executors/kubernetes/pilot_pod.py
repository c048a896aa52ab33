"""The pod of a pilot, as a manifest. Pure."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from stoker.executors.kubernetes.handover.pod_spec import CLUSTER, DOMAIN, INSTALL, PRODUCT
from stoker.executors.kubernetes.options import KubernetesOptions

PILOT = f"{DOMAIN}/pilot"
"""Label of pilots; attempts that are handed over do not have it."""
CONTAINER = "pilot"
HOME = "/stoker"
"""The home directory in a pilot: a volume of the pod, which every user of an image may write."""
GRACE_SECONDS = 60
"""From the request to delete a pod until its processes are killed."""
TOOLS = (
    "cat", "chmod", "cksum", "cp", "cut", "date", "dd", "df", "env", "find", "grep", "head", "ln",
    "ls", "mkdir", "mv", "rm", "sed", "sleep", "tail", "tar", "touch", "tr", "uname", "wc",
)  # fmt: skip
"""Programs that the agent needs, besides sh."""


def selector(install: str, cluster: str) -> str:
    """Return the label selector of the pilots of an installation in a cluster."""
    return f"{PILOT},{INSTALL}={install[:8]},{CLUSTER}={cluster}"


@functools.cache
def first_process() -> str:
    """Return the text of pilot.sh without comments."""
    path = os.path.join(os.path.dirname(__file__), "pilot.sh")
    lines = Path(path).read_text().splitlines()
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))


def build_pilot(
    name: str, install: str, cluster: str, options: KubernetesOptions
) -> dict[str, Any]:
    """Return the pod of a pilot."""
    shape, template = options.pilot, options.template(cluster)
    labels = {INSTALL: install[:8], CLUSTER: cluster, PILOT: "true"}
    if template.queue:
        labels["kueue.x-k8s.io/queue-name"] = template.queue
    requests, limits = {"cpu": str(shape.cores)}, {}
    if shape.memory:
        requests["memory"] = limits["memory"] = f"{shape.memory}Mi"
    if shape.gpus:
        requests[template.gpu_resource] = limits[template.gpu_resource] = str(shape.gpus)
    volumes: list[dict[str, Any]] = [
        {"name": "home", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "home", "mountPath": HOME},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 — of the container
    ]
    for index, rule in enumerate(template.volumes):
        mount: dict[str, Any] = {"name": f"volume-{index}", "mountPath": rule.prefix}
        if rule.claim:
            source: dict[str, Any] = {"persistentVolumeClaim": {"claimName": rule.claim}}
            if rule.path:
                mount["subPath"] = rule.path
        else:
            source = {"hostPath": {"path": rule.path, "type": "Directory"}}
        volumes.append({"name": f"volume-{index}", **source})
        mounts.append(mount)
    script = first_process().replace("$", "$$")  # the kubelet would expand $(NAME)
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "containers": [
            {
                "name": CONTAINER,
                "image": shape.image,
                "command": ["sh", "-c", script, "pilot", name, str(GRACE_SECONDS), *TOOLS],
                "env": [{"name": "HOME", "value": HOME}],
                "resources": {"requests": requests, "limits": limits},
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }
    if shape.seconds:
        spec["activeDeadlineSeconds"] = shape.seconds
    selector = dict(template.node_selector)
    if shape.model:
        selector[PRODUCT] = shape.model
    if selector:
        spec["nodeSelector"] = selector
    if template.tolerations:
        spec["tolerations"] = list(template.tolerations)
    if template.pull_secrets:
        spec["imagePullSecrets"] = [{"name": each} for each in template.pull_secrets]
    if template.service_account:
        spec["serviceAccountName"] = template.service_account
    if template.runtime_class:
        spec["runtimeClassName"] = template.runtime_class
    if priority_class := template.priority_class(0):
        spec["priorityClassName"] = priority_class
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }  # fmt: skip
