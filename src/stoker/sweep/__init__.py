"""Sweeps: the language they are written in, their spaces, samplers and reports."""
