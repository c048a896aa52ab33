"""Slurm's commands on stoker's queue: sbatch, srun, salloc, squeue, sacct, scancel, scontrol, …"""
