"""Recorded workloads, in the formats that others write them."""
