"""TreeUploads: sends the directories of jobs to a node, each content once."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from stoker.core.model.spec import FileTransfer
from stoker.executors.agent.session.reconnecting import ReconnectingSession
from stoker.executors.agent.session.remote_shell import DiskFull, LinkLost, RemoteShell
from stoker.executors.agent.transfer.snapshot import DirectorySnapshot, Hashes, take_snapshot
from stoker.executors.agent.transfer.tree_upload import TreeChanged, send
from stoker.executors.agent.transfer.upload_progress import UploadProgress
from stoker.executors.linux.thread_pool import TransferPool

ALWAYS_EXCLUDED = (".git/", "__pycache__/", ".stoker/", ".stoker-*")
"""Neither code nor data; the last pattern matches results that are being installed."""
MAX_TREE_BYTES = 8 << 30
"""Size of a directory that is uploaded; more is surely a mistake."""
SNAPSHOT_SECONDS = 1.0
"""Jobs that start within this time use the same snapshot; not one that was submitted after it,
since its files may have been changed for it."""

OnUploaded = Callable[[DirectorySnapshot | None, str, bool], None]
"""Called with the tree, or with the failure in one sentence and whether it may pass."""
TreeKey = tuple[str, tuple[str, ...], tuple[str, ...]]


class SnapshotCache:
    """Takes snapshots of directories, shared by all nodes: a batch reads its directory once."""

    def __init__(self) -> None:
        self.hashes = Hashes()
        self._known: dict[TreeKey, tuple[float, float, DirectorySnapshot]] = {}
        """When each was taken, by the wall clock and by the monotonic clock."""
        self._locks: dict[TreeKey, threading.Lock] = {}

    def take(self, key: TreeKey, since: float) -> DirectorySnapshot:
        """Return a recent snapshot that was not taken before `since`; blocks."""
        with self._locks.setdefault(key, threading.Lock()):
            known = self._known.get(key)
            if (
                known is not None
                and known[0] >= since
                and time.monotonic() - known[1] < SNAPSHOT_SECONDS
            ):
                return known[2]
            base, paths, exclude = key
            began = time.time()
            tree = take_snapshot(
                base, paths, (*ALWAYS_EXCLUDED, *exclude), MAX_TREE_BYTES, self.hashes
            )
            self._known[key] = (began, time.monotonic(), tree)
            return tree


class TreeUploads:
    """Sends each directory snapshot to one node once."""

    def __init__(
        self, connection: ReconnectingSession, pool: TransferPool, snapshots: SnapshotCache
    ) -> None:
        self.connection, self.pool, self.snapshots = connection, pool, snapshots
        self.shell: RemoteShell | None = None
        """Known as soon as the node has reported its home directory."""
        self._present: set[str] = set()
        self._last: dict[str, str] = {}
        """The tree that was last sent of a directory: the next one is probably similar."""
        self._snapshotting: dict[TreeKey, list[tuple[float, OnUploaded]]] = {}
        """Callers that wait for a snapshot, and the earliest time that it may have."""
        self._sending: dict[str, list[OnUploaded]] = {}
        self._names: dict[TreeKey, str] = {}
        """Trees that are being sent, by what was requested."""
        self._progress: dict[str, UploadProgress] = {}
        self._generation = 0
        """Number of the connection: results of work that an earlier one began are dropped."""

    def forget_trees(self) -> None:
        """Assume that the node has no trees: they may have been removed."""
        self._present.clear()

    def ensure(
        self, directory: str, what: FileTransfer, since: float, on_uploaded: OnUploaded
    ) -> None:
        """Send the files of a job to the node if it lacks them, then call back."""
        key = (directory, what.send, what.exclude)
        waiting = self._snapshotting.setdefault(key, [])
        waiting.append((since, on_uploaded))
        if len(waiting) == 1:
            self._snapshot(key, since)

    def progress(self, directory: str, what: FileTransfer) -> UploadProgress | None:
        """Return the upload of the files of a job while it is under way."""
        key = (directory, what.send, what.exclude)
        name = self._names.get(key)
        if name is not None:
            return self._progress.get(name)
        return UploadProgress(None) if key in self._snapshotting else None

    def _snapshot(self, key: TreeKey, since: float) -> None:
        self._do(
            lambda: self.snapshots.take(key, since),
            lambda tree: self._on_snapshot(key, since, tree),
        )

    def _do(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        generation = self._generation
        self.pool.submit(
            work, lambda result: then(result) if generation == self._generation else None
        )

    def _on_snapshot(self, key: TreeKey, since: float, tree: DirectorySnapshot | Exception) -> None:
        requests = self._snapshotting.pop(key, [])
        waiting = [on_uploaded for moment, on_uploaded in requests if moment <= since]
        if later := [request for request in requests if request[0] > since]:
            self._snapshotting[key] = later
            self._snapshot(key, max(moment for moment, _ in later))
        if isinstance(tree, Exception):
            for on_uploaded in waiting:
                on_uploaded(None, str(tree), False)
            return
        if tree.id in self._present:
            for on_uploaded in waiting:
                on_uploaded(tree, "", False)
            return
        self._names[key] = tree.id
        sending = self._sending.setdefault(tree.id, [])
        sending += waiting
        if len(sending) == len(waiting):
            self.connection.request(
                lambda words: self._on_presence(tree, words), "has_tree", tree.id
            )

    def _on_presence(self, tree: DirectorySnapshot, words: list[str]) -> None:
        shell = self.shell
        if words == ["done", "yes"]:
            self._finish(tree, None)
        elif shell is not None:
            reuse, progress = self._last.get(tree.base), UploadProgress(tree.size)
            self._progress[tree.id] = progress
            self._do(
                lambda: send(shell, tree, reuse, progress=progress),
                lambda result: self._on_sent(tree, result),
            )

    def _on_sent(self, tree: DirectorySnapshot, result: Exception | None) -> None:
        """Send a directory that changed meanwhile again as it is: it may never come to rest."""
        shell = self.shell
        if not isinstance(result, TreeChanged) or shell is None:
            self._finish(tree, result)
            return
        loose = replace(tree, id=f"{tree.id}-{secrets.token_hex(4)}")
        self._sending[loose.id] = self._sending.pop(tree.id, [])
        progress = UploadProgress(tree.size)
        self._progress[loose.id] = progress
        for key in self._forget_upload(tree.id):
            self._names[key] = loose.id
        self._do(
            lambda: send(shell, loose, loose=True, progress=progress),
            lambda result: self._finish(loose, result),
        )

    def _forget_upload(self, name: str) -> list[TreeKey]:
        """Forget the upload of a tree; return the requests for it."""
        self._progress.pop(name, None)
        keys = [key for key, upload_name in self._names.items() if upload_name == name]
        for key in keys:
            del self._names[key]
        return keys

    def _finish(self, tree: DirectorySnapshot, result: Exception | None) -> None:
        self._forget_upload(tree.id)
        if result is None:
            self._present.add(tree.id)
            self._last[tree.base] = tree.id
        for on_uploaded in self._sending.pop(tree.id, ()):
            if result is None:
                on_uploaded(tree, "", False)
            else:
                on_uploaded(None, str(result), may_pass(result))

    def on_disconnect(self) -> None:
        """Drop all uploads; the starts that wait for them are cancelled."""
        self._generation += 1
        self._snapshotting.clear()
        self._sending.clear()
        self._names.clear()
        self._progress.clear()


def may_pass(error: Exception) -> bool:
    """Return whether the same upload may succeed later."""
    return isinstance(error, LinkLost | DiskFull)
