"""The log of a pod: followed, split into output, reports and the exit code, written to files."""
