"""From samples and reports to numbers: run-time estimates, GPU memory, foreign use."""
