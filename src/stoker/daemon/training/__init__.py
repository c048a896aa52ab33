"""Training jobs: reports in, stop requests out."""
