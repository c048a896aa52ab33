"""Machines over SSH, with nothing installed on them."""
