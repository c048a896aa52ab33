"""The pending queue: job classes, their order, and scans over it."""
