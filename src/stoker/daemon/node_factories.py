"""Executors of other nodes by kind of node; each imports what it needs for the first node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.daemon.nodes.registry import ExecutorFactory
from stoker.daemon.runtime.lazy import Lazy
from stoker.daemon.state_store import ReadBlob
from stoker.executors.local.executor import LocalExecutor
from stoker.executors.report_tokens import ReportAccess

if TYPE_CHECKING:
    from stoker.executors.agent.executor import AgentEnvironment
    from stoker.executors.kubernetes.factory import KubernetesFactory
    from stoker.executors.slurm.factory import SlurmFactory
    from stoker.executors.ssh.factory import SshExecutorFactory


def node_factories(
    sockets: str, notes: str, local: LocalExecutor, secret: ReadBlob, blob: ReadBlob,
    reports: ReportAccess,
) -> dict[str, ExecutorFactory]:  # fmt: skip
    """Return the factories by kind of node."""

    def build_environment() -> AgentEnvironment:
        from stoker.executors.agent.executor import AgentEnvironment
        from stoker.probes.remote_facts import parse

        return AgentEnvironment(
            local.install, notes, local.reactor, secret, blob, parse, local.grace
        )

    def build_ssh() -> SshExecutorFactory:
        from stoker.executors.ssh.factory import SshExecutorFactory

        return SshExecutorFactory(sockets, environment.get())

    def build_slurm() -> SlurmFactory:
        from stoker.executors.slurm.factory import SlurmFactory

        return SlurmFactory(sockets, environment.get())

    def build_kubernetes() -> KubernetesFactory:
        from stoker.executors.kubernetes.factory import KubernetesFactory

        return KubernetesFactory(environment.get(), reports)

    environment, ssh = Lazy(build_environment), Lazy(build_ssh)
    slurm, kubernetes = Lazy(build_slurm), Lazy(build_kubernetes)
    return {
        "ssh": lambda added, records: ssh.get().node(added, records),
        "slurm": lambda added, records: slurm.get().cluster(added, records),
        "slurm-pilot": lambda added, records: slurm.get().pilot(added, records),
        "slurm-jobs": lambda added, records: slurm.get().jobs(added, records),
        "kubernetes": lambda added, records: kubernetes.get().cluster(added, records),
        "kubernetes-pilot": lambda added, records: kubernetes.get().pilot(added, records),
        "kubernetes-jobs": lambda added, records: kubernetes.get().jobs(added, records),
    }
