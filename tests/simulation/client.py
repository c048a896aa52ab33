"""Requests of simulated clients, which the daemon's own handlers answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from msgspec import Struct

from stoker.core.model.dependency import Dependency
from stoker.core.model.resources import GpuRequest, ResourceRequest
from stoker.core.model.spec import EarlySignal, Retry, Training
from stoker.core.model.units import THOUSAND, format_amount
from stoker.core.state.state import State
from stoker.daemon.context import CommandHandler, RequestContext
from stoker.daemon.handlers import drain as devices_handlers
from stoker.daemon.handlers import edit as edit_handlers
from stoker.daemon.handlers import (
    job_actions,
    limits,
    nodes,
    policies,
    queues,
    reorder,
    reservations,
)
from stoker.daemon.submission.submit import submit_jobs
from stoker.daemon.sweeps import queries
from stoker.daemon.sweeps.controller import AddTrials, SweepController
from stoker.daemon.sweeps.submit import handle_submit_sweep
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema import requests as r

MakeHandler = Callable[[RequestContext], CommandHandler]
"""A request: makes its handler, given what the daemon that answers it has."""
ONE_GPU = ResourceRequest(gpus=GpuRequest(THOUSAND))


class ClientRequest(Struct):
    """A client's request, and its answer. The client repeats it until it is answered."""

    make_handler: MakeHandler
    context: RequestContext | None = None
    answered: bool = False
    answer: Any = None
    rejection: CommandRejected | None = None

    def to(self, context: RequestContext) -> ClientRequest:
        """Return this request as a command of the daemon that has this context."""
        self.context = context
        return self

    def handle(self, state: State, now: Instant) -> CommandResult:
        """Call the handler."""
        assert self.context is not None
        return self.make_handler(self.context)(state, now)

    def reply(self, value: Any) -> None:
        """Receive the answer."""
        self.answered, self.answer = True, value

    def reject(self, rejection: CommandRejected) -> None:
        """Receive a rejection."""
        self.answered, self.rejection = True, rejection


# -- jobs ---------------------------------------------------------------------------------


def submit(options: dict[str, Any], key: str, count: int = 1) -> MakeHandler:
    """New jobs, once per key: a bulk of lines, or an array if the options say so."""
    what = (
        r.What(line="true") if count == 1 or "array" in options else r.What(lines=["true"] * count)
    )
    body = r.Submit(what=what, directory="/tmp", options=options, key=key)
    return lambda context: partial(submit_jobs, context, body)


def cancel(id: int, at_once: bool = False) -> MakeHandler:
    """End a job, or a whole sweep, for good."""
    if at_once:
        return lambda context: partial(job_actions.kill, context, r.Kill([str(id)]))
    return lambda context: partial(job_actions.cancel, context, r.Cancel([str(id)]))


def hold(id: int) -> MakeHandler:
    """Keep a pending job from starting."""
    return lambda context: partial(job_actions.hold, context, r.Hold([str(id)]))


def release(id: int) -> MakeHandler:
    """Let a held job start."""
    return lambda context: partial(job_actions.release, context, r.Release([str(id)]))


def pause(id: int) -> MakeHandler:
    """Suspend a running job."""
    return lambda context: partial(job_actions.pause, context, r.Pause([str(id)]))


def resume(id: int) -> MakeHandler:
    """Continue a suspended job."""
    return lambda context: partial(job_actions.resume, context, r.Resume([str(id)]))


def retry(id: int, same_gpus: bool = False) -> MakeHandler:
    """Requeue a finished job."""
    return lambda context: partial(
        job_actions.retry, context, r.Retry([str(id)], same_gpus=same_gpus)
    )


def move(id: int, where: str = "first", other: int | None = None) -> MakeHandler:
    """Change the queue position of a pending job."""
    name = None if other is None else str(other)
    return lambda context: partial(reorder.move, context, r.Move([str(id)], where, name))


def edit(id: int, **options: Any) -> MakeHandler:
    """Change what a pending job requests, or the time limit and priority of a running one."""
    return lambda context: partial(edit_handlers.edit, context, r.Edit([str(id)], options))


# -- sweeps -------------------------------------------------------------------------------


def sweep(
    options: dict[str, Any],
    key: str,
    trials: int,
    asks: bool = False,
    total: int | None = None,
    stop: dict[str, Any] | None = None,
    target: float | None = None,
    maximize: bool = False,
    max_running: int | None = None,
) -> MakeHandler:
    """A new sweep: over a list of points, or (`asks`) one whose sampler proposes them."""
    goal = "maximize" if maximize else "minimize"
    definition: dict[str, Any] = {
        "name": "train", "line": "true {x}", "stop": stop, "max_running": max_running,
        "metric": {"name": "loss", "goal": goal, "target": target},
    }  # fmt: skip
    if asks:
        parameters = {"x": {"min": 0, "max": 1 << 20}}
        definition |= {"method": "tpe", "parameters": parameters, "samples": total}
    else:
        definition |= {"method": "list", "points": [{"x": number} for number in range(trials)]}
    body = r.Sweep(definition=definition, directory="/tmp", options=options, key=key, new=True)
    return lambda context: handle_submit_sweep(context, body)


def add_trials(id: int, points: Sequence[int], done: bool = False) -> MakeHandler:
    """What a sampler proposes for a sweep; with `done`, it has no more proposals."""
    proposed = [{"x": point} for point in points]

    def make(context: RequestContext) -> CommandHandler:
        controller = SweepController(context, lambda _: None, sampler=None)  # type: ignore[arg-type]
        return AddTrials(controller, id, proposed, done=done).handle

    return make


def change_sweep(id: int, **changes: int) -> MakeHandler:
    """Change how a sweep continues."""
    return lambda context: partial(queries.change_sweep, context, str(id), r.ChangeSweep(**changes))


