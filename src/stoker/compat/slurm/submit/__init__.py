"""sbatch, srun and salloc."""
