"""Plain values: jobs, specs, resource requests, hardware, placements."""
