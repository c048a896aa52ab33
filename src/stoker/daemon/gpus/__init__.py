"""GPU monitoring: readings of the driver, foreign processes, memory per attempt."""
