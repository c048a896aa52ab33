"""Fixtures of the simulation: a real PostgreSQL server for its journal."""

from postgres import postgres, servers

__all__ = ["postgres", "servers"]