# -- nodes, devices, queues, policies -----------------------------------------------------


def add_node(name: str, user: str = "ada") -> MakeHandler:
    """Add a node over SSH, or change its address whatever runs there."""
    body = r.AddNode(name, f"ssh://{user}@{name}", force=True)
    return lambda context: partial(nodes.add, context, body)


def remove_node(name: str, force: bool = False) -> MakeHandler:
    """Remove a node over SSH; with `force`, the attempts there are abandoned."""
    return lambda context: partial(nodes.remove, context, r.RemoveNode(name, force))


def drain(*devices: str) -> MakeHandler:
    """Close devices to new jobs."""
    return lambda context: partial(
        devices_handlers.drain, context, r.Drain(list(devices), "maintenance")
    )


def undrain(*devices: str) -> MakeHandler:
    """Open devices again."""
    return lambda context: partial(devices_handlers.undrain, context, r.Undrain(list(devices)))


def define_queue(name: str, **limits: Any) -> MakeHandler:
    """Make or change a named queue."""
    body = r.Queue(name, **limits)
    return lambda context: partial(queues.define_queue, context, body)


def set_limits(queue: str, **given: Any) -> MakeHandler:
    """Set limits of a queue; without any, remove all."""
    body = r.Limits(subject=f"queue:{queue}", clear=not given, **given)
    return lambda context: partial(limits.change, context, body)


def reserve(devices: list[str], begin: str, duration: str, *queues: str) -> MakeHandler:
    """Reserve GPUs for the jobs of queues."""
    subjects = [f"queue:{queue}" for queue in queues]
    body = r.Reserve(begin=begin, duration=duration, devices=devices, subjects=subjects)
    return lambda context: partial(reservations.make, context, body)


def cancel_reservation(name: str) -> MakeHandler:
    """Give the devices of a reservation to all jobs again."""
    return lambda context: partial(reservations.cancel, context, name)


def delete_queue(name: str) -> MakeHandler:
    """Delete a named queue."""
    return lambda context: partial(queues.delete_queue, name)


def choose_policy(name: str, queue: str = "*", **parameters: float) -> MakeHandler:
    """Have queues scheduled by another policy."""
    body = r.Policy(queue, name, dict(parameters))
    return lambda context: partial(policies.choose, context, body)


# -- options ------------------------------------------------------------------------------


def job_options(
    request: ResourceRequest | None = None,
    *,
    retry: Retry | None = None,
    limit: int | None = None,
    warning: EarlySignal | None = None,
    deadline_at: float | None = None,
    begin_in: float | None = None,
    dependency: Dependency | None = None,
    training: Training | None = None,
    restartable: bool = False,
    if_unreachable: int | None = None,
    held: bool = False,
    array: int | None = None,
    array_limit: int | None = None,
    **plain: Any,
) -> dict[str, Any]:
    """The command-line options that ask for this; `plain` ones as they are."""
    options = {**request_options(request or ONE_GPU, training is not None), **plain}
    if retry is not None or restartable:
        rule = retry or Retry()
        options |= {"retries": str(rule.limit), "retry_on": ",".join(rule.on)}
    for name, value in (
        ("time", f"{limit}s" if limit else None),
        ("signal", f"{warning.signal}@{warning.seconds}" if warning else None),
        ("deadline", datetime.fromtimestamp(deadline_at, UTC).isoformat() if deadline_at else None),
        ("begin", f"now+{round(begin_in)}" if begin_in else None),
        ("dependency", _dependency(dependency) if dependency else None),
        ("requeue", restartable or None),
        ("hold", held or None),
        ("if_unreachable", f"restart:{if_unreachable}s" if if_unreachable else None),
        ("array", f"0-{array - 1}{f'%{array_limit}' if array_limit else ''}" if array else None),
    ):
        if value is not None:
            options[name] = value
    if training is not None:
        options |= {"epochs": training.epochs} if training.epochs else {"distributed": False}
    return options


def request_options(request: ResourceRequest, trains: bool = False) -> dict[str, Any]:
    """The options that ask for these resources; an edit takes back what was asked before."""
    ask, gpus = request.gpus, "gpus" if request.node_count == 1 else "gpus_per_node"
    options: dict[str, Any] = {
        gpus: "0", "cpus": format_amount(request.cpus), "mem": str(request.memory),
        "nodelist": ",".join(request.nodes), "exclude": ",".join(request.not_nodes),
        "nodes": str(request.node_count),
        "resources": {name: format_amount(amount) for name, amount in request.named},
    }  # fmt: skip
    if request.exclusive:
        options["exclusive"] = True
    if ask is None:
        return options
    options[gpus] = format_amount(ask.amount)
    if ask.max_amount is not None:
        options[gpus] += f"..{format_amount(ask.max_amount)}"
    if trains and not ask.shareable and not ask.amount % THOUSAND:
        options["exclusive_gpu"] = True
    for name, words in (("use", ask.required), ("prefer", ask.prefer), ("avoid", ask.avoid)):
        if words:
            options[f"{name}_gpus"] = ",".join(words)
    if ask.memory is not None:
        options["gpu_memory"] = f"{ask.memory}M"
    if ask.fixed_share is not None:
        options["share"] = format_amount(ask.fixed_share)
    return options


def _dependency(dependency: Dependency) -> str:
    clauses = (
        f"{clause.kind}:" + ":".join(_delayed(job, clause.delay) for job in clause.jobs)
        for clause in dependency.clauses
    )
    return ("?" if dependency.any else ",").join(clauses)


def _delayed(job: int, seconds: int) -> str:
    return f"{job}+{seconds // 60}" if seconds else str(job)
