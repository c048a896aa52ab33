"""Which daemon the commands of a user go to: the system daemon of this machine, or the user's own.

Every command asks, so on a machine without a system daemon the answer costs two calls of `stat`.
"""

from __future__ import annotations

import os
import sys

from stoker import places, wire
from stoker.client.errors import (
    SYSTEM_DOWN,
    DaemonUnreachable,
    PermissionDenied,
    StokerError,
    UsageError,
)

GATE_CONFIG = "/etc/stoker/gate.toml"
"""Without it and without a socket, this machine has no system daemon."""
_said: set[str] = set()
OWN_VARIABLES = ("STOKER_HOME", "STOKER_JOB_ID")
"""State of its own, or a job: one of the system daemon has STOKER_MODE=system."""


def system_socket() -> str | None:
    """Return the socket of the system daemon if commands go there, None for the user's own."""
    mode = os.environ.get("STOKER_MODE", "")
    if mode not in ("", "own", "system"):
        raise UsageError(f"STOKER_MODE={mode!r} is invalid: it is own or system.")
    if mode == "own" or (not mode and any(map(os.environ.get, OWN_VARIABLES))):
        return None
    path = places.system_socket()
    is_there = os.path.lexists(path)
    if not is_there and mode != "system" and not os.path.exists(GATE_CONFIG):
        return None
    if mode == "system" or os.path.exists(_marker()):
        check_socket(path)
    elif _own_daemon_has_jobs():
        _say(
            "commands go to your own daemon while it has unfinished jobs, not to the system "
            "daemon of this machine. To move them there: stoker system adopt"
        )
        return None
    else:
        check_socket(path)
        _announce(path)
    return path


def require_own() -> None:
    """Raise where commands go to a system daemon: they would not reach one that is started here."""
    if system_socket() is not None:
        raise StokerError(
            "Your commands go to the system daemon of this machine, which an administrator starts "
            "and stops. For a daemon of your own, set STOKER_MODE=own for all of its commands."
        )


def choose_system() -> None:
    """Note that this user's commands go to the system daemon, so that it is said once."""
    try:
        places.secure_dir(places.state_dir())
        places.write_private(_marker(), "")
    except OSError:
        return  # no home, or it is read-only: it is said again


def _marker() -> str:
    return os.path.join(places.state_dir(), "system-mode")


def check_socket(path: str) -> None:
    """Raise unless there is a socket that only root can have put there.

    Its listener is checked by every connection.
    """
    if not os.path.lexists(path):
        raise DaemonUnreachable(SYSTEM_DOWN)
    directory = os.path.dirname(path)
    status = os.stat(directory)
    if status.st_uid != 0 or status.st_mode & 0o022:
        raise PermissionDenied(
            f"{path} is not used: {directory} does not belong to root alone. "
            "A daemon of your own: STOKER_MODE=own"
        )


def listed_user(path: object) -> str | None:
    """Return the user whose jobs are listed unless others are asked for; None: there is one user.

    root has no jobs of its own in a system daemon, so it sees those of all users.
    """
    if path != places.system_socket() or os.getuid() == 0:
        return None
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _own_daemon_has_jobs() -> bool:
    from stoker.client.client import Client

    own = Client(places.socket_path())
    own.check_version = False
    try:
        counts = own.daemon()["counts"]
    except StokerError:
        return False
    return any(count for state, count in counts.items() if state not in wire.FINISHED)


def _announce(path: str) -> None:
    from stoker.client.transport import open_socket

    open_socket(path, 5.0).close()  # raises if no gate listens: then nothing was chosen
    text = (
        "commands go to the system daemon of this machine, which all users share (said once). "
        "A daemon of your own: STOKER_MODE=own"
    )
    if os.path.exists(places.install_path()):
        text += (
            "\nstoker: your own queue stays where it is: STOKER_MODE=own stoker queue; "
            "to move it: stoker system adopt"
        )
    _say(text)
    choose_system()


def _say(text: str) -> None:
    if text in _said:
        return  # a command asks several times
    _said.add(text)
    sys.stderr.write(f"stoker: {text}\n")
