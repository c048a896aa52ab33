"""Fresh directories and processes with a time limit that leave nothing behind."""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
TIME_LIMIT = 300.0


class Broken(Exception):
    """A measured program failed, hung, or did not do the work."""


@dataclass(frozen=True)
class Outcome:
    """Output and duration of a process."""

    seconds: float
    output: str


def shell() -> str:
    """Return the shell of stoker's jobs, used for all peers."""
    return os.environ.get("SHELL") or "/bin/sh"


def clean_environment() -> dict[str, str]:
    """Return the environment of measured programs: without settings of any scheduler."""
    settings = ("STOKER_", "CUDA_", "SLURM_", "SBATCH_", "TS_", "PARALLEL")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(settings) or name == "SLURM_CONF"  # address of the cluster
    }


@contextlib.contextmanager
def fresh_directory(cache: Path) -> Iterator[Path]:
    """Yield an empty directory; afterwards kill every process that refers to it, by pid.

    The disk is synced first: otherwise the fsync of one peer would wait for files of another.
    """
    cache.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="r", dir=cache))
    os.sync()
    try:
        yield directory
    finally:
        end_processes_of(directory)
        shutil.rmtree(directory, ignore_errors=True)


def run(
    argv: Sequence[str | Path],
    *,
    directory: Path,
    env: Mapping[str, str] | None = None,
    stdin: Path | None = None,
    limit: float = TIME_LIMIT,
    check: bool = True,
    merged: bool = False,
) -> Outcome:
    """Run a program, timed from before the fork until its exit is seen.

    Output goes to a file, not a pipe: a daemon that a command leaves behind may keep it open.
    `merged`: stdout and stderr to the same one, as on a terminal.
    """
    with (
        stdin.open("rb") if stdin else open(os.devnull, "rb") as source,
        tempfile.TemporaryFile(dir=directory) as output,
        tempfile.TemporaryFile(dir=directory) as complaints,
    ):
        begin = time.perf_counter()
        process = subprocess.Popen(
            argv,
            stdin=source,
            stdout=output,
            stderr=subprocess.STDOUT if merged else complaints,
            cwd=directory,
            env=dict(env) if env is not None else clean_environment(),
            start_new_session=True,
        )
        try:
            ended = wait_for_end(process.pid, limit)
            seconds = time.perf_counter() - begin
        except BaseException:
            end_session(process)
            raise
        if not ended:
            end_session(process)
            raise Broken(f"{Path(argv[0]).name} did not end within {limit:g} s")
        code = process.wait()
        output.seek(0)
        complaints.seek(0)
        said = complaints.read().decode(errors="replace").strip()
        if check and code != 0:
            words = " ".join([Path(argv[0]).name, *map(str, argv[1:])])[:120]
            reason = said.splitlines()[-1][:300] if said else "no message"
            raise Broken(f"`{words}` ended with {code}: {reason}")
        return Outcome(seconds, output.read().decode(errors="replace"))


def wait_for_end(pid: int, limit: float) -> bool:
    """Block until a child has ended.

    `Popen.wait(timeout=...)` polls, with pauses that double up to 50 ms: every result would
    be rounded up to the next poll.
    """
    child = os.pidfd_open(pid)
    try:
        return bool(select.select([child], [], [], limit)[0])
    finally:
        os.close(child)


def end_session(process: "subprocess.Popen[bytes]") -> None:
    """Kill a child and the process group that it leads."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def end_processes_of(directory: Path) -> None:
    """Kill processes with this directory in environment, arguments or working directory."""
    token = os.fsencode(directory)
    for _ in range(10):  # a process may fork during the search
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        found = [pid for pid in pids if pid != os.getpid() and _mentions(pid, token)]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                kill(pid)


def kill(pid: int, seconds: float = 2) -> None:
    """Kill one process and wait until it has ended."""
    process = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        select.select([process], [], [], seconds)
    finally:
        os.close(process)


def _mentions(pid: int, token: bytes) -> bool:
    for name in ("environ", "cmdline"):
        with contextlib.suppress(OSError):
            if token in Path(f"/proc/{pid}/{name}").read_bytes():
                return True
    with contextlib.suppress(OSError):
        return os.fsencode(os.readlink(f"/proc/{pid}/cwd")).startswith(token)
    return False
