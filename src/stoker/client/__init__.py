"""Talks to a daemon: HTTP over its Unix socket, with nothing heavy imported."""

from stoker.client.client import Client, connect
from stoker.client.errors import DaemonUnreachable, StokerError

__all__ = ["Client", "DaemonUnreachable", "StokerError", "connect"]
