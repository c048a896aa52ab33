"""All machines together: this one, and those over SSH. Wishes go out by machine, facts come in."""

from __future__ import annotations

import os
import time
from _blake2 import blake2b
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from stoker.core import contract
from stoker.core import events as e
from stoker.core import instructions as i
from stoker.core.cluster import Placement
from stoker.core.job import Job, Spec
from stoker.core.launch import Launch, log_paths
from stoker.core.measure import busy_share, guessed_share, others, worth_telling
from stoker.core.request import CPU, MEMORY
from stoker.core.state import State
from stoker.core.units import THOUSAND
from stoker.daemon.gpus.foreign_usage import ForeignUsageDetector, ForeignUsageThresholds
from stoker.daemon.gpus.memory import GpuMemoryTracker, sessions_on
from stoker.daemon.nodes.checkpoint_affinity import tie
from stoker.daemon.nodes.gang import GangCoordinator
from stoker.daemon.nodes.gang_barrier import Key
from stoker.executors.agent.executor import SHORTAGE, AgentExecutor
from stoker.executors.agent.session.framing import Allowance, ProtocolError
from stoker.executors.agent.transfer.uploads import SnapshotCache
from stoker.executors.local.executor import LocalExecutor
from stoker.executors.reactor import Reactor
from stoker.executors.ssh.address import parse_address
from stoker.probes.remote_facts import RemoteFacts, node_facts, parse
from stoker.schema.job import UploadView

LINGER = 5.0
"""Seconds that the connection to a machine is kept that has been removed."""
SHORT = 15.0
"""Seconds for which a machine that had no room for a job gets no other."""
ATTENTIVE, IDLE = 3.0, 10.0
"""Seconds between looks at a machine, while somebody cares and otherwise."""
CHANGES_BURST, CHANGES_RATE, JOIN_COST = 2000, 2, 200
"""Events that a node's measurements may cause at once and per second, and what new devices cost
of that: a node that reports something else every time does not fill the journal."""

Compose = Callable[[i.StartProcess, Placement], Launch]
Heard = Callable[[Key, int | None, bytes, int], None]
"""Told what was added to a training report elsewhere, and where in it."""

MAX_REFRESH_SECONDS = 15
"""How long a request for fresh readings of nodes waits."""


class RemoteNode(Struct):
    """A machine over SSH and what was last seen of it."""

    executor: AgentExecutor
    added: e.NodeAdded
    judge: ForeignUsageDetector
    changes: Allowance
    look: RemoteFacts | None = None
    seen: float = 0.0
    fresh: bool = False
    """A look that has not been judged yet."""
    joined: RemoteFacts | None = None
    """The look whose devices were reported last."""
    reached: bool = False
    told: bool = False
    """Whether the core knows that it is reached."""
    why: str = ""
    error: str | None = None
    since: float = 0.0
    """When it was last reached, by the wall clock."""
    failed: float = 0.0
    short_until: float | None = None
    """It turned a job away for want of room, and gets no other before then."""
    free_cores: float = 0.0
    """As measured; others use the rest, or we."""


