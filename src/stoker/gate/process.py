"""From a fork of the gate to the program of a user: every step in which root meets a user.

Nothing here opens a path that a user chose. The directory of the user is created in a directory
that only root can write to.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pwd
import resource
import signal
import socket
import stat
from typing import NoReturn

from stoker.gate import accounts, pam
from stoker.gate.accounts import NotAllowed
from stoker.gate.config import Config
from stoker.gate.devices import NO_GPUS
from stoker.gate.protocol import WIRE_FD, text

SETUP_SECONDS = 60
"""A start that takes longer is ended by SIGALRM: a PAM module or a user database hangs."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
READY = b"+"
"""What the child writes before exec; anything after it says why exec failed."""
_PR_SET_DUMPABLE = 4
_OPEN_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The limit with which the gate was started; its own is higher."""


def forbid_tracing() -> None:
    """Make this process readable for root only: no ptrace, no /proc/PID/mem, no core dump."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_DUMPABLE")


def become(
    config: Config, uid: int, name: str, cgroup: str | None, device_root: str | None,
    wire: socket.socket, report: int,
) -> NoReturn:  # fmt: skip
    """Run the program of a user executor as `uid`; write to `report` READY or why not."""
    try:
        _close_all_but(wire.fileno(), report)
        signal.alarm(SETUP_SECONDS)
        _reset_signals()
        entry = accounts.check(config, uid, name)
        directory = user_directory(config, entry)
        os.setsid()
        resource.setrlimit(resource.RLIMIT_NOFILE, _OPEN_FILES)
        _write("/proc/self/oom_score_adj", "0")
        if cgroup is not None:
            _enter_cgroup(cgroup, entry)
        if device_root is not None:
            _write(f"{device_root}/{NO_GPUS}/cgroup.procs", "0")
        if pam.is_configured(config.pam_service):
            pam.open_session(config.pam_service, name)
        _drop_to(entry)
        os.chdir("/")
        os.umask(0o077)
        _place_descriptors(wire.fileno(), report)
        report = WIRE_FD + 1
        command = [*config.executor_command, directory]
        signal.alarm(0)
        os.write(report, READY)
        os.execve(command[0], command, _environment(entry))
    except BaseException as error:  # noqa: BLE001 - this fork must never return into the gate
        with contextlib.suppress(BaseException):
            why = (
                str(error) if isinstance(error, NotAllowed) else f"{type(error).__name__}: {error}"
            )
            os.write(report, text(why).encode())
    finally:
        os._exit(1)


def user_directory(config: Config, entry: pwd.struct_passwd) -> str:
    """Return the directory of a user, created if it is missing: setgid, group of the daemon."""
    parent = os.open(config.users_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    name = str(entry.pw_uid)
    created = False
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
        created = True
    except FileExistsError:
        pass
    try:
        directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except OSError:
        raise NotAllowed(f"{config.users_dir}/{name} is not a directory") from None
    status = os.fstat(directory)
    # Root's own is one whose start was interrupted before it belonged to the user.
    if created or (status.st_uid == 0 and stat.S_IMODE(status.st_mode) == 0o700):
        os.fchown(directory, entry.pw_uid, pwd.getpwnam(config.daemon_user).pw_gid)
        os.fchmod(directory, 0o2750)
    elif status.st_uid != entry.pw_uid:
        raise NotAllowed(f"{config.users_dir}/{name} belongs to uid {status.st_uid}")
    os.close(directory)
    os.close(parent)
    return os.path.join(config.users_dir, name)


def _drop_to(entry: pwd.struct_passwd) -> None:
    """Become the user for good, and check that nothing of root is left."""
    uid, gid = entry.pw_uid, entry.pw_gid
    os.initgroups(entry.pw_name, gid)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if set(os.getgroups()) - {gid} != set(os.getgrouplist(entry.pw_name, gid)) - {gid}:
        raise RuntimeError(f"groups {os.getgroups()} are not those of {entry.pw_name}")
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (gid, gid, gid):
        raise RuntimeError("the ids of the user could not be set")
    if uid == 0:
        return
    with contextlib.suppress(PermissionError):
        os.setuid(0)
        raise RuntimeError("root could be regained")
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(("CapInh", "CapPrm", "CapEff", "CapAmb")) and int(line[7:], 16):
                raise RuntimeError(f"capabilities are left: {line.strip()}")


def _environment(entry: pwd.struct_passwd) -> dict[str, str]:
    return {
        "HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name,
        "SHELL": entry.pw_shell or "/bin/sh", "PATH": PATH, "LANG": "C.UTF-8",
    }  # fmt: skip


def _reset_signals() -> None:
    """Undo what Python, the gate and the program that started it have set."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _close_all_but(*kept: int) -> None:
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) > 2 and int(entry) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(entry))


def _place_descriptors(wire: int, report: int) -> None:
    """Have nothing open but /dev/null as 0 to 2, the wire, and the report until exec."""
    wire, report = (_above(fd, WIRE_FD + 1) for fd in (wire, report))
    null = _above(os.open("/dev/null", os.O_RDWR), WIRE_FD + 1)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.dup2(wire, WIRE_FD)
    os.dup2(report, WIRE_FD + 1, inheritable=False)
    _close_all_but(WIRE_FD, WIRE_FD + 1)


def _above(fd: int, limit: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, limit + 1)


def own_cgroup() -> str | None:
    """Return the directory of the gate's own cgroup of version 2, unless it is the root."""
    with open("/proc/self/cgroup") as file:
        group = next((line[3:].strip() for line in file if line.startswith("0::")), "/")
    path = f"/sys/fs/cgroup{group}"
    return path if group != "/" and os.path.exists(f"{path}/cgroup.procs") else None


def _enter_cgroup(path: str, entry: pwd.struct_passwd) -> None:
    """Join the group of this user, in which its processes may create groups of their own."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o755)
    for name in (".", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
        os.chown(os.path.join(path, name), entry.pw_uid, entry.pw_gid)
    _write(f"{path}/cgroup.procs", "0")


def _write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)
