"""Make, list and cancel advance reservations."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count
from math import inf

from msgspec.structs import replace

from stoker.core.events import ReservationEnded, ReservationMade
from stoker.core.model.advance import AdvanceReservation
from stoker.core.model.job import Job
from stoker.core.model.limits import Subject
from stoker.core.model.resources import GPU
from stoker.core.model.units import THOUSAND, BadValue, parse_amount, parse_duration, parse_time
from stoker.core.state.state import State
from stoker.core.state.timers import latest_end_of
from stoker.daemon.context import RequestContext, reply_only
from stoker.daemon.handlers.limits import find_subject, subject_text
from stoker.daemon.selectors import find_devices
from stoker.daemon.views.format import iso
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema import requests as r
from stoker.schema.reservations import (
    NewReservation,
    ReservationCancelled,
    ReservationList,
    ReservationView,
)

MAX_SECONDS = 366 * 86400
MAX_RESERVATIONS = 200
GpuKey = tuple[str, str]
"""Node and name of a GPU."""


def show(state: State, now: Instant) -> CommandResult:
    """Return the reservations, the first to begin first."""
    found = sorted(state.record.reservations.values(), key=lambda each: (each.begin, each.name))
    return reply_only(ReservationList(reservations=[_view(each, now) for each in found]))


def make(context: RequestContext, body: r.Reserve, state: State, now: Instant) -> CommandResult:
    """Reserve GPUs or nodes; reject what another reservation has at that time."""
    context.require_admin("reserve devices")
    if len(state.record.reservations) >= MAX_RESERVATIONS:
        raise CommandRejected("There are too many reservations; cancel some.", "failed")
    begin, end = _times(body, now)
    reservation = AdvanceReservation(
        _name(body, state), begin, end, nodes=_nodes(body, state),
        subjects=_subjects(context, body), user=context.submitter, created=now.wall,
    )  # fmt: skip
    others = [each for each in state.record.reservations.values() if each.overlaps(begin, end)]
    gpus = _gpus(body, state, now, begin, others)
    reservation = replace(reservation, gpus=tuple("/".join(gpu) for gpu in gpus))
    _check_conflicts(state, reservation, others)
    users = _users(state, reservation)
    stopping = [job for job in users if _will_stop(state, job)]
    continuing = [
        job for job in users if job not in stopping and _wall_end(state, job, now) > begin
    ]
    view = _view(reservation, now)
    reply = NewReservation(
        **{field: getattr(view, field) for field in view.__struct_fields__},
        preempts=[job.label for job in stopping], continues=[job.label for job in continuing],
    )  # fmt: skip
    event = ReservationMade(at=now.wall, reservation=reservation)
    return CommandResult(events=[event], reply=lambda _: reply)


def cancel(context: RequestContext, name: str, state: State, now: Instant) -> CommandResult:
    """Cancel a reservation: all jobs may use its devices again."""
    context.require_admin("cancel reservations")
    if name not in state.record.reservations:
        raise CommandRejected(
            f"There is no reservation '{name[:64]}'; see stoker reserve.", "not_found"
        )
    event = ReservationEnded(at=now.wall, name=name, cancelled=True)
    return CommandResult(events=[event], reply=lambda _: ReservationCancelled(name=name))


def _view(reservation: AdvanceReservation, now: Instant) -> ReservationView:
    return ReservationView(
        name=reservation.name, begin=iso(reservation.begin), end=iso(reservation.end),
        gpus=list(reservation.gpus), nodes=list(reservation.nodes),
        subjects=[subject_text(subject) for subject in reservation.subjects],
        user=reservation.user, has_begun=reservation.begin <= now.wall,
    )  # fmt: skip


# -- what is reserved -----------------------------------------------------------------------


def _times(body: r.Reserve, now: Instant) -> tuple[float, float]:
    begin = parse_time(body.begin, now.wall, "--from")
    seconds = parse_duration(body.duration, "--for")
    if not 0 < seconds <= MAX_SECONDS:
        raise BadValue("--for takes a time of more than 0 and at most a year.")
    if begin + seconds <= now.wall:
        raise BadValue(f"--from '{body.begin}': that reservation would be over already.")
    return begin, begin + seconds


def _name(body: r.Reserve, state: State) -> str:
    known = state.record.reservations
    if body.name is None:
        return next(name for number in count(1) if (name := f"r{number}") not in known)
    if body.name in known:
        raise CommandRejected(f"There is a reservation '{body.name}' already.", "failed")
    return body.name


def _subjects(context: RequestContext, body: r.Reserve) -> tuple[Subject, ...]:
    if not body.subjects and context.caller is not None:
        return (Subject("user", context.caller.name, context.caller.uid),)
    return tuple(find_subject(context, text) for text in body.subjects)


def _nodes(body: r.Reserve, state: State) -> tuple[str, ...]:
    for name in body.nodes:
        node = state.cluster.nodes.get(name)
        if node is None or node.delegated or node.on_demand:
            raise CommandRejected(
                f"There is no node '{name}' that can be reserved; see stoker nodes.", "not_found"
            )
    return tuple(dict.fromkeys(body.nodes))


def _gpus(
    body: r.Reserve, state: State, now: Instant, begin: float, others: list[AdvanceReservation]
) -> list[GpuKey]:
    """Return the GPUs that were named, or as many as requested: those that are free first."""
    if (body.gpus is not None) + bool(body.devices) + bool(body.nodes) != 1:
        raise BadValue("Give one of --gpus N, --nodes NAMES and --devices NAMES.")
    if body.gpus is None:
        return _named_gpus(body.devices, state)
    amount = parse_amount(body.gpus, "--gpus")
    if not amount or amount % THOUSAND:
        raise BadValue(f"--gpus '{body.gpus}': whole GPUs can be reserved, such as 2.")
    wanted, free_at = amount // THOUSAND, _free_times(state, now, others)
    if len(free_at) < wanted:
        raise CommandRejected(
            f"Only {len(free_at)} GPUs are neither reserved nor drained then, not {wanted};"
            " see stoker reserve.",
            "failed",
        )
    return _best(free_at, wanted, begin)


def _free_times(
    state: State, now: Instant, others: list[AdvanceReservation]
) -> dict[GpuKey, float]:
    """Return when each GPU that can be reserved is free of jobs that do not stop when asked."""
    free_at: dict[GpuKey, float] = {}
    for node in state.cluster.nodes.values():
        for gpu in node.types.get(GPU, ()) if not (node.delegated or node.on_demand) else ():
            is_usable = not gpu.removed and gpu.drained is None and not gpu.facts.is_pool
            if is_usable and not any(each.has_gpu(node.name, gpu.name) for each in others):
                free_at[node.name, gpu.name] = -inf
    for job in state.running.values():
        end = -inf if _will_stop(state, job) else _wall_end(state, job, now)
        for key in ((part.node, name) for part in job.parts for name in part.names(GPU)):
            if key in free_at:
                free_at[key] = max(free_at[key], end)
    return free_at


def _best(free_at: dict[GpuKey, float], wanted: int, begin: float) -> list[GpuKey]:
    """Return GPUs that are free at the begin, of the node with the fewest that suffice."""
    free = [key for key, at in free_at.items() if at <= begin]
    by_node: dict[str, list[GpuKey]] = {}
    for key in free:
        by_node.setdefault(key[0], []).append(key)
    enough = [keys for keys in by_node.values() if len(keys) >= wanted]
    if enough:
        return min(enough, key=len)[:wanted]
    order = list(free_at)
    return sorted(free_at, key=lambda key: (max(free_at[key], begin), order.index(key)))[:wanted]


def _named_gpus(words: Collection[str], state: State) -> list[GpuKey]:
    found: dict[GpuKey, None] = {}
    for word in words:
        devices = find_devices(state.cluster, word)
        gpus = [(node.name, device.name) for node, device in devices if device.type == GPU]
        if not gpus or any(node.delegated for node, _ in devices):
            raise CommandRejected(
                f"There is no GPU '{word}' that can be reserved; see stoker gpus.", "not_found"
            )
        if len({node for node, _ in gpus}) > 1 and word != "all":
            raise BadValue(f"'{word}' is a GPU of several nodes; write NODE/{word}.")
        found.update(dict.fromkeys(gpus))
    return list(found)


def _check_conflicts(
    state: State, reservation: AdvanceReservation, others: Collection[AdvanceReservation]
) -> None:
    for other in others:
        same = next((name for name in _all_gpus(state, reservation)
                     if name in _all_gpus(state, other)), None)  # fmt: skip
        same = same or next((name for name in reservation.nodes if name in other.nodes), None)
        if same is not None:
            raise CommandRejected(
                f"{same} is reserved by {other.name} from {iso(other.begin)} to {iso(other.end)};"
                " choose another time or device.",
                "failed",
            )


def _all_gpus(state: State, reservation: AdvanceReservation) -> list[str]:
    """Return the GPUs of a reservation, with those of its nodes."""
    nodes = (state.cluster.nodes.get(name) for name in reservation.nodes)
    own = [f"{node.name}/{gpu.name}" for node in nodes if node for gpu in node.types.get(GPU, ())]
    return [*reservation.gpus, *own]


# -- running jobs ---------------------------------------------------------------------------


def _users(state: State, reservation: AdvanceReservation) -> list[Job]:
    """Return the running jobs of others on what is reserved."""
    return [
        job
        for _, job in sorted(state.running.items())
        if not reservation.admits(state.limits.keys(state.spec(job)))
        and reservation.holds(job.parts)
    ]


def _will_stop(state: State, job: Job) -> bool:
    return job.id in state.preemptible or state.spec(job).is_always_preemptible


def _wall_end(state: State, job: Job, now: Instant) -> float:
    return latest_end_of(state, job, now.boot) - now.boot + now.wall
