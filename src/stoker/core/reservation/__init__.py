"""Backfill: EASY and conservative reservations for jobs that do not fit yet."""
