"""Device groups: the gate makes one for each attempt with NVIDIA GPUs, before it is started."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from stoker.core.launch.launch import Launch
from stoker.core.model.job import AttemptId
from stoker.executors.reactor import Reactor, Timer
from stoker.executors.user import wire

NVIDIA_MAJOR = 195
GPU_MINORS = range(254)
RETRY_SECONDS = 60.0
"""Time until a group is removed again in which there was a process."""
NOT_ISOLATED = "GPUs are not isolated: every job can open those of others"
_PREFIX = "user-"


class DeviceGroups:
    """The groups of attempts: those that were requested, and on disk those of attempts that ended.

    Which groups exist is read from the directory of the groups, so none is forgotten, whichever
    program was killed.
    """

    def __init__(
        self,
        reactor: Reactor,
        create: Callable[[int, str, list[list[int]]], None],
        remove: Callable[[int, str], None],
        is_needed: Callable[[int, AttemptId], bool],
    ) -> None:
        self.root: str | None = None
        """Directory of the groups; empty if GPUs are not isolated, None if that is unknown."""
        self._create, self._remove, self._is_needed = create, remove, is_needed
        self._waiting: dict[AttemptId, tuple[int, list[wire.Message]]] = {}
        """Starts without their groups, each with its user and what is to be sent after it."""
        self._retry = Timer(reactor, self.remove_unneeded)

    @property
    def notes(self) -> list[str]:
        """Say so if jobs can open the GPUs of others."""
        return [NOT_ISOLATED] if self.root == "" else []

    def on_gate(self, root: str) -> None:
        """Repeat what an earlier gate may not have done."""
        self.root = root
        for uid, messages in self._waiting.values():
            self._request(uid, messages[0])
        self.remove_unneeded()

    def request(self, uid: int, start: wire.Start) -> bool:
        """Ask for the group of a start, which waits for it; return False if it needs none.

        Attempts without GPUs stay in the group of their supervisor, which has none.
        """
        launch = start.launch
        if not self.root or launch.device_group is not None or not launch.gpu_minors:
            return False
        self._waiting[launch.id] = uid, [start]
        self._request(uid, start)
        return True

    def _request(self, uid: int, start: wire.Message) -> None:
        assert isinstance(start, wire.Start)
        launch = start.launch
        devices = [[NVIDIA_MAJOR, minor] for minor in launch.gpu_minors if minor in GPU_MINORS]
        self._create(uid, str(launch.id), devices)

    def hold(self, message: wire.Message) -> bool:
        """Keep a message about a start that waits; return False if it does not wait."""
        attempt = getattr(message, "attempt", None)
        if attempt not in self._waiting:
            return False
        self._waiting[attempt][1].append(message)
        return True

    def take(self, attempt: AttemptId, path: str = "") -> list[wire.Message]:
        """Return a start that waited for its group, at `path`, and what is to be sent after it."""
        _, messages = self._waiting.pop(attempt, (0, []))
        if messages and isinstance(start := messages[0], wire.Start):
            messages[0] = replace(start, launch=_with_group(start.launch, path))
        return messages

    def retry(self) -> None:
        """Remove unneeded groups again in a while."""
        self._retry.request(RETRY_SECONDS)

    def remove_unneeded(self, uid: int | None = None) -> None:
        """Remove the groups of attempts that have ended or are unknown, of one user or of all."""
        if not self.root:
            return
        users = _directories(self.root) if uid is None else [f"{_PREFIX}{uid}"]
        for user in users:
            number = user.removeprefix(_PREFIX)
            if not number.isdecimal():
                continue
            for name in _directories(f"{self.root}/{user}"):
                attempt = attempt_of(name)
                if attempt is None or not self._is_needed(int(number), attempt):
                    self._remove(int(number), name)


def _with_group(launch: Launch, path: str) -> Launch:
    """Return a launch in a group, in which CUDA counts only the GPUs that can be opened."""
    visible = launch.extra.get("CUDA_VISIBLE_DEVICES", "")
    extra = launch.extra
    if visible and len(visible.split(",")) == len(launch.gpus):
        extra = extra | {"CUDA_VISIBLE_DEVICES": ",".join(launch.gpus)}
    return replace(launch, device_group=path, extra=extra)


def _directories(path: str) -> Iterator[str]:
    try:
        with os.scandir(path) as entries:
            yield from [entry.name for entry in entries if entry.is_dir()]
    except OSError:  # none was made, or the last one was removed just now
        return


def attempt_of(name: str) -> AttemptId | None:
    """Return the attempt that a group is for."""
    job, _, number = name.partition(".")
    return AttemptId(int(job), int(number)) if job.isdecimal() and number.isdecimal() else None
