"""ClusterKind: what the daemon needs to know of each kind of cluster, whatever its scheduler is."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from msgspec import Struct

from stoker.core.events import NodeAdded
from stoker.executors.kubernetes import options as kubernetes
from stoker.executors.pilot_shape import PilotShape
from stoker.executors.slurm import options as slurm


class ClusterOptions(Protocol):
    """The options of a cluster, parsed."""

    @property
    def pilot(self) -> PilotShape:
        """The allocations that join as nodes."""

    @property
    def has_pilots(self) -> bool:
        """Whether allocations are requested that join as nodes."""

    @property
    def hands_over(self) -> bool:
        """Whether attempts are handed over: all, or those that no pilot can run."""


class ClusterKind(Struct, frozen=True):
    """One kind of cluster; its nodes are of the kinds NAME, NAME-pilot and NAME-jobs."""

    name: str
    title: str
    """In messages."""
    scheme: str
    parse: Callable[[Mapping[str, str]], ClusterOptions]
    addition: Callable[..., NodeAdded]
    describe: Callable[[Any], str]
    pilot_options: Callable[[NodeAdded, Any], dict[str, str]]
    """Returns the options of a pilot's node, besides `cluster` and `job`."""
    where: str
    """Where what an address does not say belongs."""

    def pilot(self, cluster: NodeAdded, name: str, install: str, at: float) -> NodeAdded:
        """Return the event that adds a pilot with a new name in the cluster."""
        options = self.pilot_options(cluster, self.parse(cluster.options))
        job = f"{job_prefix(install, cluster.name)}-{secrets.token_hex(4)}"
        return NodeAdded(
            at=at, name=name, address=f"{self.scheme}{cluster.name}", shared=cluster.shared,
            executor=f"{self.name}-pilot", options={"cluster": cluster.name, "job": job, **options},
        )  # fmt: skip


def job_prefix(install: str, cluster: str) -> str:
    """Return what the names of an installation's jobs or pods on a cluster have in common.

    A name is this, a dash and a token without dashes.
    """
    return f"stoker-{install[:8]}-{cluster}"


def _slurm_pilot(_: NodeAdded, options: slurm.SlurmOptions) -> dict[str, str]:
    words = [*options.pilot.sbatch_options(), *options.sbatch]
    return {
        "sbatch": shlex.join(words),
        **({"ssh": options.login} if options.login else {}),
    }


def _kubernetes_pilot(cluster: NodeAdded, options: kubernetes.KubernetesOptions) -> dict[str, str]:
    return {name: value for name, value in cluster.options.items() if name != "ahead"}


KINDS = {
    kind.name: kind
    for kind in (
        ClusterKind(
            "slurm", "Slurm", slurm.SCHEME, slurm.parse_options, slurm.cluster_addition,
            slurm.describe, _slurm_pilot,
            "the login node is given by --ssh, its key in the ssh configuration",
        ),
        ClusterKind(
            "kubernetes", "Kubernetes", kubernetes.SCHEME, kubernetes.parse_options,
            kubernetes.cluster_addition, kubernetes.describe, _kubernetes_pilot,
            "the cluster is given by --context, credentials in the kubeconfig",
        ),
    )
}  # fmt: skip
"""By the kind of the cluster's node."""
EXECUTORS = tuple(name for kind in KINDS for name in (kind, f"{kind}-pilot", f"{kind}-jobs"))
"""All kinds of nodes of clusters."""


def kind_of(added: NodeAdded | None) -> ClusterKind | None:
    """Return the kind of cluster that a node is; None if it is none."""
    return KINDS.get(added.executor) if added is not None else None


def kind_of_address(address: str) -> ClusterKind | None:
    """Return the kind of cluster that an address means; None if it is a host."""
    return next((kind for kind in KINDS.values() if address.startswith(kind.scheme)), None)


def clusters(remotes: Mapping[str, NodeAdded]) -> Iterator[tuple[str, ClusterKind]]:
    """Yield the names of clusters, and their kinds."""
    for name, added in remotes.items():
        if added.executor in KINDS:
            yield name, KINDS[added.executor]
