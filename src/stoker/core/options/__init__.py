"""Command-line options and selectors, parsed into exact values."""
