"""KubernetesFactory: executors of Kubernetes clusters and of the pilots in them."""

from __future__ import annotations

import importlib.util
import os
from functools import partial

from stoker.core.events import NodeAdded
from stoker.core.model.resources import NodeFacts
from stoker.executors.agent.executor import AgentEnvironment
from stoker.executors.clusters import job_prefix
from stoker.executors.kubernetes.api.client import ApiClient
from stoker.executors.kubernetes.handover.executor import HandoverExecutor, HandoverSettings
from stoker.executors.kubernetes.handover.pod_template import PodTemplate
from stoker.executors.kubernetes.kubectl import Kubectl
from stoker.executors.kubernetes.monitor import PilotMonitor
from stoker.executors.kubernetes.options import KubernetesOptions, parse_options
from stoker.executors.kubernetes.pilot import Pilot, PilotExecutor
from stoker.executors.kubernetes.pilot_pod import build_pilot, selector
from stoker.executors.kubernetes.pinned_pods import PinnedPods, release_orphans
from stoker.executors.kubernetes.sharing_pilot import SharingPilotExecutor
from stoker.executors.pilot_cluster import PilotClusterExecutor
from stoker.executors.port import AttemptRecords, Executor
from stoker.executors.report_tokens import ReportAccess

ORPHAN_SECONDS = 10.0
"""From the first pilot of a cluster until pods of earlier pilots are looked for."""


class KubernetesFactory:
    """Creates the executors of all Kubernetes clusters; those of one cluster share its monitor."""

    def __init__(self, environment: AgentEnvironment, reports: ReportAccess) -> None:
        self.environment, self.reports = environment, reports
        self._monitors: dict[str, PilotMonitor] = {}
        self._apis: dict[str, ApiClient] = {}
        """Of the pods beside pilots, by cluster."""

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
        pilot = options.pilot.node_facts("pilot") if options.has_pilots else None
        settings = self._settings(options.template(cluster), options, pilot)
        return HandoverExecutor(added.name, self._api(options), self.environment, records, settings)

    def pilot(self, added: NodeAdded, records: AttemptRecords) -> PilotExecutor:
        """Return the executor of a pilot."""
        os.makedirs(self.environment.notes, 0o700, exist_ok=True)
        cluster, job = added.options["cluster"], added.options["job"]
        options = parse_options(_cluster_options(added))
        manifest = build_pilot(job, self.environment.install, cluster, options)
        monitor = self._monitor(cluster, options)
        pilot = Pilot(added.name, job, manifest, added.at)
        common = (pilot, options.pilot, monitor, self.environment, records, added.shared)
        if not options.pins_pods or importlib.util.find_spec("lightkube") is None:
            return PilotExecutor(*common)
        api = self._pods_api(cluster, options, monitor)
        settings = self._settings(options.template(cluster), options)
        pods = PinnedPods(added.name, job, api, self.environment, records, settings)
        return SharingPilotExecutor(*common, pods)

    def _pods_api(
        self, cluster: str, options: KubernetesOptions, monitor: PilotMonitor
    ) -> ApiClient:
        """Return the client that the pods beside all pilots of a cluster share."""
        api = self._apis.get(cluster)
        if api is not None and not api.is_closed:
            return api
        api = self._apis[cluster] = self._api(options)
        install = self.environment.install
        release = partial(
            release_orphans, api, install, job_prefix(install, cluster), monitor.is_watched
        )
        self.environment.reactor.call_later(ORPHAN_SECONDS, release)
        return api

    def _api(self, options: KubernetesOptions) -> ApiClient:
        return ApiClient(
            self.environment.reactor, options.kubeconfig, options.context, options.namespace
        )

    def _settings(
        self, template: PodTemplate, options: KubernetesOptions, pilot: NodeFacts | None = None
    ) -> HandoverSettings:
        return HandoverSettings(
            template, tuple(_kubectl(options).argv()), options.ahead, pilot,
            report_access=partial(self.reports.describe, options.report_address),
        )  # fmt: skip

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
