"""What training attempts need on a machine with nothing installed: our library, their checkpoints.

Each step waits for an answer, and none of them for the loop. What is not there is sent; what
cannot be had is said in one sentence, with whether it may be had later.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from msgspec.structs import replace

from stoker.core.job import Carry, Mount
from stoker.core.launch import Launch
from stoker.core.slurm_env import SLURM_MARK
from stoker.executors.agent.session.reconnecting import ReconnectingSession
from stoker.executors.agent.session.remote_shell import RemoteShell
from stoker.executors.agent.transfer import checkpoint_sync as saved
from stoker.executors.agent.transfer.snapshot import DirectorySnapshot
from stoker.executors.agent.transfer.uploads import TreeUploads, may_pass
from stoker.executors.launch import container
from stoker.executors.launch import training_library as library
from stoker.executors.linux.thread_pool import TransferPool

WHOLE = Carry()

Provided = Callable[[str | None, str, bool], None]
"""Told where the library is there, if it is needed; or what went wrong, and whether it may pass."""


class Prerequisites:
    """Sees that one machine has what an attempt needs beside its directory."""

    def __init__(
        self,
        connection: ReconnectingSession,
        worker: TransferPool,
        travel: TreeUploads,
        shared: bool,
    ) -> None:
        self.connection, self.worker, self.travel, self.shared = connection, worker, travel, shared
        self._shelved: dict[str, str] = {}
        """The libraries that are known to be there, by where they are here."""

    def forget(self) -> None:
        """Another connection: the machine may have been cleaned up since."""
        self._shelved.clear()

    def travels(self, launch: Launch) -> bool:
        """Whether its checkpoints here are not those over there."""
        return launch.own_checkpoints or not self.shared

    def want(self, launch: Launch, provided: Provided) -> None:
        """Have everything there, then say so."""
        if not (launch.trains or launch.container is not None or SLURM_MARK in launch.extra):
            self._make_room(launch, None, provided)
            return
        home = os.path.dirname(os.path.dirname(launch.reports))

        def made(copy: str | Exception) -> None:
            if isinstance(copy, Exception):
                provided(None, f"cannot send the training library: {copy}", False)
            elif copy in self._shelved:
                self._make_room(launch, self._shelved[copy], provided)
            else:
                self.travel.want(copy, WHOLE, 0.0, lambda *found: travelled(copy, *found))

        def travelled(copy: str, tree: DirectorySnapshot | None, why: str, again: bool) -> None:
            if tree is None:
                provided(None, f"cannot send the training library: {why}", again)
                return
            name = tree.id
            self.connection.ask(lambda words: shelved(copy, name, words), "shelve", name)

        def shelved(copy: str, name: str, words: list[str]) -> None:
            if words[0] == "done":
                self._shelved[copy] = name
                self._make_room(launch, name, provided)
            else:
                provided(None, "no space left for the training library", True)

        self.worker.do(lambda: library.provide(home), made)

    def _make_room(self, launch: Launch, shelf: str | None, provided: Provided) -> None:
        here, way = launch.checkpoints, self.travel.way
        if not self.travels(launch) or not (launch.trains or os.path.isdir(here)):
            provided(shelf, "", False)
            return

        def made(words: list[str]) -> None:
            if words[0] != "done":
                provided(None, "no space left for the job's checkpoints", True)
            elif "ahead" in words or way is None:
                provided(shelf, "", False)
            else:
                self.worker.do(lambda: saved.send(way, here), sent)

        def sent(result: Exception | None) -> None:
            if result is None:
                provided(shelf, "", False)
            else:
                provided(None, f"cannot send the job's checkpoints: {result}", may_pass(result))

        self.connection.ask(made, "room", saved.name_of(here))

    # -- the order, as it is over there ---------------------------------------------------

    def localized(self, launch: Launch, way: RemoteShell, work: str, shelf: str | None) -> Launch:
        """The same start with the paths of that machine."""
        word = f"{launch.job}.{launch.attempt}"
        reports = f"{way.root}/run/{self.connection.install}/{word}.reports"
        checkpoints = launch.checkpoints
        if self.travels(launch):
            checkpoints = f"{way.root}/{saved.PLACE}/{saved.name_of(launch.checkpoints)}"
        extra = launch.extra | {
            "STOKER_REPORTS": reports, "STOKER_CHECKPOINT_DIR": checkpoints,
        }  # fmt: skip
        if shelf is not None and launch.container is None:
            extra["STOKER_LIBRARY"] = f"{way.root}/library/{shelf}"
        there = replace(launch, extra=extra, reports=reports, checkpoints=checkpoints)
        if not self.shared:
            there = _moved(there, work, way.root.removesuffix(f"/{self.connection.root}"))
        return replace(there, own_checkpoints=self.travels(launch))

    def contained(
        self, launch: Launch, way: RemoteShell, shelf: str | None, grace: float
    ) -> Launch:
        """A start in a container, as the command that the machine's engine is told by."""
        script = f"{way.root}/scripts/{launch.script}" if launch.script else None
        copy = f"{way.root}/library/{shelf}" if shelf is not None else None
        argv, extra = container.command(launch, copy, grace, script=script)
        return replace(launch, argv=argv, extra=launch.extra | extra, script=None, line=False)


def _moved(launch: Launch, work: str, home: str) -> Launch:
    """Its directory is another one there, and so is what it mounts of it, or of the home."""
    box, before = launch.container, launch.directory.rstrip("/")
    if box is not None:
        mounts = tuple(_mount(each, before, work, home) for each in box.mounts)
        box = replace(box, mounts=mounts)
    return replace(launch, container=box, directory=work)


def _mount(mount: Mount, before: str, work: str, home: str) -> Mount:
    own = os.path.expanduser("~")
    if mount.optional and mount.source.startswith(f"{own}/"):
        there = home + mount.source[len(own) :]
        return replace(mount, source=there, expected=os.path.exists(mount.source))
    if mount.source == before or mount.source.startswith(f"{before}/"):
        return replace(mount, source=work + mount.source[len(before) :])
    return mount
