"""Attempts on a node that runs the agent, reached through a shell."""
