"""Probes of a node: GPUs and their processes, cores and memory, declared resources."""
