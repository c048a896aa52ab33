"""Speed of stoker compared with other tools: `python -m benchmarks`."""
