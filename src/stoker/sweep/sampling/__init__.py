"""Points of a sweep: search spaces and samplers."""
