"""Who goes first, where it goes, and who may slip into the gaps."""
