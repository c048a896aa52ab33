"""Sweeps: definitions, search spaces, samplers and reports."""
