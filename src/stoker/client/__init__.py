"""HTTP client of the daemon, over its Unix socket or TCP; imports nothing heavy."""
