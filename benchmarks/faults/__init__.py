"""The fault campaign: real daemons and real jobs, killed at random moments, then audited."""
