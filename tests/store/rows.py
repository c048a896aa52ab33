"""Small batches for a store."""

from typing import Any

from stoker.core import events as e
from stoker.core.model.job import Job, JobState
from stoker.core.model.resources import GpuRequest, ResourceRequest
from stoker.core.model.spec import Spec
from stoker.core.model.sweep import Sweep
from stoker.core.state.record import ClusterRecord
from stoker.store.port import Batch


def spec(**fields: Any) -> Spec:
    common = {
        "kind": "line", "user": "ada", "directory": "/tmp", "shell": "/bin/sh",
        "environment": "env-1", "name": "train",
    }  # fmt: skip
    return Spec(request=ResourceRequest(gpus=GpuRequest(500)), **{**common, **fields})


def job(id: int, state: str = "PENDING", **fields: Any) -> Job:
    common = {"spec": "s1", "name": "train", "user": "ada", "submitted_at": 10.0 + id}
    return Job(id=id, state=JobState(state), **{**common, **fields})


def done(id: int, ended_at: float, state: str = "COMPLETED", **fields: Any) -> Job:
    return job(id, state, started_at=ended_at - 5, ended_at=ended_at, **fields)


def trial(sweep: int, id: int, number: int, **fields: Any) -> Job:
    return job(id, array=sweep, index=number, params=f'{{"lr":{number}}}', **fields)


def sweep(id: int, **fields: Any) -> Sweep:
    common = {
        "name": "tune", "user": "ada", "identity": "i", "definition": "d", "method": "grid",
        "created_at": 1.0,
    }  # fmt: skip
    return Sweep(id=id, **{**common, **fields})


def batch(*jobs: Job, **fields: Any) -> Batch:
    """Return a batch with one event per job, and these fields."""
    empty: dict[str, Any] = {
        "events": [e.JobHeld(at=float(each.id), job=each.id) for each in jobs],
        "jobs": list(jobs), "dropped": [], "rest": None, "blobs": {}, "secrets": {}, "keys": [],
        "specs": {"s1": spec()} if jobs else {},
    }  # fmt: skip
    return Batch(**{**empty, **fields})


def rest(**fields: Any) -> ClusterRecord:
    return ClusterRecord(**fields)
