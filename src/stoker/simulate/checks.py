"""What must hold after every step of every simulation, each as a sentence when it does not."""

from __future__ import annotations

from collections import Counter
from typing import Any

from stoker.core.restore import restore
from stoker.core.state import State
from stoker.simulate.driver import Driver
from stoker.simulate.portrait import Mirror, portrait


def over_commitments(state: State) -> list[str]:
    """Devices of which more is held than there is, recounted from the running attempts."""
    held: Counter[tuple[str, str, str]] = Counter()
    for job in state.running.values():
        for part in job.placement.parts if job.placement else ():
            for take in part.takes:
                held[part.node, take.type, take.device] += take.amount
    found = []
    for (node, type, name), amount in held.items():
        device = state.cluster.nodes[node].by_name.get((type, name))
        if device is None:
            found.append(f"{type} {name} is held and not in the ledger")
        elif device.facts.capacity - device.free != amount:
            found.append(f"the ledger of {type} {name} is wrong: {amount} is held")
        elif amount > device.facts.capacity and not device.gone:
            found.append(f"{type} {name} is over-committed: {amount}")
    return found


def double_starts(driver: Driver) -> list[str]:
    """Attempts started more than once, and jobs with two processes at a time."""
    found = [
        f"attempt {key[1]} of job {key[0]} was started {times} times"
        for key, times in Counter(driver.machine.started).items()
        if times > 1
    ]
    living = Counter(job for job, _ in driver.machine.processes)
    return found + [f"job {job} has {n} processes at once" for job, n in living.items() if n > 1]


def unaccounted_processes(driver: Driver) -> list[str]:
    """Processes of jobs that hold no devices: they would share by accident."""
    running = driver.engine.state.running
    return [
        f"attempt {attempt} of job {job} runs and holds nothing"
        for job, attempt in driver.machine.processes
        if job not in running or running[job].attempt != attempt
    ]


def difference(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Where two portraits differ, part by part."""
    found = []
    for part, left in one.items():
        right = other[part]
        if left == right:
            continue
        if isinstance(left, dict):
            keys = [key for key in {**left, **right} if left.get(key) != right.get(key)]
            found += [f"{part} {key}: {left.get(key)} != {right.get(key)}" for key in keys]
        else:
            found.append(f"{part}: {left} != {right}")
    return found


def memory_differs(driver: Driver, mirror: Mirror) -> list[str]:
    """Where live state, state read back, and state replayed from the journal disagree."""
    live = portrait(driver.engine.state)
    snapshot = driver.store.load()
    state = restore(snapshot.rest, snapshot.specs, snapshot.jobs)
    again = difference(live, portrait(mirror.follow(driver.store)))
    back = difference(live, portrait(state))
    return [f"read back: {each}" for each in back] + [f"replayed: {each}" for each in again]
