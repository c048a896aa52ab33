"""Generic containers: sorted list, fit tree, timer heap."""
