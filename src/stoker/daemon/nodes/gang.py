"""Attempts on several machines: their parts are brought together, and speak with one voice."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from typing import Protocol

from msgspec.structs import replace

from stoker.core import contract
from stoker.core import events as e
from stoker.core import instructions as i
from stoker.core.cluster import Placement
from stoker.core.job import Job
from stoker.core.launch import Launch, several
from stoker.daemon.nodes.gang_barrier import BarrierActions, GangBarrier, Key
from stoker.executors.agent.executor import AgentExecutor
from stoker.executors.local.executor import LocalExecutor

GATE = 60
"""Seconds that a part waits for the others."""
TRY_AGAIN = 10.0
"""Seconds before an attempt is tried again whose parts did not come together."""


class Machines(Protocol):
    """What gangs need of the fleet."""

    local: LocalExecutor
    node: str

    def executor(self, name: str) -> AgentExecutor | None:
        """A machine over SSH."""

    def address(self, name: str) -> str | None:
        """Where other machines find it, as far as anybody knows."""

    def our_address(self, seen_from: list[str]) -> str:
        """Where those machines find this one."""

    def trains(self, job: int) -> bool:
        """Whether it is a training job: its parts get TF_CONFIG."""

    def order(self, wish: i.StartProcess, part: Placement) -> Launch:
        """What exactly is to be started on a part's machine."""


class GangCoordinator:
    """Which attempts have several parts, and how far those have come."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.nodes: dict[Key, tuple[str, ...]] = {}
        """The machine of each part, by rank."""
        self.musters: dict[Key, GangBarrier] = {}
        self.events: list[e.Event] = []

    def adopt(self, jobs: Iterable[Job]) -> None:
        """Attempts that an earlier driver began: how far did it get?"""
        for job in jobs:
            if job.placement is not None and job.placement.more:
                muster = self._gather(i.StartProcess(job.id, job.attempt, job.placement))
                for end in job.ends:
                    muster.live(end.part)

    def start(self, wish: i.StartProcess) -> None:
        """Have every part claimed and ready; the last to be so makes all of them go."""
        muster = self._gather(wish)
        for rank, part in enumerate(wish.placement.parts):
            executor = self.machines.executor(part.node)
            if executor is not None:
                executor.start(wish, self._order(wish, rank), rank, GATE)
            elif part.node == self.machines.node:
                muster.ready(rank, _free_port())
            else:
                muster.none(rank, f"{part.node} has been removed", failed=False)
        self._carry_on(muster)

    def _gather(self, wish: i.StartProcess) -> GangBarrier:
        muster = GangBarrier.of(wish)
        self.nodes[muster.key] = tuple(part.node for part in wish.placement.parts)
        self.musters[muster.key] = muster
        return muster

    def _order(self, wish: i.StartProcess, rank: int) -> Launch:
        part = wish.placement.parts[rank]
        nodes = self.nodes[wish.job, wish.attempt]
        return several(self.machines.order(wish, part), rank, nodes)

    def ready(self, machine: AgentExecutor, key: Key, port: int) -> None:
        """A part waits for the others."""
        muster = self.musters.get(key)
        if muster is None:
            machine.release(key)
            return
        muster.ready(self.nodes[key].index(machine.name), port)
        self._carry_on(muster)

    def end(self, key: Key) -> None:
        """It is not wanted any more: a part here that has not begun never will."""
        muster, here = self.musters.get(key), self.machines.node
        if muster is None or here not in self.nodes[key] or key in self.machines.local.attempts:
            return
        muster.none(self.nodes[key].index(here), "cancelled before it was started", failed=False)
        self._carry_on(muster)

    def of_part(self, node: str, fact: e.Event) -> list[e.Event]:
        """What a machine says about an attempt, as what it means for the whole of it."""
        key = (getattr(fact, "job", 0), getattr(fact, "attempt", -1))
        if key not in self.nodes or node not in self.nodes[key]:
            return [fact]
        rank, muster = self.nodes[key].index(node), self.musters.get(key)
        match fact:
            case e.StartCalledOff() | e.StartFailed() if muster is not None:
                muster.none(rank, fact.why, isinstance(fact, e.StartFailed))
                self._carry_on(muster)
                return []
            case e.StartCalledOff():
                job, attempt = key
                return [
                    e.AttemptLost(at=fact.at, job=job, attempt=attempt, why=fact.why, part=rank)
                ]
            case e.ProcessStarted() | e.ProcessExited() | e.AttemptLost() | e.StartFailed():
                if muster is not None:
                    muster.live(rank)
                    self._carry_on(muster)
                return [replace(fact, part=rank)]
        return [fact]

    def forget(self, over: list[Key]) -> None:
        """These attempts are over."""
        for key in over:
            del self.nodes[key]
            self.musters.pop(key, None)

    # -- what follows from how they stand -------------------------------------------------

    def _carry_on(self, muster: GangBarrier) -> None:
        orders, key = muster.orders(), muster.key
        if orders.over:
            del self.musters[key]
        self._carry_out(muster, orders)
        job, attempt = key
        now = time.time()
        for rank in orders.lost:
            why = "it was not started with the others"
            self.events.append(e.AttemptLost(at=now, job=job, attempt=attempt, why=why, part=rank))
        if orders.off is None:
            return
        del self.nodes[key]
        if orders.failed:
            self.events.append(e.StartFailed(at=now, job=job, attempt=attempt, why=orders.off))
        else:
            self.events.append(
                e.StartCalledOff(at=now, job=job, attempt=attempt, why=orders.off, delay=TRY_AGAIN)
            )

    def _carry_out(self, muster: GangBarrier, orders: BarrierActions) -> None:
        nodes = self.nodes[muster.key]
        for rank in orders.release:
            executor = self.machines.executor(nodes[rank])
            if executor is None:  # here: it only waits for our word
                muster.none(rank, muster.why, muster.failed)
                self._carry_on(muster)
                return
            executor.release(muster.key)
        addresses = self._addresses(nodes) if orders.go else []
        for rank in orders.go:
            names = self._meeting_point(muster, addresses, rank)
            executor = self.machines.executor(nodes[rank])
            if executor is not None:
                executor.go(muster.key, names)
            else:
                self._start_here(muster, rank, names)

    def _start_here(self, muster: GangBarrier, rank: int, names: dict[str, str]) -> None:
        order = self._order(muster.wish, rank)
        self.machines.local.start(muster.wish, replace(order, extra=order.extra | names))

    def _addresses(self, nodes: tuple[str, ...]) -> list[str]:
        """Where the parts find each other."""
        others = [node for node in nodes if node != self.machines.node]
        return [self.machines.address(node) or self.machines.our_address(others) for node in nodes]

    def _meeting_point(
        self, muster: GangBarrier, addresses: list[str], rank: int
    ) -> dict[str, str]:
        """Where the parts find the first one, or all others."""
        found = {"MASTER_ADDR": addresses[0], "MASTER_PORT": str(muster.ports[0])}
        if self.machines.trains(muster.wish.job):
            ends = zip(addresses, muster.ports, strict=True)
            workers = [f"{address}:{port}" for address, port in ends]
            found["TF_CONFIG"] = contract.tf_config(workers, rank)
        return found


def _free_port() -> int:
    """A port here that nothing listens on."""
    with socket.socket() as found:
        found.bind(("", 0))
        port: int = found.getsockname()[1]
    return port
