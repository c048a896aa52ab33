"""Fixtures of the store's tests: a real PostgreSQL server."""

from postgres import own_postgres, postgres

__all__ = ["own_postgres", "postgres"]
