"""Discrete-event replay of a workload with the real scheduler."""
