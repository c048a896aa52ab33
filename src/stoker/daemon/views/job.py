"""Jobs, GPUs and nodes as the API shows them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from msgspec.json import decode

from stoker import places
from stoker.core.cluster import SLIVER, Device, Node
from stoker.core.events import QueueDefined
from stoker.core.explain import reason, silent_since
from stoker.core.foreign import UNAVAILABLE
from stoker.core.job import Job, Score, Spec
from stoker.core.lifecycle import SHORT, UNHAPPY, JobState
from stoker.core.outlook import Span, Told
from stoker.core.request import GPU, Request
from stoker.core.state import State
from stoker.core.units import format_amount
from stoker.daemon.views.placement import devices_of, gpu_uuids, logs_of, machines, parts_view
from stoker.daemon.views.training import Live, container_view, training_view
from stoker.engine import Instant
from stoker.executors.launch.paths import terminal_path

LAST_LINES = 8192


def iso(moment: float | None) -> str | None:
    """A Unix time as ISO-8601 in UTC."""
    if moment is None:
        return None
    whole = int(moment)
    milli = int((moment - whole) * 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{milli:03d}Z"


def job_view(
    job: Job, spec: Spec, state: State | None, now: Instant, logs: str, tail: int = 0,
    live: Callable[[int], Live] = lambda _: {},
) -> dict[str, Any]:  # fmt: skip
    """One job, whole; `live` says what is seen of a running one right now."""
    code, phrase = reason(state, job, now.wall) if state and job.id in state.jobs else (None, None)
    view: dict[str, Any] = {
        "id": job.id,
        "label": job.label,
        "name": job.name,
        "user": job.user,
        "state": job.state.value,
        "state_code": SHORT[job.state],
        "reason": code,
        "reason_text": phrase,
        **_asked(job, spec),
        **_given(job, spec, state, logs),
        **_times(job, spec, now),
        **_outcome(job),
        "training": training_view(
            job, spec, state, now.wall, logs, live(job.id) if _trains(job, spec) else {}
        ),
    }
    if job.external_id is not None:
        view |= {"external_id": job.external_id, "hosts": list(job.hosts)}
    out, err = logs_of(job, spec, view["node"] or "", logs)
    view |= {"log": out, "error_log": err, "log_bytes": _size(out)}
    if spec.pty and job.state is JobState.RUNNING:
        path = terminal_path(os.path.dirname(places.socket_path()), job.id, job.attempt)
        view["attach"] = path if os.path.exists(path) else None
    if tail and job.state in UNHAPPY:
        view["tail"] = last_lines(err if err and _size(err) else out, tail)
    return view


def _trains(job: Job, spec: Spec) -> bool:
    return job.holding and (spec.training is not None or job.progress is not None)


def _asked(job: Job, spec: Spec) -> dict[str, Any]:
    """What was submitted."""
    retry, warning = spec.retry, spec.warning
    return {
        "queue": spec.queue,
        "group": spec.group,
        "labels": list(spec.labels),
        "comment": spec.comment,
        "priority": job.priority,
        "command": command_text(job, spec),
        "directory": spec.directory,
        "shell": spec.shell,
        "request": request_view(spec.request),
        "array": {"id": job.array, "index": job.index} if job.array is not None else None,
        "sweep": job.array if job.params is not None else None,
        "params": decode(job.params) if job.params is not None else None,
        "objective": _objective(job.score),
        "depends": _depends(spec),
        "retry": f"{retry.limit} on {','.join(retry.on)}" if retry.limit else None,
        "if_unreachable": (
            f"restart:{spec.if_unreachable}s" if spec.if_unreachable is not None else None
        ),
        "deadline_at": iso(spec.deadline_at),
        "on_end": spec.on_end,
        "warning_signal": f"{warning.signal}@{warning.seconds}" if warning else None,
        "feed": spec.feed,
        "client": spec.door,
        "container": container_view(spec.container),
        "restartable": spec.restartable,
    }


def estimate_view(told: Told) -> dict[str, Any]:
    """Show when a job starts and ends, with the range and the basis of each."""
    return {
        "at": iso(told.at), "start": _span(told.start), "end": _span(told.end), "never": told.never,
    }  # fmt: skip


def _span(span: Span | None) -> dict[str, Any] | None:
    if span is None:
        return None
    return {
        "low": iso(span.low), "likely": iso(span.likely), "high": iso(span.high),
        "kind": span.kind.value, "basis": span.basis,
    }  # fmt: skip


def _objective(score: Score | None) -> dict[str, Any] | None:
    """What a trial is worth to its sweep."""
    if score is None:
        return None
    return {"value": score.value, "step": score.step, "stopped": score.stopped}


def _given(job: Job, spec: Spec, state: State | None, logs: str) -> dict[str, Any]:
    """Where it runs or ran."""
    names = machines(job)
    silent = silent_since(state, job) if state is not None else {}
    return {
        "node": names[0] if names else None,
        "nodes": names,
        "unreachable": bool(silent),
        "unreachable_since": iso(min(silent.values())) if silent else None,
        "devices": devices_of(job),
        "parts": parts_view(job, spec, state, logs),
        "gpu_uuids": gpu_uuids(job.placement, state) if job.placement else [],
        "attempt": job.attempt,
        "pid": job.pid,
    }


def _times(job: Job, spec: Spec, now: Instant) -> dict[str, Any]:
    """When what happened, and how long it takes."""
    ran = elapsed(job, now)
    return {
        "submitted_at": iso(job.submitted_at),
        "started_at": iso(job.started_at),
        "ended_at": iso(job.ended_at) if job.finished else None,
        "begin_at": iso(job.begin_at),
        "expected_start": None,
        "expected_end": None,
        "elapsed": ran,
        "time_limit": spec.limit,
        "time_left": _left(job, spec.limit, ran),
    }


def _outcome(job: Job) -> dict[str, Any]:
    """How it ended, this time and before."""
    return {
        "exit_code": job.code,
        "signal": job.signal,
        "cause": job.cause,
        "result": job.result,
        "termination_note": job.note,
        "dismissed": job.seen,
        "attempts": [
            {
                "attempt": past.attempt,
                "started_at": iso(past.started_at),
                "ended_at": iso(past.ended_at),
                "cause": past.cause,
                "exit_code": past.code,
            }
            for past in job.past
        ],
    }


def _left(job: Job, limit: int | None, elapsed: float | None) -> float | None:
    if limit is None or elapsed is None or not job.holding:
        return None
    return round(max(limit - elapsed, 0.0), 3)


def elapsed(job: Job, now: Instant) -> float | None:
    """Seconds that the attempt has run, without pauses; None before it started."""
    if job.started_at is None:
        return None
    if job.finished and job.ended_at is not None:
        return round(max(job.ended_at - job.started_at, 0.0), 3)
    if job.started_boot is None or not job.holding:
        return None
    until = job.paused_boot if job.paused_boot is not None else now.boot
    return round(max(until - job.started_boot - job.slack, 0.0), 3)


def command_text(job: Job, spec: Spec) -> str:
    """The command as a person would type it."""
    if isinstance(job.command, str):
        return job.command
    words = job.command or (spec.script_name or "script", *spec.args)
    return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    if word and all(letter.isalnum() or letter in "_@%+=:,./-" for letter in word):
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


def request_view(request: Request) -> dict[str, Any]:
    """What was asked for, as typed."""
    ask = request.gpus
    return {
        "gpus": format_amount(ask.amount) if ask else None,
        "most_gpus": format_amount(ask.most) if ask and ask.most else None,
        "model": ("|".join(ask.kinds) or None) if ask else None,
        "min_vram": ask.min_vram if ask else None,
        "gpu_memory": ask.memory if ask else None,
        "use_gpus": list(ask.only) if ask else [],
        "prefer_gpus": list(ask.prefer) if ask else [],
        "avoid_gpus": list(ask.avoid) if ask else [],
        "cpus": format_amount(request.cpus) if request.cpus else None,
        "memory": request.memory or None,
        "resources": {name: format_amount(amount) for name, amount in request.named},
        "exclusive": request.exclusive,
        "machines": request.machines if request.machines > 1 else None,
        "nodelist": list(request.nodes),
        "not_nodes": list(request.not_nodes),
    }


def _depends(spec: Spec) -> str | None:
    if spec.dependency is None:
        return None
    clauses = [
        f"{clause.kind}:{':'.join(map(str, clause.jobs))}"
        + (f"+{clause.delay // 60}" if clause.delay else "")
        for clause in spec.dependency.clauses
    ]
    return ("?" if spec.dependency.any else ",").join(clauses)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def last_lines(path: str, count: int) -> list[str]:
    """The end of a log, as text."""
    try:
        with open(path, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - LAST_LINES, 0))
            data = file.read()
    except OSError:
        return []
    # A progress bar rewrites its line: only what would still be on the screen counts.
    lines = [line.rpartition(b"\r")[2] for line in data.rstrip(b"\r\n").split(b"\n")]
    return [line.decode("utf-8", "replace") for line in lines[-count:] if line.strip()]


def gpu_view(node: Node, device: Device, state: State, reading: dict[str, Any]) -> dict[str, Any]:
    """One GPU: what it is, how it is used, by whom."""
    facts = device.facts
    jobs = []
    for job in state.running.values():
        part = job.placement.on(node.name) if job.placement is not None else None
        if part is None:
            continue
        takes = [take for take in part.takes if take.type == GPU and take.device == device.name]
        share = sum(take.amount for take in takes)
        if share:
            jobs.append(
                {
                    "id": job.id, "label": job.label, "name": job.name, "user": job.user,
                    "share": "1" if share == SLIVER else format_amount(share),
                    "memory": max(take.memory for take in takes) or None,
                    "elapsed": None, "state": job.state.value,
                }
            )  # fmt: skip
    return {
        "node": node.name,
        "id": device.name,
        "index": facts.index,
        "uuid": facts.uuid,
        "model": facts.model,
        "memory": facts.memory,
        "memory_used": reading.get("memory_used"),
        "utilization": reading.get("utilization"),
        "temperature": reading.get("temperature"),
        "power": reading.get("power"),
        "state": "unreachable" if node.closed is not None else _gpu_state(device, len(jobs)),
        "drained": device.drained,
        "free": format_amount(device.available if node.closed is None else 0),
        "held": format_amount(_held(device)),
        "memory_left": device.memory_free - device.stranger_memory if facts.memory else None,
        "jobs": jobs,
        "foreign": reading.get("foreign", []),
        "foreign_process": device.stranger,
    }


def _gpu_state(device: Device, jobs: int) -> str:
    if device.drained is not None or device.gone:
        return "drained"
    if jobs:
        return "busy" if device.free == 0 else "shared"
    if device.stranger is None:
        return "free"
    return "unavailable" if device.stranger.startswith(UNAVAILABLE) else "foreign"


def resources_view(node: Node) -> dict[str, Any]:
    """What a machine has, and what is left of it."""
    resources: dict[str, Any] = {}
    for type, devices in node.types.items():
        shown = str if type == "mem" else format_amount
        resources[type] = {
            "total": shown(sum(device.facts.capacity for device in devices)),
            "free": shown(sum(each.available for each in devices)),
            "held": shown(max(sum(map(_held, devices)), 0)),
            "devices": [device.name for device in devices],
        }
    return resources


def _held(device: Device) -> int:
    """Return how much of it jobs hold: all of a GPU that is shared by memory."""
    return device.facts.capacity - (0 if device.slivers else device.free)


def queue_view(queue: QueueDefined, state: State) -> dict[str, Any]:
    """A named queue, its limits, and what is free of the devices it has."""
    amount = format_amount
    first = f"{next(iter(state.rest.nodes), '')}/"  # devices of this node go without its name
    return {
        "name": queue.name,
        "max_running": queue.max_running,
        "max_gpus": amount(queue.max_gpus) if queue.max_gpus is not None else None,
        "max_job_gpus": amount(queue.max_job_gpus) if queue.max_job_gpus is not None else None,
        "max_waiting": queue.max_waiting,
        "priority": queue.priority,
        "strict": queue.strict,
        "devices": list(queue.devices),
        "running": state.queue_running.get(queue.name, 0),
        "resources": [
            {
                "type": type,
                "device": name.removeprefix(first),
                "capacity": amount(capacity),
                "free": amount(max(_free(state, type, name), 0)),
            }
            for type, name, capacity in state.own_devices(queue)
        ],
    }


def _free(state: State, type: str, name: str) -> int:
    """What is left of a device, on the node where most of it is unless the name says which."""
    found = [
        node.by_name.get((type, name.removeprefix(f"{node.name}/")))
        for node in state.cluster.nodes.values()
    ]
    return max((device.free for device in found if device is not None), default=0)
