"""`stoker what-if`: replay a daemon's jobs on another cluster."""
