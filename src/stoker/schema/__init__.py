"""Requests and replies of the API, as types."""
