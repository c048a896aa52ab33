"""Verbs about nodes, GPUs and policies."""
