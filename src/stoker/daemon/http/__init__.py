"""HTTP transport and authentication."""
