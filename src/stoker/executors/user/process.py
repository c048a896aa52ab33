"""The process of one user: runs the user's attempts for the system daemon.

The gate starts it as that user: `python -I -m stoker.executors.user.process DIRECTORY`, with the
socket to the daemon as descriptor 3. It ends when the daemon closes the socket; its supervisors and
the attempts live on, as those of a single-user daemon.
"""

from __future__ import annotations

import os
import socket
import sys

from stoker.executors.linux.subreaper import become_subreaper
from stoker.executors.local.supervisor_client import spawn_supervisors
from stoker.executors.user.directories import UserDirectories

WIRE_FD = 3
"""Descriptor at which the gate leaves the socket to the daemon."""
PROCESS_NAME = "stoker-user"
MAX_LOG_BYTES = 1 << 20


def main(argv: list[str]) -> int:
    """Serve the daemon until it closes the socket; return the exit code."""
    os.umask(0o077)
    directories = UserDirectories(os.path.abspath(argv[0]))
    directories.create()
    supervisors = spawn_supervisors(directories.exits)  # while this process is small
    from stoker.executors.user.server import UserServer

    _configure_log(f"{directories.root}/executor.log")
    with open("/proc/self/comm", "w") as comm:
        comm.write(PROCESS_NAME)
    become_subreaper()
    wire = socket.socket(fileno=WIRE_FD)
    wire.set_inheritable(False)
    UserServer(wire, directories, supervisors).run()
    return 0


def _configure_log(path: str) -> None:
    """Log warnings and errors; the log is the user's own."""
    import logging
    from logging.handlers import RotatingFileHandler

    handler = RotatingFileHandler(path, maxBytes=MAX_LOG_BYTES, backupCount=1, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
