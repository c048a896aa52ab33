"""Files to a node and back."""
