"""Report of a simulation: statistics, a table for the terminal, and a page with plots."""
