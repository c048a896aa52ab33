"""What a machine has: its GPUs and who uses them, its cores and memory, what a user declares."""
