"""What exactly is executed: argv, environment and files of one attempt. Pure."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from stoker.core import contract
from stoker.core.cluster import Node, Placement
from stoker.core.job import AttemptId, Carry, Container, Job, Spec
from stoker.core.request import GPU
from stoker.core.slurm_env import NO_HOST, SubmitHost, slurm_variables
from stoker.core.units import format_amount

MARK = "\0"
"""No command and no environment holds a zero byte."""
MET_AT_THE_GATE = {"MASTER_ADDR", "MASTER_PORT", "TF_CONFIG"}
"""What parts on several machines are told when all of them are ready."""
NAMES_OF_DEVICES = (
    "STOKER_GPUS", "STOKER_GPU_UUIDS", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
    "ROCR_VISIBLE_DEVICES",
)  # fmt: skip
"""Left to the scheduler of a delegated node, which chooses the devices."""
BROUGHT = "queue-"
"""Before a type that is otherwise a pool (cpu, mem): a queue's own devices of that name."""


class Launch(Struct, frozen=True):
    """Everything needed to start one attempt."""

    job: int
    attempt: int
    argv: tuple[str, ...]
    directory: str
    umask: int
    environment: str
    extra: dict[str, str]
    out: str
    err: str | None
    script: str | None
    terminal: bool
    """Whether it runs on a terminal of its own."""
    gpus: tuple[str, ...]
    """UUIDs of real GPUs, for the hold that other users respect."""
    fill: dict[str, str] = {}
    """What to write for `{gpu}` and the like in the environment; empty when nothing is."""
    line: bool = False
    """Whether the last word of argv is a line of shell."""
    asked: tuple[str, ...] = ()
    """What of the environment goes to another machine."""
    carry: Carry = Carry()
    label: str = ""
    """What people call the job."""
    since: float = 0.0
    """What it takes along must not have been looked at before this moment."""
    container: Container | None = None
    reports: str = ""
    """Where the training library leaves word; made by the library when it has something to say."""
    checkpoints: str = ""
    """Where it keeps what all attempts of the job share."""
    own_checkpoints: bool = True
    """Whether that is a place of ours, not one that the user named."""
    trains: bool = False
    """Whether that directory must be there from the start."""
    placement: Placement | None = None
    """All parts of the attempt."""

    @property
    def id(self) -> AttemptId:
        """The attempt that is started."""
        return AttemptId(self.job, self.attempt)


def launch(
    job: Job, spec: Spec, placement: Placement, node: Node, at: float, logs: str, token: str,
    scripts: str, rank: int = 0, home: str = "", nodes: tuple[str, ...] = (),
    host: SubmitHost = NO_HOST,
) -> Launch:  # fmt: skip
    """Compose the start of an attempt from what was submitted and what it was given.

    `nodes` are those of all parts of an attempt on several nodes, by rank.
    """
    devices = [node.by_name[GPU, name] for name in placement.names(GPU)]  # none of a pool
    ask = spec.request.gpus
    if ask is not None and ask.share is not None:
        ids = list(ask.only)  # all that were named, so by the names that they were given
    else:
        ids = [
            device.facts.uuid if device.facts.mig and device.facts.uuid else device.name
            for device in devices
        ]
    uuids = tuple(device.facts.uuid for device in devices if device.facts.uuid)
    vendors = {device.facts.vendor for device in devices or node.types.get(GPU, [])}
    gpus = ",".join(ids)
    memory = min((device.facts.memory or 0 for device in devices), default=0)
    unique = contract.unique_id(token, job.id)
    reports = contract.reports(home, job)
    checkpoints = contract.checkpoints(spec, home, unique)
    extra = {
        "STOKER_TOKEN": token,
        "STOKER_JOB_ID": str(job.id),
        "STOKER_JOB_NAME": job.name,
        "STOKER_ATTEMPT": str(job.attempt),
        "STOKER_GPUS": gpus,
        "STOKER_GPU_COUNT": format_amount(placement.gpu_amount),
        "STOKER_GPU_UUIDS": ",".join(uuids),
        "STOKER_NODES": node.name,
        "STOKER_NODE_RANK": "0",
        "STOKER_REPORTS": reports,
        "STOKER_CHECKPOINT_DIR": checkpoints,
        **contract.variables(job, spec, placement, unique, memory),
        **_visible(gpus, vendors),
    }
    if node.delegated:
        for name in NAMES_OF_DEVICES:
            extra.pop(name, None)
    for take in placement.takes:
        if take.type not in (GPU, "cpu", "mem") and not take.of_pool:
            name = "".join(letter if letter.isalnum() else "_" for letter in take.type.upper())
            extra[f"STOKER_{name}"] = ",".join(placement.names(take.type))
    if spec.limit is not None:
        extra["STOKER_DEADLINE"] = str(int(at) + spec.limit)
    if spec.threads is not None and "OMP_NUM_THREADS" not in spec.asked:
        extra["OMP_NUM_THREADS"] = str(spec.threads)
    if job.array is not None:
        extra["STOKER_ARRAY_JOB_ID"] = str(job.array)
        extra["STOKER_ARRAY_INDEX"] = str(job.index)
        extra["STOKER_ARRAY_COUNT"] = str(spec.array_size)
    if job.params is not None:
        extra["STOKER_SWEEP_ID"] = str(job.array)
        extra["STOKER_TRIAL"] = str(job.index)
        extra["STOKER_PARAMS"] = job.params
    if spec.slurm:
        nodes = nodes or (node.name,)
        extra.update(slurm_variables(job, spec, placement, nodes, rank, at, host))
    out, err = log_paths(job, spec, node.name, logs, rank)
    words = {} if spec.verbatim or node.delegated else _words(placement, gpus)
    script = f"{scripts}/{spec.script}" if spec.script else None
    after_others = bool(job.past or spec.dependency)  # it goes on with what those have written
    return Launch(
        job=job.id, attempt=job.attempt, argv=_argv(job, spec, script, words),
        directory=spec.directory, umask=spec.umask, environment=spec.environment, extra=extra,
        out=out, err=err, script=spec.script, terminal=spec.pty, gpus=uuids,
        fill=words if spec.fill else {}, line=script is None and isinstance(job.command, str),
        asked=spec.asked, carry=carrying(job, spec, node.name, rank), label=job.label,
        since=at if after_others else job.submitted_at, container=spec.container,
        reports=reports, checkpoints=checkpoints,
        own_checkpoints=spec.training is None or spec.training.snapshots is None,
        trains=spec.training is not None or spec.warning is not None, placement=placement,
    )  # fmt: skip


