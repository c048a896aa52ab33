"""Files that identify a state, kept in its database server too.

A daemon whose state directory is empty, as in a pod without a volume, continues the state under
the same name: it finds the attempts of its predecessor, and clients and pods trust it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

from stoker import places
from stoker.daemon.http import credentials
from stoker.store.port import Batch, Store

NAMES = ("install", "token", credentials.REPORT_KEY_NAME, "tls.crt", "tls.key")
KEYS = tuple(f"file/{name}" for name in NAMES)
"""Their keys beside the environments of jobs, whose keys are hashes."""


def restore_files(store: Store, state: str) -> None:
    """Create the files of a state directory that is new."""
    if os.path.exists(f"{state}/install"):
        return
    for name, key in reversed([*zip(NAMES, KEYS, strict=True)]):  # the mark of a new one is last
        content = store.secret(key)
        if content is not None:
            places.write_private(f"{state}/{name}", content.decode())


def save_files(store: Store, state: str, environments: Collection[str]) -> None:
    """Store the files as they are now; `environments` are those that jobs may still need."""
    found: dict[str, bytes] = {}
    for name, key in zip(NAMES, KEYS, strict=True):
        with contextlib.suppress(FileNotFoundError), open(f"{state}/{name}", "rb") as file:
            found[key] = file.read()
    changed = {key: content for key, content in found.items() if store.secret(key) != content}
    if changed:
        store.purge(0.0, {*environments, *(found.keys() - changed)})  # a key is never overwritten
        store.commit(Batch(secrets=changed), sync=True)
