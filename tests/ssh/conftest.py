"""Fixtures of the ssh suites: the cluster, and a home that reaches it."""

from e2e.conftest import idle
from ssh.ssh_cluster import cluster, field, shared_cluster

__all__ = ["cluster", "field", "idle", "shared_cluster"]
