"""What a training submission needs besides: directories, epochs, running without a GPU."""

from __future__ import annotations

import os
from typing import Any

from msgspec.structs import replace

from stoker.core.launch.training_env import BACKEND_VARIABLE
from stoker.core.model.job import Job
from stoker.core.model.resources import ResourceRequest
from stoker.core.model.spec import Spec, Training
from stoker.core.model.units import THOUSAND, BadValue, format_duration
from stoker.core.options.submit import ParsedOptions
from stoker.core.placement.infeasible import max_parts
from stoker.core.state.limits import AppliedLimits
from stoker.core.state.state import State

USER_SETTINGS = (BACKEND_VARIABLE, "OMP_NUM_THREADS")
"""Variables that stoker sets for a distributed job unless the user has set them."""
NO_GPU = "no GPU is available; it runs without a GPU"


def keep_user_settings(submission: ParsedOptions, environment: bytes) -> None:
    """Mark variables of distributed training that the user has set, so that they stay as set."""
    training = submission.fields.get("training")
    if training is not None and training.distributed:
        given = {pair.partition(b"=")[0] for pair in environment.split(b"\0")}
        kept = [name for name in USER_SETTINGS if name.encode() in given]
        names = dict.fromkeys([*(submission.fields.get("exported_variables") or ()), *kept])
        submission.fields["exported_variables"] = tuple(names) or None


def without_gpus(state: State, spec: Spec) -> ResourceRequest | None:
    """Return the request without GPUs if no node has the GPUs; None if a node may have them."""
    new_job = Job(0, "", "", "", 0.0)
    if spec.request.gpus is None or _is_possible(state, state.effective_request(new_job, spec)):
        return None
    if any(name not in state.cluster.nodes for name in state.record.remotes):
        return None  # a node that was not reached yet may have one
    without = replace(spec.request, gpus=None, cpus=spec.request.cpus or THOUSAND)
    possible = _is_possible(state, state.effective_request(new_job, replace(spec, request=without)))
    return without if possible else None


def _is_possible(state: State, request: ResourceRequest) -> bool:
    able = (max_parts(node, request) for node in state.cluster.nodes.values())
    return sum(able) >= request.node_count


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
    done = job.progress.epochs
    if training is not None and training.epochs is not None and training.epochs < done:
        raise BadValue(f"--epochs {training.epochs} is less than the {done} that have ended.")
    if training is not None and done and training.snapshots != snapshots:
        raise BadValue(
            "--snapshots-dir cannot be changed: the checkpoints are in the old directory."
        )


def with_default_limit(spec: Spec, limits: list[AppliedLimits]) -> tuple[Spec, list[str]]:
    """Return a spec with the longest time limit that it may have, if it has none; and a note."""
    times = [(each.max_time, who.text) for _, who, each in limits if each.max_time is not None]
    if spec.limit is not None or not times:
        return spec, []
    most, who = min(times)
    note = f"no time limit was given, so it has that of {who}: {format_duration(most)}"
    return replace(spec, limit=most), [note]


def limit_to_queue(state: State, spec: Spec, limits: list[AppliedLimits]) -> Spec:
    """Limit the maximum size of an elastic job to what its queue and user allow one job."""
    queue, gpus = state.record.queues.get(spec.queue), spec.request.gpus
    amounts = [each.max_job_gpus for _, _, each in limits]
    amounts.append(queue.max_job_gpus if queue is not None else None)
    most = [amount // THOUSAND * THOUSAND for amount in amounts if amount is not None]
    if not most or gpus is None or gpus.max_amount is None:
        return spec
    max_gpus = min(gpus.max_amount, *most)
    gpus = replace(gpus, max_amount=max_gpus if max_gpus > gpus.amount else None)
    return replace(spec, request=replace(spec.request, gpus=gpus))
