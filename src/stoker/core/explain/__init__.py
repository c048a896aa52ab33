"""Explanations: why a job is pending and when it may start, as data; read-only."""
