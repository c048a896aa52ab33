"""Quality of the planner's decisions: `python -m benchmarks.planner`."""
