"""ClusterReading: a cluster that answers, as a delegated node."""

from __future__ import annotations

from msgspec import Struct

from stoker.core.model.resources import (
    CPU,
    GPU,
    MEMORY,
    POOL_PREFIX,
    DeviceFacts,
    NodeFacts,
    PlacementMode,
)

ENDLESS = 1_000_000_000
"""Capacity of the pools of a cluster: its own scheduler and `ahead` bound what is handed over."""


class ClusterReading(Struct, frozen=True):
    """What is known of a cluster."""

    products: tuple[str, ...] | None
    """Models of its GPUs; None: it may not be asked."""
    ahead: int
    pilot: NodeFacts | None = None
    """What the pilots of the cluster are; None: it has none."""
    cores: int = 0
    memory_total: int = 0
    memory_available: int = 0

    def node_facts(self, name: str) -> NodeFacts:
        """Return pools without end: the cluster decides what is free."""
        plain = DeviceFacts(POOL_PREFIX, ENDLESS)
        model = " ".join(self.products or ()) or None
        types: dict[str, tuple[DeviceFacts, ...]] = {
            CPU: (plain,),
            MEMORY: (plain,),
            GPU: (DeviceFacts(POOL_PREFIX, ENDLESS, model=model),),
        }
        return NodeFacts(
            name, types, placement=PlacementMode.DELEGATED, max_in_flight=self.ahead,
            takes_gangs=True, pilot=self.pilot,
        )  # fmt: skip
