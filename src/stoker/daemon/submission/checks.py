"""Admission checks: reject a submission that could only fail, and say why."""

from __future__ import annotations

import os
from typing import Any

from msgspec.structs import replace

from stoker.core.model.job import JobState
from stoker.core.model.resources import GPU, ResourceRequest, describe
from stoker.core.model.spec import FileTransfer, Spec
from stoker.core.model.units import THOUSAND, BadValue, format_amount
from stoker.core.options.notify import MAIL
from stoker.core.placement.infeasible import infeasibility_reason, max_parts
from stoker.core.state.limits import AppliedLimits, job_limit
from stoker.core.state.record import NOT_REACHED_YET
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext
from stoker.daemon.submission.environment import search_path
from stoker.engine import CommandRejected
from stoker.executors.launch import container
from stoker.schema import requests as r

MAX_ARGUMENT_BYTES = (128 << 10) - 1
"""The kernel's limit for one argument of a command; a shell line is one argument."""
GPU_SIZES_UNKNOWN = (
    "no GPU has a known memory size, so the job gets its GPUs to itself;"
    " declare sizes with: stoker daemon restart --gpus 0,1 --gpu-memory-size 24G,"
    " or vram=24G in --pilot of a cluster"
)


def check_command(what: r.What) -> None:
    """Reject a submission without exactly one command, and commands that cannot be executed."""
    kinds = [what.line, what.argv, what.script, what.lines]
    if sum(kind is not None for kind in kinds) != 1:
        raise CommandRejected(
            "A submission must contain exactly one of line, argv, script and lines.", "usage"
        )
    texts = [what.line, what.script, *(what.argv or ()), *(what.lines or ()), *what.args]
    if any(text is not None and "\0" in text for text in texts):
        raise CommandRejected("A command contains a NUL byte.", "usage")
    arguments = [text for text in texts if text and text != what.script]
    if any(len(os.fsencode(text)) > MAX_ARGUMENT_BYTES for text in arguments):
        raise CommandRejected(
            "A command has a word of more than 128 KiB; put it into a script.", "usage"
        )
    empty = what.line is not None and not what.line.strip()
    if empty or any(not line.strip() for line in what.lines or ()):
        raise CommandRejected("A command is empty.", "usage")


def check_program(
    argv: tuple[str, ...], spec: Spec, environment: bytes, state: State, engine: str
) -> list[str]:
    """Return warnings; raise BadValue for a command that no node could start.

    Programs and container engines of remote nodes are unknown, so remote nodes make it a warning.
    """
    path = search_path(environment)
    if spec.container is not None:
        problem = container.absent({"PATH": path}, engine, spec.exported_variables)
    elif argv and "{" not in argv[0] and not _is_program(argv[0], path, spec.directory):
        problem = (
            f"'{argv[0]}' is neither a file nor a program on PATH."
            " For shell functions, aliases and builtins: stoker submit --wrap 'LINE'."
        )
    else:
        return []
    if problem is None:
        return []
    if state.record.remotes:
        return [f"{problem.rstrip('.')} (on this machine; other nodes were not checked)"]
    raise BadValue(problem if problem.endswith(".") else f"{problem}.")


def _is_program(name: str, path: str, directory: str) -> bool:
    if "/" in name:
        return os.path.isfile(os.path.join(directory, name))
    folders = (os.path.join(directory, folder) for folder in path.split(os.pathsep))
    import shutil

    return shutil.which(name, path=os.pathsep.join(folders)) is not None


