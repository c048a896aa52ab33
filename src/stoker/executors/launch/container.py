"""Wraps the command of an attempt in a call of podman or docker."""

from __future__ import annotations

import functools
import os
import re
import signal
from collections.abc import Iterable, Mapping

from stoker.core.launch.launch import Launch
from stoker.core.launch.slurm_env import SLURM_MARK
from stoker.core.model.spec import Container, Mount
from stoker.executors.launch.paths import SLURM_TOOLS
from stoker.executors.linux.procfs import read_environ

ENGINES = ("podman", "docker")
CHOICE = "STOKER_CONTAINER_ENGINE"
"""The engine to use, in the environment of the daemon or its settings."""
MARK = "STOKER_CONTAINER"
"""The name of the container, in the environment of the process in charge of it."""
REPORTS, SNAPSHOTS, LIBRARY, SCRIPT = "/stoker/reports", "/snapshots", "/stoker/lib", "/stoker/job"
MET_LATER = ("MASTER_ADDR", "MASTER_PORT", "TF_CONFIG")
"""Variables of a job on several nodes that are known only when all parts are ready."""
ENGINES_TOO = ("PATH", "HOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "TMPDIR")
"""Variables that the engine itself uses: those of a job are set inside only."""
CANNOT_RUN_HERE = b"stoker: cannot run here: "
"""Begins the last line of a container that lacks something on its node: engine, image, mount."""
LAST_WORD = 2
"""Seconds that the engine has to kill a container before all its processes are killed."""
REMOVAL_SECONDS = 10.0
"""Time that the engine has to remove a container after its processes were killed."""
AT_ONCE = signal.SIGPWR
"""Tells the process in charge of a container that it has no time left."""
USUAL_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
ABSENT = "this node has neither podman nor docker; leave --image out to run the command directly"
_SHELL = 'command -v "$1" >/dev/null && exec "$@"; shift; exec sh "$@"'
"""bash if the image has it, else sh."""


def command(
    launch: Launch, library: str | None, grace: float, engine: str = "", script: str | None = None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command that runs an attempt in its container, and additional variables.

    All paths of the launch are those of the node that it runs on; `library` is the path of the
    training library there, and `script` that of the job's script, if it has one.
    """
    container = launch.container
    assert container is not None
    token = launch.extra["STOKER_TOKEN"]
    name = name_of(token, int(launch.extra.get("STOKER_NODE_RANK", "0")))
    root = f"{SNAPSHOTS}/{os.path.basename(launch.checkpoints)}"
    extra = {MARK: name, "STOKER_REPORTS": REPORTS, "STOKER_CHECKPOINT_DIR": root}
    names = dict.fromkeys((*launch.extra, *extra, "NVIDIA_VISIBLE_DEVICES"))
    if _has_peers(launch):
        names |= dict.fromkeys(MET_LATER)
    inside = [name for name in ENGINES_TOO if name in launch.spec.exported_variables]
    exported = (
        name
        for name in launch.spec.exported_variables
        if name.isidentifier() and name not in inside
    )
    names |= dict.fromkeys(exported)
    if library is not None:
        names["PYTHONPATH"] = None
    pythonpath_source = (
        "none"
        if library is None
        else "job"
        if "PYTHONPATH" in launch.spec.exported_variables
        else "image"
    )
    gpus = ",".join(launch.gpus) or launch.extra.get("STOKER_GPUS", "")
    if "ROCR_VISIBLE_DEVICES" in launch.extra:
        gpus = ""  # those are no business of NVIDIA's
    stop_seconds = max(int(grace) - LAST_WORD, 1)
    return (
        "/bin/sh", "-c", wrapper(), "stoker-container",
        engine, name, container.image, str(stop_seconds), pythonpath_source, gpus, " ".join(inside),
        *_places(launch, container, library, script),
        *(f"--env={name}" for name in names),
        *_network(launch, container),
        *(("--interactive", "--tty") if launch.spec.pty else ()),
        *((f"--workdir={launch.directory}",) if container.in_job_directory else ()),
        "+run", container.image, *_with_slurm_tools(launch, library),
        *inner_command(launch, SCRIPT if script is not None else None),
    ), extra  # fmt: skip


@functools.cache
def wrapper() -> str:
    """Return the text of container.sh without comments: lists of processes show it."""
    with open(f"{os.path.splitext(__file__)[0]}.sh") as file:
        lines = file.read().splitlines()
    return "\n".join(line for line in map(str.strip, lines) if line and not line.startswith("#"))


def name_of(token: str, rank: int = 0) -> str:
    """Return the name of a container: that of its attempt, in letters that engines allow."""
    safe = re.sub(r"[^A-Za-z0-9_.-]", "-", token.rstrip("."))
    return f"stoker-{safe}" + (f"-{rank}" if rank else "")


def is_supervisor_of(pid: int, token: str) -> bool:
    """Return whether a process is in charge of the container of an attempt."""
    mark = f"{MARK}={name_of(token)}".encode()
    entries = read_environ(pid)
    return any(entry == mark or entry.startswith(mark + b"-") for entry in entries)


def absent(environment: Mapping[str, str], engine: str, exported: Iterable[str] = ()) -> str | None:
    """Return why this node cannot run containers; None if it may. Nothing is started."""
    import shutil

    path = environment.get("PATH") or os.defpath
    if "PATH" in exported:
        path += os.pathsep + USUAL_PATH  # the job's PATH is for the inside
    if not engine:
        return None if any(shutil.which(program, path=path) for program in ENGINES) else ABSENT
    if shutil.which(engine, path=path):
        return None
    return f"{engine} is not installed on this node; leave --image out to run the command directly"


def _places(
    launch: Launch, container: Container, library: str | None, script: str | None
) -> Iterable[str]:
    """Create and return the directories to mount; those that the user named take precedence."""
    user = {mount.target.rstrip("/") or "/": mount for mount in container.mounts}
    ours = [Mount(launch.reports, REPORTS)]
    if launch.has_own_checkpoints:
        ours.append(
            Mount(launch.checkpoints, f"{SNAPSHOTS}/{os.path.basename(launch.checkpoints)}")
        )
    else:
        ours.append(Mount(os.path.dirname(launch.checkpoints), SNAPSHOTS))
    if container.in_job_directory and launch.directory != "/":
        ours.append(Mount(launch.directory, launch.directory))
    if library is not None:
        ours.append(Mount(library, LIBRARY, read_only=True))
    if script is not None:
        ours.append(Mount(script, SCRIPT, read_only=True))
    yield from ("+writable", launch.reports)
    yield from ("+writable" if launch.has_own_checkpoints else "+mkdir", launch.checkpoints)
    for mount in (*(each for each in ours if each.target not in user), *user.values()):
        option = "--mount=" + ",".join(
            _quoted(field)
            for field in (
                "type=bind", f"source={mount.source}", f"target={mount.target}",
                *(("readonly",) if mount.read_only else ()),
            )
        )  # fmt: skip
        if mount.optional:
            yield from ("+optional", mount.source, mount.target if mount.expected else "", option)
        else:
            yield from ("+require", mount.source, mount.target, option)


def _quoted(field: str) -> str:
    """Return a field of a comma-separated option, as both engines read it."""
    return '"' + field.replace('"', '""') + '"' if set(field) & {",", '"'} else field


def _has_peers(launch: Launch) -> bool:
    return "," in launch.extra.get("STOKER_NODES", "")


def _network(launch: Launch, container: Container) -> Iterable[str]:
    if _has_peers(launch):
        yield "--network=host"  # its parts on other nodes connect to it
        return
    for outside, inside in container.ports:
        yield f"--publish={outside}:{inside}"


def inner_command(launch: Launch, script: str | None) -> tuple[str, ...]:
    """Return the command inside the container; `script`: where its script is there."""
    if launch.is_shell_line:
        return _shell(launch.argv[0], "-c", launch.argv[-1])
    if launch.script is None or script is None:
        return launch.argv
    at = next(n for n, word in enumerate(launch.argv) if word.endswith(launch.script))
    arguments = launch.argv[at + 1 :]
    return _shell(launch.argv[0], script, *arguments) if at else (script, *arguments)


def _with_slurm_tools(launch: Launch, library: str | None) -> tuple[str, ...]:
    """Put `srun` of stoker first on the PATH of the image."""
    if library is None or SLURM_MARK not in launch.extra:
        return ()
    return ("sh", "-c", f'PATH="{LIBRARY}/{SLURM_TOOLS}:$PATH" exec "$@"', "sh")


def _shell(path: str, *words: str) -> tuple[str, ...]:
    name = os.path.basename(path)
    return ("sh", *words) if name in ("sh", "dash") else ("sh", "-c", _SHELL, "sh", name, *words)
