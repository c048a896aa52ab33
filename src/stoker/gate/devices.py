"""Groups of the devices controller (cgroup version 1): which NVIDIA GPUs a job can open."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

NVIDIA_MAJOR = 195
GPU_MINORS = range(254)
"""Device files of GPUs; 254 (modeset) and 255 (control) are needed by every program."""
MAX_GROUPS_PER_USER = 1024
NO_GPUS = "no-gpus"
"""The group in which every user executor begins. Any user may move own processes into it."""


class DeviceGroupError(Exception):
    """A group could not be created or removed; the message says why."""


def find_root(mounts: str = "/proc/self/mounts") -> str | None:
    """Return where device groups can be made, or None without the controller of version 1."""
    with open(mounts) as file:
        for line in file:
            _, path, kind, options, *_ = line.split()
            if kind == "cgroup" and "devices" in options.split(","):
                return f"{path}/stoker"
    return None


def prepare(root: str | None) -> str:
    """Make the group without GPUs; raise DeviceGroupError where that is impossible."""
    if root is None:
        raise DeviceGroupError("the devices controller of cgroup version 1 is not mounted")
    path = f"{root}/{NO_GPUS}"
    try:
        os.makedirs(path, mode=0o755, exist_ok=True)
        _decide(path, ())
        os.chmod(f"{path}/cgroup.procs", 0o666)  # noqa: S103 - the kernel checks whose process
    except OSError as error:
        raise DeviceGroupError(f"{path}: {error.strerror}") from None
    return root


def _decide(path: str, allowed: Collection[int]) -> None:
    for minor in GPU_MINORS:
        _write(f"{path}/devices.{'allow' if minor in allowed else 'deny'}", minor)


def _write(path: str, minor: int) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, f"c {NVIDIA_MAJOR}:{minor} rwm".encode())
    finally:
        os.close(fd)


def create(root: str | None, uid: int, name: str, devices: list[list[int]]) -> str:
    """Create the group of a job and return its directory; the user may move processes into it."""
    if root is None:
        raise DeviceGroupError("GPUs are not isolated")
    for major, minor in devices:
        if major != NVIDIA_MAJOR or minor not in GPU_MINORS:
            raise DeviceGroupError(f"{major}:{minor} is not an NVIDIA GPU")
    user = f"{root}/user-{uid}"
    path = f"{user}/{name}"
    try:
        os.makedirs(user, mode=0o755, exist_ok=True)
        if len(os.listdir(user)) > MAX_GROUPS_PER_USER:
            raise DeviceGroupError(f"uid {uid} has {MAX_GROUPS_PER_USER} groups")
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o755)
        _decide(path, {minor for _, minor in devices})
        os.chown(f"{path}/cgroup.procs", uid, -1)
    except OSError as error:
        raise DeviceGroupError(f"{path}: {error.strerror}") from None
    return path


def remove(root: str | None, uid: int, name: str) -> None:
    """Remove the group of a job; one that does not exist is removed.

    A process may be left in it, which the user has moved there: it can open no GPU any more.
    """
    path = f"{root}/user-{uid}/{name}"
    try:
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return
        except OSError:
            _decide(path, ())
            raise
    except OSError as error:
        raise DeviceGroupError(f"{name}: {error.strerror}") from None
