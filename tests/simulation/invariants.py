"""Invariants checked after every step; each returns a sentence per violation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import Any

from simulation.simulated_daemon import SimulatedDaemon
from simulation.simulated_executor import attempts_on
from simulation.state_comparison import ReplayedState, state_as_dict
from stoker.core.model.job import JobState
from stoker.core.model.resources import PlacementMode
from stoker.core.model.sweep import Sweep, Trial, trial_status
from stoker.core.state.node_updates import held_on
from stoker.core.state.restore import restore
from stoker.core.state.state import State


def over_commitments(state: State) -> list[str]:
    """Devices of which more is held than there is, recounted from the running attempts."""
    held: Counter[tuple[str, str, str]] = Counter()
    for job in state.running.values():
        for part in job.placement.parts if job.placement else ():
            for take in part.allocations:
                held[part.node, take.type, take.device] += take.amount
    found = []
    for (node, type, name), amount in held.items():
        device = state.cluster.nodes[node].by_name.get((type, name))
        if device is None:
            found.append(f"{type} {name} is held and not in the ledger")
        elif device.facts.capacity - device.unallocated != amount:
            found.append(f"the ledger of {type} {name} is wrong: {amount} is held")
        elif amount > device.facts.capacity and not device.removed:
            found.append(f"{type} {name} is over-committed: {amount}")
    return found


def double_starts(driver: SimulatedDaemon) -> list[str]:
    """Attempts started more than once, and jobs of which two attempts run at a time.

    An older one may continue on a node that is out of reach.
    """
    found, living = [], {}
    for name, (_, machine) in driver.machines.items():
        found += [
            f"attempt {key[1]} of job {key[0]} was started {times} times on {name}"
            for key, times in Counter(machine.started).items()
            if times > 1
        ]
        within_reach = name == driver.facts.name or not (machine.cut or _removed(driver, name))
        living.update({(*key, name): within_reach for key in machine.processes})
    newest = {job: attempt for job, attempt, _ in sorted(living)}
    return found + [
        f"attempt {attempt} of job {job} still runs on {name}"
        for (job, attempt, name), within_reach in living.items()
        if within_reach and attempt < newest[job]
    ]


def _removed(driver: SimulatedDaemon, name: str) -> bool:
    return name not in driver.engine.state.record.remotes


def unaccounted_processes(driver: SimulatedDaemon, forgotten: Container[str] = ()) -> list[str]:
    """Processes of jobs that hold no devices: they would share by accident.

    But for those that were given up on a machine that is out of reach. On machines that were
    removed once and are out of reach, it is unknown what runs.
    """
    state, found = driver.engine.state, []
    for name, (_, machine) in driver.machines.items():
        if name != driver.facts.name and _removed(driver, name):
            continue
        known = attempts_on(name, state.running.values())
        if machine.cut:
            known |= set(state.record.abandoned_attempts.get(name, ()))
        found += [
            f"attempt {attempt} of job {job} runs on {name} and holds nothing"
            for job, attempt in (*machine.processes, *machine.queue)
            if (job, attempt) not in known and not (machine.cut and name in forgotten)
        ]
    return found


def idle_strays(driver: SimulatedDaemon) -> list[str]:
    """Machines within reach on which something was given up and never ended."""
    return [
        f"{name} is within reach, and has {strays}"
        for name, strays in driver.engine.state.record.abandoned_attempts.items()
        if not driver.machines[name][1].cut and not driver.registry.pending
    ]


def overfull_queues(state: State) -> list[str]:
    """Delegated nodes on which more attempts wait for their start than may."""
    found = []
    for node, facts in state.record.nodes.items():
        delegated = facts.placement is PlacementMode.DELEGATED
        waiting = {
            job.id
            for job in state.running.values()
            if delegated and job.started_at is None and held_on([job], node)
        }
        if len(waiting) > facts.max_in_flight:
            found.append(f"{len(waiting)} attempts wait on {node}")
    return found


def difference(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Where two states as plain values differ, part by part."""
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


def wronged(driver: SimulatedDaemon, mirror: ReplayedState) -> list[str]:
    """Violations of the invariants of training jobs."""
    for _, machine in driver.machines.values():
        mirror.witness.short.update(machine.reports.short)
    mirror.follow(driver.store)
    found, mirror.witness.wrong = mirror.witness.wrong, []
    return found


def half_trained(state: State) -> list[str]:
    """Training jobs that are complete with fewer or more epochs than they were to have."""
    return [
        f"job {job.id} is complete with {job.progress.epochs} epochs of {training.epochs}"
        for job in state.jobs.values()
        if job.state is JobState.COMPLETED and job.progress is not None
        if (training := state.spec(job).training) is not None
        and training.epochs not in (None, job.progress.epochs)
    ]


def miscounted(state: State) -> list[str]:
    """Sweeps that do not stand as their trials do, recounted from their boards."""
    found = []
    for id, board in state.boards.items():
        sweep, trials = state.sweeps[id], list(board.trials.values())
        counts = Counter(trial_status(each.state, each.score) for each in trials)
        if counts != Counter(sweep.counts):
            found.append(f"sweep {id} has {dict(counts)}, and says {sweep.counts}")
        if [each.number for each in trials] != list(range(sweep.issued)):
            found.append(f"sweep {id} has had {sweep.issued} trials, not {len(trials)}")
        if len(board.keys) != len(trials):
            found.append(f"sweep {id} tries the same parameters twice")
        if (sweep.ended_at is None) != sweep.is_open:
            found.append(f"sweep {id} ended at {sweep.ended_at}, and is open: {sweep.is_open}")
        if sweep.best != _best(sweep, trials):
            found.append(f"the best of sweep {id} is {_best(sweep, trials)}, not {sweep.best}")
    return found


def _best(sweep: Sweep, trials: list[Trial]) -> float | None:
    ends = [
        each.score.value
        for each in trials
        if each.state is JobState.COMPLETED and each.score is not None and each.score.final
    ]
    values = [value for value in ends if value is not None]
    return (max if sweep.maximize else min)(values, default=None)


def memory_differs(driver: SimulatedDaemon, mirror: ReplayedState) -> list[str]:
    """Where live state, state read back, and state replayed from the journal disagree."""
    live = state_as_dict(driver.engine.state)
    snapshot = driver.store.load()
    state = restore(snapshot.rest, snapshot.specs, snapshot.jobs, snapshot.sweeps, snapshot.members)
    again = difference(live, state_as_dict(mirror.follow(driver.store)))
    back = difference(live, state_as_dict(state))
    return [f"read back: {each}" for each in back] + [f"replayed: {each}" for each in again]