class ExecutorRegistry:
    """Routes wishes to machines and gathers what they report."""

    def __init__(
        self,
        local: LocalExecutor,
        node: str,
        poller: Reactor,
        rules: ForeignUsageThresholds,
        gauges: GpuMemoryTracker,
        run: str,
        notes: str,
        logs: str,
    ) -> None:
        self.local, self.node, self.poller, self.rules = local, node, poller, rules
        self.gauges = gauges
        self.run, self.notes, self.logs = run, notes, logs
        self.machines: dict[str, RemoteNode] = {}
        self.leaving: dict[str, tuple[RemoteNode, float]] = {}
        """Machines that were removed, and until when their connections are kept."""
        self.gangs = GangCoordinator(self)
        self.compose: Compose | None = None
        self.surveys = SnapshotCache()
        self.state: Callable[[], State] = State
        self.heard: Heard = lambda key, part, data, offset: None
        self._events: list[e.Event] = []
        self._tied: dict[int, str] = {}
        """Jobs whose last attempt left its checkpoints on a machine that could not give them."""
        self._known: dict[str, e.NodeAdded] | None = None
        self._refreshing: list[tuple[float, list[str], Callable[[], None]]] = []
        """Since when, of which nodes, and what to call."""

    # -- who belongs to it --------------------------------------------------------------

    def sync(self, state: State) -> None:
        """Have a connection to every machine that is ours, and to no other."""
        wanted = state.rest.remotes
        if self._known == wanted:
            return
        self._known = dict(wanted)
        for name, machine in list(self.machines.items()):
            if wanted.get(name) != machine.added:
                del self.machines[name]
                self._part_with(machine, name in wanted)
        for name, added in wanted.items():
            if name not in self.machines:
                self.machines[name] = self._returned(added) or self._machine(added)
                self._adopt_all(state, name)

    def _part_with(self, machine: RemoteNode, at_once: bool) -> None:
        """Keep the connection for a moment, where all is over: its last ends are not on disk yet,
        only then can they be forgotten there, and batches often follow one another.
        """
        executor = machine.executor
        if at_once or executor.attempts or not executor.connection.up:
            executor.close()
        else:
            self.leaving[executor.name] = machine, time.monotonic() + LINGER

    def _returned(self, added: e.NodeAdded) -> RemoteNode | None:
        """The machine of that name that has just been removed, if it is the same one."""
        machine, _ = self.leaving.pop(added.name, (None, 0.0))
        if machine is None:
            return None
        before = machine.added
        same = (before.address, before.key, before.shared) == (
            added.address, added.key, added.shared,
        )  # fmt: skip
        if not same or not machine.executor.connection.up:
            machine.executor.close()
            return None
        machine.added, machine.judge = (
            added,
            ForeignUsageDetector(added.name, self.rules, self.gauges),
        )
        machine.told, machine.fresh, machine.joined = False, machine.look is not None, None
        return machine

    def _machine(self, added: e.NodeAdded) -> RemoteNode:
        os.makedirs(self.notes, 0o700, exist_ok=True)
        executor = AgentExecutor(
            added.name,
            parse_address(added.address, os.path.expanduser(added.key) if added.key else None),
            added.shared,
            control_path(self.run, added.name),
            self.notes,
            self.local.install,
            self.poller,
            self.surveys,
            self,
            self.local.secret,
            self.local.blob,
            self.local.grace,
        )
        changes = Allowance(CHANGES_BURST, CHANGES_RATE, time.monotonic())
        return RemoteNode(
            executor, added, ForeignUsageDetector(added.name, self.rules, self.gauges), changes
        )

    def _adopt_all(self, state: State, name: str) -> None:
        for job in state.running.values():
            if job.placement is not None and job.placement.on(name) is not None:
                self._adopt(job, state.spec(job), name)

    def _adopt(self, job: Job, spec: Spec, name: str) -> None:
        assert job.placement is not None
        rank = [part.node for part in job.placement.parts].index(name)
        if any(end.part == rank for end in job.ends):
            return  # this part is over, and on record
        logs = log_paths(job, spec, name, self.logs, rank)
        gang = bool(job.placement.more)
        executor = self.machines[name].executor
        unique = contract.unique_id(self.local.install, job.id)
        checkpoints = contract.checkpoints(spec, os.path.dirname(self.logs), unique)
        executor.adopt(job, rank if gang else None, logs, spec, checkpoints)

    def afar(self, placement: Placement) -> bool:
        """Whether any of it is on another machine."""
        return placement.node != self.node or bool(placement.more)

    def uploads(self, job: Job) -> list[UploadView]:
        """The uploads of a job's files that are under way, one for each node."""
        found, now = [], time.monotonic()
        for part in job.placement.parts if job.placement is not None else ():
            machine = self.machines.get(part.node)
            key = (job.id, job.attempt)
            transfer = machine.executor.transfer(key) if machine is not None else None
            if transfer is not None:
                found.append(
                    UploadView(
                        node=part.node,
                        sent_bytes=transfer.sent,
                        total_bytes=transfer.total,
                        seconds_left=transfer.seconds_left(now),
                        text=transfer.text(part.node, now),
                    )
                )
        return found

    # -- wishes -------------------------------------------------------------------------

    def start(self, wish: i.StartProcess) -> None:
        """Start an attempt where it was placed."""
        placement = wish.placement
        if placement.more:
            self.gangs.start(wish)
            return
        executor = self.executor(placement.node)
        if executor is not None:
            executor.start(wish, self.order(wish, placement))
            return
        self.call_off(wish, f"{placement.node} has been removed")

    def call_off(self, wish: i.StartProcess, why: str) -> None:
        """It does not begin after all."""
        self._events.append(
            e.StartCalledOff(at=time.time(), job=wish.job, attempt=wish.attempt, why=why)
        )

    def executor(self, name: str) -> AgentExecutor | None:
        """A machine over SSH, if it is one of ours."""
        machine = self.machines.get(name)
        return machine.executor if machine is not None else None

    def order(self, wish: i.StartProcess, part: Placement) -> Launch:
        """What exactly is to be started on a part's machine."""
        assert self.compose is not None
        return self.compose(wish, part)

    def address(self, name: str) -> str | None:
        """Where other machines find it: at the address by which we reach it."""
        machine = self.machines.get(name)
        if machine is None:
            return None
        return (machine.look.address if machine.look else None) or machine.executor.address.host

    def our_address(self, seen_from: list[str]) -> str:
        """The address from which those machines see us come."""
        looks = [self.machines[name].look for name in seen_from if name in self.machines]
        return next((look.client for look in looks if look and look.client), self.node)

    def _with(self, key: Key) -> list[AgentExecutor]:
        return [
            machine.executor
            for machine in self.machines.values()
            if key in machine.executor.attempts
        ]

    def end(self, wish: i.EndAttempt) -> None:
        """End it wherever it runs."""
        key = (wish.job, wish.attempt)
        self.gangs.end(key)
        for executor in self._with(key):
            executor.end(wish)

    def signal(self, wish: i.SignalAttempt) -> None:
        """Pass a signal on."""
        for executor in self._with((wish.job, wish.attempt)):
            executor.signal(wish)

    def ask_to_stop(self, key: Key, why: str) -> None:
        """Ask the first part of an attempt to stop at its next safe point."""
        for executor in self._with(key):
            if not executor.attempts[key].part:
                executor.ask_to_stop(key, why)

    def name_stop(self, key: Key, part: int, epoch: int) -> None:
        """Tell another part before which epoch all of them stop."""
        for executor in self._with(key):
            if executor.attempts[key].part == part:
                executor.name_stop(key, epoch)

    def suspend(self, job: int, attempt: int) -> None:
        """Stop it in place."""
        for executor in self._with((job, attempt)):
            executor.suspend(job, attempt)

    def resume(self, job: int, attempt: int) -> None:
        """Let it go on."""
        for executor in self._with((job, attempt)):
            executor.resume(job, attempt)

    def follow(self, job: int) -> None:
        """Copy this job's output here quickly for a while: a client reads it as it grows."""
        for machine in self.machines.values():
            machine.executor.follow(job)

    def look_now(self, names: list[str]) -> None:
        """Somebody wants to know how these are: look at them, or try to reach them."""
        for name in names:
            executor = self.machines[name].executor
            executor.measure_at = time.monotonic()
            executor.connection.hurry()

    def when_refreshed(self, names: list[str], callback: Callable[[], None]) -> None:
        """Call back once all of these nodes were read again or found unreachable."""
        self._refreshing.append((time.monotonic(), names, callback))
        self._report_refreshed()

    def _report_refreshed(self) -> None:
        waiting, self._refreshing = self._refreshing, []
        for since, names, callback in waiting:
            if all(self._is_refreshed(name, since) for name in names):
                callback()
            elif time.monotonic() < since + MAX_REFRESH_SECONDS:
                self._refreshing.append((since, names, callback))

    def _is_refreshed(self, name: str, since: float) -> bool:
        node = self.machines.get(name)
        if node is None or node.failed > since:
            return True
        return node.told and node.seen > since and not node.fresh

    # -- what machines say (called by their executors) ----------------------------------

    def reached(self, machine: AgentExecutor) -> None:
        """Everything there is accounted for."""
        if (found := self._there(machine.name)) is not None:
            found.reached = True

    def silent(self, machine: AgentExecutor, why: str) -> None:
        """Tell the core, once and whenever the reason changes."""
        found = self.machines.get(machine.name)
        if found is None:
            return
        found.failed = time.monotonic()
        first = found.told or found.why != why
        found.reached = found.told = found.fresh = False
        found.look, found.why = None, why
        self.gauges.clear(machine.name)
        if first:
            boot = time.clock_gettime(time.CLOCK_BOOTTIME)
            self._events.append(
                e.NodeUnreachable(at=time.time(), node=machine.name, why=why, boot=boot)
            )

    def measured(self, machine: AgentExecutor, text: bytes) -> None:
        """It said what it has."""
        found = self.machines.get(machine.name)
        if found is None:
            return  # it was removed a moment ago
        look = parse(text)
        if not look.complete:
            machine.measure_at = time.monotonic() + ATTENTIVE
            return
        if look.hung:
            # The driver is stuck: go by what was seen of its GPUs before, rather than lose them.
            found.error, found.seen = look.reading.error, time.monotonic()
            machine.measure_at = time.monotonic() + IDLE
            if found.look is not None:
                return
        machine.know(look.home, look.tools)
        before, found.look = found.look, look
        found.fresh, found.seen, found.error = True, time.monotonic(), look.reading.error
        self._measure_others(found, before, look)
        if found.short_until is not None and time.monotonic() >= found.short_until:
            found.short_until = None
            self._events.append(e.NodeClosed(at=time.time(), node=machine.name))
        state = self.state()
        cares = bool(len(state.line) or state.running)
        machine.measure_at = time.monotonic() + (ATTENTIVE if cares else IDLE)

    def _measure_others(
        self, machine: RemoteNode, before: RemoteFacts | None, look: RemoteFacts
    ) -> None:
        share = busy_share(before.jiffies, look.jiffies) if before is not None else None
        if share is None:
            share = guessed_share(look.load1, look.cores)
        machine.free_cores = look.cores * (1 - share)
        state, name = self.state(), machine.added.name
        held = {CPU: 0, MEMORY: 0}
        for job in state.running.values():
            part = job.placement.on(name) if job.placement is not None else None
            for take in part.takes if part is not None else ():
                if take.type in held:
                    held[take.type] += take.amount
        now = others(
            look.cores, share, held[CPU], look.memory_total, look.memory_available, held[MEMORY]
        )
        told = state.rest.others.get(name, (0, 0))
        if worth_telling(told, now, (look.cores * THOUSAND, look.memory_total)):
            self._events.append(
                e.NodeMeasured(at=time.time(), node=name, cpus=now[0], memory=now[1])
            )

    def ready(self, machine: AgentExecutor, key: Key, port: int) -> None:
        """A part of an attempt on several machines waits for the others."""
        self.gangs.ready(machine, key, port)

    def left_there(self, machine: AgentExecutor, key: Key) -> None:
        """Its checkpoints could not be carried: tie the job to the machine that has them."""
        self._tied[key[0]] = machine.name

    def trains(self, job: int) -> bool:
        """Whether it is a training job: its parts get TF_CONFIG."""
        state = self.state()
        return state.spec(state.jobs[job]).training is not None

    def strays(self, name: str) -> list[Key]:
        """What was restarted elsewhere while the machine was silent."""
        return list(self.state().rest.strays.get(name, ()))

    def known(self, key: Key) -> bool:
        """Whether the core still waits for the end of this attempt."""
        job = self.state().running.get(key[0])
        return job is not None and job.attempt == key[1]

    def superseded(self, key: Key) -> bool:
        """Whether its job has ended since, or is at a later attempt."""
        job = self.state().jobs.get(key[0])
        if job is None or key[1] > job.attempt:
            return False
        return job.finished or key[1] < job.attempt

    def next_id(self) -> int:
        """Return the id of the next job: the journal knows of none from it on."""
        return self.state().rest.next_id

    # -- facts --------------------------------------------------------------------------

    def facts(self, state: State) -> list[e.Event]:
        """What has happened on all machines since this was last asked."""
        for name, machine in self.machines.items():
            facts, machine.executor.facts = machine.executor.facts, []
            told = 0
            try:
                for fact in facts:
                    told += 1
                    self._events += self.gangs.of_part(name, fact)
                    self._events += self._turned_away(name, machine, fact)
                    self._events += self._tie(state, fact)
            finally:  # an internal error loses no other fact than its own
                machine.executor.facts = facts[told:] + machine.executor.facts
            self._events += self._standing(state, name, machine)
        found, self._events = self._events, []
        later, self.gangs.events = self.gangs.events, []
        return found + later

    def _turned_away(self, name: str, machine: RemoteNode, fact: e.Event) -> list[e.Event]:
        """A machine that had no room for a job gets no other for a while."""
        if not isinstance(fact, e.StartCalledOff) or fact.delay < SHORTAGE or not machine.told:
            return []
        closed = machine.short_until is not None
        machine.short_until = time.monotonic() + SHORT
        return [] if closed else [e.NodeClosed(at=fact.at, node=name, why=fact.why)]

    def _tie(self, state: State, fact: e.Event) -> list[e.Event]:
        """What follows the end of an attempt whose checkpoints stay where it ran."""
        if not isinstance(fact, e.ProcessExited | e.AttemptLost):
            return []
        job, name = state.jobs.get(fact.job), self._tied.pop(fact.job, None)
        well = isinstance(fact, e.ProcessExited) and fact.code == 0
        if job is None or name is None or fact.part is not None or well:
            return []
        return tie(state, job, name, fact.at)

    def of_this_machine(self, facts: list[e.Event]) -> list[e.Event]:
        """Facts of the executor here, some of which are about one part of several."""
        if not self.gangs.nodes:
            return facts
        return [told for fact in facts for told in self.gangs.of_part(self.node, fact)]

    def _standing(self, state: State, name: str, machine: RemoteNode) -> list[e.Event]:
        """First what a machine has, then who is on it, and only then that it may be used."""
        look = machine.look
        if look is None or not machine.reached:
            return []
        facts = node_facts(name, look)
        now = time.time()
        if state.rest.nodes.get(name) != facts:
            # Once for each look: while the journal cannot be written, it would not end.
            machine.fresh = machine.joined is not look and self._may_change(machine, JOIN_COST)
            machine.joined = look
            return [e.NodeJoined(at=now, facts=facts)] if machine.fresh else []
        if not machine.fresh:
            return []
        machine.fresh = False
        ours = look.owner_lookup(self.local.install, sessions_on(state, name))
        running = {(job.id, job.attempt) for job in state.running.values()}

        def whose(pid: int) -> Key | None:
            # An attempt that the journal does not know uses its GPU like anything else.
            return key if (key := ours(pid)) in running else None

        told = machine.judge.update(state, look.reading, whose, look.identify)
        if not self._may_change(machine, len(told)):
            told = []
        if not machine.told:
            machine.told, machine.why, machine.since = True, "", now
            ended = machine.executor.ended_strays()
            told.append(e.NodeReached(at=now, node=name, ended=ended))
        return told

    @staticmethod
    def _may_change(machine: RemoteNode, cost: int) -> bool:
        """Whether what a node reports is recorded, or it has changed too often."""
        try:
            machine.changes.spend(cost, time.monotonic())
        except ProtocolError:
            return False
        return True

    @property
    def pending(self) -> bool:
        """Whether there is anything to report."""
        return bool(self._events or self.gangs.events) or any(
            machine.executor.facts or (machine.fresh and machine.reached)
            for machine in self.machines.values()
        )

    def after(self, state: State, events: Sequence[e.Event]) -> None:
        """Keep up with what was decided."""
        if any(isinstance(event, e.NodeAdded | e.NodeRemoved) for event in events):
            self.sync(state)
        for event in events:
            if isinstance(event, e.AttemptAbandoned) and event.node in self.machines:
                # Should it have come back just now: it must not go on there, so all begins anew.
                self.machines[event.node].executor.connection.renew()
        self.gangs.forget([key for key in self.gangs.nodes if not self.known(key)])

    # -- time and ends ------------------------------------------------------------------

    def tick(self, boot: float) -> float | None:
        """Do what is due; seconds until the next time."""
        self._report_refreshed()
        waits = [machine.executor.tick(boot) for machine in list(self.machines.values())]
        waits += [self._let_go(name) for name in list(self.leaving)]
        known = [wait for wait in waits if wait is not None]
        return min(known) if known else None

    def _let_go(self, name: str) -> float | None:
        machine, until = self.leaving[name]
        wait = until - time.monotonic()
        if wait > 0 and machine.executor.connection.up:
            return wait
        del self.leaving[name]
        machine.executor.close()
        return None

    def take_settled(self) -> dict[str, list[Key]]:
        """The ends that were reported since this was last asked."""
        found = {}
        for name in (*self.machines, *self.leaving):
            machine = self._there(name)
            if machine is not None and machine.executor.settled:
                found[name], machine.executor.settled = machine.executor.settled, []
        return found

    def settle(self, keys: dict[str, list[Key]]) -> None:
        """These are on disk now."""
        for name, ended in keys.items():
            machine = self._there(name)
            if machine is not None:
                machine.executor.settle(ended)

    def _there(self, name: str) -> RemoteNode | None:
        """A machine to which there may be a connection."""
        return self.machines.get(name) or self.leaving.get(name, (None, 0.0))[0]

    def figures(self, name: str) -> dict[str, dict[str, Any]]:
        """The last figures of a machine's GPUs, by UUID."""
        machine = self.machines.get(name)
        return machine.judge.latest if machine is not None else {}

    def close(self) -> None:
        """Let all connections go; what runs there goes on."""
        for machine in (*self.machines.values(), *(each for each, _ in self.leaving.values())):
            machine.executor.close()


def control_path(run: str, name: str) -> str:
    """The socket of a machine's connection. Short: ssh makes it longer, and there is a limit."""
    return f"{run}/ssh-{blake2b(name.encode(), digest_size=4).hexdigest()}"
