"""`python -m stoker.daemon run`: the daemon's own process."""

from __future__ import annotations

import contextlib
import os
import sys

KNOWN = ("--gpus", "--resources", "--also", "--listen", "--db", "--ready-fd", "--idle-exit")
"""`--also 4,5` declares GPUs of these names where the machine has none; it takes none away."""


def main(argv: list[str]) -> int:
    """Run a daemon until it is told to stop."""
    ready = -1
    try:
        options = _options(argv)
        ready = int(options.get("ready-fd", "-1"))
        return _run(options, ready)
    except BaseException as error:  # say why on the way out, whatever it was
        _say(ready, f"error {_exit_code(error)} {_sentence(error)}")
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        import logging  # loaded with the daemon, unless that is what failed

        logger = logging.getLogger("stoker.daemon")
        if _expected(error):
            logger.error("the daemon stops: %s", _sentence(error))  # noqa: TRY400
        else:
            logger.critical("the daemon stops because of an unexpected error", exc_info=error)
        return _exit_code(error)


def _options(argv: list[str]) -> dict[str, str]:
    from stoker.core.units import BadValue

    words = argv[1:] if argv[:1] == ["run"] else argv
    found: dict[str, str] = {}
    while words:
        name, equals, value = words.pop(0).partition("=")
        if name not in KNOWN:
            raise BadValue(f"The daemon has no setting '{name}'.")
        found[name[2:]] = value if equals else words.pop(0) if words else ""
    return found


def _run(options: dict[str, str], ready: int) -> int:
    from stoker import places, wire
    from stoker.daemon.paths import DaemonPaths
    from stoker.daemon.state_lock import Locked, StateLock
    from stoker.executors.local.supervisor import become_subreaper

    state = places.secure_dir(places.state_dir())
    for patience in range(400, -1, -1):
        try:
            lock = StateLock(state)
            break
        except Locked as holder:
            other = _the_other(places.socket_path(), patience, holder)
            if other is not None:
                _say(ready, other)
                return 0
    kept = DaemonPaths()
    from stoker.daemon.bootstrap import build_daemon, build_http_server

    also = [name for name in options.get("also", "").split(",") if name]
    # A URL may hold a password, and a command line is for all to see: it comes by a variable.
    db = (
        os.environ.pop(wire.STORE_OPTION_VARIABLE, None)
        if options.get("db") == "-"
        else options.get("db")
    )
    idle_exit = float(options["idle-exit"]) if options.get("idle-exit") else None
    loop = build_daemon(
        kept, options.get("gpus"), options.get("resources"), also, db=db, idle_exit=idle_exit
    )
    from stoker.daemon.state_files import watch_state

    listen = [options["listen"]] if options.get("listen") else loop.settings.api.listen
    try:
        server = build_http_server(loop, "daemon", listen)
    except BaseException:
        loop.close()
        raise
    watch_state(loop, kept, lock, server)
    _say(ready, f"ready {os.getpid()}")
    become_subreaper()
    try:
        loop.run()
    finally:
        server.close()
        loop.close()
        lock.release()
    return 0


def _the_other(path: str, patience: int, holder: Exception) -> str | None:
    """Another daemon is first: say who it is; None while it starts, or is about to end."""
    import socket
    import time

    from stoker.daemon.http.peer import peer_credentials

    with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(OSError):
        sock.connect(path)
        return f"ready {peer_credentials(sock)[0]}"
    if patience:
        time.sleep(0.025)
        return None
    return (
        f"error 1 Another daemon (pid {holder}) owns this state but does not answer at {path}. "
        "Stop it with `stoker daemon stop`: its jobs continue, and the next daemon recovers them."
    )


def _say(fd: int, line: str) -> None:
    if fd >= 0:
        with contextlib.suppress(OSError):
            os.write(fd, line.replace("\n", " ").encode() + b"\n")
            os.close(fd)


def _expected(error: BaseException) -> bool:
    from stoker import places
    from stoker.core.units import BadValue
    from stoker.engine import CommandRejected
    from stoker.store.port import StoreError

    ours = (places.UnsafeDirectory, BadValue, CommandRejected, StoreError)
    return isinstance(error, (*ours, OSError))


def _exit_code(error: BaseException) -> int:
    from stoker import wire
    from stoker.core.units import BadValue
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
