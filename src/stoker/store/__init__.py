"""The journal and its projections: what survives a crash."""
