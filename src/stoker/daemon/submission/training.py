"""What a training submission needs besides: directories, epochs, running without a GPU."""

from __future__ import annotations

import os
from typing import Any

from msgspec.structs import replace

from stoker.core.contract import BACKEND
from stoker.core.job import Job, Spec, Training
from stoker.core.options import Wanted
from stoker.core.policy.fit import could_ever
from stoker.core.request import Request
from stoker.core.state import State
from stoker.core.units import THOUSAND, BadValue

USER_SETTINGS = (BACKEND, "OMP_NUM_THREADS")
"""Variables that stoker sets for a distributed job unless the user has set them."""
NO_GPU = "no GPU is available; it runs without a GPU"


def keep_user_settings(submission: Wanted, environment: bytes) -> None:
    """Mark variables of distributed training that the user has set, so that they stay as set."""
    training = submission.fields.get("training")
    if training is not None and training.distributed:
        given = {pair.partition(b"=")[0] for pair in environment.split(b"\0")}
        kept = [name for name in USER_SETTINGS if name.encode() in given]
        names = dict.fromkeys([*(submission.fields.get("asked") or ()), *kept])
        submission.fields["asked"] = tuple(names) or None


def without_gpus(state: State, spec: Spec) -> Request | None:
    """Return the request without GPUs if no node has the GPUs; None if a node may have them."""
    new_job = Job(0, "", "", "", 0.0)
    if spec.request.gpus is None or _is_possible(state, state.effective(new_job, spec)):
        return None
    if any(name not in state.cluster.nodes for name in state.rest.remotes):
        return None  # a node that was not reached yet may have one
    without = replace(spec.request, gpus=None, cpus=spec.request.cpus or THOUSAND)
    possible = _is_possible(state, state.effective(new_job, replace(spec, request=without)))
    return without if possible else None


def _is_possible(state: State, request: Request) -> bool:
    able = sum(could_ever(node, request) is None for node in state.cluster.nodes.values())
    return able >= request.machines


def check_directories(fields: dict[str, Any]) -> None:
    """Reject checkpoint and mount directories that do not exist or cannot be written to."""
    training, container = fields.get("training"), fields.get("container")
    snapshots = training.snapshots if training is not None else None
    if snapshots is not None:
        if not os.path.isdir(snapshots):
            raise BadValue(f"--snapshots-dir {snapshots} is not a directory.")
        if not os.access(snapshots, os.W_OK | os.X_OK):
            raise BadValue(f"--snapshots-dir {snapshots} cannot be written to.")
    for mount in container.mounts if container is not None else ():
        if not mount.optional and not os.path.exists(mount.source):
            raise BadValue(f"--mount {mount.source}: there is no such directory.")


def check_epochs(job: Job, fields: dict[str, Any], before: Training | None = None) -> None:
    """Reject fewer epochs than have ended, and a change of the checkpoint directory after that."""
    snapshots = before.snapshots if before is not None else None
    training = fields.get("training")
    done = job.progress.epochs if job.progress is not None else 0
    if training is not None and training.epochs is not None and training.epochs < done:
        raise BadValue(f"--epochs {training.epochs} is less than the {done} that have ended.")
    if training is not None and done and training.snapshots != snapshots:
        raise BadValue(
            "--snapshots-dir cannot be changed: the checkpoints are in the old directory."
        )


def limit_to_queue(state: State, spec: Spec) -> Spec:
    """Limit the maximum size of an elastic job to what its queue allows one job."""
    queue, gpus = state.rest.queues.get(spec.queue), spec.request.gpus
    if queue is None or queue.max_job_gpus is None or gpus is None or gpus.most is None:
        return spec
    max_gpus = min(gpus.most, queue.max_job_gpus // THOUSAND * THOUSAND)
    gpus = replace(gpus, most=max_gpus if max_gpus > gpus.amount else None)
    return replace(spec, request=replace(spec.request, gpus=gpus))
