"""`python -m stoker.daemon run`: parse options, lock the state, build the daemon, run it.

`python -I -m stoker.daemon --system` runs the daemon of all users, in the foreground.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Collection

OPTIONS = ("--gpus", "--resources", "--also", "--listen", "--db", "--ready-fd", "--idle-exit")
"""`--also 4,5` declares GPUs of these names on a machine that has none; it removes none."""
SYSTEM_OPTIONS = {
    "--config": "/etc/stoker/config.toml",
    "--state": "/var/lib/stoker",
    "--gate": "/run/stoker/gate.sock",
}
"""Options of a system daemon, with their defaults."""


def main(argv: list[str]) -> int:
    """Run a daemon until it is stopped; return the exit code."""
    ready = -1
    try:
        if argv[:1] == ["--system"]:
            return _run_system(_parse_options(argv[1:], tuple(SYSTEM_OPTIONS)))
        options = _parse_options(argv[1:] if argv[:1] == ["run"] else argv, OPTIONS)
        ready = int(options.get("ready-fd", "-1"))
        return _run(options, ready)
    except BaseException as error:  # report every reason to the command that started it
        _report(ready, f"error {_exit_code(error)} {_sentence(error)}")
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        import logging  # loaded with the daemon, unless that is what failed

        logger = logging.getLogger("stoker.daemon")
        if _is_expected(error):
            logger.error("the daemon stops: %s", _sentence(error))  # noqa: TRY400
        else:
            logger.critical("the daemon stops because of an unexpected error", exc_info=error)
        return _exit_code(error)


def _parse_options(words: list[str], known: Collection[str]) -> dict[str, str]:
    from stoker.core.model.units import BadValue

    options: dict[str, str] = {}
    while words:
        name, equals, value = words.pop(0).partition("=")
        if name not in known:
            raise BadValue(f"The daemon has no setting '{name}'.")
        options[name[2:]] = value if equals else words.pop(0) if words else ""
    return options


def _run(options: dict[str, str], ready: int) -> int:
    from stoker import places, wire
    from stoker.daemon.paths import DaemonPaths
    from stoker.daemon.state_lock import Locked, StateLock
    from stoker.executors.linux.subreaper import become_subreaper

    state = places.secure_dir(places.state_dir())
    for tries_left in range(400, -1, -1):
        try:
            lock = StateLock(state)
            break
        except Locked as holder:
            other = _other_daemon(places.socket_path(), tries_left, holder)
            if other is not None:
                _report(ready, other)
                return 0
    paths = DaemonPaths()
    from stoker.daemon.bootstrap import build_daemon, build_http_server, keep_identity, watch_state

    also = [name for name in options.get("also", "").split(",") if name]
    # A URL may contain a password, and command lines are public: it comes in a variable.
    db = (
        os.environ.pop(wire.STORE_OPTION_VARIABLE, None)
        if options.get("db") == "-"
        else options.get("db")
    )
    idle_exit = float(options["idle-exit"]) if options.get("idle-exit") else None
    daemon = build_daemon(
        paths, options.get("gpus"), options.get("resources"), also, db=db, idle_exit=idle_exit
    )
    listen = [options["listen"]] if options.get("listen") else daemon.settings.api.listen
    try:
        server = build_http_server(daemon, "daemon", listen)
        keep_identity(daemon, paths)
    except BaseException:
        daemon.close()
        raise
    watch_state(daemon, paths, lock, server)
    _report(ready, f"ready {os.getpid()}")
    become_subreaper()
    try:
        daemon.run()
    finally:
        server.close()
        daemon.close()
        lock.release()
    return 0


def _run_system(options: dict[str, str]) -> int:
    """Run the daemon of all users until it is stopped."""
    from stoker import places
    from stoker.daemon.paths import DaemonPaths
    from stoker.daemon.state_lock import Locked, StateLock
    from stoker.executors.linux.subreaper import become_subreaper

    config, state, socket = (options.get(name[2:], value) for name, value in SYSTEM_OPTIONS.items())
    if os.geteuid() == 0:
        raise PermissionError(
            errno.EPERM, "the system daemon has no rights and must not be started by root; run it"
            " as the user stoker, or see stoker system install"
        )  # fmt: skip
    os.environ |= {"STOKER_HOME": state, "STOKER_CONFIG": config}
    os.umask(0o077)
    _harden()
    try:
        lock = StateLock(places.secure_dir(places.state_dir()))
    except Locked as holder:
        raise BlockingIOError(errno.EAGAIN, f"another daemon (pid {holder}) runs") from None
    from stoker.daemon.bootstrap import build_daemon, build_http_server, open_gate, watch_state
    from stoker.daemon.multiuser.gate_client import GateClient

    paths, gate = DaemonPaths(is_system=True), GateClient(socket)
    daemon = build_daemon(paths, gate=gate)
    try:
        server = build_http_server(daemon, "system", daemon.settings.api.listen)
    except BaseException:
        daemon.close()
        raise
    watch_state(daemon, paths, lock, server)
    open_gate(daemon, gate, server)
    _notify_ready()
    become_subreaper()
    try:
        daemon.run()
    finally:
        gate.close()
        server.close()
        daemon.close()
        lock.release()
    return 0


def _harden() -> None:
    """Keep what this process knows of all users from others: no ptrace, no core dump.

    Its limit of open files becomes the highest that it may have: users' connections need them.
    """
    import resource

    from stoker.gate.process import forbid_tracing

    forbid_tracing()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _notify_ready() -> None:
    from stoker.gate.server import notify_ready

    notify_ready()


def _other_daemon(path: str, tries_left: int, holder: Exception) -> str | None:
    """Return the report of the daemon that has the state; None while it starts or stops."""
    import socket
    import time

    from stoker.daemon.http.peer import peer_credentials

    with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(OSError):
        sock.connect(path)
        return f"ready {peer_credentials(sock)[0]}"
    if tries_left:
        time.sleep(0.025)
        return None
    return (
        f"error 1 Another daemon (pid {holder}) owns this state but does not answer at {path}. "
        "Stop it with `stoker daemon stop`: its jobs continue, and the next daemon recovers them."
    )


def _report(fd: int, line: str) -> None:
    if fd >= 0:
        with contextlib.suppress(OSError):
            os.write(fd, line.replace("\n", " ").encode() + b"\n")
            os.close(fd)


def _is_expected(error: BaseException) -> bool:
    from stoker import places
    from stoker.core.model.units import BadValue
    from stoker.engine import CommandRejected
    from stoker.store.port import StoreError

    ours = (places.UnsafeDirectory, BadValue, CommandRejected, StoreError)
    return isinstance(error, (*ours, OSError))


def _exit_code(error: BaseException) -> int:
    from stoker import wire
    from stoker.core.model.units import BadValue
    from stoker.places import is_disk_full

    if isinstance(error, BadValue):
        return 2
    if is_disk_full(error):
        return wire.EXIT_DISK_FULL
    return int(getattr(error, "exit_code", 1) or 1)


def _sentence(error: BaseException) -> str:
    from stoker.places import describe_os_error

    text = describe_os_error(error) if isinstance(error, OSError) else str(error)
    return text or type(error).__name__


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
