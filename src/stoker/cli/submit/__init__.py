"""Verbs that submit work."""
