"""Read the journal of a home while its daemon runs."""

import json
import sqlite3
from typing import Any

from e2e.daemon_fixture import DaemonFixture


def journal(box: DaemonFixture, kind: str) -> list[dict[str, Any]]:
    """Return the events of one kind, oldest first."""
    db = sqlite3.connect(f"file:{box.state}/journal.db?mode=ro", uri=True)
    try:
        rows = db.execute("SELECT data FROM events WHERE kind = ? ORDER BY seq", (kind,))
        return [json.loads(data) for (data,) in rows]
    finally:
        db.close()
