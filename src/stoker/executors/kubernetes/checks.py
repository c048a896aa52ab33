"""Checks of a Kubernetes cluster: connection, rights, GPUs, volumes. Every check blocks."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from stoker.executors.kubernetes.handover.pod_spec import PRODUCT
from stoker.executors.kubernetes.kubectl import Kubectl, KubectlError
from stoker.executors.kubernetes.options import KubernetesOptions
from stoker.executors.kubernetes.pilot_pod import build_pilot

ROLE = "stoker"
POD_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
"""The namespace of the daemon's pod, if it runs in the cluster."""
Right = tuple[str, str, str]
"""API group, resource and verb."""

PILOT_RIGHTS: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "pods"): ("create", "get", "list", "delete"),
    ("", "pods/exec"): ("create", "get"),
}
HANDOVER_RIGHTS: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "pods"): ("create", "get", "list", "watch", "patch", "delete"),
    ("", "pods/exec"): ("create", "get"),
    ("", "pods/log"): ("get",),
    ("", "services"): ("create", "delete"),
    ("", "configmaps"): ("create", "get"),
}


NO_CLIENT = "lightkube is not installed: pip install 'stoker[kubernetes]'"
EVENT_RIGHTS: dict[tuple[str, str], tuple[str, ...]] = {("", "events"): ("list",)}
"""To tell why the container of a pod is not created."""


class Check(Struct, frozen=True):
    """One result."""

    what: str
    state: Literal["ok", "unknown", "failed"]
    text: str


class ClusterCheck(Struct, frozen=True):
    """All results, and the role with the rights that are missing."""

    checks: list[Check]
    rbac: str | None = None
    """YAML for `kubectl apply -f -`."""


def required_rights(options: KubernetesOptions) -> list[Right]:
    """Return what stoker must be allowed to do in the namespace."""
    parts = [PILOT_RIGHTS] if options.has_pilots else []
    return _rights(*parts, *([HANDOVER_RIGHTS] if options.hands_over else []))


def _rights(*parts: Mapping[tuple[str, str], tuple[str, ...]]) -> list[Right]:
    wanted: dict[tuple[str, str], dict[str, None]] = {}
    for part in parts:
        for resource, verbs in part.items():
            wanted.setdefault(resource, {}).update(dict.fromkeys(verbs))
    return [
        (group, resource, verb) for (group, resource), verbs in wanted.items() for verb in verbs
    ]


