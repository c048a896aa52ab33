"""What travels with jobs: trees to a machine, once each; what a job wrote back from it."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from stoker.core.job import Carry
from stoker.executors.agent.session.reconnecting import ReconnectingSession
from stoker.executors.agent.session.remote_shell import DiskFull, LinkLost, RemoteShell
from stoker.executors.agent.transfer.snapshot import DirectorySnapshot, Hashes, survey
from stoker.executors.agent.transfer.tree_upload import Restless, send
from stoker.executors.agent.transfer.upload_progress import UploadProgress
from stoker.executors.linux.thread_pool import TransferPool

NEVER = (".git/", "__pycache__/", ".stoker/", ".stoker-*")
"""Neither code nor data; the last are results on their way into a directory."""
LARGEST = 8 << 30
"""Bytes that a directory may have to be taken along; more is surely a mistake."""
RECENT = 1.0
"""For so many seconds, jobs that start one after the other are said to take the same along; not
one that was submitted later than the look, since its files may have been changed for it."""

Found = Callable[[DirectorySnapshot | None, str, bool], None]
"""Told the tree, or what went wrong in one sentence and whether that may pass."""
Want = tuple[str, tuple[str, ...], tuple[str, ...]]


class SnapshotCache:
    """Looks at directories, shared by all machines: a batch looks at its directory once."""

    def __init__(self) -> None:
        self.hashes = Hashes()
        self._known: dict[Want, tuple[float, float, DirectorySnapshot]] = {}
        """When each was looked at, by the wall clock and by one that nobody sets."""
        self._locks: dict[Want, threading.Lock] = {}

    def look(self, want: Want, since: float) -> DirectorySnapshot:
        """The directory as it is, or was a moment ago, but not before `since`. In a thread."""
        with self._locks.setdefault(want, threading.Lock()):
            known = self._known.get(want)
            if known is not None and known[0] >= since and time.monotonic() - known[1] < RECENT:
                return known[2]
            base, paths, exclude = want
            began = time.time()
            tree = survey(base, paths, (*NEVER, *exclude), LARGEST, self.hashes)
            self._known[want] = (began, time.monotonic(), tree)
            return tree


class TreeUploads:
    """The trees that one machine has, and how it gets others."""

    def __init__(
        self, connection: ReconnectingSession, worker: TransferPool, surveys: SnapshotCache
    ) -> None:
        self.connection, self.worker, self.surveys = connection, worker, surveys
        self.way: RemoteShell | None = None
        """Known as soon as the machine has said what it is."""
        self._here: set[str] = set()
        self._last: dict[str, str] = {}
        """The tree that was last sent of a directory: the next one is probably much like it."""
        self._looking: dict[Want, list[tuple[float, Found]]] = {}
        """Who waits for a look, and since when it must be."""
        self._sending: dict[str, list[Found]] = {}
        self._names: dict[Want, str] = {}
        """The trees that are being sent, by what was asked for."""
        self._transfers: dict[str, UploadProgress] = {}
        self._era = 0
        """Goes up with every connection: what was begun over an older one is nobody's business."""

    def forget(self) -> None:
        """Another connection: the machine may have been cleaned up since."""
        self._here.clear()

    def want(self, directory: str, what: Carry, since: float, found: Found) -> None:
        """See that the machine has what goes along with a job, then say under which name."""
        want = (directory, what.send, what.exclude)
        waiting = self._looking.setdefault(want, [])
        waiting.append((since, found))
        if len(waiting) == 1:
            self._look(want, since)

    def transfer(self, directory: str, what: Carry) -> UploadProgress | None:
        """The upload of what goes along with a job, while it is under way."""
        want = (directory, what.send, what.exclude)
        name = self._names.get(want)
        if name is not None:
            return self._transfers.get(name)
        return UploadProgress(None) if want in self._looking else None

    def _look(self, want: Want, since: float) -> None:
        self._do(
            lambda: self.surveys.look(want, since), lambda tree: self._looked(want, since, tree)
        )

    def _do(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        era = self._era
        self.worker.do(work, lambda found: then(found) if era == self._era else None)

    def _looked(self, want: Want, since: float, tree: DirectorySnapshot | Exception) -> None:
        asked = self._looking.pop(want, [])
        waiting = [found for moment, found in asked if moment <= since]
        if later := [each for each in asked if each[0] > since]:
            self._looking[want] = later
            self._look(want, max(moment for moment, _ in later))
        if isinstance(tree, Exception):
            for found in waiting:
                found(None, str(tree), False)
            return
        if tree.id in self._here:
            for found in waiting:
                found(tree, "", False)
            return
        self._names[want] = tree.id
        sending = self._sending.setdefault(tree.id, [])
        sending += waiting
        if len(sending) == len(waiting):
            self.connection.ask(lambda words: self._has(tree, words), "have", tree.id)

    def _has(self, tree: DirectorySnapshot, words: list[str]) -> None:
        way = self.way
        if words == ["done", "yes"]:
            self._sent(tree, None)
        elif way is not None:
            reuse, transfer = self._last.get(tree.base), UploadProgress(tree.size)
            self._transfers[tree.id] = transfer
            self._do(
                lambda: send(way, tree, reuse, transfer=transfer),
                lambda result: self._tried(tree, result),
            )

    def _tried(self, tree: DirectorySnapshot, result: Exception | None) -> None:
        """A directory in which others write never comes to rest: then it is taken as it is."""
        way = self.way
        if not isinstance(result, Restless) or way is None:
            self._sent(tree, result)
            return
        loose = replace(tree, id=f"{tree.id}-{secrets.token_hex(4)}")
        self._sending[loose.id] = self._sending.pop(tree.id, [])
        transfer = UploadProgress(tree.size)
        self._transfers[loose.id] = transfer
        for want in self._done_with(tree.id):
            self._names[want] = loose.id
        self._do(
            lambda: send(way, loose, loose=True, transfer=transfer),
            lambda result: self._sent(loose, result),
        )

    def _done_with(self, name: str) -> list[Want]:
        """Forget the upload of a tree; return what had asked for it."""
        self._transfers.pop(name, None)
        wants = [want for want, each in self._names.items() if each == name]
        for want in wants:
            del self._names[want]
        return wants

    def _sent(self, tree: DirectorySnapshot, result: Exception | None) -> None:
        self._done_with(tree.id)
        if result is None:
            self._here.add(tree.id)
            self._last[tree.base] = tree.id
        for found in self._sending.pop(tree.id, ()):
            if result is None:
                found(tree, "", False)
            else:
                found(None, str(result), may_pass(result))

    def lost(self) -> None:
        """The connection is gone: whoever waits will be asked again about everything."""
        self._era += 1
        self._looking.clear()
        self._sending.clear()
        self._names.clear()
        self._transfers.clear()


def may_pass(error: Exception) -> bool:
    """Whether the same may succeed later: over another connection, or when there is room."""
    return isinstance(error, LinkLost | DiskFull)
