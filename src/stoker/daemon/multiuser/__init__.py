"""System mode: the connection to the gate."""
