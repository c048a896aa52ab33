"""The daemon's main loop and what it is made of."""
