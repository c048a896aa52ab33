"""HTTP client of the daemon, over its Unix socket or TCP; imports nothing heavy."""

from stoker.client.client import Client, connect
from stoker.client.errors import DaemonUnreachable, StokerError

__all__ = ["Client", "DaemonUnreachable", "StokerError", "connect"]
