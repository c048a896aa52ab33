"""The directories of a daemon and its supervisors, created before anything large is imported."""

from __future__ import annotations

import os

from stoker import places
from stoker.executors.local.supervisor_client import spawn_supervisors


class DaemonPaths:
    """The directories of a state, and the processes that will be its jobs' parents."""

    def __init__(self, is_system: bool = False) -> None:
        """`is_system`: the processes of the users have supervisors instead."""
        self.state = places.secure_dir(places.state_dir())
        self.exits = f"{self.state}/exits"
        self.scripts = f"{self.state}/scripts"
        for path in (places.logs_dir(), self.exits, self.scripts):
            os.makedirs(path, 0o700, exist_ok=True)
        self.run = places.secure_dir(places.run_dir())
        self.supervisors = [] if is_system else spawn_supervisors(self.exits)
