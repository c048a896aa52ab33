"""The report of a training job: its files, its lines, and what earlier processes wrote."""
