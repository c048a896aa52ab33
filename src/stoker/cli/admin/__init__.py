"""Verbs for the daemon, its database and shell completion."""