class ClusterChecker:
    """Checks one cluster."""

    def __init__(
        self, kubectl: Kubectl, options: KubernetesOptions, cluster: str, install: str
    ) -> None:
        self.kubectl, self.options = kubectl, options
        self.cluster, self.install = cluster, install
        self.user = ""
        """The user's name, as the server writes it in refusals."""
        self.missing: list[Right] = []
        self.optional: list[Right] = []
        """Missing rights without which only a part does not work."""

    def run(self) -> ClusterCheck:
        """Run all checks; without a connection, no others."""
        checks = [self._connection()]
        if checks[0].state == "ok":
            parts = (
                self._rights, self._namespace_exists, self._gpus, self._pilot, self._images,
                self._events, self._volumes, self._queue,
            )  # fmt: skip
            for part in parts:
                checks += part()
            checks += self._client()
        return ClusterCheck(checks, self._rbac() if self.missing or self.optional else None)

    def _connection(self) -> Check:
        try:
            version = json.loads(self.kubectl.run("version", "-o", "json"))["serverVersion"]
        except (KubectlError, KeyError, ValueError) as error:
            return Check("connection", "failed", str(error))
        return Check("connection", "ok", f"Kubernetes {version['gitVersion']}")

    def _rights(self) -> Iterator[Check]:
        rights = required_rights(self.options)
        pinned = [HANDOVER_RIGHTS] if self.options.pins_pods else []
        others = [right for right in _rights(*pinned, EVENT_RIGHTS) if right not in rights]
        try:
            reviews = self.kubectl.create_all([self._review(each) for each in (*rights, *others)])
        except KubectlError as error:
            yield Check("rights", "failed", self._refusal(error))
            return
        allowed = [bool((each.get("status") or {}).get("allowed")) for each in reviews]
        lacking = [
            right
            for right, is_allowed in zip((*rights, *others), allowed, strict=True)
            if not is_allowed
        ]
        self.missing = [right for right in lacking if right in rights]
        self.optional = [right for right in lacking if right in others]
        where = f"namespace {self._namespace()}"
        if self.missing:
            yield Check("rights", "failed", f"not allowed in {where}: {_named(self.missing)}")
        else:
            yield Check("rights", "ok", f"all {len(rights)} that are needed in {where}")

    def _namespace_exists(self) -> Iterator[Check]:
        """Check by an object that is not created: rights in a missing namespace can be reviewed."""
        if self.options.has_pilots or ("", "configmaps", "create") in self.missing:
            return
        try:
            self.kubectl.run("create", "configmap", "stoker-check", "--dry-run=server")
        except KubectlError as error:
            yield Check("namespace", "failed", self._refusal(error))

    def _review(self, right: Right) -> dict[str, Any]:
        group, resource, verb = right
        name, _, subresource = resource.partition("/")
        attributes = {
            "namespace": self._namespace(), "group": group, "resource": name,
            "subresource": subresource, "verb": verb,
        }  # fmt: skip
        return {
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }  # fmt: skip

    def _namespace(self) -> str:
        if self.options.namespace:
            return self.options.namespace
        words = ("config", "view", "--minify", "-o", "jsonpath={..namespace}")
        with contextlib.suppress(KubectlError):
            if namespace := self.kubectl.run(*words).strip():
                return namespace
        with contextlib.suppress(OSError), open(POD_NAMESPACE) as file:
            return file.read().strip()
        return "default"

    def _gpus(self) -> Iterator[Check]:
        try:
            nodes = self.kubectl.get("nodes")
        except KubectlError as error:
            why = self._refusal(error)
            yield Check("GPUs", "unknown", f"nodes cannot be listed, which is not needed: {why}")
            return
        resource = self.options.template(self.cluster).gpu_resource
        counts = [_gpu_count(node, resource) for node in nodes]
        models = {_label(node) for node, count in zip(nodes, counts, strict=True) if count}
        wanted, most = self.options.pilot.gpus, max(counts, default=0)
        text = f"{sum(counts)} {resource} on {sum(map(bool, counts))} of {len(nodes)} nodes"
        if named := ", ".join(sorted(filter(None, models))):
            text += f" ({named})"
        if wanted > most:
            yield Check("GPUs", "failed", f"{text}; a pilot needs {wanted} on one node")
        elif self.options.pilot.model and self.options.pilot.model not in models:
            model = self.options.pilot.model
            yield Check("GPUs", "failed", f"{text}; no node has the label {PRODUCT}={model}")
        else:
            yield Check("GPUs", "ok" if most else "unknown", text)

    def _pilot(self) -> Iterator[Check]:
        """Let the server check a pilot without creating it: quotas, admission, priority class."""
        if not self.options.has_pilots or any(right[1] == "pods" for right in self.missing):
            return
        name = f"stoker-{self.install[:8]}-{self.cluster}-check"
        manifest = build_pilot(name, self.install, self.cluster, self.options)
        try:
            self.kubectl.run("create", "--dry-run=server", "-f", "-", input=json.dumps(manifest))
        except KubectlError as error:
            yield Check("pilot", "failed", self._refusal(error))
        else:
            yield Check("pilot", "ok", "the server accepts its pod")

    def _images(self) -> Iterator[Check]:
        """Tell whether jobs with an image can share the GPUs of pilots."""
        if not self.options.pins_pods:
            return
        lacking = [right for right in (*self.missing, *self.optional) if right[1] != "events"]
        if importlib.util.find_spec("lightkube") is None:
            text = f"jobs with an image do not run beside pilots: {NO_CLIENT}"
            yield Check("images", "unknown", text)
        elif lacking:
            text = f"jobs with an image do not run beside pilots: not allowed: {_named(lacking)}"
            yield Check("images", "unknown", text)
        else:
            text = (
                "jobs with an image run beside pilots, if the container runtime of the nodes gives"
                " GPUs by NVIDIA_VISIBLE_DEVICES: the first such job finds out"
            )
            yield Check("images", "ok" if not self.options.pilot.gpus else "unknown", text)

    def _events(self) -> Iterator[Check]:
        if any(right[1] == "events" for right in self.optional):
            text = "cannot be listed, which is not needed: they tell why a volume is not mounted"
            yield Check("events", "unknown", text)

    def _volumes(self) -> Iterator[Check]:
        for claim in dict.fromkeys(rule.claim for rule in self.options.volumes if rule.claim):
            try:
                found = self.kubectl.get("persistentvolumeclaim", claim)[0]
            except KubectlError as error:
                is_missing = "not found" in str(error)
                yield Check(
                    f"volume {claim}", "failed" if is_missing else "unknown", self._refusal(error)
                )
                continue
            phase = (found.get("status") or {}).get("phase", "")
            modes = ", ".join(found["spec"].get("accessModes") or ())
            # A claim may be bound when the first pod uses it.
            state: Literal["ok", "unknown"] = "ok" if phase == "Bound" else "unknown"
            yield Check(f"volume {claim}", state, f"{phase}; {modes}")

    def _queue(self) -> Iterator[Check]:
        if not self.options.queue:
            return
        name = self.options.queue
        try:
            self.kubectl.get("localqueues.kueue.x-k8s.io", name)
        except KubectlError as error:
            is_refused = "forbidden" in str(error).lower()
            state: Literal["unknown", "failed"] = "unknown" if is_refused else "failed"
            yield Check(f"queue {name}", state, self._refusal(error))
        else:
            yield Check(f"queue {name}", "ok", "a LocalQueue of Kueue")

    def _client(self) -> Iterator[Check]:
        if not self.options.hands_over:
            return
        if importlib.util.find_spec("lightkube") is None:
            yield Check("client", "failed", NO_CLIENT)
        else:
            yield Check("client", "ok", "lightkube")

    def _refusal(self, error: KubectlError) -> str:
        text = str(error)
        if match := re.search(r'User "([^"]+)" cannot', text):
            self.user = match[1]
        return text

    # -- the missing role -----------------------------------------------------------------

    def _rbac(self) -> str:
        user = self.user or self._ask_user()
        rules: dict[tuple[str, str], list[str]] = {}
        for group, resource, verb in (*self.missing, *self.optional):
            rules.setdefault((group, resource), []).append(verb)
        return role_yaml(self._namespace(), user, rules)

    def _ask_user(self) -> str:
        """Return the user by a refusal: servers before 1.28 tell it no other way."""
        try:
            self.kubectl.run("get", "--raw", "/api/v1/stoker-whoami")
        except KubectlError as error:
            self._refusal(error)
        return self.user or "USER"


