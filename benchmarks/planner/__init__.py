"""How good the planner's decisions are: `python -m benchmarks.planner`."""
