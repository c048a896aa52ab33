"""Alarms from samples of GPUs and jobs: idle, unused, hung, NaN, hot, ECC, Xid, over-requested."""
