"""`stoker feed`: the same engine in the foreground, with lines of stdin as its jobs."""
