"""Bodies of requests; they are validated when they are decoded."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, field

Word = Annotated[str, Meta(max_length=4096)]
Words = Annotated[list[Word], Meta(max_length=10_000)]
Line = Annotated[str, Meta(max_length=1 << 20)]
Path = Annotated[str, Meta(max_length=4096, pattern="^/")]


class Body(Struct, forbid_unknown_fields=True):
    """A request body; unknown fields are rejected."""


class What(Body):
    """The command: exactly one of line, argv, script, lines."""

    line: Line | None = None
    argv: Annotated[list[Line], Meta(min_length=1, max_length=100_000)] | None = None
    script: Annotated[str, Meta(max_length=16 << 20)] | None = None
    script_name: Word | None = None
    args: Annotated[list[Line], Meta(max_length=100_000)] = []
    lines: Annotated[list[Line], Meta(min_length=1, max_length=1_000_000)] | None = None


class Submission(Body, kw_only=True):
    """Origin and options of a submission: the same for jobs and for sweeps."""

    directory: Path
    shell: Path = "/bin/sh"
    key: Annotated[str, Meta(max_length=200)] = ""
    options: dict[str, Any] = {}
    environment: dict[str, Line] = {}
    own_environment: bool = False
    """Start from the daemon's own environment, because the client is another machine."""
    umask: Annotated[int, Meta(ge=0, le=0o777)] = 0o022
    dry_run: bool = False


class Submit(Submission, kw_only=True):
    """Submit jobs."""

    what: What


class Sweep(Submission, kw_only=True):
    """Create a sweep, or continue one."""

    definition: dict[str, Any]
    new: bool = False
    """Create another sweep even if an equal one exists."""


class ChangeSweep(Body):
    """Change a sweep."""

    max_running: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    """0: no limit."""
    priority: Annotated[int, Meta(ge=-1_000_000_000, le=1_000_000_000)] | None = None


class Select(Body):
    """Selected jobs."""

    select: Words = []


class End(Select):
    """Jobs to end, with filters on the selection."""

    client: Word | None = None
    """Only jobs that this client submitted."""
    only: Annotated[str, Meta(pattern="^(waiting|running)$")] | None = None


class Cancel(End):
    """Cancel jobs."""


class Kill(End):
    """Send a signal to jobs, or end them at once."""

    signal: Word | None = None
    to_script: bool = False
    """Send the signal only to the first process of each job."""


class Pause(Select):
    """Suspend running jobs."""


class Resume(Select):
    """Continue suspended jobs."""


class Hold(Select):
    """Hold pending jobs."""


class Release(Select):
    """Release held jobs."""


class Retry(Select):
    """Requeue finished jobs."""

    running: bool = False
    """Terminate running jobs and requeue them, too."""

    failed: bool = False
    """With no job named: the failures that were not dismissed."""
    all: bool = False
    """With `failed`: dismissed failures too."""
    since: str | None = None
    """With `failed`: all failures that ended since this time (ISO 8601)."""
    same_gpus: bool = False
    dry_run: bool = False
    """Only count the jobs."""


class Edit(Select):
    """Change pending jobs, or the time limit and priority of running ones."""

    options: dict[str, Any] = {}
    dry_run: bool = False
    """Only return the running jobs that the new time limit would end."""


class Move(Select):
    """Change the queue position."""

    where: Annotated[str, Meta(pattern="^(first|last|before|after)$")] = "first"
    other: Word | None = None


class Dismiss(Select):
    """Dismiss failures."""


class Wait(Select):
    """Wait until jobs have finished."""

    any: bool = False
    timeout: Annotated[float, Meta(ge=0, le=1e9)] | None = None


class Drain(Body):
    """Drain devices."""

    devices: Words = []
    reason: Word = ""


class Undrain(Body):
    """Undrain devices."""

    devices: Words = []


class Resource(Body):
    """One device of a queue."""

    type: Annotated[str, Meta(pattern=r"^[A-Za-z_][\w.-]{0,63}$")]
    device: Annotated[str, Meta(min_length=1, max_length=128)]
    capacity: Annotated[str, Meta(max_length=20)] = "1"


class AddNode(Body):
    """Add an SSH node or a cluster, or change its address."""

    name: Word
    address: Word
    key: Word | None = None
    shared: bool = False
    force: bool = False
    """Change the address even while jobs run there: it is the same machine."""
    options: dict[str, Word] = {}
    """Of a cluster; tables and lists are JSON."""


class RemoveNode(Body):
    """Remove an SSH node."""

    name: Word
    force: bool = False


class CheckNode(Body):
    """Check a Kubernetes cluster."""

    name: Word


class RefreshNodes(Body):
    """Measure nodes now."""

    names: Words = []


class Queue(Body):
    """Define a named queue."""

    name: Annotated[str, Meta(pattern=r"^[\w.:-]{1,64}$")]
    max_running: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    max_gpus: Annotated[str, Meta(max_length=20)] | None = None
    priority: Annotated[int, Meta(ge=-1_000_000_000, le=1_000_000_000)] = 0
    strict: bool = False
    devices: Words | None = None
    resources: Annotated[list[Resource], Meta(max_length=100_000)] | None = None
    """All that its jobs may use; devices of types that the node does not have are added to it."""
    max_waiting: Annotated[int, Meta(ge=0, le=1_000_000_000)] | None = None
    max_job_gpus: Annotated[str, Meta(max_length=20)] | None = None
    new: bool = False
    """Reject the request if the queue exists."""


