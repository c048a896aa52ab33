"""Fixtures of the store's tests: a real PostgreSQL server."""

from postgres import crashing, postgres, servers

__all__ = ["crashing", "postgres", "servers"]
