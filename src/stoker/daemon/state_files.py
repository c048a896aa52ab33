"""StateFiles: creates deleted files and directories of a running daemon again, or reports them."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from math import inf

from stoker import places
from stoker.daemon.http.server import HttpServer
from stoker.daemon.state_lock import Locked, StateLock
from stoker.executors.linux.inotify import Inotify
from stoker.executors.reactor import Reactor
from stoker.store.port import Store, StoreError, StoreFenced

SETTLE_SECONDS, LONGEST_SETTLE_SECONDS = 0.1, 2.0
"""Something was deleted: more may follow, as when a whole directory is being removed."""
LOOK_SECONDS = 5.0
"""Between looks where the kernel reports nothing, or after one that failed."""
REMEMBERED = ("install", "declared.json", "store.json")
"""Small files of the state directory without which the next daemon would not go on."""

logger = logging.getLogger(__name__)


class StateFiles:
    """Watches the socket, the lock, the journal and the directories of one daemon."""

    def __init__(
        self,
        state: str,
        directories: Iterable[str],
        journal: str,
        lock: StateLock,
        server: HttpServer,
        store: Store,
        poller: Reactor,
        sync: Callable[[], None],
        restore: Callable[[], None],
    ) -> None:
        """`sync` has a copy of the journal written in the background, should it be deleted;
        `restore` makes files again that only their owner knows.
        """
        self.state, self.journal, self.lock, self.server = state, journal, lock, server
        self.store, self.poller, self.sync, self.restore = store, poller, sync, restore
        self.directories = [state, *directories, *_directories_in(state)]
        self.files = dict(_contents(state))
        self.inotify: Inotify | None = None
        self._changed_at = self._due = time.monotonic()
        """When the first of the latest changes was seen, and when to look at all of them."""
        self._is_lost = False
        try:
            self.inotify = Inotify()
            poller.add_reader(self.inotify.fd, self._changed)
        except OSError as error:
            logger.warning("deleted files are noticed late: %s", error)
        self._watch()

    def _watch(self) -> None:
        """Have the kernel report deletions from now on; safe to repeat."""
        if self.inotify is None:
            return
        above = os.path.dirname(self.state)
        files = [self.server.path, self.lock.path, self.journal, f"{self.journal}-wal"]
        parents = {os.path.dirname(path) for path in (*files, *self.directories)}
        for path in {os.path.dirname(above), above, *self.directories, *files}:
            with contextlib.suppress(OSError):
                self.inotify.watch_removal(path, inside=path in parents)

    def _changed(self) -> None:
        if self.inotify is not None and self.inotify.changes():
            now = time.monotonic()
            if self._due == inf:
                self._changed_at = now
            self._due = min(now + SETTLE_SECONDS, self._changed_at + LONGEST_SETTLE_SECONDS)

    def seconds_left(self) -> float | None:
        """Return the time until something is to be looked at."""
        return None if self._due == inf else max(self._due - time.monotonic(), 0.0)

    def check_if_due(self) -> None:
        """Look at everything after something was deleted."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + LOOK_SECONDS
            try:
                done = self.check()
            except (OSError, places.UnsafeDirectory) as error:
                logger.error("deleted files cannot be created again: %s", error)  # noqa: TRY400
            else:
                if not done:
                    self._due = time.monotonic() + SETTLE_SECONDS
                elif self.inotify is not None:
                    self._due = inf

    def check(self) -> bool:
        """Make again what is missing; return whether all of it is there now.

        Raise StoreFenced if another daemon has taken the state over.
        """
        self._watch()  # first, so that nothing is missed in between
        self.ensure_directories()
        self._check_lock()
        for name, content in self.files.items():
            _write_if_missing(f"{self.state}/{name}", content)
        self.restore()
        self._check_journal()
        if not self.server.is_in_place:
            logger.warning("%s was deleted; created it again", self.server.path)
            if not self.server.listen_again():
                return False
        self._watch()
        return True

    def ensure_directories(self) -> None:
        """Make the directories again that are missing; called before every start of a job."""
        for path in self.directories:
            if not os.path.isdir(path):
                logger.warning("%s was deleted; created it again", path)
                places.secure_dir(path)

    def _check_lock(self) -> None:
        if self.lock.is_in_place:
            return
        try:
            self.lock.renew()
        except Locked as holder:
            if self.store.durability_warning():
                with contextlib.suppress(OSError, StoreError):
                    self.store.sync()  # writes a copy
            raise StoreFenced(
                f"Another daemon (pid {holder}) has taken over this state; this one stops."
            ) from None
        logger.warning("%s was deleted; locked it again", self.lock.path)

    def _check_journal(self) -> None:
        lost = self.store.durability_warning()
        if lost is not None:
            if not self._is_lost:
                logger.error("%s", lost)
            self.sync()
        self._is_lost = lost is not None

    def close(self) -> None:
        """Watch no more."""
        if self.inotify is not None:
            self.poller.remove_reader(self.inotify.fd)
            self.inotify.close()


def _directories_in(state: str) -> list[str]:
    with os.scandir(state) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def _contents(state: str) -> Iterator[tuple[str, bytes]]:
    for name in REMEMBERED:
        with contextlib.suppress(OSError), open(f"{state}/{name}", "rb") as file:
            yield name, file.read()


def _write_if_missing(path: str, content: bytes) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    logger.warning("%s was deleted; wrote it again", path)
    with open(fd, "wb") as file:
        file.write(content)
