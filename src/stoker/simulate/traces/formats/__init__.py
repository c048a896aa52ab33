"""One module per trace format."""
