"""The gate: the root program of system mode. Standard library only, nothing else of ours."""
