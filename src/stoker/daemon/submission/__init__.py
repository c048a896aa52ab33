"""POST /jobs: from a request body to a Spec and events."""
