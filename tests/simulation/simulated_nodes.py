"""This machine and those over SSH: who carries a wish out, and links that break and return."""

from __future__ import annotations

import signal as signals
from collections.abc import Iterable

from simulation.simulated_executor import Faults, ModelledExecutor, parts_on
from simulation.simulated_machine import SimulatedMachine
from simulation.virtual_clock import VirtualClock
from stoker.core.cluster import NodeFacts
from stoker.core.events import (
    Event,
    NodeJoined,
    NodeReached,
    NodeUnreachable,
    StartCalledOff,
)
from stoker.core.instructions import EndAttempt, SignalAttempt, StartProcess
from stoker.core.job import Job
from stoker.core.state import State

SILENCE = 5.0
"""Seconds without a word after which a machine counts as unreachable."""
ANOTHER_TRY = 5.0
"""Seconds until an attempt is planned again of which not all parts were ready."""


class Fleet:
    """One driver's executors, one per machine, with all that they report in one list."""

    def __init__(
        self,
        world: VirtualClock,
        here: str,
        machines: dict[str, tuple[NodeFacts, SimulatedMachine]],
        faults: Faults,
    ) -> None:
        self.world, self.here, self.machines, self.faults = world, here, machines, faults
        self.facts: list[Event] = []
        self.executors = {self.here: self._executor(self.here)}
        self.addresses: dict[str, str] = {}
        self.executors[self.here].listen()

    def _executor(self, node: str) -> ModelledExecutor:
        return ModelledExecutor(self.world, self.machines[node][1], self.facts, self.faults)

    def take_facts(self) -> list[Event]:
        """All that was reported since the last time."""
        heard = list(self.facts)
        self.facts.clear()
        return heard

    # -- wishes -------------------------------------------------------------------------

    def start(self, wish: StartProcess) -> None:
        """Start an attempt where it was put."""
        if wish.placement.more:
            self._start_together(wish)
        else:
            self.executors[wish.placement.node].start(wish)

    def _start_together(self, wish: StartProcess) -> None:
        """All parts at the same moment, or none of them."""
        key, parts = (wish.job, wish.attempt), wish.placement.parts
        executors = [self.executors[part.node] for part in parts]
        taken = executors[0].machine.behaviour(*key).taken
        if taken is not None:
            executors[0].call_off(wish, taken)
            return
        for number, executor in enumerate(executors):
            executor.expect(key, number)
        boots = [executor.machine.boots for executor in executors]

        def all_ready() -> None:
            machines = [executor.machine for executor in executors]
            if any(key in machine.claims for machine in machines):
                return  # another driver has seen to it that it does not start
            same = boots == [machine.boots for machine in machines]
            if same and not any(machine.cut for machine in machines):
                for number, executor in enumerate(executors):
                    executor.start_part(key, number)
                return
            for machine in machines:
                if not machine.cut:
                    machine.take_claim(key)
            self.facts.append(
                StartCalledOff(
                    at=self.world.moment().wall, job=wish.job, attempt=wish.attempt,
                    why="not all of its machines were ready", delay=ANOTHER_TRY,
                )
            )  # fmt: skip

        self.world.after(self.world.random.uniform(0.0, self.faults.start_delay), all_ready)

    def end(self, wish: EndAttempt) -> None:
        """End it wherever it runs."""
        for executor in self.executors.values():
            executor.end(wish)

    def signal(self, wish: SignalAttempt) -> None:
        """Send a signal to all of it."""
        for executor in self.executors.values():
            executor.signal(wish)

    def suspend(self, job: int, attempt: int) -> None:
        """Stop all of it in place."""
        for executor in self.executors.values():
            executor.suspend(job, attempt)

    def resume(self, job: int, attempt: int) -> None:
        """Let all of it go on."""
        for executor in self.executors.values():
            executor.resume(job, attempt)

    def ask_to_stop(self, job: int, attempt: int) -> None:
        """Leave word with all of it."""
        for executor in self.executors.values():
            executor.ask_to_stop(job, attempt)

    def let_go_on(self, job: int, attempt: int) -> None:
        """Take it back everywhere."""
        for executor in self.executors.values():
            executor.let_go_on(job, attempt)

    def tick(self, boot: float) -> float | None:
        """Do what is due; seconds until the next time, None when nothing is."""
        waits = [executor.tick(boot) for executor in self.executors.values()]
        return min((wait for wait in waits if wait is not None), default=None)

    def settle(self) -> None:
        """Every end reported so far is on disk."""
        for executor in self.executors.values():
            executor.settle()

    def adopt(self, jobs: Iterable[Job], same_boot: bool) -> None:
        """Take over what an earlier driver started on its own machine."""
        self.executors[self.here].adopt(parts_on(self.here, jobs), same_boot)

    # -- links --------------------------------------------------------------------------

    def follow(self, state: State) -> None:
        """Reach for machines that were added, let go of removed ones, end what was given up."""
        for node, executor in self.executors.items():
            executor.look_only_after(parts_on(node, state.running.values()))
        for node in [node for node in self.executors if node != self.here]:
            if node not in state.rest.remotes:
                self.machines[node][1].hear = None
                del self.executors[node]
            elif self.executors[node].listens and node in state.rest.strays:
                self.reach(node, state)  # given up in the very moment in which it came back
        for node, added in state.rest.remotes.items():
            if node not in self.executors or self.addresses[node] != added.address:
                self.executors[node] = self._executor(node)
                self.addresses[node] = added.address
                self.reach(node, state)

    def reach(self, node: str, state: State) -> None:
        """Try to reach a machine: take over what is ours there, and end what no longer is."""
        executor, now = self.executors.get(node), self.world.moment()
        if executor is None:
            return
        facts, machine = self.machines[node]
        if machine.cut:
            self._silent(node, "no route to host")
            return
        executor.listen()
        known = parts_on(node, state.running.values())
        for key in [key for key in (*machine.processes, *machine.queue) if key not in known]:
            machine.signal(key, signals.SIGKILL)
        executor.adopt(known)
        ended = state.rest.strays.get(node, ())
        self.facts += [
            NodeJoined(at=now.wall, facts=facts),
            NodeReached(at=now.wall, node=node, ended=ended),
        ]

    def cut(self, node: str) -> None:
        """The link breaks, which is noticed after a while."""
        machine = self.machines[node][1]
        machine.cut, machine.hear = True, None

        def noticed() -> None:
            if machine.cut and node in self.executors:
                self._silent(node, "it does not answer")

        self.world.after(SILENCE, noticed)

    def _silent(self, node: str, why: str) -> None:
        now = self.world.moment()
        self.facts.append(NodeUnreachable(at=now.wall, node=node, why=why, boot=now.boot))
