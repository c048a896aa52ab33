"""The pure heart: facts in, wishes out. No I/O, no clock, no threads."""
