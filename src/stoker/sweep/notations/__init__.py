"""Notations of sweeps, read into definitions: W&B files, Hydra overrides, tables."""
