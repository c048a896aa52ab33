"""Job specs: command, resources, training, retries and files as submitted."""

from __future__ import annotations

from msgspec import Struct, field

from stoker.core.model.alarm import AlarmRule
from stoker.core.model.dependency import Dependency
from stoker.core.model.resources import ResourceRequest

JobCommand = str | tuple[str, ...] | None
"""A shell line, an argv, or None (the script of the spec)."""


MAX_NAME_LENGTH = 60
_COMMAND_PREFIXES = ("env", "exec", "time", "nohup", "nice")
"""Words before a program that are not its name."""


class Retry(Struct, frozen=True, omit_defaults=True):
    """Rule for another attempt after a failed one."""

    limit: int = 0
    on: tuple[str, ...] = ("any",)
    """`any`, `fail`, `oom`, `lost`, `timeout`, `signal`, `exit:3`."""


class EarlySignal(Struct, frozen=True, omit_defaults=True):
    """A signal to send a number of seconds before the time limit (`--signal=USR1@120`)."""

    signal: int
    seconds: int
    to_script: bool = False
    """Whether only the job's first process gets it (`B:`)."""


class FileTransfer(Struct, frozen=True, omit_defaults=True):
    """Files to copy to a remote node without a shared file system, and back."""

    send: tuple[str, ...] = (".",)
    """Paths in the job's directory; empty: it starts in an empty directory."""
    bring: tuple[str, ...] | None = None
    """Paths to copy back; None: all files that are new or changed."""
    into: str | None = None
    """Directory for the results; None: the job's directory."""
    exclude: tuple[str, ...] = ()
    """Patterns of files that are never copied, as in .gitignore."""


class Training(Struct, frozen=True, omit_defaults=True):
    """What the user declares about a training job."""

    epochs: int | None = None
    batch_size: int | None = None
    set_size: int | None = None
    """Samples per epoch, on all GPUs together."""
    expected: int | None = None
    """Expected total run time in seconds, as declared by the user."""
    heartbeat: int = 100
    """Steps between two reports."""
    snapshots: str | None = None
    """Parent of its checkpoint directory; None: the daemon's state directory."""
    distributed: bool = False
    """Whether it gets the variables of torch.distributed and TF_CONFIG even on one node."""


class Mount(Struct, frozen=True, array_like=True, omit_defaults=True):
    """A directory of the node that is mounted in a container."""

    source: str
    target: str
    read_only: bool = False
    optional: bool = False
    """Whether to skip the mount if the directory does not exist."""
    expected: bool = False
    """Whether it exists on the submit host: if it is missing on the node, the job is warned."""


class Container(Struct, frozen=True, omit_defaults=True):
    """The container image in which a job runs."""

    image: str
    mounts: tuple[Mount, ...] = ()
    ports: tuple[tuple[int, int], ...] = ()
    """Host port and container port."""
    in_job_directory: bool = field(default=True, name="here")
    """Whether the job's directory is mounted under the same path and is the working directory."""


class MetricsSource(Struct, frozen=True, omit_defaults=True):
    """Where the metrics of a job that does not report them are found."""

    kind: str
    """`log`: a pattern over its output; `file`: a JSON or CSV file that it writes."""
    text: str
    """The pattern, or the path in the job's directory."""
    name: str = ""
    """Name of the metric, if the pattern does not have one."""


class Tasks(Struct, frozen=True, omit_defaults=True):
    """How many tasks `srun` starts inside the job, as requested."""

    total: int
    per_node: int | None = None
    gpus: int | None = None
    """GPUs of each task."""


class Spec(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The common part of all jobs of one submission, identified by its content hash."""

    kind: str
    """`line`, `argv` or `script`."""
    user: str
    directory: str
    shell: str
    environment: str
    """Hash of the environment, which is stored in its own table."""
    request: ResourceRequest
    name: str
    umask: int = 0o022
    script: str | None = None
    script_name: str | None = None
    args: tuple[str, ...] = ()
    queue: str = "default"
    limit: int | None = None
    retry: Retry = Retry()
    output: str | None = None
    error: str | None = None
    truncate_output: bool = False
    """Whether each attempt empties the files of its output first (`--open-mode=truncate`)."""
    labels: tuple[str, ...] = ()
    group: str | None = None
    comment: str | None = None
    dependency: Dependency | None = None
    array_limit: int | None = None
    array_size: int = 0
    array_range: tuple[int, int, int] | None = None
    """First and last index, and the step between them."""
    deadline_at: float | None = None
    early_signal: EarlySignal | None = field(default=None, name="warning")
    threads: int | None = None
    slurm: bool = False
    """Whether it gets SLURM_* variables, `srun` and `scontrol`."""
    tasks: Tasks | None = None
    account: str | None = None
    pty: bool = False
    on_end: str | None = None
    feed: str | None = None
    """Id of the `feed` that submitted it, which follows and cancels its jobs together."""
    client: str | None = field(default=None, name="door")
    """The compat command that submitted it and that acts on its own jobs only."""
    fill: bool = False
    """Whether its environment has device placeholders in braces, filled in at the start."""
    verbatim: bool = False
    """Whether braces in its command and environment are left as they are."""
    exported_variables: tuple[str, ...] = field(default=(), name="asked")
    """Variables that were named explicitly: only these are sent to a remote node."""
    transfer: FileTransfer = field(default=FileTransfer(), name="carry")
    if_unreachable: int | None = None
    """Seconds after which it is restarted on another node, although it may still run."""
    training: Training | None = None
    container: Container | None = None
    requeueable: bool = field(default=False, name="restartable")
    """Whether it may be preempted by ending and requeueing it (`--requeue`)."""
    non_preemptible: bool = field(default=False, name="steady")
    """Whether it is never preempted (`--no-requeue`)."""
    source: MetricsSource | None = None
    """Where its metrics are found, if it does not report them."""
    alarms: tuple[AlarmRule, ...] = ()
    """Rules of its alarms, where they differ from those of its queue and of the configuration."""
    notify: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Targets of notifications (`mailto:ADDRESS`: an e-mail address), and what is sent to each."""
    uid: int | None = None
    """Unix user that submitted it and as which it runs; None: the user of a single-user daemon."""

    @property
    def expected(self) -> int | None:
        """Expected total run time in seconds, if the user declared it."""
        return self.training.expected if self.training is not None else None

    @property
    def is_always_preemptible(self) -> bool:
        """Whether every attempt can be preempted, from its start on."""
        can_stop = self.requeueable or self.early_signal is not None
        return can_stop and not self.non_preemptible

    @property
    def time_needed(self) -> int:
        """Seconds for which a node must exist if a job is to start there.

        A training job continues elsewhere from its checkpoint. Without a time limit, a job may
        start anywhere: at the end of the node it is lost, and may be requeued.
        """
        return 0 if self.training is not None else self.limit or 0


def default_name(command: str | tuple[str, ...] | None) -> str:
    """Return the default job name of a command: its script, else its program."""
    words = command.split(None, 8) if isinstance(command, str) else list(command or ())
    while (
        len(words) > 1
        and ("=" in words[0] or words[0] in _COMMAND_PREFIXES)
        and words[1][0].isalnum()
    ):
        words = words[1:]
    if not words:
        return "job"
    first = words[0].rpartition("/")[2]
    if first.startswith(("python", "bash", "sh", "torchrun", "accelerate")):
        scripts = (word for word in words[1:4] if word.endswith((".py", ".sh")))
        first = next(scripts, first).rpartition("/")[2]
    return first[:MAX_NAME_LENGTH] or "job"
