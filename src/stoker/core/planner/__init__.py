"""One planning cycle, stage by stage."""
