"""Generic containers: sorted list, fit tree, bucketed index, timer heap."""
