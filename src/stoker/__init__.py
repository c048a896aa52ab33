"""stoker keeps your GPUs fed: a job scheduler for machine-learning experiments."""

__version__ = "0.1.0"
