"""Metric series of jobs and trials."""
