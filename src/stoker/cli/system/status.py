"""`stoker system status`: what of the system daemon runs, and for which users."""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import socket
import struct
import tomllib

from stoker import __version__, places
from stoker.cli.system import files
from stoker.client import fast_json
from stoker.client.client import Client
from stoker.client.errors import SYSTEM_DOWN, DaemonUnreachable, PermissionDenied, StokerError
from stoker.client.route import check_socket
from stoker.wire import JsonObject

PROCESS_NAME = "stoker-user"
"""What the process of a user calls itself (executors/user/process.py)."""
MODULE = "stoker.executors.user.process"
END_SECONDS = 2.0
REPLY_SECONDS = 5.0


def collect() -> JsonObject:
    """Return the state of gate, daemon and user processes, and what is wrong."""
    problems, notes = [], []
    gate, daemon = gate_pid(), None
    if not os.path.exists(files.GATE_CONFIG):
        problems.append("No system daemon is installed here: stoker system install")
    elif gate is None:
        problems.append(SYSTEM_DOWN)
    if gate is not None:
        try:
            check_socket(places.system_socket())
            daemon = ask("/v1/daemon")
            nodes = ask("/v1/nodes")["nodes"]
            notes = [note for node in nodes for note in node["notes"]]
        except StokerError as error:
            problems.append(error.message)
    if daemon is not None:
        if daemon["version"] != __version__:
            problems.append(
                f"The daemon is of version {daemon['version']}, this command of {__version__}: "
                "restart gate and daemon after an upgrade."
            )
        problems += [*daemon["warnings"], *daemon["faults"]]
    return {
        "gate": {"pid": gate} if gate else None,
        "daemon": daemon and {key: daemon[key] for key in ("pid", "version", "since", "counts")},
        "socket": places.system_socket(),
        "users": user_processes(),
        "version": __version__,
        "notes": notes,
        "problems": problems,
    }


def gate_pid() -> int | None:
    """Return the process that listens for users, None if there is none."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(REPLY_SECONDS)
        try:
            peer.connect(places.system_socket())
        except OSError:
            return None
        data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, _, _ = struct.unpack("3i", data)
        return int(pid)


def ask(path: str) -> JsonObject:
    """Return what the daemon answers; raise if it does not do so soon."""
    client = Client(places.system_socket())
    client.check_version = False
    try:
        reply = client.open("GET", path, None, REPLY_SECONDS, retry=False).read()
    except PermissionDenied:
        raise
    except DaemonUnreachable as error:
        raise DaemonUnreachable(f"The daemon does not answer ({error.message})") from None
    view: JsonObject = fast_json.loads(reply)
    return view


def user_processes(*, supervisors: bool = False) -> list[JsonObject]:
    """Return the processes that run jobs of users; supervisors live as long as jobs of theirs."""
    found, users_dir = [], _users_dir()
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        with contextlib.suppress(OSError):
            uid = os.stat(f"/proc/{entry}").st_uid
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                words = os.fsdecode(file.read()).split("\0")
            with open(f"/proc/{entry}/comm", encoding="utf-8", errors="replace") as comm:
                is_wanted = supervisors or comm.read().strip() == PROCESS_NAME
            directory = f"{users_dir}/{uid}"
            if is_wanted and MODULE in words and directory in words and _is_here(entry, directory):
                found.append({"user": _name(uid), "uid": uid, "pid": int(entry)})
    return sorted(found, key=lambda each: (each["uid"], each["pid"]))


def _users_dir() -> str:
    with contextlib.suppress(OSError, ValueError), open(files.GATE_CONFIG, "rb") as file:
        return str(tomllib.load(file).get("users_dir", files.USERS_STATE))
    return files.USERS_STATE


def _is_here(pid: str, directory: str) -> bool:
    """Whether a process means the same directory; one of a container has another."""
    try:
        return os.path.samefile(f"/proc/{pid}/root{directory}", directory)
    except PermissionError:
        return True  # only root may look


def wait_for_users() -> list[str]:
    """Wait until the processes of users have ended, as they do without jobs; return whose remain.

    Without a gate nothing else tells whether jobs run.
    """
    remaining = []
    for process in user_processes(supervisors=True):
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(process["pid"])
            if not select.select([fd], [], [], END_SECONDS)[0]:
                remaining.append(str(process["user"]))
            os.close(fd)
    return list(dict.fromkeys(remaining))


def lines(view: JsonObject) -> list[str]:
    """Return the state as text."""
    from stoker.cli.output.job_table import counts_text

    gate, daemon = view["gate"], view["daemon"]
    users = ", ".join(f"{each['user']} (pid {each['pid']})" for each in view["users"])
    about = f"running (pid {daemon['pid']}, version {daemon['version']})" if daemon else ""
    shown = [
        f"gate        {'running (pid {})'.format(gate['pid']) if gate else 'not running'}",
        f"daemon      {about or 'not running'}",
        f"socket      {view['socket']}",
        f"jobs        {counts_text(daemon['counts']) if daemon else '?'}",
        f"processes   {users or 'none'}",
    ]
    shown += [f"note        {note}" for note in view["notes"]]
    return [*shown, *(f"problem     {problem}" for problem in view["problems"])]


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
