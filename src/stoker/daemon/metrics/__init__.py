"""Metric series: read from reports, scored for sweeps, kept on disk, downsampled for views."""
