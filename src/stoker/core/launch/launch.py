"""Launch: argv, environment and files of one attempt, from its job and placement.

Paths may have Slurm's patterns.
"""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.cluster.node import Device, Node
from stoker.core.launch import training_env
from stoker.core.launch.slurm_env import NO_HOST, SubmitHost, slurm_variables
from stoker.core.model.job import AttemptId, Job
from stoker.core.model.resources import CPU, GPU, MEMORY, Placement
from stoker.core.model.spec import Container, FileTransfer, Spec
from stoker.core.model.units import format_amount

PLACEHOLDER_MARK = "\0"
"""Replaces an escaped placeholder: commands and environments have no zero bytes."""
QUEUE_DEVICE_PREFIX = "queue-"
"""Prefix of a queue's own devices of a type that is otherwise a pool (cpu, mem)."""
MAX_PADDING = 10
"""Digits of a number in a path pattern, as in Slurm."""


class Launch(Struct, frozen=True):
    """Everything needed to start one attempt."""

    spec: Spec
    """As submitted. The directory, script and container are fields: a node may change them."""
    job: int
    attempt: int
    argv: tuple[str, ...]
    directory: str
    extra: dict[str, str]
    out: str
    err: str | None
    script: str | None
    gpus: tuple[str, ...]
    """UUIDs of the GPUs, for the GPU locks."""
    gpu_minors: tuple[int, ...] = ()
    """N of the device files /dev/nvidiaN of the GPUs, for the device group."""
    device_group: str | None = None
    """Directory of the group of the devices controller for this attempt."""
    placeholders: dict[str, str] = {}
    """Replacements of `{gpu}` and the like in the environment; empty: none."""
    is_shell_line: bool = False
    """Whether the last word of argv is a shell line."""
    transfer: FileTransfer = FileTransfer()
    label: str = ""
    """Job id that users see."""
    files_after: float = 0.0
    """A directory snapshot must not be older than this time."""
    container: Container | None = None
    reports: str = ""
    """Directory of the training reports; the library creates it with its first report."""
    checkpoints: str = ""
    """Checkpoint directory that all attempts of the job share."""
    has_own_checkpoints: bool = True
    """Whether that directory is stoker's own instead of one that the user named."""
    priority: int = 0
    placement: Placement | None = None
    """All parts of the attempt."""

    @property
    def id(self) -> AttemptId:
        """Id of the attempt."""
        return AttemptId(self.job, self.attempt)

    @property
    def needs_report_directory(self) -> bool:
        """Whether the report directory must exist from the start."""
        return self.spec.training is not None or self.spec.early_signal is not None


