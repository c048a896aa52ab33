"""Indexes over running jobs: victims, preemption cost, future capacity, release times."""
