"""Alarms: samples of GPUs, reports and logs for the rules in the core."""
