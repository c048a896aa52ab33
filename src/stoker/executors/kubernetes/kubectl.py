"""Kubectl: the user's own kubectl, with its kubeconfig and login plugins. Every call blocks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stoker.core.model.units import printable
from stoker.executors.kubernetes.api.pods import EventList, PodEvent

TIMEOUT_SECONDS = 30.0
"""Time for one call."""
SLOW_SECONDS = 15.0
"""From the time at which a pod has a node until its events are read."""
MAX_REASON_LENGTH = 300
UNANSWERED = re.compile(
    r"Unable to connect to the server|connection (to the server|refused|reset)|i/o timeout"
    r"|TLS handshake timeout|unexpected EOF|: EOF|etcdserver|apiserver (is )?not ready"
    r"|the server (is currently unable|was unable to return)|ServiceUnavailable|Timeout|TooManyReq"
    r"|client rate limiter|context deadline exceeded",
    re.IGNORECASE,
)
"""Errors after which a request may or may not have been accepted, or is accepted later."""
UNCONFIGURED = re.compile(
    r"current-context must exist|no configuration has been provided"
    r"|server localhost:8080 was refused"
)
"""Errors of kubectl without a configuration: it then tries localhost:8080."""
UNCONFIGURED_TEXT = (
    "kubectl has no current context, or no server answers there; if kubectl get pods works in a"
    " shell, give its --kubeconfig or --context to stoker nodes add"
)
FATAL_REASONS = frozenset({"InvalidImageName", "ErrImageNeverPull"})
"""Why a container waits although waiting does not help."""
FAILED_REASONS = FATAL_REASONS | {
    "ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError", "CreateContainerError",
    "RunContainerError", "RegistryUnavailable",
}  # fmt: skip
"""Why a container waits because of an error, which may pass."""


class KubectlError(Exception):
    """A call failed; the message is one sentence."""


class KubectlUnanswered(KubectlError):
    """The server did not answer: the request may or may not have been accepted."""


class PodState(Struct, frozen=True):
    """What the API says of a pod."""

    name: str
    phase: str
    uid: str = ""
    node: str = ""
    ip: str = ""
    started: float | None = None
    end: float | None = None
    """When it ends at the latest: because it is being deleted, or by its time limit."""
    is_deleting: bool = False
    reason: str = ""
    """Why it does not run (yet, or any more)."""
    is_failing: bool = False
    """Whether its container waits because of an error."""
    is_fatal: bool = False
    """Whether that error does not pass by itself."""

    @property
    def has_ended(self) -> bool:
        """Whether it is over."""
        return self.phase in ("Failed", "Succeeded")

    @property
    def is_pending(self) -> bool:
        """Whether it does not run yet."""
        return self.phase == "Pending"

    @property
    def is_running(self) -> bool:
        """Whether it runs, as far as the API knows."""
        return not self.has_ended and not self.is_pending

    def is_slow(self, now: float) -> bool:
        """Whether the creation of its container takes so long that something may be wrong."""
        is_creating = self.is_pending and bool(self.node) and not self.is_failing
        return is_creating and self.started is not None and now - self.started >= SLOW_SECONDS

    @property
    def is_changing(self) -> bool:
        """Whether it is about to start or to end."""
        return self.is_pending or self.is_deleting


class Kubectl:
    """Runs kubectl for one namespace of one cluster."""

    def __init__(
        self,
        context: str = "",
        namespace: str = "",
        kubeconfig: str = "",
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        self.context, self.namespace = context, namespace
        self.kubeconfig, self.timeout = kubeconfig, timeout

    def argv(self, *words: str) -> list[str]:
        """Return the argv of a call."""
        options = []
        if self.kubeconfig:
            options.append(f"--kubeconfig={os.path.expanduser(self.kubeconfig)}")
        if self.context:
            options.append(f"--context={self.context}")
        if self.namespace:
            options.append(f"--namespace={self.namespace}")
        return ["kubectl", *options, *words]

    def create(self, manifest: Mapping[str, Any]) -> None:
        """Create an object; one of that name is taken to be the same."""
        try:
            self.run("create", "-f", "-", input=json.dumps(manifest))
        except KubectlError as error:
            if "AlreadyExists" not in str(error) and "already exists" not in str(error):
                raise

    def create_all(self, manifests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Create objects; return what the server made of them."""
        items = {"apiVersion": "v1", "kind": "List", "items": manifests}
        output = self.run("create", "-f", "-", "-o", "json", input=json.dumps(items))
        return _objects(output)

    def pods(self, selector: str) -> list[PodState]:
        """Return the pods with these labels."""
        output = self.run("get", "pods", f"--selector={selector}", "-o", "json")
        pods = [parse_pod(pod) for pod in json.loads(output)["items"]]
        slow = [pod for pod in pods if pod.is_slow(time.time())]
        troubles = self._troubles() if slow else {}
        return [
            replace(pod, reason=troubles[pod.name], is_failing=True)
            if pod in slow and troubles.get(pod.name)
            else pod
            for pod in pods
        ]

    def _troubles(self) -> dict[str, str]:
        """Return why containers cannot be created, by pod; empty without the right to know."""
        try:
            found = self.get("events", "--field-selector=involvedObject.kind=Pod")
        except KubectlUnanswered:
            raise
        except KubectlError:
            return {}
        events: dict[str, list[PodEvent]] = {}
        for item in found:
            name = str(item["involvedObject"].get("name", ""))
            events.setdefault(name, []).append(msgspec.convert(item, PodEvent))
        return {name: EventList(tuple(each)).trouble() for name, each in events.items()}

    def get(self, *words: str) -> list[dict[str, Any]]:
        """Return objects."""
        return _objects(self.run("get", *words, "-o", "json"))

    def delete_pods(self, names: Sequence[str], grace: int) -> None:
        """Delete pods without waiting for their end; those that are gone do not matter."""
        if names:
            self.run(
                "delete", "pods", *names, f"--grace-period={grace}", "--wait=false",
                "--ignore-not-found",
            )  # fmt: skip

    def run(self, *words: str, input: str = "") -> str:
        """Run kubectl; return its output."""
        # Without --request-timeout: with it, kubectl ignores the service account of its pod.
        argv = self.argv(*words)
        try:
            done = subprocess.run(
                argv, input=input, capture_output=True, text=True, timeout=self.timeout,
                check=False, errors="replace", start_new_session=True, cwd="/",
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            why = f"kubectl did not answer within {self.timeout:.0f} s"
            raise KubectlUnanswered(why) from None
        except OSError as error:
            raise KubectlError(not_found_text(error)) from None
        if done.returncode == 0:
            return done.stdout
        reason = error_text(done.stderr) or f"kubectl ended with code {done.returncode}"
        kind = KubectlUnanswered if UNANSWERED.search(done.stderr) else KubectlError
        raise kind(reason)


def not_found_text(error: OSError) -> str:
    """Return why kubectl cannot be run."""
    if isinstance(error, FileNotFoundError):
        return "kubectl was not found here; install it, or add its directory to PATH"
    return f"kubectl cannot be run: {error.strerror or error}"


def error_text(stderr: str) -> str:
    """Return the error message of kubectl without its preamble."""
    if UNCONFIGURED.search(stderr):
        return UNCONFIGURED_TEXT
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    # Plugins and client-go log before the error, with the file of the source.
    lines = [line for line in lines if not re.match(r"[EWIF]\d{4} ", line)] or lines
    text = lines[-1] if lines else ""
    for prefix in ("error: ", "Error from server ", "error when creating "):
        text = text.removeprefix(prefix)
    text = re.sub(r"^\((\w+)\): (error when creating \"[^\"]*\": )?", "", text)
    text = text.removeprefix('error when creating "STDIN": ')
    return printable(text, MAX_REASON_LENGTH)


def _objects(output: str) -> list[dict[str, Any]]:
    """Return objects that kubectl printed: one, a list, or one after the other."""
    decoder, found, text = json.JSONDecoder(), list[dict[str, Any]](), output.strip()
    while text:
        value, end = decoder.raw_decode(text)
        found += value["items"] if str(value.get("kind", "")).endswith("List") else [value]
        text = text[end:].strip()
    return found


def parse_pod(pod: Mapping[str, Any]) -> PodState:
    """Return the state of a pod as the API describes it."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    deletion = _time(metadata.get("deletionTimestamp"))
    started = _time(status.get("startTime"))
    limit = spec.get("activeDeadlineSeconds")
    ends = [deletion] if deletion is not None else []
    if limit is not None and started is not None:
        ends.append(started + limit)
    phase = str(status.get("phase") or "Pending")
    states = [each.get("state") or {} for each in status.get("containerStatuses") or []]
    waiting: Mapping[str, Any] = next(
        (state["waiting"] for state in states if "waiting" in state), {}
    )
    why = str(waiting.get("reason") or "")
    return PodState(
        name=metadata["name"],
        phase=phase,
        uid=str(metadata.get("uid") or ""),
        node=str(spec.get("nodeName") or ""),
        ip=str(status.get("podIP") or ""),
        started=started,
        end=min(ends) if ends else None,
        is_deleting=deletion is not None,
        reason=_reason(phase, status, states, waiting),
        is_failing=why in FAILED_REASONS,
        is_fatal=why in FATAL_REASONS,
    )


def _reason(
    phase: str,
    status: Mapping[str, Any],
    states: Sequence[Mapping[str, Any]],
    waiting: Mapping[str, Any],
) -> str:
    if phase in ("Failed", "Succeeded"):
        ended: Mapping[str, Any] = next(
            (state["terminated"] for state in states if "terminated" in state), {}
        )
        if message := status.get("message") or ended.get("message"):
            reason = status.get("reason") or ended.get("reason") or ""
            known = ("", "Error", "Completed")
            return _text(message if reason in known else f"{reason}: {message}")
        reason = status.get("reason") or ended.get("reason") or phase
        code = ended.get("exitCode")
        return _text(reason if code is None else f"{reason}, exit code {code}")
    if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
        message = waiting.get("message")
        return _text(f"{waiting['reason']}: {message}" if message else waiting["reason"])
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _text(condition.get("message") or condition.get("reason") or "")
    if phase == "Pending":
        return "its container is being created" if states else "it has not been scheduled yet"
    return ""


def _text(text: str) -> str:
    return printable(" ".join(str(text).split()), MAX_REASON_LENGTH)


def _time(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None
