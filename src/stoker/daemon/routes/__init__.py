"""The HTTP API's routes."""
