"""Submissions: from a request to a Spec and events."""