def _visible(gpus: str, vendors: set[str | None]) -> dict[str, str]:
    """Which GPUs the vendors' libraries see; none at all for a job without any."""
    cuda = "" if "amd" in vendors else gpus
    seen = {"CUDA_VISIBLE_DEVICES": cuda, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return seen | {"ROCR_VISIBLE_DEVICES": gpus} if "amd" in vendors else seen


def _words(placement: Placement, gpus: str) -> dict[str, str]:
    """Each resource in braces, and the devices that are written in its place."""
    words = {"{gpu}": gpus}
    for take in placement.takes:
        if take.type not in (GPU, "cpu", "mem") and not take.of_pool:
            names = ",".join(placement.names(take.type))
            words[f"{{{take.type.removeprefix(BROUGHT)}}}"] = names
    return words


def filled_in(text: str, words: dict[str, str]) -> str:
    """A text with the devices in place of their types; all other braces stay as they are.

    Also those of `${gpu}`, which is a shell's variable.
    """
    if "{" in text:
        for word, names in words.items():
            hidden = text.replace(f"${word}", MARK)
            text = hidden.replace(word, names).replace(MARK, f"${word}")
    return text


def _argv(job: Job, spec: Spec, script: str | None, words: dict[str, str]) -> tuple[str, ...]:
    command = job.command
    if script is not None:
        start = (spec.shell, script) if spec.kind == "shell-script" else (script,)
        return (*start, *spec.args)
    if isinstance(command, str):
        return (spec.shell, "-c", filled_in(command, words))
    return tuple(filled_in(word, words) for word in command or ())


def several(order: Launch, rank: int, nodes: tuple[str, ...]) -> Launch:
    """The same start as one part of an attempt on several machines."""
    gpus = len(order.extra["STOKER_GPUS"].split(",")) if order.extra["STOKER_GPUS"] else 0
    extra = {
        "STOKER_NODES": ",".join(nodes),
        "STOKER_NODE_RANK": str(rank),
        "NODELIST": ",".join(nodes),
        "NODE_RANK": str(rank),
        "NNODES": str(len(nodes)),
        "WORLD_SIZE": str(len(nodes)),
        "GPUS_PER_NODE": str(gpus),
    }
    if "NUM_NODES" in order.extra:
        extra["NUM_NODES"] = str(len(nodes))
    alone = {name: value for name, value in order.extra.items() if name not in MET_AT_THE_GATE}
    return replace(order, extra=alone | extra)


def log_paths(job: Job, spec: Spec, node: str, logs: str, rank: int = 0) -> tuple[str, str | None]:
    """Where stdout and stderr go: one file per attempt and part, unless the user said otherwise."""
    suffix = f".{job.attempt}" if job.attempt else ""
    out = f"{logs}/{job.id}{suffix}.out{f'.{rank}' if rank else ''}"
    if spec.output:
        out = fill(spec.output, job, spec, node, rank)
    return out, fill(spec.error, job, spec, node, rank) if spec.error else None


def carrying(job: Job, spec: Spec, node: str, rank: int = 0) -> Carry:
    """What goes along and comes back, with the directory that this attempt's results go to."""
    carry = spec.carry
    if carry.into is None or "%" not in carry.into:
        return carry
    return replace(carry, into=_filled(carry.into, job, spec, node, rank))


def fill(pattern: str, job: Job, spec: Spec, node: str, rank: int = 0) -> str:
    """Fill in Slurm's %j %A %a %x %u %N %t %%, relative to the job's directory."""
    if rank and "%t" not in pattern and "%N" not in pattern:
        pattern += f".{rank}"  # parts never share a file
    filled = _filled(pattern, job, spec, node, rank)
    return filled if filled.startswith("/") else f"{spec.directory}/{filled}"


def _filled(pattern: str, job: Job, spec: Spec, node: str, rank: int) -> str:
    values = {
        "j": str(job.id),
        "A": str(job.array or job.id),
        "a": str(job.index if job.index is not None else 0),
        "x": job.name.replace("/", "_"),
        "u": spec.user,
        "N": node,
        "t": str(rank),
        "%": "%",
    }
    filled, rest = "", pattern
    while rest:
        head, percent, tail = rest.partition("%")
        filled += head
        if not percent:
            break
        filled += values.get(tail[:1], f"%{tail[:1]}")
        rest = tail[1:]
    return filled
