"""Prerequisites: the training library, checkpoints and container wrapper that a start needs.

Each step waits for a reply without blocking. What the node lacks is sent; a failure is reported
in one sentence, with whether it may pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from msgspec.structs import replace

from stoker.core.launch.launch import Launch
from stoker.core.launch.slurm_env import SLURM_MARK
from stoker.core.model.spec import FileTransfer, Mount
from stoker.executors.agent.session.reconnecting import ReconnectingSession
from stoker.executors.agent.session.remote_shell import RemoteShell
from stoker.executors.agent.transfer import checkpoint_sync
from stoker.executors.agent.transfer.snapshot import DirectorySnapshot
from stoker.executors.agent.transfer.uploads import TreeUploads, may_pass
from stoker.executors.launch import container, training_library
from stoker.executors.linux.thread_pool import TransferPool

WHOLE_DIRECTORY = FileTransfer()

OnReady = Callable[[str | None, str, bool], None]
"""Called with the library's name on the node, or with a failure and whether it may pass."""


class Prerequisites:
    """Sends what attempts need on one node besides their directories."""

    def __init__(
        self,
        connection: ReconnectingSession,
        pool: TransferPool,
        uploads: TreeUploads,
        shares_files: bool,
    ) -> None:
        self.connection, self.pool, self.uploads = connection, pool, uploads
        self.shares_files = shares_files
        self._libraries: dict[str, str] = {}
        """Names of the libraries on the node, by their paths on this one."""

    def forget(self) -> None:
        """Assume that the node has no library: it may have been removed."""
        self._libraries.clear()

    def copies_checkpoints(self, launch: Launch) -> bool:
        """Return whether the checkpoints of an attempt are copied to the node and back."""
        return launch.has_own_checkpoints or not self.shares_files

    def ensure(self, launch: Launch, on_ready: OnReady) -> None:
        """Send everything that the node lacks, then call back."""
        if not (
            launch.needs_report_directory
            or launch.container is not None
            or SLURM_MARK in launch.extra
        ):
            self._send_checkpoints(launch, None, on_ready)
            return
        home = os.path.dirname(os.path.dirname(launch.reports))

        def on_built(copy: str | Exception) -> None:
            if isinstance(copy, Exception):
                on_ready(None, f"cannot send the training library: {copy}", False)
            elif copy in self._libraries:
                self._send_checkpoints(launch, self._libraries[copy], on_ready)
            else:
                self.uploads.ensure(
                    copy, WHOLE_DIRECTORY, 0.0, lambda *result: on_uploaded(copy, *result)
                )

        def on_uploaded(
            copy: str, tree: DirectorySnapshot | None, why: str, may_pass: bool
        ) -> None:
            if tree is None:
                on_ready(None, f"cannot send the training library: {why}", may_pass)
                return
            name = tree.id
            self.connection.request(
                lambda words: on_installed(copy, name, words), "install_library", name
            )

        def on_installed(copy: str, name: str, words: list[str]) -> None:
            if words[0] == "done":
                self._libraries[copy] = name
                self._send_checkpoints(launch, name, on_ready)
            else:
                on_ready(None, "no space left for the training library", True)

        self.pool.submit(lambda: training_library.provide(home), on_built)

    def _send_checkpoints(self, launch: Launch, library: str | None, on_ready: OnReady) -> None:
        directory, shell = launch.checkpoints, self.uploads.shell
        if not self.copies_checkpoints(launch) or not (
            launch.needs_report_directory or os.path.isdir(directory)
        ):
            on_ready(library, "", False)
            return

        def on_directory(words: list[str]) -> None:
            if words[0] != "done":
                on_ready(None, "no space left for the job's checkpoints", True)
            elif "ahead" in words or shell is None:
                on_ready(library, "", False)
            else:
                self.pool.submit(lambda: checkpoint_sync.send(shell, directory), on_sent)

        def on_sent(result: Exception | None) -> None:
            if result is None:
                on_ready(library, "", False)
            else:
                on_ready(None, f"cannot send the job's checkpoints: {result}", may_pass(result))

        self.connection.request(
            on_directory, "make_checkpoint_dir", checkpoint_sync.name_of(directory)
        )

    # -- the launch on the node -----------------------------------------------------------

    def with_remote_paths(
        self, launch: Launch, shell: RemoteShell, work: str, library: str | None
    ) -> Launch:
        """Return the launch with the paths of the node."""
        reports = f"{shell.root}/run/{self.connection.run_name}/{launch.id}.reports"
        checkpoints = launch.checkpoints
        if self.copies_checkpoints(launch):
            name = checkpoint_sync.name_of(launch.checkpoints)
            checkpoints = f"{shell.root}/{checkpoint_sync.REMOTE_DIR}/{name}"
        extra = launch.extra | {
            "STOKER_REPORTS": reports, "STOKER_CHECKPOINT_DIR": checkpoints,
        }  # fmt: skip
        if library is not None and launch.container is None:
            extra["STOKER_LIBRARY"] = f"{shell.root}/library/{library}"
        remote = replace(launch, extra=extra, reports=reports, checkpoints=checkpoints)
        if not self.shares_files:
            remote = _moved(remote, work, shell.root.removesuffix(f"/{self.connection.root}"))
        return replace(remote, has_own_checkpoints=self.copies_checkpoints(launch))

    def in_container(
        self, launch: Launch, shell: RemoteShell, library: str | None, grace: float
    ) -> Launch:
        """Return the launch as a command of the node's container engine."""
        script = f"{shell.root}/scripts/{launch.script}" if launch.script else None
        copy = f"{shell.root}/library/{library}" if library is not None else None
        argv, extra = container.command(launch, copy, grace, script=script)
        return replace(
            launch, argv=argv, extra=launch.extra | extra, script=None, is_shell_line=False
        )


def _moved(launch: Launch, work: str, home: str) -> Launch:
    """Return the launch with its directory, and what it mounts of it or of the home, moved."""
    box, before = launch.container, launch.directory.rstrip("/")
    if box is not None:
        mounts = tuple(_mount(each, before, work, home) for each in box.mounts)
        box = replace(box, mounts=mounts)
    return replace(launch, container=box, directory=work)


def _mount(mount: Mount, before: str, work: str, home: str) -> Mount:
    home_here = os.path.expanduser("~")
    if mount.optional and mount.source.startswith(f"{home_here}/"):
        source = home + mount.source[len(home_here) :]
        return replace(mount, source=source, expected=os.path.exists(mount.source))
    if mount.source == before or mount.source.startswith(f"{before}/"):
        return replace(mount, source=work + mount.source[len(before) :])
    return mount
