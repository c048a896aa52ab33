"""The store of a state directory, and the name of what is in it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

from stoker import places
from stoker.daemon.settings import Settings
from stoker.daemon.state_lock import on_shared_file_system
from stoker.store.port import Store, StoreError, StoreFenced
from stoker.store.select import StoreConfig, moved_warning, open_store, select_store

SQLITE = StoreConfig().shown
"""The name of the store that is a file of the state directory."""

ReadBlob = Callable[[str], bytes | None]
"""Returns what is stored under a hash."""


def install_id(state: str) -> str:
    """Return the random name that tells this state's attempts from those of any other state."""
    path = f"{state}/install"
    with contextlib.suppress(FileExistsError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.write(fd, os.urandom(6).hex().encode())
        os.close(fd)
    with open(path) as file:
        return file.read().strip()


def as_shortage(read: ReadBlob) -> ReadBlob:
    """Turn store errors into a shortage: the start is cancelled and tried again later."""

    def reading(hash: str) -> bytes | None:
        try:
            return read(hash)
        except StoreFenced:
            raise
        except StoreError as error:
            raise OSError(errno.EAGAIN, str(error)) from error

    return reading


def open_state_store(
    state: str, db: str | None, settings: Settings
) -> tuple[Store, str, list[str]]:
    """Return the store that was chosen now or before, its name, and a warning if it changed."""
    saved = places.read_options(f"{state}/store.json")
    option, last = saved.get("db"), saved.get("last")
    choice = select_store(db, settings.store.url or None, option, os.environ)
    journal = places.journal_path()
    is_shared = choice.url is None and on_shared_file_system(state)
    store = open_store(choice, journal, is_shared, settings.store.patience)
    warning = moved_warning(choice, last, journal)
    if is_shared:
        store.warnings().append(f"{state} is on a network file system: commits are slower")
    if db is not None or last != choice.shown:
        option = choice.text if db is not None else option
        places.write_options(f"{state}/store.json", db=option, last=choice.shown)
    return store, choice.shown, [warning] if warning else []
