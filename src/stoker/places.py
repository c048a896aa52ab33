"""Paths of configuration, state, logs, sockets and run directories.

Every command imports it, so it imports nothing heavy.
"""

from __future__ import annotations

import os
import stat

from stoker import wire

MAX_SOCKET_PATH_BYTES = 100
"""A Unix socket's path may have 107 bytes; the difference is for suffixes."""


class UnsafeDirectory(Exception):
    """A directory of ours belongs to, or can be changed by, another user."""

    exit_code = wire.EXIT_PERMISSION


def home() -> str | None:
    """Return `STOKER_HOME` as an absolute path, or None when it is not set.

    Raises UnsafeDirectory if it belongs to another user, also for root: files of root in it would
    lock its owner out.
    """
    value = os.environ.get("STOKER_HOME")
    if not value:
        return None
    path = os.path.abspath(os.path.expanduser(value))
    try:
        owner = os.stat(path).st_uid
    except PermissionError:
        raise UnsafeDirectory(
            f"You have no access to STOKER_HOME={path}. Set it to a directory of your own."
        ) from None
    except OSError:
        return path  # it does not exist yet, or its use fails later with a better message
    if owner != os.getuid():
        raise UnsafeDirectory(
            f"STOKER_HOME={path} belongs to {_user_name(owner)}, not to you. "
            "Set it to a directory of your own."
        )
    return path


def config_paths() -> list[str]:
    """Return the configuration files to read; later files take precedence."""
    chosen = os.environ.get("STOKER_CONFIG")
    if chosen:
        return [chosen]
    root = home()
    if root:
        return [os.path.join(root, "config.toml")]
    return [
        "/etc/stoker/config.toml",
        os.path.join(_xdg("XDG_CONFIG_HOME", ".config"), "stoker", "config.toml"),
    ]


def state_dir() -> str:
    """Return this host's state directory (the home may be shared by several hosts)."""
    root = home()
    base = os.path.join(root, "state") if root else _xdg_state()
    return os.path.join(base, machine_id())


def logs_dir() -> str:
    """Return the directory of job logs."""
    return os.path.join(state_dir(), "logs")


def slurm_commands_dir() -> str:
    """Return the directory of stoker's commands with the names of Slurm's."""
    return os.path.join(state_dir(), "slurm-commands")


def path_without(directory: str) -> str:
    """Return PATH without one directory."""
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(entry for entry in entries if entry != directory)


def daemon_log() -> str:
    """Return the log file of a daemon in the background."""
    return os.path.join(state_dir(), "daemon.log")


def journal_path() -> str:
    """Return the path of the embedded database."""
    return os.path.join(state_dir(), "journal.db")


def emergency_path(journal: str) -> str:
    """Return the path for a copy of a deleted journal if its own directory is not usable."""
    return os.path.join(_short_dir(), f"{digest(journal)}.emergency")


def install_path() -> str:
    """Return the file that the first daemon creates, whichever database it uses."""
    return os.path.join(state_dir(), "install")


def runtime_dir() -> str:
    """Return the private directory of the socket."""
    root = home()
    if root:
        return os.path.join(root, "run")
    base = os.environ.get("XDG_RUNTIME_DIR")
    # After `su` the variable may still name the other user's directory.
    if base and os.path.isabs(base) and _is_mine(base):
        return os.path.join(base, "stoker")
    return _short_dir()


def socket_path() -> str:
    """Return the path of the daemon's socket; a short hashed name if it would be too long."""
    path = os.path.join(runtime_dir(), "daemon.sock")
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    return os.path.join(_short_dir(), f"{digest(path)}.sock")


def system_socket() -> str:
    """Return the path of the socket at which a system daemon serves all users."""
    return os.environ.get("STOKER_SYSTEM_SOCKET") or "/run/stoker/stoker.sock"


def run_dir() -> str:
    """Return the directory of claims and exit logs: on tmpfs only if it outlives a logout."""
    state = state_dir()
    uid = os.getuid()
    if uid == 0 and os.path.isdir("/dev/shm"):  # noqa: S108 - made 0700 by secure_dir
        return f"/dev/shm/stoker-0-{digest(state)}"  # noqa: S108
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.path.isabs(base) and _is_mine(base) and _lingers(uid):
        return os.path.join(base, "stoker", f"run-{digest(state)}")
    return os.path.join(state, "run")


