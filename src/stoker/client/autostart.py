"""Starts a daemon in the background and waits until it is ready."""

from __future__ import annotations

import os
import select
import sys
import time

from stoker import places, wire
from stoker.client.errors import DaemonUnreachable, NoReply, StokerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stoker.client.transport import Reply

READY_SECONDS = 20.0
OTHER_START_SECONDS = 3.0
"""If our daemon failed to start: how long another one that is starting may take."""


def start_daemon(args: Sequence[str] = ()) -> int:
    """Start a daemon detached from this terminal; return the pid of the daemon that runs now."""
    places.secure_dir(places.state_dir())
    log = places.daemon_log()
    reader, writer = os.pipe()
    try:
        os.set_inheritable(writer, True)
        command = daemon_command(*args, "--ready-fd", str(writer))
        try:
            pid = _spawn(command, log, keep=writer)
        finally:
            os.close(writer)
        line = _read_first_line(reader)
    finally:
        os.close(reader)
    return _parse_ready_line(line, pid, log)


def send_after_start(send: Callable[[], Reply]) -> Reply:
    """Start a daemon and send a request as soon as a daemon listens.

    If two commands start a daemon at once, ours fails, and the other may not be ready yet.
    """
    failure = None
    try:
        start_daemon()
    except StokerError as error:
        if error.exit_code != wire.EXIT_FAILED:
            raise
        failure = error
    deadline = time.monotonic() + (READY_SECONDS if failure is None else OTHER_START_SECONDS)
    while True:
        try:
            return send()
        except NoReply:
            raise
        except DaemonUnreachable as error:
            if time.monotonic() > deadline:
                raise failure or error from None
            time.sleep(0.02)


def lock_holder() -> int | None:
    """Return the pid of the process that holds the state lock, whether or not it answers."""
    import fcntl

    try:
        fd = os.open(os.path.join(places.state_dir(), "lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        fields = os.pread(fd, 32, 0).split()
        return int(fields[0]) if fields and fields[0].isdigit() else None
    finally:
        os.close(fd)
    return None


def daemon_command(*args: str) -> list[str]:
    """Return the command line of `stoker.daemon run` under this interpreter."""
    # -P: never import from the current directory.
    return [sys.executable, "-P", "-m", "stoker.daemon", "run", *args]


def daemon_environment() -> dict[str, str]:
    """Return our environment; inside a job, without the variables of that job.

    A daemon with a job's token would be killed together with that job.
    """
    if "STOKER_JOB_ID" not in os.environ:
        return dict(os.environ)
    devices = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    return {
        name: value
        for name, value in os.environ.items()
        if name in ("STOKER_HOME", "STOKER_DB", wire.STORE_OPTION_VARIABLE)
        or not (name.startswith("STOKER_") or name in devices)
    }


def _spawn(command: list[str], log: str, *, keep: int) -> int:
    import resource
    from signal import SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM

    actions: list[tuple[int, int] | tuple[int, int, int] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    # The shell may have left descriptors open that a daemon must not hold.
    descriptors = places.inheritable_descriptors()
    actions += [(os.POSIX_SPAWN_CLOSE, fd) for fd in descriptors if fd != keep]
    soft, hard = resource.getrlimit(wire.RLIMIT_LOCKS)
    resource.setrlimit(wire.RLIMIT_LOCKS, (hard, hard))  # a job's mark, like its token
    try:
        return os.posix_spawn(
            command[0],
            command,
            daemon_environment(),
            file_actions=actions,
            setsid=True,
            # `nohup` and background shells ignore these signals, and every job would inherit that.
            setsigdef=[SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE],
            setsigmask=[],
        )
    finally:
        resource.setrlimit(wire.RLIMIT_LOCKS, (soft, hard))


def _read_first_line(reader: int) -> str:
    deadline = time.monotonic() + READY_SECONDS
    text = b""
    while b"\n" not in text:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            raise DaemonUnreachable(
                f"The daemon did not become ready in {READY_SECONDS:.0f} s. "
                f"Its log: {places.daemon_log()}"
            )
        piece = os.read(reader, 4096)
        if not piece:
            break
        text += piece
    return text.decode("utf-8", "replace").partition("\n")[0]


def _parse_ready_line(line: str, pid: int, log: str) -> int:
    """Return the pid from `ready PID`; raise for `error CODE MESSAGE` or no line at all."""
    status, _, details = line.partition(" ")
    if status == "ready":
        return int(details) if details.isdigit() else pid
    if status == "error":
        code, _, message = details.partition(" ")
        raise StokerError(message or "The daemon could not start.", int(code or 1))
    raise DaemonUnreachable(
        f"The daemon ended before it was ready. {_last_log_line(log)}Log: {log}"
    )


def _last_log_line(log: str) -> str:
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.path.getsize(log) - 2000))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return f"Last log line: {lines[-1]}. " if lines else ""
