"""PodWatch against a real API server whose watches become too old."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import require
from kubernetes.control_plane import TOOLS, KubernetesCluster, running
from stoker.executors.kubernetes.api import pod_watch
from stoker.executors.kubernetes.api.client import PODS
from stoker.executors.kubernetes.api.pod_watch import ApiError, PodWatch
from stoker.executors.kubernetes.api.process import HttpApi

pytestmark = [pytest.mark.proof, pytest.mark.timeout(240)]


@pytest.fixture
def uncached(tmp_path: Path) -> Iterator[KubernetesCluster]:
    """A server without a cache: it answers watches of old versions itself."""
    require(*TOOLS)
    with running(tmp_path, "--watch-cache=false") as cluster:
        yield cluster


def pod(name: str) -> dict[str, Any]:
    spec = {"schedulerName": "none", "containers": [{"name": "main", "image": "none"}]}
    metadata = {"name": name, "labels": {"watched": "yes"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def test_a_watch_that_is_too_old_lists_again(
    uncached: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in uncached.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(pod_watch, "WATCH_SECONDS", 2)
    reported: list[tuple[str, list[str]]] = []
    statuses: list[int] = []
    create = ApiError.__init__

    def noted(self: ApiError, status: int, message: str) -> None:
        statuses.append(status)
        create(self, status, message)

    monkeypatch.setattr(ApiError, "__init__", noted)

    def report(kind: str, what: Any) -> None:
        pods = what if isinstance(what, list) else [what]
        reported.append((kind, [pod.name for pod in pods] if kind != "failed" else [what]))

        if "late" in reported[-1][1]:
            is_late.set()

    is_late = asyncio.Event()

    def change(text: str) -> None:
        """Make everything older than now too old, with changes that the watch does not see."""
        metadata = {"name": "other", "namespace": "default"}
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        uncached.apply(config | {"data": {"text": text}})
        uncached.compact_etcd()

    async def follow() -> None:
        task = asyncio.create_task(PodWatch(HttpApi("", "", ""), PODS, "watched=yes", report).run())
        number = 0
        while len(reported) < 2:
            number += 1
            await asyncio.to_thread(change, str(number))
            await asyncio.sleep(0.2)
        await asyncio.to_thread(uncached.apply, pod("late"))
        await is_late.wait()
        task.cancel()

    asyncio.run(follow())
    assert 410 in statuses
    assert {kind for kind, _ in reported} <= {"listed", "pod"}