def secure_dir(path: str) -> str:
    """Create `path` as a directory that only we can change, or raise UnsafeDirectory; return it."""
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        if not stat.S_ISLNK(status.st_mode) or not os.path.isdir(path):
            raise UnsafeDirectory(f"{path} is not a directory. Move it away and try again.")
        if status.st_uid != os.getuid():
            raise UnsafeDirectory(
                f"{path} is a link made by user {status.st_uid}. Remove it, or set STOKER_HOME."
            )
        status = os.stat(path)
    if status.st_uid != os.getuid():
        raise UnsafeDirectory(
            f"{path} belongs to user {status.st_uid}, not to you. "
            "Remove it, or set STOKER_HOME to a directory of your own."
        )
    if status.st_mode & 0o022:
        raise UnsafeDirectory(
            f"{path} can be changed by other users. Run: chmod 700 {path}",
        )
    return path


def leads_to(path: str, file: os.stat_result) -> bool:
    """Return True if a path leads to this file: it was neither deleted nor replaced."""
    try:
        return os.path.samestat(file, os.stat(path))
    except OSError:
        return False


def file_size(path: str) -> int:
    """Return the bytes of a file, 0 if there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def write_private(path: str, text: str) -> None:
    """Write a file that only its owner can read, atomically."""
    part = f"{path}.{os.getpid()}"
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(fd)
    os.rename(part, path)


def read_options(path: str) -> dict[str, str | None]:
    """Return the options of an earlier daemon in a JSON file; none if it cannot be read."""
    import json

    try:
        with open(path, encoding="utf-8") as file:
            options = json.load(file)
    except (OSError, ValueError):
        return {}
    return options if isinstance(options, dict) else {}


def write_options(path: str, **options: str | None) -> None:
    """Store options for the next daemon; they may contain a password."""
    import json

    write_private(path, json.dumps(options))


def machine_id() -> str:
    """Return twelve hex digits that identify this host."""
    try:
        with open("/etc/machine-id", encoding="ascii") as file:
            text = file.read().strip()
    except (OSError, ValueError):
        text = ""
    # systemd: the machine id must not be shown, a hash of it may.
    return digest("stoker:" + (text or os.uname().nodename))


def digest(text: str) -> str:
    """Return twelve hex digits of a hash, without importing hashlib."""
    try:
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b
    return blake2b(os.fsencode(text), digest_size=6).hexdigest()


def describe_os_error(error: OSError) -> str:
    """Return the file, the error and, if the disk is full, what to do."""
    name = f"{error.filename}: " if error.filename else ""
    advice = ". Free some space." if is_disk_full(error) else ""
    return f"{name}{error.strerror or error}{advice}"


def is_disk_full(error: BaseException) -> bool:
    """Return True if the error means that the disk or the user's quota is full."""
    import errno

    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _xdg_state() -> str:
    return os.path.join(_xdg("XDG_STATE_HOME", ".local/state"), "stoker")


def _xdg(variable: str, default: str) -> str:
    value = os.environ.get(variable)
    if value and os.path.isabs(value):
        return value
    return os.path.join(os.path.expanduser("~"), default)


def _short_dir() -> str:
    return f"/tmp/stoker-{os.getuid()}"  # noqa: S108 - made 0700 by secure_dir


def _is_mine(path: str) -> bool:
    try:
        return os.stat(path).st_uid == os.getuid()
    except OSError:
        return False


def _lingers(uid: int) -> bool:
    return os.path.exists(f"/var/lib/systemd/linger/{_user_name(uid)}")


def _user_name(uid: int) -> str:
    """Return a user's name, or `user 1234` if it has none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def inheritable_descriptors() -> list[int]:
    """Return descriptors above stderr that a child process would inherit."""
    inheritable = []
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            if fd > 2 and os.get_inheritable(fd):
                inheritable.append(fd)
        except OSError:
            pass  # the descriptor of this listing itself
    return inheritable
