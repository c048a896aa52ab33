"""Backends for other libraries that run calls as jobs."""