class Limits(Body):
    """Set limits of a user, a group or a queue."""

    subject: Annotated[str, Meta(pattern=r"^(\*|@?[\w.-]{1,64}|queue:[\w.:-]{1,64})$")]
    """`ana`, `@vision`, `queue:short`, or `*`: each user without limits of its own."""
    max_gpus: Annotated[str, Meta(max_length=20)] | None = None
    """`none`: no limit; the same for the others."""
    max_running: Annotated[str, Meta(max_length=20)] | None = None
    max_pending: Annotated[str, Meta(max_length=20)] | None = None
    max_job_gpus: Annotated[str, Meta(max_length=20)] | None = None
    max_time: Annotated[str, Meta(max_length=40)] | None = None
    gpu_hours: Annotated[str, Meta(max_length=20)] | None = field(
        default=None, name="gpu_hours_per_week"
    )
    gpu_memory: Annotated[str, Meta(max_length=20)] | None = None
    clear: bool = False
    """Remove all limits."""


class Policy(Body):
    """Set the policy of a queue."""

    queue: Annotated[str, Meta(pattern=r"^(\*|[\w.:-]{1,64})$")] = "*"
    """`*`: every queue without its own setting."""
    name: Annotated[str, Meta(max_length=64)] = ""
    """Empty: remove the setting of the queue."""
    parameters: Annotated[dict[Word, float | Word], Meta(max_length=16)] = {}
    """Numbers (durations in seconds), or text as users type it: `20m`."""


class HideHistory(Body):
    """Hide earlier jobs from the history of a client."""

    client: Word


class Listen(Body):
    """Open a TCP port."""

    address: Annotated[str, Meta(max_length=64, pattern=r"^[0-9A-Za-z.:\[\]]+:[0-9]{1,5}$")]
    tls: bool = False
    note: Annotated[dict[Word, Word], Meta(max_length=16)] = {}
    """Texts for the clients of this port; `GET /v1/daemon` shows them."""
    keep: bool = False
    """Open the port again after a restart, as long as there are browser sessions."""


class CreateSession(Body):
    """Get a code that opens a browser session."""

    rights: Annotated[str, Meta(pattern="^(view|act)$")] = "act"
    seconds: Annotated[int, Meta(ge=60, le=90 * 86400)] = 43200
    note: Annotated[str, Meta(max_length=200)] = ""
    share: bool = False
    """The code opens any number of sessions, until they expire."""
    logs: bool = True
    """Whether the output of jobs can be read."""


class SetShare(Body):
    """Set the weight of a user or a group in fair share."""

    subject: Annotated[str, Meta(pattern=r"^(\*|@?[\w.-]{1,64}|queue:[\w.:-]{1,64})$")]
    weight: Annotated[float, Meta(ge=0.01, le=1000)] | None = None
    """None: as without it."""


class Reserve(Body, kw_only=True):
    """Reserve GPUs or nodes for a time."""

    begin: Annotated[str, Meta(max_length=80)] = "now"
    duration: Annotated[str, Meta(max_length=40)]
    name: Annotated[str, Meta(pattern=r"^[\w.-]{1,64}$")] | None = None
    gpus: Annotated[str, Meta(max_length=20)] | None = None
    """How many; which ones is chosen."""
    nodes: Annotated[list[Word], Meta(max_length=1000)] = []
    devices: Annotated[list[Word], Meta(max_length=10_000)] = []
    subjects: Annotated[list[Word], Meta(max_length=100)] = []
    """`ana`, `@vision` or `queue:short`; empty: the caller, to a daemon of one user no job."""


class CreateToken(Body):
    """Create a token for remote clients of the caller."""

    name: Annotated[str, Meta(pattern=r"^[\w.-]{1,64}$")]
    rights: Annotated[str, Meta(pattern="^(view|act)$")] = "view"
    days: Annotated[float, Meta(gt=0, le=3650)] = 90.0


class OpenSession(Body):
    """Open a browser session."""

    code: Annotated[str, Meta(max_length=200)]


class TryTarget(Body):
    """Deliver a test message to a target, or to an e-mail address."""

    target: Annotated[str, Meta(min_length=1, max_length=200)]


class AddNotifyRule(Body):
    """Notify a target, or an e-mail address, of what a condition says."""

    target: Annotated[str, Meta(min_length=1, max_length=200)]
    when: Annotated[str, Meta(min_length=1, max_length=200)]


class Thresholds(Body):
    """Change when a GPU counts as used by foreign processes."""

    load: Annotated[float, Meta(ge=0, le=10)] | None = None
    memory: Annotated[float, Meta(ge=0, le=10)] | None = None
    processes: bool | None = None
    """Whether any compute process makes it so, however little it uses."""


class Stop(Body):
    """Stop the daemon."""

    mode: Annotated[str, Meta(pattern="^(leave|drain|cancel)$")] = "leave"
    check: bool = False
    """Reject the request if a daemon could not start with the present configuration."""
    gpus: Word | None = None
    resources: Word | None = None
    listen: Word | None = None
    """The options of that daemon."""
    db: Word | None = None
    """The store of that daemon."""


class Backup(Body):
    """Copy the database."""

    path: Path
