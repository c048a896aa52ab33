"""How many GPUs an elastic job has, and when that changes."""
