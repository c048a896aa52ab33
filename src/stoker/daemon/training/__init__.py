"""Training jobs: read their reports, publish events, request stops, remove what is left."""
