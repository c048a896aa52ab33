"""Short pods on a Kubernetes cluster: stoker's hand-over beside `kubectl create` and Jobs.

The control plane is real, the nodes are not (tests/kubernetes/fake_kubelet.py): what is measured is
the cost of an attempt in stoker, in the API server and in the scheduler, not that of containers.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.lab import REPOSITORY, Broken, fresh_directory
from benchmarks.report import table
from benchmarks.settings import Settings
from benchmarks.throughput import say

NODES, GPUS_PER_NODE = 4, 64
POD_SECONDS = 1
TIMEOUT_SECONDS = 600.0
REQUESTS = "apiserver_request_total"
"""The request counter of the API server."""


def measure(settings: Settings) -> dict[str, Any]:
    """Run all parts on one control plane of this host, after one another."""
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from kubernetes.control_plane import TOOLS, running  # type: ignore[import-not-found]

    lacking = [tool for tool in TOOLS if "/" in tool and not (REPOSITORY / tool).exists()]
    if lacking:
        why = f"no {lacking[0]}: run .ci/kubernetes"
        print(f"missing: kubernetes: {why}")
        return {"missing": why}
    jobs = min(settings.jobs, 100 if settings.quick else 1000)
    found: dict[str, dict[str, float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="stoker-bench-") as base,
        running(Path(base)) as cluster,
    ):
        cluster.add_fake_nodes(NODES, GPUS_PER_NODE)
        for name, run in (
            ("stoker, handed over", _with_stoker), ("kubectl create, a pod each", _with_pods),
            ("kubectl create, a Job each", _with_jobs),
        ):  # fmt: skip
            with fresh_directory(settings.runs) as directory:
                before, begin = _requests(cluster), time.perf_counter()
                run(cluster, directory, jobs)
                taken = time.perf_counter() - begin
                requests = _requests(cluster) - before
            found[name] = {"jobs": jobs, "seconds": taken, "requests": requests / jobs}
            say(f"kubernetes: {name}: {jobs} jobs in {taken:.1f} s")
            _clean(cluster)
    report(found)
    return dict(found)


def _with_stoker(cluster: Any, directory: Path, jobs: int) -> None:
    """Submit an array to a daemon that hands over, and wait for its end."""
    environment = {
        **os.environ, **cluster.environment, "HOME": str(directory),
        "STOKER_HOME": f"{directory}/home",
    }  # fmt: skip

    def stoker(*words: str) -> str:
        return _run([sys.executable, "-m", "stoker", *words], environment, directory)

    stoker("daemon", "start", "--resources", "{cpu:1}")
    try:
        stoker("nodes", "add", "lab", "kubernetes://", "--image", "none", "--ahead", "200")
        _until(lambda: '"state":"up"' in stoker("nodes", "--json").replace(" ", ""))
        stoker(
            "submit", "-w", "lab", "--gpus", "1", "--array", f"0-{jobs - 1}", "--no-send", "true"
        )
        stoker("wait", "last", "--timeout", str(int(TIMEOUT_SECONDS)))
        _until(lambda: not cluster.pods())
    finally:
        stoker("daemon", "stop", "--cancel")


def _with_pods(cluster: Any, directory: Path, jobs: int) -> None:
    _create(cluster, directory, jobs, lambda name: _pod(name, "v1", "Pod", _pod_spec()))


def _with_jobs(cluster: Any, directory: Path, jobs: int) -> None:
    def build(name: str) -> dict[str, Any]:
        spec = {"backoffLimit": 0, "template": {"spec": _pod_spec()}}
        return _pod(name, "batch/v1", "Job", spec)

    _create(cluster, directory, jobs, build)


def _pod_spec() -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "main", "image": "none", "command": ["true"], "resources": resources}
    return {"restartPolicy": "Never", "containers": [container]}


def _pod(name: str, version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _create(
    cluster: Any, directory: Path, jobs: int, build: Callable[[str], dict[str, Any]]
) -> None:
    """Create all objects by one kubectl, and wait until all pods have ended."""
    items = [build(f"job-{number}") for number in range(jobs)]
    path = directory / "list.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    cluster.kubectl("create", "-f", str(path))

    def have_ended() -> bool:
        phases = [pod["status"].get("phase") for pod in cluster.pods().values()]
        return phases.count("Succeeded") == jobs

    _until(have_ended)


def _clean(cluster: Any) -> None:
    cluster.kubectl("delete", "jobs", "--all", "--cascade=background")
    cluster.delete_pods()


def _requests(cluster: Any) -> float:
    """Return how many requests about pods, Jobs and logs the API server has answered."""
    total = 0.0
    for line in cluster.kubectl("get", "--raw", "/metrics").splitlines():
        about = any(f'resource="{name}"' in line for name in ("pods", "jobs", "services"))
        if line.startswith(f"{REQUESTS}{{") and about:
            total += float(line.rpartition(" ")[2])
    return total


def _run(argv: list[str], environment: dict[str, str], directory: Path) -> str:
    import subprocess

    done = subprocess.run(
        argv, env=environment, cwd=directory, capture_output=True, text=True, check=False,
        timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    if done.returncode:
        raise Broken(f"{' '.join(argv[3:])}: {done.stderr.strip()[-300:]}")
    return done.stdout


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise Broken("it did not end")
        time.sleep(0.2)


def report(found: dict[str, dict[str, float]]) -> None:
    """Print the table."""
    rows = [
        [name, f"{taken['jobs']:.0f}", f"{taken['seconds']:.1f}",
         f"{taken['seconds'] / taken['jobs'] * 1000:.0f}", f"{taken['requests']:.1f}"]
        for name, taken in found.items()
    ]  # fmt: skip
    nodes = f"{NODES} nodes in pretence with {GPUS_PER_NODE} GPUs each"
    print(f"\nKubernetes: pods of {POD_SECONDS} s on {nodes}\n")
    print(table(["", "jobs", "s", "ms per job", "API requests per job"], rows))
