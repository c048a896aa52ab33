"""KubernetesFactory: executors of Kubernetes clusters and of the pilots in them."""

from __future__ import annotations

import os
from functools import partial

from stoker.core.events import NodeAdded
from stoker.executors.agent.executor import AgentEnvironment
from stoker.executors.kubernetes.api.client import ApiClient
from stoker.executors.kubernetes.handover.executor import HandoverExecutor, HandoverSettings
from stoker.executors.kubernetes.kubectl import Kubectl
from stoker.executors.kubernetes.monitor import PilotMonitor
from stoker.executors.kubernetes.options import KubernetesOptions, parse_options
from stoker.executors.kubernetes.pilot import Pilot, PilotExecutor
from stoker.executors.kubernetes.pilot_pod import build_pilot, selector
from stoker.executors.pilot_cluster import PilotClusterExecutor
from stoker.executors.port import AttemptRecords, Executor
from stoker.executors.report_tokens import ReportAccess


class KubernetesFactory:
    """Creates the executors of all Kubernetes clusters; those of one cluster share its monitor."""

    def __init__(self, environment: AgentEnvironment, reports: ReportAccess) -> None:
        self.environment, self.reports = environment, reports
        self._monitors: dict[str, PilotMonitor] = {}

    def cluster(self, added: NodeAdded, records: AttemptRecords) -> Executor:
        """Return the executor of a cluster."""
        options = parse_options(added.options)
        if not options.has_pilots:
            return self._handover(added.name, added, options, records)
        monitor = self._monitor(added.name, options)
        monitor.use(_kubectl(options))
        return PilotClusterExecutor(monitor, options.pilot)

    def jobs(self, added: NodeAdded, records: AttemptRecords) -> Executor:
        """Return the executor that hands over what the pilots of a cluster cannot run."""
        options = parse_options(_cluster_options(added))
        return self._handover(added.options["cluster"], added, options, records)

    def _handover(
        self, cluster: str, added: NodeAdded, options: KubernetesOptions, records: AttemptRecords
    ) -> Executor:
        os.makedirs(self.environment.notes, 0o700, exist_ok=True)
        api = ApiClient(
            self.environment.reactor, options.kubeconfig, options.context, options.namespace
        )
        pilot = options.pilot.node_facts("pilot") if options.has_pilots else None
        settings = HandoverSettings(
            options.template(cluster), tuple(_kubectl(options).argv()), options.ahead, pilot,
            partial(self.reports.describe, options.report_address),
        )  # fmt: skip
        return HandoverExecutor(added.name, api, self.environment, records, settings)

    def pilot(self, added: NodeAdded, records: AttemptRecords) -> PilotExecutor:
        """Return the executor of a pilot."""
        os.makedirs(self.environment.notes, 0o700, exist_ok=True)
        cluster, job = added.options["cluster"], added.options["job"]
        options = parse_options(_cluster_options(added))
        manifest = build_pilot(job, self.environment.install, cluster, options)
        monitor = self._monitor(cluster, options)
        pilot = Pilot(added.name, job, manifest, added.at)
        return PilotExecutor(pilot, options.pilot, monitor, self.environment, records, added.shared)

    def _monitor(self, cluster: str, options: KubernetesOptions) -> PilotMonitor:
        monitor = self._monitors.get(cluster)
        if monitor is None or monitor.is_closed:
            labels = selector(self.environment.install, cluster)
            monitor = PilotMonitor(_kubectl(options), labels, self.environment.reactor)
            self._monitors[cluster] = monitor
        return monitor


def _kubectl(options: KubernetesOptions) -> Kubectl:
    return Kubectl(options.context, options.namespace, options.kubeconfig)


def _cluster_options(added: NodeAdded) -> dict[str, str]:
    """Return the options of the cluster that a node belongs to."""
    return {name: value for name, value in added.options.items() if name not in ("cluster", "job")}