def launch(
    job: Job, spec: Spec, placement: Placement, node: Node, at: float, logs: str, token: str,
    scripts: str, rank: int = 0, home: str = "", host: SubmitHost = NO_HOST,
) -> Launch:  # fmt: skip
    """Return the launch of one part of an attempt; `node` is that of the part."""
    home, scripts = (training_env.of_user(path, spec) for path in (home, scripts))
    part = replace(placement.parts[rank], other_parts=())
    nodes = tuple(each.node for each in placement.parts)
    devices = [node.by_name[GPU, name] for name in part.names(GPU)]  # pools have no names
    gpus = ",".join(_gpu_names(spec, devices))
    unique = training_env.unique_id(token, job.id)
    reports = training_env.report_directory(home, job)
    checkpoints = training_env.checkpoint_directory(spec, home, unique)
    memory = min((device.facts.memory or 0 for device in devices), default=0)
    if node.delegated and spec.request.gpus is not None:  # of which GPU, that node decides
        memory = spec.request.gpus.memory or 0
    uuids = tuple(device.facts.uuid for device in devices if device.facts.uuid)
    vendors = {device.facts.vendor for device in devices or node.types.get(GPU, [])}
    extra = {
        "STOKER_TOKEN": token,
        "STOKER_GPU_COUNT": format_amount(part.gpu_amount),
        "STOKER_NODES": ",".join(nodes),
        "STOKER_NODE_RANK": str(rank),
        "STOKER_REPORTS": reports,
        "STOKER_CHECKPOINT_DIR": checkpoints,
        **training_env.training_variables(job, spec, part, nodes, unique, memory),
    }
    if not node.delegated:  # there, the other scheduler chooses the devices
        extra |= _device_variables(gpus, uuids, vendors)
    named = _named_devices(part)
    extra |= _job_variables(job, spec, None if node.delegated else at)
    extra |= {_variable(type): names for type, names in named.items()}
    if len(nodes) > 1:
        extra |= {  # of a gang, as far as they are known before its parts meet at the barrier
            "NODELIST": ",".join(nodes),
            "NODE_RANK": str(rank),
            "NNODES": str(len(nodes)),
            "WORLD_SIZE": str(len(nodes)),
            "GPUS_PER_NODE": str(part.gpu_count),
        }
    if spec.slurm:
        extra |= slurm_variables(job, spec, part, nodes, rank, at, host)
    out, err = log_paths(job, spec, node.name, logs, rank)
    placeholders: dict[str, str] = {}
    if not (spec.verbatim or node.delegated):
        types = {type.removeprefix(QUEUE_DEVICE_PREFIX): names for type, names in named.items()}
        placeholders = {f"{{{type}}}": names for type, names in {GPU: gpus, **types}.items()}
    script = f"{scripts}/{spec.script}" if spec.script else None
    needs_new_files = bool(job.past or spec.dependency)  # written by earlier attempts or jobs
    return Launch(
        spec=spec, job=job.id, attempt=job.attempt, argv=_argv(job, spec, script, placeholders),
        directory=spec.directory, extra=extra, out=out, err=err, script=spec.script, gpus=uuids,
        gpu_minors=tuple(
            sorted({d.facts.nvidia_minor for d in devices if d.facts.nvidia_minor is not None})
        ),
        placeholders=placeholders if spec.fill else {},
        is_shell_line=script is None and isinstance(job.command, str),
        transfer=transfer_of(job, spec, node.name, rank), label=job.label,
        files_after=at if needs_new_files else job.submitted_at, container=spec.container,
        reports=reports, checkpoints=checkpoints,
        has_own_checkpoints=spec.training is None or spec.training.snapshots is None,
        placement=placement, priority=job.priority,
    )  # fmt: skip


def _gpu_names(spec: Spec, devices: list[Device]) -> list[str]:
    """Return the GPUs as the job names them: by index, MIG slices by UUID."""
    request = spec.request.gpus
    if request is not None and request.fixed_share is not None:
        return list(request.required)  # all of them, by the names that the user gave
    return [
        device.facts.uuid if device.facts.mig and device.facts.uuid else device.name
        for device in devices
    ]


def _job_variables(job: Job, spec: Spec, at: float | None) -> dict[str, str]:
    """Return the variables of the job, its array and its sweep; `at`: its start, if it is known."""
    is_trial, sets_threads = job.params is not None, "OMP_NUM_THREADS" in spec.exported_variables
    variables = {
        "STOKER_JOB_ID": job.id,
        "STOKER_JOB_NAME": job.name,
        "STOKER_ATTEMPT": job.attempt,
        "STOKER_DEADLINE": None if spec.limit is None or at is None else int(at) + spec.limit,
        "OMP_NUM_THREADS": None if sets_threads else spec.threads,
        "STOKER_ARRAY_JOB_ID": job.array,
        "STOKER_ARRAY_INDEX": job.index,
        "STOKER_ARRAY_COUNT": spec.array_size if job.array is not None else None,
        "STOKER_SWEEP_ID": job.array if is_trial else None,
        "STOKER_TRIAL": job.index if is_trial else None,
        "STOKER_PARAMS": job.params,
    }
    return {name: str(value) for name, value in variables.items() if value is not None}


