"""Indexes over running jobs: victims, preemption thresholds, release times."""
