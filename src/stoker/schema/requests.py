"""The bodies of requests, checked before anything looks at them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

Word = Annotated[str, Meta(max_length=4096)]
Words = Annotated[list[Word], Meta(max_length=10_000)]
Line = Annotated[str, Meta(max_length=1 << 20)]
Path = Annotated[str, Meta(max_length=4096, pattern="^/")]


class Body(Struct, forbid_unknown_fields=True):
    """What a request may hold, and nothing else."""


class What(Body):
    """What to run: exactly one of line, argv, script, lines."""

    line: Line | None = None
    argv: Annotated[list[Line], Meta(min_length=1, max_length=100_000)] | None = None
    script: Annotated[str, Meta(max_length=16 << 20)] | None = None
    script_name: Word | None = None
    args: Annotated[list[Line], Meta(max_length=100_000)] = []
    lines: Annotated[list[Line], Meta(min_length=1, max_length=1_000_000)] | None = None


class Submission(Body, kw_only=True):
    """Where a submission comes from, and what it asks for: the same for jobs and for sweeps."""

    directory: Path
    shell: Path = "/bin/sh"
    key: Annotated[str, Meta(max_length=200)] = ""
    options: dict[str, Any] = {}
    environment: dict[str, Line] = {}
    own_environment: bool = False
    """Start from the daemon's own environment: the submission comes from another machine."""
    umask: Annotated[int, Meta(ge=0, le=0o777)] = 0o022
    dry_run: bool = False


class Submit(Submission, kw_only=True):
    """New jobs."""

    what: What


class Sweep(Submission, kw_only=True):
    """A sweep, new or again."""

    definition: dict[str, Any]
    new: bool = False
    """A sweep of its own, even if there is one that is the same."""


class ChangeSweep(Body):
    """How a sweep goes on."""

    max_running: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    """0: any number of them."""
    priority: Annotated[int, Meta(ge=-1_000_000_000, le=1_000_000_000)] | None = None


class Select(Body):
    """Jobs to act on."""

    select: Words = []


class End(Select):
    """Jobs to end, but only some of those selected."""

    client: Word | None = None
    """Only jobs that this client submitted."""
    only: Annotated[str, Meta(pattern="^(waiting|running)$")] | None = None


class Cancel(End):
    """Cancel jobs."""


class Kill(End):
    """Send a signal to jobs, or end them at once."""

    signal: Word | None = None


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

    failed: bool = False
    """With no job named: the failures that were not dismissed."""
    all: bool = False
    """With `failed`: dismissed failures too."""
    since: str | None = None
    """With `failed`: all failures that ended since this time (ISO 8601)."""
    same_gpus: bool = False
    dry_run: bool = False
    """Only count them."""


class Edit(Select):
    """Change pending jobs, or the time limit and priority of running ones."""

    options: dict[str, Any] = {}
    dry_run: bool = False
    """Only say which running jobs the new time limit would end."""


class Move(Select):
    """Change the queue position."""

    where: Annotated[str, Meta(pattern="^(first|last|before|after)$")] = "first"
    other: Word | None = None


class Dismiss(Select):
    """Dismiss failures."""


class Wait(Select):
    """Answer when these have finished."""

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
    """A machine over SSH."""

    name: Word
    address: Word
    key: Word | None = None
    shared: bool = False
    force: bool = False
    """It is the same machine at another address, whatever runs there."""


class RemoveNode(Body):
    """A machine over SSH that is not to be used any more."""

    name: Word
    force: bool = False


class RefreshNodes(Body):
    """Measure nodes now."""

    names: Words = []


class Queue(Body):
    """A named queue and its limits."""

    name: Annotated[str, Meta(pattern=r"^[\w.:-]{1,64}$")]
    max_running: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    max_gpus: Annotated[str, Meta(max_length=20)] | None = None
    priority: Annotated[int, Meta(ge=-1_000_000_000, le=1_000_000_000)] = 0
    strict: bool = False
    devices: Words | None = None
    resources: Annotated[list[Resource], Meta(max_length=100_000)] | None = None
    """All that its jobs may use; types that the machine does not know are brought along."""
    max_waiting: Annotated[int, Meta(ge=0, le=1_000_000_000)] | None = None
    max_job_gpus: Annotated[str, Meta(max_length=20)] | None = None
    new: bool = False
    """Refuse to change a queue that is there already."""


class Policy(Body):
    """What a queue goes by from now on."""

    queue: Annotated[str, Meta(pattern=r"^(\*|[\w.:-]{1,64})$")] = "*"
    """`*`: every queue for which nothing else is said."""
    name: Annotated[str, Meta(max_length=64)] = ""
    """Empty: whatever is said for all others."""
    parameters: Annotated[dict[Word, float | Word], Meta(max_length=16)] = {}
    """Numbers (times in seconds), or as people type them: `20m`."""


class HideHistory(Body):
    """Hide earlier jobs from the history of a client."""

    client: Word


class Listen(Body):
    """Open a TCP port."""

    address: Annotated[str, Meta(max_length=64, pattern=r"^[0-9A-Za-z.:\[\]]+:[0-9]{1,5}$")]
    tls: bool = False
    note: Annotated[dict[Word, Word], Meta(max_length=16)] = {}
    """What whoever comes in there may want to know; `GET /v1/daemon` shows it."""


class Thresholds(Body):
    """From when on a GPU counts as used by others."""

    load: Annotated[float, Meta(ge=0, le=10)] | None = None
    memory: Annotated[float, Meta(ge=0, le=10)] | None = None
    processes: bool | None = None
    """Whether any process that computes is enough, however little it uses."""


class Stop(Body):
    """Stop the daemon."""

    mode: Annotated[str, Meta(pattern="^(leave|drain|cancel)$")] = "leave"
    check: bool = False
    """Refuse when the next daemon could not start with the configuration as it is now."""
    gpus: Word | None = None
    resources: Word | None = None
    listen: Word | None = None
    """What that daemon would be told to have, and where to listen."""
    db: Word | None = None
    """The store that it would be told to use."""


class Backup(Body):
    """Copy the database."""

    path: Path
