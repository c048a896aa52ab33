"""Free resources after a placement, for tests of fragmentation and of the index."""

from stoker.core.cluster.fragmentation import FreeResources, ResourceDemand, remainders
from stoker.core.model.units import THOUSAND


def after_placement(
    free: FreeResources, demand: ResourceDemand, remainder: int = 0
) -> FreeResources:
    """Return what is left; the part of a GPU is taken from this remainder, or the smallest."""
    whole, part = divmod(demand.gpus, THOUSAND)
    gpus = [*free.gpus[whole:], *[0] * whole]
    if part:
        remainder = remainder or remainders(free, demand)[0]
        gpus.remove(remainder)
        gpus.append(remainder - part)
    named = dict(demand.more)
    return FreeResources(
        tuple(sorted(gpus, reverse=True)),
        free.cpu - demand.cpu,
        free.mem - demand.mem,
        free.model,
        tuple((name, amount - named.get(name, 0)) for name, amount in free.more),
    )
