"""Attempts that are handed over to Slurm: one batch job each, or one task of a job array."""
