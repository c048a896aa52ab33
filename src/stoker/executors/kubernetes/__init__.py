"""Kubernetes clusters: pods as pilots, and one pod per attempt."""
