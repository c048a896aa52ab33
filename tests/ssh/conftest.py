"""Fixtures of the ssh suites: the lab, and a home that reaches it."""

from e2e.conftest import idle, pytest_runtest_teardown
from ssh.lab import field, lab, whole_lab

__all__ = ["field", "idle", "lab", "pytest_runtest_teardown", "whole_lab"]
