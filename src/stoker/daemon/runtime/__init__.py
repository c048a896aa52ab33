"""Reactor, request queue, clock, child processes."""
