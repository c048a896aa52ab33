"""Victim selection, nominations, and the preemption stage of a planning cycle."""
