"""Executors and nodes: registry, status, gangs."""
