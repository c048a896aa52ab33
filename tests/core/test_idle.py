"""The idle cluster after random changes of nodes equals one that is built from scratch."""

from random import Random

import pytest

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.idle import IdleCluster, idle_cluster
from stoker.core.model.resources import DeviceAllocation, DeviceFacts, NodeFacts, Placement


def facts(name: str, gpus: int) -> NodeFacts:
    devices = tuple(DeviceFacts(str(n), memory=1000) for n in range(gpus))
    return NodeFacts(name, {"gpu": devices, "cpu": (DeviceFacts("0", capacity=8000),)})


def visible(ledger: Cluster) -> dict[str, object]:
    """Return all that a request depends on, by node."""
    free = {node.name: amounts for node, amounts in ledger.modified_free()}
    return {name: (node.named_signature, free.get(name)) for name, node in ledger.nodes.items()}


def rebuilt(cluster: Cluster) -> IdleCluster:
    idle = IdleCluster(cluster)
    idle.refresh()
    return idle


@pytest.mark.parametrize("seed", range(20))
def test_the_idle_cluster_follows_all_changes_of_nodes(seed: int) -> None:
    rng, cluster = Random(seed), Cluster()
    held: list[Placement] = []
    for _ in range(120):
        name = f"n{rng.randrange(5)}"
        node = cluster.nodes.get(name)
        action = rng.randrange(7)
        held_here = [placement for placement in held if placement.node == name]
        if node is None or action == 0:
            cluster.add_node(facts(name, rng.randint(1, 3)), held_here)
        elif action == 1 and not held_here:
            cluster.remove_node(name)
        elif action in (2, 3):
            free = [
                device
                for device in node.types["gpu"]
                if device.unallocated == 1000 and not device.removed
            ]
            if free:
                take = DeviceAllocation("gpu", rng.choice(free).name, 1000, 500)
                held.append(Placement(name, (take,)))
                cluster.allocate(held[-1])
        elif action == 4 and held_here:
            ended = rng.choice(held_here)
            held.remove(ended)
            cluster.release(ended)
        elif action == 5:
            device = rng.choice(list(node.devices()))
            device.drained = None if device.drained else "fan"
            node.unavailable_reason = rng.choice((None, "asked for"))
            cluster.mark_changed(name)
        elif action == 6:
            device = rng.choice(node.types["gpu"])
            device.foreign_user = None if device.foreign_user else "bob"
            device.foreign_memory = 300 if device.foreign_user else 0
            cluster.mark_changed(name)
        if rng.random() < 0.6:
            assert visible(idle_cluster(cluster)) == visible(rebuilt(cluster))
    assert all(
        device.unallocated == device.facts.capacity
        for node in idle_cluster(cluster).nodes.values()
        for device in node.devices()
    )
