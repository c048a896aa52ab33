"""GPU monitoring."""
