"""Clusters of other schedulers: when stoker asks them for nodes, and gives nodes back."""
