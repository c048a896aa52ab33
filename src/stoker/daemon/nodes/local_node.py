"""NodeFacts of this node: probed, limited, declared or remembered."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from stoker.core.model.resources import GPU, MEMORY, DeviceFacts, NodeFacts
from stoker.core.model.units import THOUSAND
from stoker.daemon.gpus.probe_client import read_once
from stoker.probes import host
from stoker.probes import node_devices as devices
from stoker.probes.declared_resources import (
    Declared,
    inherited_limit,
    limit,
    parse_gpus,
    parse_resources,
)
from stoker.probes.gpu_reading import Reading

SIGNS = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/kfd", "/dev/dxg")
"""Files of GPU drivers: without one of them, no probe is started."""
PROBE_SECONDS = 8.0
"""Time limit of a probe."""


def has_driver(environ: Mapping[str, str]) -> bool:
    """Return whether there may be GPUs; costs a few stat calls, not a process."""
    if any(os.path.exists(path) for path in SIGNS):
        return True
    libraries = filter(None, environ.get("LD_LIBRARY_PATH", "").split(":"))
    return any(os.path.exists(f"{path}/libnvidia-ml.so.1") for path in libraries)


def probe_gpus(environ: Mapping[str, str]) -> Reading:
    """Return the GPUs of this host, limited by an inherited CUDA_VISIBLE_DEVICES."""
    if not has_driver(environ):
        return Reading()
    reading = read_once(PROBE_SECONDS)
    names = inherited_limit(environ)
    if names is None:
        return reading
    kept = limit(reading.facts, names)
    uuids = {gpu.uuid for gpu in kept}
    use = tuple(each for each in reading.use if each.uuid in uuids)
    return Reading(facts=tuple(kept), use=use, error=reading.error)


def build_node_facts(
    reading: Reading, gpus: str | None, resources: str | None, extra: Iterable[str] = ()
) -> NodeFacts:
    """Return the node for the core; `gpus` limits or declares, `extra` only adds."""
    types = devices.pools(host.cores(), host.memory_mib())
    real = devices.gpus(reading.facts)
    if gpus is not None and gpus not in ("all", "none"):
        types[GPU] = _declared(parse_gpus(gpus), real)
    elif gpus != "none":
        types[GPU] = tuple(real)
    for declared in parse_resources(resources) if resources else ():
        types[declared.type] = _declared(declared, real)
    present = types.get(GPU, ())
    missing = dict.fromkeys(
        name for name in extra if not any(_means(facts, name) for facts in present)
    )
    types[GPU] = (*present, *(_named(real, name) for name in missing))
    if not types[GPU]:
        del types[GPU]
    return NodeFacts(host.hostname(), types)


def _means(facts: DeviceFacts, name: str) -> bool:
    return name in (facts.name, facts.uuid)


def _named(real: list[DeviceFacts], name: str, memory: int | None = None) -> DeviceFacts:
    """Return a real GPU under the name that the user gave, or one that is only declared."""
    for facts in real:
        if _means(facts, name):
            return DeviceFacts(
                name=name, index=facts.index, uuid=facts.uuid, model=facts.model,
                memory=facts.memory, vendor=facts.vendor, mig=facts.mig,
                minor=facts.minor,
            )  # fmt: skip
    return DeviceFacts(name=name, index=int(name) if name.isdecimal() else None, memory=memory)


def _declared(declared: Declared, real: list[DeviceFacts]) -> tuple[DeviceFacts, ...]:
    if declared.type == MEMORY:
        return tuple(DeviceFacts(name, amount // THOUSAND) for name, amount in declared.devices)
    if declared.type == GPU:
        return tuple(
            facts if amount == THOUSAND else DeviceFacts(name, amount)
            for name, amount in declared.devices
            for facts in [_named(real, name, declared.memory.get(name))]
        )
    return tuple(DeviceFacts(name, amount) for name, amount in declared.devices)
