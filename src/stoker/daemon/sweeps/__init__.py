"""Sweeps: submission, supply of trials, queries and views."""
