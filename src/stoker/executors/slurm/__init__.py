"""A Slurm cluster: allocations that join as nodes (pilots), and Slurm's own commands."""
