"""Attempts as the users who submitted them: one process per user, and the daemon's side of it."""
