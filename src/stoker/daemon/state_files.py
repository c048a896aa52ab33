"""StateFiles: creates deleted files and directories of a running daemon again, or reports them."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator

from stoker import places
from stoker.daemon.http.server import HttpServer
from stoker.daemon.state_lock import Locked, StateLock
from stoker.executors.reactor import Reactor
from stoker.store.port import Store, StoreError, StoreFenced

CHECK_SECONDS = 1.0
"""Between checks, which take a few dozen stat calls."""
RETRY_SECONDS = 0.1
"""Until the next check while the socket cannot be created."""
REMEMBERED = ("install", "declared.json", "store.json")
"""Small files of the state directory without which the next daemon would not go on."""

logger = logging.getLogger(__name__)


class StateFiles:
    """Checks the socket, the lock, the journal and the directories of one daemon every second."""

    def __init__(
        self,
        state: str,
        directories: Iterable[str],
        lock: StateLock,
        server: HttpServer,
        store: Store,
        reactor: Reactor,
        sync: Callable[[], None],
        restore: Callable[[], None],
    ) -> None:
        """`sync` has a copy of the journal written in the background, should it be deleted;
        `restore` makes files again that only their owner knows.
        """
        self.state, self.lock, self.server = state, lock, server
        self.store, self.reactor, self.sync, self.restore = store, reactor, sync, restore
        self.directories = [state, *directories, *_directories_in(state)]
        self.files = dict(_contents(state))
        self._is_lost = False
        self._error = ""
        """Why the last check failed, if it did: it is logged once."""
        self._timer = reactor.call_later(0.0, self._check)

    def _check(self) -> None:
        """Check everything now, and again in a while."""
        pause = CHECK_SECONDS
        try:
            if not self.check():
                pause = RETRY_SECONDS
        except (OSError, places.UnsafeDirectory) as error:
            if str(error) != self._error:
                logger.error("deleted files cannot be created again: %s", error)  # noqa: TRY400
            self._error = str(error)
        else:
            self._error = ""
        finally:
            self._timer = self.reactor.call_later(pause, self._check)

    def check(self) -> bool:
        """Make again what is missing; return whether all of it is there now.

        Raise StoreFenced if another daemon has taken the state over.
        """
        self._create_directories()
        self._check_lock()
        for name, content in self.files.items():
            _write_if_missing(f"{self.state}/{name}", content)
        self.restore()
        self._check_journal()
        if not self.server.is_in_place:
            if not self.server.listen_again():
                return False
            logger.warning("%s was deleted; created it again", self.server.path)
        return True

    def _create_directories(self) -> None:
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
        if lost is not None and not self._is_lost:
            logger.error("%s", lost)
            self.sync()
        self._is_lost = lost is not None

    def close(self) -> None:
        """Check no more."""
        self._timer.cancel()


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
