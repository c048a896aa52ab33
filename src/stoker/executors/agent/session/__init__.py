"""The connection to an agent."""
