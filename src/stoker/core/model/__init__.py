"""Plain values: jobs, specs, resource requests, hardware, placements.

A field with a `name` of its own is stored under that name, which an earlier version gave it.
"""
