"""Attempts as pods of their own."""
