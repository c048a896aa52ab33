"""Training reports: format, files, watching."""
