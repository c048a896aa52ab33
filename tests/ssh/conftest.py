"""Fixtures of the ssh suites: the lab, and a home that reaches it."""

from e2e.conftest import idle
from ssh.ssh_cluster import field, lab, whole_lab

__all__ = ["field", "idle", "lab", "whole_lab"]
