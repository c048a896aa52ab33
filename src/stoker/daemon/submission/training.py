"""What a submission of a training job needs besides: its directories, its GPUs if any are here."""

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

OWN_WINS = (BACKEND, "OMP_NUM_THREADS")
"""What we would set for a distributed job, unless its owner has."""
NO_GPU = "no GPU is available; it runs without a GPU"


def prefer_own(wanted: Wanted, environment: bytes) -> None:
    """What its owner has set for distributed training wins over what we would set."""
    training = wanted.fields.get("training")
    if training is not None and training.distributed:
        given = {pair.partition(b"=")[0] for pair in environment.split(b"\0")}
        own = [name for name in OWN_WINS if name.encode() in given]
        asked = dict.fromkeys([*(wanted.fields.get("asked") or ()), *own])
        wanted.fields["asked"] = tuple(asked) or None


def without_gpus(state: State, spec: Spec) -> Request | None:
    """What a job asks for that would take a GPU but finds none; None where it may find one."""
    nobody = Job(0, "", "", "", 0.0)
    ask = spec.request.gpus
    if ask is None or _is_possible(state, state.effective(nobody, spec)):
        return None
    if any(name not in state.cluster.nodes for name in state.rest.remotes):
        return None  # what has not been reached yet may have one
    without = replace(spec.request, gpus=None, cpus=spec.request.cpus or THOUSAND)
    possible = _is_possible(state, state.effective(nobody, replace(spec, request=without)))
    return without if possible else None


def _is_possible(state: State, request: Request) -> bool:
    able = sum(could_ever(node, request) is None for node in state.cluster.nodes.values())
    return able >= request.machines


def check_directories(fields: dict[str, Any]) -> None:
    """Refuse directories for checkpoints and containers that are not there, or not ours to use."""
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
    """Refuse to have fewer epochs than are done, or to leave their checkpoints behind."""
    snapshots = before.snapshots if before is not None else None
    training = fields.get("training")
    done = job.progress.epochs if job.progress is not None else 0
    if training is not None and training.epochs is not None and training.epochs < done:
        raise BadValue(f"--epochs {training.epochs} is less than the {done} that have ended.")
    if training is not None and done and training.snapshots != snapshots:
        raise BadValue(
            "--snapshots-dir cannot be changed: the checkpoints are in the old directory."
        )


def within_queue(state: State, spec: Spec) -> Spec:
    """An elastic job takes no more than its queue gives to one job."""
    queue, ask = state.rest.queues.get(spec.queue), spec.request.gpus
    if queue is None or queue.max_job_gpus is None or ask is None or ask.most is None:
        return spec
    most = min(ask.most, queue.max_job_gpus // THOUSAND * THOUSAND)
    ask = replace(ask, most=most if most > ask.amount else None)
    return replace(spec, request=replace(spec.request, gpus=ask))
