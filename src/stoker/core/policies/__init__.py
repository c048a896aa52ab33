"""Scheduling policies as values, which queue uses which, and the rank of a job under a policy."""