def _named(rights: Sequence[Right]) -> str:
    return ", ".join(f"{verb} {resource}" for _, resource, verb in rights)


def role_yaml(namespace: str, user: str, rules: Mapping[tuple[str, str], Sequence[str]]) -> str:
    """Return a Role with these rules, and the binding that gives it to a user."""
    lines = []
    for (group, resource), verbs in rules.items():
        lines += [
            f'  - apiGroups: ["{group}"]',
            f'    resources: ["{resource}"]',
            f"    verbs: [{', '.join(verbs)}]",
        ]
    account = re.fullmatch(r"system:serviceaccount:([^:]+):([^:]+)", user)
    if account:
        subject = f"  - {{kind: ServiceAccount, namespace: {account[1]}, name: {account[2]}}}"
    else:
        subject = (
            f"  - {{kind: User, apiGroup: rbac.authorization.k8s.io, name: {json.dumps(user)}}}"
        )
    return "\n".join([
        "apiVersion: rbac.authorization.k8s.io/v1",
        "kind: Role",
        f"metadata: {{name: {ROLE}, namespace: {namespace}}}",
        "rules:",
        *lines,
        "---",
        "apiVersion: rbac.authorization.k8s.io/v1",
        "kind: RoleBinding",
        f"metadata: {{name: {ROLE}, namespace: {namespace}}}",
        f"roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: {ROLE}}}",
        "subjects:",
        subject,
        "",
    ])  # fmt: skip


def _gpu_count(node: Mapping[str, Any], resource: str) -> int:
    count = ((node.get("status") or {}).get("allocatable") or {}).get(resource, "0")
    return int(count) if str(count).isdecimal() else 0


def _label(node: Mapping[str, Any]) -> str:
    return str((node["metadata"].get("labels") or {}).get(PRODUCT, ""))