def _named_devices(placement: Placement) -> dict[str, str]:
    """Return the devices of each named resource."""
    named = (item for item in placement.allocations if item.type not in (GPU, CPU, MEMORY))
    return {item.type: ",".join(placement.names(item.type)) for item in named if not item.is_pooled}


def _variable(type: str) -> str:
    """Return the name of the variable with the devices of a named resource."""
    return "STOKER_" + "".join(letter if letter.isalnum() else "_" for letter in type.upper())


def _device_variables(
    gpus: str, uuids: tuple[str, ...], vendors: set[str | None]
) -> dict[str, str]:
    """Return the variables with the GPUs of the job, which the vendors' libraries may see."""
    variables = {
        "STOKER_GPUS": gpus,
        "STOKER_GPU_UUIDS": ",".join(uuids),
        "CUDA_VISIBLE_DEVICES": "" if "amd" in vendors else gpus,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    return variables | ({"ROCR_VISIBLE_DEVICES": gpus} if "amd" in vendors else {})


def fill_placeholders(text: str, placeholders: dict[str, str]) -> str:
    """Return a text with device names in place of placeholders.

    Other braces stay, also those of `${gpu}`, which is a shell variable.
    """
    if "{" in text:
        for word, names in placeholders.items():
            escaped = text.replace(f"${word}", PLACEHOLDER_MARK)
            text = escaped.replace(word, names).replace(PLACEHOLDER_MARK, f"${word}")
    return text


def _argv(
    job: Job, spec: Spec, script: str | None, placeholders: dict[str, str]
) -> tuple[str, ...]:
    command = job.command
    if script is not None:
        start = (spec.shell, script) if spec.kind == "shell-script" else (script,)
        return (*start, *spec.args)
    if isinstance(command, str):
        return (spec.shell, "-c", fill_placeholders(command, placeholders))
    return tuple(fill_placeholders(word, placeholders) for word in command or ())


def log_paths(job: Job, spec: Spec, node: str, logs: str, rank: int = 0) -> tuple[str, str | None]:
    """Return the files of stdout and stderr: by default one per attempt and part."""
    suffix = f".{job.attempt}" if job.attempt else ""
    out = f"{training_env.of_user(logs, spec)}/{job.id}{suffix}.out{f'.{rank}' if rank else ''}"
    if spec.output:
        out = fill_path(spec.output, job, spec, node, rank)
    return out, fill_path(spec.error, job, spec, node, rank) if spec.error else None


def transfer_of(job: Job, spec: Spec, node: str, rank: int = 0) -> FileTransfer:
    """Return the file transfer of an attempt, with its result directory filled in."""
    transfer = spec.transfer
    if transfer.into is None or "%" not in transfer.into:
        return transfer
    return replace(transfer, into=_fill_pattern(transfer.into, job, spec, node, rank))


def fill_path(pattern: str, job: Job, spec: Spec, node: str, rank: int = 0) -> str:
    """Return a path with Slurm's %j, %A and so on filled in, below the job's directory."""
    if rank and "%t" not in pattern and "%N" not in pattern:
        pattern += f".{rank}"  # parts never share a file
    filled = _fill_pattern(pattern, job, spec, node, rank)
    return filled if filled.startswith("/") else f"{spec.directory}/{filled}"


def _fill_pattern(pattern: str, job: Job, spec: Spec, node: str, rank: int) -> str:
    """Fill in %j %J %A %a %x %u %N %n %t %%; `%4a` pads a number with zeros."""
    values = {
        "j": str(job.id),
        "J": str(job.id),
        "A": str(job.array or job.id),
        "a": str(job.index if job.index is not None else 0),
        "x": job.name.replace("/", "_"),
        "u": spec.user,
        "N": node,
        "n": str(rank),
        "t": str(rank),
        "%": "%",
    }

    def fill(match: re.Match[str]) -> str:
        value = values.get(match[2], match[0])
        return value.zfill(min(int(match[1] or 0), MAX_PADDING)) if value.isdecimal() else value

    return re.sub("%([0-9]{0,3})(.)", fill, pattern, flags=re.DOTALL)
