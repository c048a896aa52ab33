"""`stoker system install` and `uninstall`: what is to change, as steps that are shown first."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import stoker
from stoker.cli.system import files
from stoker.client.errors import StokerError
from stoker.gate import trust


class Step(NamedTuple):
    """One change of the machine."""

    text: str
    apply: Callable[[], object]
    content: str = ""
    """Of a file that it writes."""


def installation_problem() -> str | None:
    """Return why this installation of stoker cannot serve all users, and how to install one."""
    import msgspec

    prefix = sys.prefix
    paths = [sys.executable, os.path.dirname(stoker.__file__), os.path.dirname(msgspec.__file__)]
    for path in paths:
        reason = trust.reason_against(path) or _unreadable(os.path.realpath(path))
        if reason is None and os.path.isdir(path):
            reason = _problem_inside(path)
        if reason is not None:
            return (
                f"stoker is installed in {prefix}, which cannot serve all users: {reason}. Install "
                "it so that only root can change it and every user can read it, for example: "
                "python3 -m venv /opt/stoker && /opt/stoker/bin/pip install stoker, "
                "then run: /opt/stoker/bin/stoker system install"
            )
    return None


def _unreadable(path: str) -> str | None:
    while path != "/":
        status = os.stat(path)
        wanted = 0o005 if stat.S_ISDIR(status.st_mode) else 0o004
        if status.st_mode & wanted & 0o001 != wanted & 0o001 or not status.st_mode & 0o005:
            return f"{path} cannot be read by other users"
        path = os.path.dirname(path)
    return None


def _problem_inside(directory: str) -> str | None:
    for parent, names, others in os.walk(directory):
        for path in (os.path.join(parent, name) for name in (*names, *others)):
            status = os.lstat(path)
            if status.st_uid != 0:
                return f"{path} belongs to uid {status.st_uid}, not to root"
            if status.st_mode & 0o022 and not stat.S_ISLNK(status.st_mode):
                return f"{path} can be written by other users"
            if not status.st_mode & 0o004:
                return f"{path} cannot be read by other users"
    return None


def missing() -> Iterator[Step]:
    """Yield the steps that an installation still needs, in order."""
    if not _exists(grp.getgrnam, files.ADMIN_GROUP):
        yield _command("groupadd", "--system", files.ADMIN_GROUP)
    if not _exists(pwd.getpwnam, files.DAEMON_USER):
        options = ("--system", "--user-group", "--no-create-home")
        login = ("--home-dir", files.DAEMON_STATE, "--shell", "/usr/sbin/nologin")
        yield _command("useradd", *options, *login, files.DAEMON_USER)
    yield from _directory(files.ETC, 0o755)
    yield from _directory(files.DAEMON_STATE, 0o700, files.DAEMON_USER)
    yield from _directory(files.USERS_STATE, 0o711)
    yield from _directory(files.GATE_STATE, 0o700)
    yield from _file(files.DAEMON_CONFIG, files.CONFIG_TOML)
    yield from _file(files.PAM_FILE, files.PAM)
    if os.path.exists(files.REMOVED_CONFIG) and not os.path.exists(files.GATE_CONFIG):
        text = f"rename {files.REMOVED_CONFIG} to {files.GATE_CONFIG}"
        yield Step(text, partial(os.rename, files.REMOVED_CONFIG, files.GATE_CONFIG))
    else:
        yield from _file(files.GATE_CONFIG, files.GATE_TOML)
    command = os.path.join(sys.prefix, "bin", "stoker")
    if shutil.which("stoker", path="/usr/local/bin:/usr/bin:/bin") is None:
        link = partial(os.symlink, command, files.COMMAND_LINK)
        yield Step(f"link {files.COMMAND_LINK} to {command}", link)
    if files.has_systemd():
        yield from _services()


def _services() -> Iterator[Step]:
    written = [step for path, text in files.units().items() for step in _file(path, text)]
    yield from written
    if written:
        yield _command("systemctl", "daemon-reload")
    for unit in (files.GATE_UNIT, files.DAEMON_UNIT):
        if not all(_systemctl(word, unit) for word in ("is-enabled", "is-active")):
            yield _command("systemctl", "enable", "--now", unit)
        elif written:
            yield _command("systemctl", "restart", unit)


def removal(*, purge: bool) -> Iterator[Step]:
    """Yield the steps of an uninstallation; state, settings and accounts go with `purge`."""
    if files.has_systemd():
        for unit in (files.DAEMON_UNIT, files.GATE_UNIT):
            if os.path.exists(f"{files.UNITS}/{unit}"):
                yield _command("systemctl", "disable", "--now", unit)
    units = [path for path in files.units() if os.path.exists(path)]
    for path in (*units, files.PAM_FILE):
        if os.path.exists(path):
            yield Step(f"remove {path}", partial(os.unlink, path))
    if units:
        yield _command("systemctl", "daemon-reload")
    if os.path.isdir(files.RUN):
        yield Step(f"remove {files.RUN}", partial(shutil.rmtree, files.RUN))
    if os.path.islink(files.COMMAND_LINK):
        target = os.readlink(files.COMMAND_LINK)
        if target == os.path.join(sys.prefix, "bin", "stoker"):
            yield Step(f"remove {files.COMMAND_LINK}", partial(os.unlink, files.COMMAND_LINK))
    if not purge:
        if os.path.exists(files.GATE_CONFIG):
            text = f"rename {files.GATE_CONFIG} to {files.REMOVED_CONFIG}"
            yield Step(text, partial(os.rename, files.GATE_CONFIG, files.REMOVED_CONFIG))
        return
    yield from _purge()


def _purge() -> Iterator[Step]:
    for path in (files.ETC, files.DAEMON_STATE, files.USERS_STATE, files.GATE_STATE):
        if os.path.exists(path):
            yield Step(f"remove {path} with all that is in it", partial(shutil.rmtree, path))
    if _exists(pwd.getpwnam, files.DAEMON_USER):
        # --force: another system on this kernel, as a container, may use the same uid.
        yield _command("userdel", "--force", files.DAEMON_USER)
    if _exists(grp.getgrnam, files.ADMIN_GROUP):
        yield _command("groupdel", files.ADMIN_GROUP)


def _directory(path: str, mode: int, user: str = "root") -> Iterator[Step]:
    what = f"{path} of {user} with mode {mode:04o}"
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        yield Step(f"create the directory {what}", partial(_make_directory, path, mode, user))
        return
    if not stat.S_ISDIR(status.st_mode):
        raise StokerError(f"{path} is not a directory. Move it away and try again.")
    is_right = stat.S_IMODE(status.st_mode) == mode and _user_name(status.st_uid) == user
    if not is_right:
        yield Step(f"make the directory {what}", partial(_make_directory, path, mode, user))


def _make_directory(path: str, mode: int, user: str) -> None:
    os.makedirs(path, mode, exist_ok=True)
    entry = pwd.getpwnam(user)
    os.chown(path, entry.pw_uid, entry.pw_gid)
    os.chmod(path, mode)


def _file(path: str, text: str) -> Iterator[Step]:
    """Write a file if it is missing, or was written by an earlier installation."""
    try:
        with open(path, encoding="utf-8") as file:
            current = file.read()
    except FileNotFoundError:
        current = files.WRITTEN
    if current != text and current.startswith(files.WRITTEN):
        yield Step(f"write {path}", partial(_write, path, text), text)


def _write(path: str, text: str) -> None:
    part = f"{path}.new"
    with open(part, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(part, 0o644)
    os.rename(part, path)


def _command(*words: str) -> Step:
    return Step(f"run {' '.join(words)}", partial(_run, words))


def _run(words: tuple[str, ...]) -> None:
    try:
        done = subprocess.run(words, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        raise StokerError(f"{words[0]} is missing on this machine.") from None
    if done.returncode:
        why = done.stderr.strip() or f"exit code {done.returncode}"
        raise StokerError(f"`{' '.join(words)}` failed: {why}")


def _systemctl(word: str, unit: str) -> bool:
    command = ["systemctl", "--quiet", word, unit]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _exists(find: Callable[[str], object], name: str) -> bool:
    try:
        find(name)
    except KeyError:
        return False
    return True


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