def whole_gpus_if_sizes_unknown(
    request: ResourceRequest, state: State
) -> tuple[ResourceRequest, list[str]]:
    """Return a request for whole GPUs if memory is requested and no GPU's size is known."""
    gpus = request.gpus
    if gpus is None or gpus.memory is None:
        return request, []
    nodes = [node for node in state.cluster.nodes.values() if not node.delegated]
    known = [gpu.facts for node in nodes for gpu in node.types.get(GPU, ())]
    if not known or any(facts.memory is not None for facts in known):
        return request, []
    amount = -(-gpus.amount // THOUSAND) * THOUSAND
    request = replace(request, gpus=replace(gpus, memory=None, shareable=False, amount=amount))
    return request, [GPU_SIZES_UNKNOWN]


def check_upload_paths(directory: str, carry: FileTransfer | None) -> None:
    """Reject paths of `--send` that do not exist; the upload would fail only at the start."""
    for path in carry.send if carry is not None else ():
        if not os.path.lexists(os.path.join(directory, path)):
            raise BadValue(f"There is no '{path}' in {directory} for --send.")


def check_queue_limits(state: State, spec: Spec) -> None:
    """Reject a job that is larger than its queue allows, or that its queue has no place for."""
    queue = state.record.queues.get(spec.queue)
    if queue is None:
        return
    max_gpus = queue.max_job_gpus
    if max_gpus is not None and spec.request.gpu_amount > max_gpus:
        raise CommandRejected(
            f"Queue '{queue.name}' allows a job at most {format_amount(max_gpus)} GPUs, not"
            f" {format_amount(spec.request.gpu_amount)}.",
            "impossible",
        )
    if queue.max_waiting is not None:
        pending = sum(
            job.state is JobState.PENDING and state.spec(job).queue == queue.name
            for job in state.jobs.values()
        )
        if pending >= queue.max_waiting:
            raise CommandRejected(
                f"Queue '{queue.name}' has {pending} pending jobs, and its limit is"
                f" {queue.max_waiting}. Try again later.",
                "queue_full",
            )


def check_job_limits(spec: Spec, limits: list[AppliedLimits]) -> None:
    """Reject a job that its user, a group of its user or its queue may never run."""
    for key, subject, each in limits:
        hit = job_limit(spec, key, subject, each)
        if hit is not None:
            raise CommandRejected(f"{hit.text[0].upper()}{hit.text[1:]}.", "impossible")


def check_pending_limits(state: State, limits: list[AppliedLimits], count: int) -> None:
    """Reject jobs of which too many would be pending for their user, group or queue."""
    for key, subject, each in limits:
        if each.max_pending is None:
            continue
        pending = pending_jobs(state, key)
        if pending + count > each.max_pending:
            raise CommandRejected(
                f"{subject.text.capitalize()} may have {each.max_pending} pending jobs and has"
                f" {pending}, so {count} more {'are' if count > 1 else 'is'} refused. Try again"
                " later.",
                "queue_full",
            )


def pending_jobs(state: State, key: str) -> int:
    """Return the number of pending jobs of a user, a group or a queue."""
    specs = {hash for hash, spec in state.specs.items() if key in state.limits.keys(spec)}
    jobs = state.jobs.values()
    return sum(job.state is JobState.PENDING and job.spec in specs for job in jobs)


def check_satisfiable(state: State, request: ResourceRequest) -> None:
    """Reject a request that no set of nodes could ever satisfy; say what each node lacks."""
    unreached = [
        name
        for name, added in state.record.remotes.items()
        if name not in state.cluster.nodes and not added.cluster
    ]
    unknown = [
        name for name in request.nodes if name not in state.cluster.nodes and name not in unreached
    ]
    if unknown:
        raise CommandRejected(f"There is no node '{unknown[0]}'; see stoker nodes.", "not_found")
    for name in request.nodes:
        if name in state.cluster.nodes and state.cluster.nodes[name].on_demand:
            jobs, advice = f"{name}-jobs", "name no node"
            if jobs in state.cluster.pilots:
                advice = f"name {jobs} to hand it over"
            raise CommandRejected(
                f"'{name}' is a cluster, which adds nodes when jobs need them; {advice}.",
                "usage",
            )
    problems, able = [], 0
    for node in state.cluster.nodes.values():
        problem = infeasibility_reason(node, request)
        if problem is not None:
            if not request.nodes or node.name in request.nodes:
                problems.append(f"{node.name} {problem}")
            continue
        able += max_parts(node, request)
        if able >= request.node_count:
            return
    if able:
        problems = [_too_few_nodes(able, len(state.cluster.nodes)), *problems]
    candidates = [name for name in unreached if not request.nodes or name in request.nodes]
    problems += [
        f"{name} has not been reached yet ({_unreached_reason(state, name)})" for name in candidates
    ]
    so_far = " by the nodes known so far" if candidates else ""
    explanation = "; ".join(problems) or "there is no node"
    text = f"Cannot be satisfied{so_far}: {describe(request)} requested; {explanation}."
    has_gpus = any(node.types.get(GPU) for node in state.cluster.nodes.values())
    if request.gpu_amount and not candidates and not has_gpus:
        text += " To declare devices: stoker daemon restart --gpus 0,1"
    raise CommandRejected(text, "impossible")


def _too_few_nodes(able: int, total: int) -> str:
    text = f"only {able} of {total} nodes can run it"
    if able == total:
        text = "there is only one node" if total == 1 else f"there are only {total} nodes"
    return text if able > 1 else f"{text}; add nodes with stoker nodes add"


def _unreached_reason(state: State, name: str) -> str:
    away = state.record.unreachable.get(name)
    return (
        away.reason.rstrip(".")
        if away is not None and away.reason != NOT_REACHED_YET
        else "just added"
    )


def unreachable_warnings(state: State, request: ResourceRequest) -> list[str]:
    """Return a warning if too few of the suitable nodes are reachable."""
    parts = {node.name: max_parts(node, request) for node in state.cluster.nodes.values()}
    unreachable = [name for name in parts if parts[name] and name in state.record.unreachable]
    if sum(parts.values()) - sum(parts[name] for name in unreachable) >= request.node_count:
        return []
    names = unreachable[:3]
    reasons = "; ".join(f"{name}: {state.record.unreachable[name].reason}" for name in names)
    return [f"it stays pending for {' and '.join(names)}, which cannot be reached ({reasons})"]


def check_user_options(context: RequestContext, fields: dict[str, Any]) -> None:
    """Reject options with which users of a system daemon would act as that daemon."""
    if not context.is_system:
        return
    if fields.get("on_end"):
        raise CommandRejected(
            "--on-end would run with the rights of the daemon of all users; use --notify, or let"
            " the job run the command.",
            "permission",
        )
    for name, _ in fields.get("notify") or ():
        check_mail_address(context, name)


def check_mail_address(context: RequestContext, target: str) -> None:
    """Reject mail of users of a system daemon to others."""
    user, address = context.submitter, target.removeprefix(MAIL)
    is_other = target.startswith(MAIL) and address and address.partition("@")[0] != user
    if context.is_system and is_other:
        raise CommandRejected(
            f"Mail can be sent to {user} only, such as {user}@lab.org, not to {address[:60]};"
            " other targets are configured by administrators.",
            "permission",
        )


def unknown_target(name: str, context: RequestContext) -> str:
    """Return the message that a target does not exist."""
    names = context.notify_targets()
    known = f"there are: {', '.join(names)}" if names else "write [notify.NAME] there"
    return f"{name}: there is no such target in config.toml; {known}."


def check_targets(context: RequestContext, spec: Spec) -> list[str]:
    """Reject targets of notifications that do not exist; return a warning if no mail is sent."""
    names = context.notify_targets()
    mails = [name for name, _ in spec.notify if name.startswith(MAIL)]
    for name, _ in spec.notify:
        if name not in mails and name not in names:
            raise BadValue(f"--notify {unknown_target(name, context)}")
    if mails and not context.sends_mail():
        return [("no e-mail is sent: config.toml has no [notify.NAME] with smtp, and no sendmail"
                " is installed")]  # fmt: skip
    return []
