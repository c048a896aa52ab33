"""How fast stoker is, beside its peers, in one command: `python -m benchmarks`."""
