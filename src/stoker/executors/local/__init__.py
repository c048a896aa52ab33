"""Attempts on this machine."""
