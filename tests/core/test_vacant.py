"""The ledger as if nothing ran, after whatever happened to machines."""

from random import Random

import pytest

from stoker.core.cluster import Cluster, DeviceFacts, NodeFacts, Placement, Take
from stoker.core.policy.vacant import Vacant, vacant


def facts(name: str, gpus: int) -> NodeFacts:
    cards = tuple(DeviceFacts(str(n), memory=1000) for n in range(gpus))
    return NodeFacts(name, {"gpu": cards, "cpu": (DeviceFacts("0", capacity=8000),)})


def seen(ledger: Cluster) -> dict[str, object]:
    """All that a request could see of each machine, and who stands like whom."""
    each = {
        name: (node.closed, [(device.name, device.standing) for device in node.devices()])
        for name, node in ledger.nodes.items()
    }
    alike = sorted(sorted(node.name for node in group) for _, group in ledger.alike())
    return {"nodes": each, "alike": alike}


def anew(cluster: Cluster) -> dict[str, object]:
    found = Vacant(cluster)
    found.refresh(cluster.nodes)
    return seen(found)


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_one_would_see_who_looks_for_the_first_time(seed: int) -> None:
    chance, cluster = Random(seed), Cluster()
    held: list[Placement] = []
    for _ in range(120):
        name = f"n{chance.randrange(5)}"
        node = cluster.nodes.get(name)
        what = chance.randrange(7)
        mine = [each for each in held if each.node == name]
        if node is None or what == 0:
            cluster.join(facts(name, chance.randint(1, 3)), mine)
        elif what == 1 and not mine:
            cluster.leave(name)
        elif what in (2, 3):
            free = [each for each in node.types["gpu"] if each.free == 1000 and not each.gone]
            if free:
                take = Take("gpu", chance.choice(free).name, 1000, 500)
                held.append(Placement(name, (take,)))
                cluster.take(held[-1])
        elif what == 4 and mine:
            over = chance.choice(mine)
            held.remove(over)
            cluster.release(over)
        elif what == 5:
            device = chance.choice(list(node.devices()))
            device.drained = None if device.drained else "fan"
            node.closed = chance.choice((None, "asked for"))
            cluster.changed(name)
        elif what == 6:
            device = chance.choice(node.types["gpu"])
            device.stranger = None if device.stranger else "bob"
            device.stranger_memory = 300 if device.stranger else 0
            cluster.changed(name)
        if chance.random() < 0.6:
            assert seen(vacant(cluster)) == anew(cluster)
    assert all(
        device.free == device.facts.capacity
        for node in vacant(cluster).nodes.values()
        for device in node.devices()
    )
