"""Fixtures of the ssh suites: the cluster, and a daemon home that can reach it."""

from e2e.conftest import idle
from ssh.ssh_cluster import cluster, daemon_and_cluster, shared_cluster

__all__ = ["cluster", "daemon_and_cluster", "idle", "shared_cluster"]
