"""Predicted start and end times of jobs."""
