"""Attempts that the journal does not know: it was restored from a backup, or lost its end."""

from __future__ import annotations

import os
from collections.abc import Callable

from msgspec import DecodeError
from msgspec.json import decode

from stoker.core import events as e
from stoker.core.model.job import AttemptId, Job
from stoker.core.model.resources import (
    CPU,
    GPU,
    MEMORY,
    DeviceAllocation,
    GpuRequest,
    Placement,
    ResourceRequest,
)
from stoker.core.model.spec import Spec
from stoker.core.model.units import THOUSAND
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext, record_spec
from stoker.daemon.runtime.clock import system_clock
from stoker.executors.linux import procfs
from stoker.executors.local.claims import Claim
from stoker.executors.local.recovery import AttemptRecovery


def unknown_attempts(
    state: State, context: RequestContext, recovery: AttemptRecovery
) -> dict[int, int]:
    """The attempts that have left a trace here and are later than what the journal knows, by job.

    Of a job that the journal does not know at all, only an attempt that still runs.
    """
    claimed, ended = recovery.find_unknown_attempts(), recovery.exited()
    attempts = [key for key in {*claimed, *ended} if _is_later(key, state.jobs.get(key[0]))]
    attempts = [key for key in attempts if key in ended or not _is_given_up(recovery.claim(key))]
    for id, attempt in claimed:
        if (
            id in state.jobs
            or id in state.sweeps
            or not _runs(recovery.claim(AttemptId(id, attempt)))
        ):
            continue
        before = context.load_job(id)
        if before is None or _is_later(AttemptId(id, attempt), before):
            attempts.append(AttemptId(id, attempt))
    return dict(sorted(attempts))


def _is_later(key: AttemptId, job: Job | None) -> bool:
    """Whether an attempt is later than what the journal knows of its job."""
    return job is not None and key[1] >= job.attempt + (job.holding or job.finished)


def _is_given_up(claim: Claim) -> bool:
    return claim.revoked or claim.withdrawn


def _runs(claim: Claim) -> bool:
    return claim.is_alive or (claim.pid is None and claim.is_supervisor_alive)


def recover(
    attempts: dict[int, int],
    state: Callable[[], State],
    context: RequestContext,
    recovery: AttemptRecovery,
    cycle: Callable[[list[e.Event]], None],
) -> tuple[list[Job], list[str]]:
    """Enter these attempts in the journal; return their jobs, and what a person should know."""
    new: list[int] = []
    known = [AttemptId(*item) for item in attempts.items() if item[0] in state().jobs]
    over = recovery.fully_ended(known)
    # Without processes they need no devices: one cycle for all, there may be thousands.
    cycle([_recovered(key, Placement(context.node, ())) for key in sorted(over)])
    for id, attempt in sorted(attempts.items() - over):
        now = system_clock()
        claim = recovery.claim(AttemptId(id, attempt))
        placement = _available(state(), id, _placement(claim, context.node), context.node)
        events: list[e.Event] = []
        if id not in state().jobs and context.load_job(id) is not None:
            events += context.restore_jobs([id], state(), now.wall)
        elif id not in state().jobs:
            events += _submission(state(), id, claim, placement, context.user, now.wall)
            new.append(id)
        cycle([*events, _recovered(AttemptId(id, attempt), placement)])
    return [state().jobs[id] for id in sorted(attempts)], [_alert(new)] if new else []


def _recovered(key: AttemptId, placement: Placement) -> e.Event:
    now = system_clock()
    return e.AttemptRecovered(
        at=now.wall, job=key[0], attempt=key[1], placement=placement, boot=now.boot
    )


def _alert(ids: list[int]) -> str:
    one = len(ids) == 1
    named = f"job {ids[0]} was" if one else f"jobs {', '.join(map(str, ids))} were"
    kept = "it keeps its id and devices" if one else "they keep their ids and devices"
    are = "it is" if one else "they are"
    return (
        f"{named} found running and not in the journal, which may be an old copy: {kept}; "
        f"other options are unknown, so {are} not retried"
    )


def _placement(claim: Claim, node: str) -> Placement:
    """The devices that an attempt was given: as its claim says, else as its environment does."""
    try:
        return decode(claim.note, type=Placement)
    except DecodeError:
        pass
    environment = _environment(claim.pid)
    names = [name for name in environment.get("STOKER_GPUS", "").split(",") if name]
    try:
        amount = int(float(environment.get("STOKER_GPU_COUNT") or len(names)) * THOUSAND)
    except ValueError:
        amount = len(names) * THOUSAND
    return Placement(
        node, tuple(DeviceAllocation(GPU, name, amount // len(names)) for name in names)
    )


def _available(state: State, id: int, placement: Placement, node: str) -> Placement:
    """What can be entered in the ledger of a placement: devices that exist, as far as free."""
    job = state.jobs.get(id)
    held = job.placement.parts if job is not None and job.placement is not None else ()
    parts = []
    for part in placement.parts:
        name = part.node if part.node in state.cluster.nodes else node
        held_takes = {
            (t.type, t.device): t for old in held if old.node == name for t in old.allocations
        }
        takes = []
        for take in part.allocations:
            device = state.cluster.nodes[name].by_name.get((take.type, take.device))
            if device is None:
                continue
            mine = held_takes.get(
                (take.type, take.device), DeviceAllocation(take.type, take.device, 0)
            )
            amount = min(take.amount, device.unallocated + mine.amount)
            memory = min(take.memory, max(device.memory_free + mine.memory, 0))
            if amount > 0:
                takes.append(DeviceAllocation(take.type, take.device, amount, memory))
        parts.append(Placement(name, tuple(takes)))
    return Placement(parts[0].node, parts[0].allocations, tuple(parts[1:]))


def _submission(
    state: State, id: int, claim: Claim, placement: Placement, user: str, at: float
) -> list[e.Event]:
    """A job as far as it can be known from its process."""
    environment = _environment(claim.pid)
    argv = tuple((_read(claim.pid, "cmdline").rstrip("\0") or "unknown").split("\0"))
    try:
        directory = os.readlink(f"/proc/{claim.pid}/cwd")
    except OSError:
        directory = "/"
    amounts: dict[str, int] = {}
    for take in placement.allocations:
        amount = THOUSAND if take.is_shared else take.amount
        amounts[take.type] = amounts.get(take.type, 0) + amount
    gpus = amounts.pop(GPU, 0)
    spec = Spec(  # noqa: S604 - it is not run
        kind="argv", user=user, directory=directory, shell="/bin/sh", environment="",
        name=environment.get("STOKER_JOB_NAME", ""), non_preemptible=True,
        comment="found running; it was not in the journal",
        request=ResourceRequest(
            gpus=GpuRequest(gpus) if gpus else None,
            cpus=amounts.pop(CPU, 0), memory=amounts.pop(MEMORY, 0),
            named=tuple(sorted(amounts.items())), node_count=len(placement.parts),
        ),
    )  # fmt: skip
    hash, recorded = record_spec(state, spec, at)
    return [*recorded, e.JobsSubmitted(at=at, first=id, count=1, spec=hash, argv=argv)]


def _environment(pid: int | None) -> dict[str, str]:
    entries = (entry.partition("=") for entry in _read(pid, "environ").split("\0"))
    return {name: value for name, _, value in entries}


def _read(pid: int | None, name: str) -> str:
    if pid is None:
        return ""
    try:
        return os.fsdecode(procfs.read_file(pid, name)).encode("utf-8", "replace").decode()
    except OSError:
        return ""
