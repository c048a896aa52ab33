"""Options that a spec was made of, for another daemon: the reverse of `parse_options`.

Not every spec has options that make exactly the same one, so the result is parsed and compared
before it is used (`daemon/handlers/export.py`).
"""

from __future__ import annotations

from datetime import UTC, datetime

from stoker.core.model.alarm import AlarmRule
from stoker.core.model.resources import GpuRequest, ResourceRequest
from stoker.core.model.spec import Container, FileTransfer, Mount, Retry, Spec, Training
from stoker.core.model.units import THOUSAND, format_amount
from stoker.core.options.notify import MAIL
from stoker.core.options.submit import Options
from stoker.core.options.training import MAX_GPUS_PER_NODE

TEXTS = ("name", "output", "error", "comment", "group", "on_end", "client", "account")


def render_options(spec: Spec, variables: dict[str, str]) -> Options:
    """Return options without dependency, array, priority and times of a job of this spec.

    `variables` are the job's environment.
    """
    options: Options = {key: getattr(spec, key) for key in TEXTS}
    options |= _request(spec.request, spec)
    options |= _training(spec.training, spec.request.gpus)
    options |= _container(spec.container) | _transfer(spec.transfer)
    options |= {
        "queue": spec.queue if spec.queue != "default" else None,
        "time": _seconds(spec.limit),
        "deadline": timestamp(spec.deadline_at),
        "open_mode": "truncate" if spec.truncate_output else None,
        "label": list(spec.labels),
        "slurm_env": spec.slurm,
        "verbatim": spec.verbatim,
        "requeue": spec.requeueable,
        "no_requeue": spec.non_preemptible,
        "if_unreachable": f"restart:{spec.if_unreachable}s" if spec.if_unreachable else None,
        "alarm": list(map(_alarm, spec.alarms)),
        "notify": [f"{name.removeprefix(MAIL)}:{','.join(on)}" for name, on in spec.notify],
        "env": [f"{name}={variables.get(name, '')}" for name in spec.exported_variables],
    }
    if spec.early_signal is not None:
        early = spec.early_signal
        options["signal"] = f"{'B:' if early.to_script else ''}{early.signal}@{early.seconds}"
    if spec.retry != Retry() or spec.requeueable:
        options |= {"retries": str(spec.retry.limit), "retry_on": ",".join(spec.retry.on)}
    return {key: value for key, value in options.items() if value not in (None, False, [])}


def timestamp(wall: float | None) -> str | None:
    """Return a wall time as options take it."""
    return datetime.fromtimestamp(wall, UTC).isoformat() if wall is not None else None


def _seconds(duration: int | None) -> str | None:
    return f"{duration}s" if duration is not None else None


def _alarm(rule: AlarmRule) -> str:
    words = [] if rule.limit is None else [f"{rule.limit:.0f}s" if rule.limit else "off"]
    return f"{rule.kind}={','.join([*words, *filter(None, [rule.action])])}"


def _request(request: ResourceRequest, spec: Spec) -> Options:
    tasks = 1
    options: Options = {
        "mem": f"{request.memory}M" if request.memory else None,
        "resources": [f"{name}={format_amount(amount)}" for name, amount in request.named],
        "exclusive": request.exclusive,
        "nodelist": ",".join(request.nodes) or None,
        "exclude": ",".join(request.not_nodes) or None,
        "nodes": str(request.node_count) if request.node_count > 1 or spec.tasks else None,
    }
    if spec.tasks is not None:
        tasks = -(-spec.tasks.total // request.node_count)
        options["ntasks"] = str(spec.tasks.total)
        if spec.tasks.per_node is not None:
            options["ntasks_per_node"] = str(spec.tasks.per_node)
    gpus = request.gpus
    has_gpus = gpus is not None and gpus.amount > 0
    usual = 0 if has_gpus or request.exclusive else THOUSAND
    if spec.threads is not None or request.cpus != (tasks * THOUSAND if tasks > 1 else usual):
        options["cpus"] = format_amount(request.cpus // tasks)
        options["no_threads"] = spec.threads is None
    if spec.tasks is not None and spec.tasks.gpus:
        return options | {"gpus_per_task": str(spec.tasks.gpus)}
    return options | _gpus(gpus, request.node_count)


def _gpus(request: GpuRequest | None, nodes: int) -> Options:
    if request is None:
        return {}
    text = format_amount(request.amount)
    if request.max_amount is not None:
        has_end = request.max_amount != MAX_GPUS_PER_NODE
        text += f"..{format_amount(request.max_amount) if has_end else ''}"
    options: Options = {
        "gpus_per_node" if nodes > 1 else "gpus": text,
        "gpu_model": "|".join(request.allowed_models) or None,
        "gpus_min_vram": f"{request.min_vram}M" if request.min_vram else None,
        "gpu_memory": f"{request.memory}M" if request.memory else None,
        "use_gpus": ",".join(request.required) or None,
        "prefer_gpus": ",".join(request.prefer) or None,
        "avoid_gpus": ",".join(request.avoid) or None,
        "explicit": request.ignore_foreign_use,
    }
    if request.fixed_share is not None:
        options["share"] = format_amount(request.fixed_share)
    return options


def _training(training: Training | None, gpus: GpuRequest | None) -> Options:
    if training is None:
        return {}
    options: Options = {
        "epochs": training.epochs, "batch_size": training.batch_size,
        "training_set_size": training.set_size, "expect": _seconds(training.expected),
        "snapshots_dir": training.snapshots, "distributed": training.distributed,
    }  # fmt: skip
    if gpus is None:
        return options | {"gpus": "0"}
    is_whole = not gpus.amount % THOUSAND and gpus.fixed_share is None
    is_single = gpus.amount == THOUSAND and gpus.max_amount is None
    return options | {
        "exclusive_gpu": is_whole and not gpus.shareable,
        "single_gpu": gpus.shareable and is_single,
    }


def _container(container: Container | None) -> Options:
    if container is None:
        return {}
    return {
        "image": container.image,
        "mount": list(map(_mount, container.mounts)),
        "ports": ",".join(f"{host}:{inner}" for host, inner in container.ports) or None,
        "workdir": None if container.in_job_directory else "image",
    }


def _mount(mount: Mount) -> str:
    how = "ro" if mount.read_only else "rw"
    return f"{mount.source}:{mount.target}:{how}{',optional' if mount.optional else ''}"


def _transfer(transfer: FileTransfer) -> Options:
    if transfer == FileTransfer():
        return {}
    return {
        "send": [path for path in transfer.send if transfer.send != FileTransfer().send],
        "no_send": not transfer.send,
        "bring": list(transfer.bring or ()),
        "no_bring": transfer.bring == (),
        "bring_into": transfer.into,
        "leave_out": list(transfer.exclude),
    }
