"""Nodes with GPUs but without a kubelet: pods are really scheduled; this reports how they run.

usage: fake_kubelet.py KUBECONFIG NODES GPUS PREFIX      (the nodes PREFIX1, PREFIX2, ...)

Annotations of a pod decide how it runs:

    bed/seconds   how long (default 1; `forever`)
    bed/exit      its exit code (default 0)
    bed/pull      `fail`: its image cannot be pulled
    bed/term      its exit code when it is deleted, a second later (default: gone at once)

A node whose file `down.NODE` exists beside the kubeconfig reports nothing any more.
"""

import heapq
import http.client
import itertools
import json
import ssl
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Pod = dict[str, Any]
MERGE = "application/merge-patch+json"
HEARTBEAT_SECONDS = 3.0


class Api:
    """Requests to the API server, over one connection for each thread."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        self.server = urlsplit(config["clusters"][0]["cluster"]["server"])
        self.token = config["users"][0]["user"]["token"]
        self.context = ssl._create_unverified_context()
        self.local = threading.local()

    def _connect(self) -> http.client.HTTPSConnection:
        host, port = str(self.server.hostname), self.server.port
        return http.client.HTTPSConnection(host, port, context=self.context, timeout=400)

    def open(
        self, connection: http.client.HTTPSConnection, method: str, path: str,
        body: object = None, kind: str = "application/json",
    ) -> http.client.HTTPResponse:  # fmt: skip
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, headers)
        return connection.getresponse()

    def call(
        self, method: str, path: str, body: object = None, kind: str = "application/json"
    ) -> tuple[int, Any]:
        """Send a request; return the status and the object. Raise OSError if it has no answer."""
        connection = getattr(self.local, "connection", None) or self._connect()
        self.local.connection = None
        try:
            response = self.open(connection, method, path, body, kind)
            data = response.read()
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        self.local.connection = connection
        return response.status, json.loads(data) if data else {}

    def watch(self, path: str) -> http.client.HTTPResponse:
        """Open a stream of events."""
        return self.open(self._connect(), "GET", path)


class Schedule:
    """Calls functions later, in worker threads; what fails is tried again."""

    def __init__(self, workers: int = 8) -> None:
        self.due: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = itertools.count()
        self.changed = threading.Condition()
        for _ in range(workers):
            threading.Thread(target=self._work, daemon=True).start()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        with self.changed:
            heapq.heappush(self.due, (time.monotonic() + seconds, next(self.numbers), call))
            self.changed.notify()

    def _work(self) -> None:
        while True:
            with self.changed:
                while not self.due or self.due[0][0] > time.monotonic():
                    wait = self.due[0][0] - time.monotonic() if self.due else 1.0
                    self.changed.wait(min(max(wait, 0.0), 1.0))
                _, _, call = heapq.heappop(self.due)
            try:
                call()
            except (OSError, ValueError) as error:  # the API server may be away
                print(error, file=sys.stderr, flush=True)
                self.after(1.0, call)


class FakeKubelets:
    """All nodes of one prefix."""

    def __init__(self, api: Api, names: list[str], gpus: int, directory: Path) -> None:
        self.api, self.names, self.gpus, self.directory = api, names, gpus, directory
        self.schedule = Schedule()
        self.seen: dict[str, str] = {}
        """What was done about a pod, by its uid: running or ending."""

    def run(self) -> None:
        for name in self.names:
            self._try_register(name)
        threading.Thread(target=self._send_heartbeats, daemon=True).start()
        while True:
            try:
                self._follow()
            except (OSError, http.client.HTTPException, ValueError) as error:
                print(error, file=sys.stderr, flush=True)
                time.sleep(0.5)

    def _is_down(self, name: str) -> bool:
        return (self.directory / f"down.{name}").exists()

    # -- nodes --------------------------------------------------------------------------

    def _try_register(self, name: str) -> None:
        labels = {
            "kubernetes.io/hostname": name,
            "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
        }
        self.api.call("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
        resources = {
            "cpu": "64", "memory": "512Gi", "pods": "1000", "nvidia.com/gpu": str(self.gpus),
            "ephemeral-storage": "1Ti",
        }  # fmt: skip
        ready = {
            "type": "Ready", "status": "True", "reason": "Fake",
            "lastHeartbeatTime": timestamp(), "lastTransitionTime": timestamp(),
        }  # fmt: skip
        status = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
        path = f"/api/v1/nodes/{name}"
        self.api.call("PATCH", f"{path}/status", {"status": status}, MERGE)
        lease = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": timestamp(True)}
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        self.api.call("POST", leases, {"metadata": {"name": name}, "spec": lease})

    def _send_heartbeats(self) -> None:
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        was_down: set[str] = set()
        while True:
            for name in self.names:
                if self._is_down(name):
                    was_down.add(name)
                    continue
                try:
                    renewed = {"spec": {"renewTime": timestamp(True)}}
                    status, _ = self.api.call("PATCH", f"{leases}/{name}", renewed, MERGE)
                    if status == 404 or name in was_down:
                        self._try_register(name)
                        was_down.discard(name)
                except (OSError, ValueError) as error:
                    print(error, file=sys.stderr, flush=True)
            time.sleep(HEARTBEAT_SECONDS)

    # -- pods ---------------------------------------------------------------------------

    def _follow(self) -> None:
        """List all pods, then watch them until the stream ends or is too old."""
        _, found = self.api.call("GET", "/api/v1/pods")
        for pod in found["items"]:
            self._take(pod)
        version = found["metadata"]["resourceVersion"]
        query = "watch=1&allowWatchBookmarks=true&timeoutSeconds=300"
        for line in self.api.watch(f"/api/v1/pods?{query}&resourceVersion={version}"):
            event = json.loads(line)
            if event["type"] == "ERROR":
                return
            if event["type"] == "DELETED":
                self.seen.pop(event["object"]["metadata"]["uid"], None)
            elif event["type"] != "BOOKMARK":
                self._take(event["object"])

    def _take(self, pod: Pod) -> None:
        node = pod["spec"].get("nodeName")
        if node not in self.names or self._is_down(node):
            return
        notes, uid = pod["metadata"].get("annotations", {}), pod["metadata"]["uid"]
        if "deletionTimestamp" in pod["metadata"]:
            if self.seen.get(uid) == "ending":
                return
            self.seen[uid] = "ending"
            if "bed/term" in notes and pod["status"].get("phase") == "Running":
                code = int(notes["bed/term"])
                self.schedule.after(1.0, lambda: self._report(pod, "Failed", code))
                self.schedule.after(1.2, lambda: self._delete(pod))
            else:
                self.schedule.after(0.0, lambda: self._delete(pod))
        elif uid not in self.seen and pod["status"].get("phase") == "Pending":
            self.seen[uid] = "running"
            if notes.get("bed/pull") == "fail":
                self.schedule.after(0.0, lambda: self._report(pod, "Pending", None, pulls=False))
                return
            self.schedule.after(0.0, lambda: self._report(pod, "Running"))
            seconds, code = notes.get("bed/seconds", "1"), int(notes.get("bed/exit", 0))
            if seconds != "forever":
                self.schedule.after(float(seconds), lambda: self._end(pod, code))

    def _end(self, pod: Pod, code: int) -> None:
        if self._is_down(pod["spec"]["nodeName"]):
            self.schedule.after(1.0, lambda: self._end(pod, code))
        elif self.seen.get(pod["metadata"]["uid"]) == "running":
            self._report(pod, "Failed" if code else "Succeeded", code)

    def _report(self, pod: Pod, phase: str, code: int | None = None, pulls: bool = True) -> None:
        meta, began = pod["metadata"], pod.setdefault("began", timestamp())
        state: dict[str, Any] = {"running": {"startedAt": began}}
        if not pulls:
            state = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
        elif code is not None:
            reason = "Error" if code else "Completed"
            ended = {"exitCode": code, "reason": reason, "finishedAt": timestamp()}
            state = {"terminated": {"startedAt": began, **ended}}
        statuses = [
            {
                "name": each["name"], "image": each["image"], "imageID": "", "state": state,
                "ready": phase == "Running", "restartCount": 0,
            }
            for each in pod["spec"]["containers"]
        ]  # fmt: skip
        condition = {"type": "Ready", "status": str(phase == "Running")}
        status = {
            "phase": phase, "startTime": began, "podIP": "10.0.0.1",
            "containerStatuses": statuses, "conditions": [condition],
        }  # fmt: skip
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self.api.call("PATCH", f"{path}/status", {"status": status}, MERGE)

    def _delete(self, pod: Pod) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
        self.api.call("DELETE", path, options)


def timestamp(is_micro: bool = False) -> str:
    """Return the time now as the API has it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + (".000000Z" if is_micro else "Z")


def main() -> None:
    kubeconfig, count, gpus, prefix = sys.argv[1:5]
    names = [f"{prefix}{number}" for number in range(1, int(count) + 1)]
    path = Path(kubeconfig)
    FakeKubelets(Api(path), names, int(gpus), path.parent).run()


if __name__ == "__main__":
    main()
