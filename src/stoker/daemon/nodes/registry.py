"""ExecutorRegistry: routes instructions to the executors of nodes and merges their events."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from stoker.core import events as e
from stoker.core.events.instructions import StartProcess
from stoker.core.launch import training_env as contract
from stoker.core.launch.launch import Launch, log_paths
from stoker.core.model.job import AttemptId, Job
from stoker.core.model.resources import Placement
from stoker.core.state.state import State
from stoker.daemon.gpus.foreign_usage import (
    ForeignUsageDetector,
    ForeignUsageThresholds,
    OnReading,
)
from stoker.daemon.gpus.memory import GpuMemoryTracker
from stoker.daemon.nodes.attempt_records import JournalRecords
from stoker.daemon.nodes.checkpoint_affinity import pin_to_node
from stoker.daemon.nodes.configured import lost_attempts
from stoker.daemon.nodes.gang import GangCoordinator
from stoker.daemon.nodes.node_sink import NodeSink
from stoker.daemon.nodes.remote_node import NodeState, RemoteNode
from stoker.daemon.runtime.clock import system_clock
from stoker.engine import Instant
from stoker.executors.port import (
    Allocation,
    AttemptRecords,
    Executor,
    NodeReading,
    RecoverableAttempt,
)
from stoker.executors.reactor import Reactor
from stoker.schema.job import UploadView

LEAVE_SECONDS = 5.0
"""Time that the connection to a removed node is kept."""
MAX_REFRESH_SECONDS = 15
"""Time that a request for fresh measurements of nodes waits."""
ENDS = e.ProcessExited | e.AttemptLost | e.StartCancelled | e.StartFailed

ExecutorFactory = Callable[[e.NodeAdded, AttemptRecords], Executor]
BuildLaunch = Callable[[StartProcess, int], Launch]
"""Called with the rank of a part."""
OnReportData = Callable[[AttemptId, int | None, bytes, int], None]
"""Called with what was appended to a training report on another node, and at which offset."""


class ExecutorRegistry:
    """The executors of all nodes: that of this node, and one for each remote node."""

    def __init__(
        self,
        local: Executor,
        local_name: str,
        install: str,
        factories: Mapping[str, ExecutorFactory],
        thresholds: ForeignUsageThresholds,
        gpu_memory: GpuMemoryTracker,
        logs: str,
        state: Callable[[], State],
        build_launch: BuildLaunch,
        on_report_data: OnReportData,
        reactor: Reactor,
        clock: Callable[[], Instant] = system_clock,
        on_gpu_reading: OnReading = lambda *_: [],
    ) -> None:
        """`factories` create executors by the kind of a node."""
        self.local, self.local_name, self.install = local, local_name, install
        self.factories, self.thresholds, self.gpu_memory = factories, thresholds, gpu_memory
        self.logs, self.state, self.build_launch = logs, state, build_launch
        self.on_report_data, self.reactor, self.clock = on_report_data, reactor, clock
        self._on_gpu_reading = on_gpu_reading
        self.records = JournalRecords(state)
        self.nodes: dict[str, RemoteNode] = {}
        self.leaving: dict[str, RemoteNode] = {}
        """Nodes that were removed; their connections are still open."""
        self.gangs = GangCoordinator(self)
        self._incoming: deque[tuple[str, e.Event]] = deque()
        """Events of executors by node, as they came."""
        self._outgoing: list[e.Event] = []
        """Events for the core."""
        self._gone: dict[str, str] = {}
        """Nodes that have ended by themselves, and why."""
        self._ended: dict[str, list[AttemptId]] = {}
        """Attempts with ends that were collected and not acknowledged, by node."""
        self._pinned: dict[int, str] = {}
        """Jobs with checkpoints that could not be copied, and the nodes that have them."""
        self._known: dict[str, e.NodeAdded] | None = None
        self._refreshing: list[tuple[float, list[str], Callable[[], None]]] = []
        """Requests for measurements: since when, of which nodes, and what to call."""
        local.open(NodeSink(self, local_name))

    # -- nodes --------------------------------------------------------------------------

    def sync(self, state: State) -> None:
        """Create executors for added nodes and close those of removed ones."""
        wanted = state.record.remotes
        if self._known == wanted:
            return
        self._known = dict(wanted)
        for name, node in list(self.nodes.items()):
            if wanted.get(name) != node.added:
                del self.nodes[name]
                self._leave(node, at_once=name in wanted)
        for name, added in wanted.items():
            if name not in self.nodes:
                self.nodes[name] = self._rejoined(added) or self._create(added)
                self._recover_on(name, self.nodes[name].executor, state.running.values())

    def _leave(self, node: RemoteNode, at_once: bool) -> None:
        """Keep the connection of a removed node for a moment.

        Its last ends are not on disk yet, only then can the node forget them; and batches that
        add and remove nodes often follow one another.
        """
        is_connected = node.state in (NodeState.RECONCILING, NodeState.UP)
        if at_once or node.executor.has_attempts() or not is_connected:
            node.executor.remove()
        else:
            self.leaving[node.name] = node
            close = partial(self._close_left, node)
            node.leave(self.reactor.call_later(LEAVE_SECONDS, close))

    def _close_left(self, node: RemoteNode) -> None:
        """Close the connection of a removed node, unless it was added again."""
        if self.leaving.get(node.name) is node:
            del self.leaving[node.name]
            node.executor.remove()

    def _rejoined(self, added: e.NodeAdded) -> RemoteNode | None:
        """Return the node of that name that was removed a moment ago, if it is the same."""
        node = self.leaving.pop(added.name, None)
        if node is None:
            return None
        if not node.is_reached_like(added) or node.state is not NodeState.LEAVING:
            node.executor.remove()
            return None
        node.rejoin(added, self._detector(added.name))
        return node

    def _create(self, added: e.NodeAdded) -> RemoteNode:
        executor = self.factories[added.executor](added, self.records)
        executor.open(NodeSink(self, added.name))
        return RemoteNode.create(added, executor, self._detector(added.name), self.clock)

    def _detector(self, name: str) -> ForeignUsageDetector:
        return ForeignUsageDetector(
            name, self.thresholds, self.gpu_memory, on_reading=self._on_gpu_reading
        )

    def recover(self, jobs: Iterable[Job], node_restarted: bool) -> None:
        """Find out what became of attempts on this node that an earlier daemon started."""
        jobs = list(jobs)
        self.gangs.recover(jobs)
        self._recover_on(self.local_name, self.local, jobs, node_restarted)

    def _recover_on(
        self, name: str, executor: Executor, jobs: Iterable[Job], node_restarted: bool = False
    ) -> None:
        executor.recover(self._recoverable_on(name, jobs, node_restarted))

    def under_way(self, uid: int) -> list[RecoverableAttempt]:
        """Return the attempts of a user on this node that the journal has under way."""
        state = self.state()
        jobs = [job for job in state.running.values() if state.spec(job).uid == uid]
        return self._recoverable_on(self.local_name, jobs)

    def _recoverable_on(
        self, name: str, jobs: Iterable[Job], node_restarted: bool = False
    ) -> list[RecoverableAttempt]:
        state, attempts = self.state(), list[RecoverableAttempt]()
        for job in jobs:
            ended = {end.part for end in job.ends}
            for rank in self._ranks_on(job, name):
                if rank in ended:
                    continue  # that is journalled
                spec = state.spec(job)
                out, err = log_paths(job, spec, name, self.logs, rank)
                unique = contract.unique_id(self.install, job.id)
                home = os.path.dirname(self.logs)
                checkpoints = contract.checkpoint_directory(spec, home, unique)
                is_gang = job.placement is not None and bool(job.placement.other_parts)
                attempts.append(
                    RecoverableAttempt(
                        job, spec, out, err, rank if is_gang else None, checkpoints, node_restarted
                    )
                )
        return attempts

    def _ranks_on(self, job: Job, name: str) -> list[int]:
        """Return the ranks of a job's parts on a node."""
        nodes = [part.node for part in job.placement.parts] if job.placement is not None else []
        if name != self.local_name:
            return [rank for rank, node in enumerate(nodes) if node == name]
        # This node may have had another name when the attempt was started.
        remotes = self.state().record.remotes
        return [rank for rank, node in enumerate(nodes) if node not in remotes][:1]

    def is_remote(self, placement: Placement) -> bool:
        """Return whether any part of a placement is on another node."""
        return placement.node != self.local_name or bool(placement.other_parts)

    def executor(self, name: str) -> Executor | None:
        """Return the executor of a node; None if the node was removed."""
        if name == self.local_name:
            return self.local
        node = self.nodes.get(name)
        return node.executor if node is not None else None

    def _executors(self) -> list[Executor]:
        return [self.local, *(node.executor for node in self.nodes.values())]

    # -- instructions -------------------------------------------------------------------

    def start(self, instruction: StartProcess) -> None:
        """Start an attempt on the nodes where it was placed."""
        placement = instruction.placement
        if placement.other_parts:
            self.gangs.start(instruction)
            return
        executor = self.executor(placement.node)
        if executor is not None:
            executor.start(self.build_launch(instruction, 0))
        else:
            self.abort_start(instruction, f"{placement.node} has been removed")

    def abort_start(self, instruction: StartProcess, why: str) -> None:
        """Report that an attempt is not started after all."""
        self._outgoing.append(
            e.StartCancelled(
                at=self.clock().wall, job=instruction.job, attempt=instruction.attempt, why=why
            )
        )

    def terminate(self, attempt: AttemptId, grace: float) -> None:
        """Terminate an attempt on every node that has it."""
        for executor in self._executors():
            executor.terminate(attempt, grace)

    def signal(
        self,
        attempt: AttemptId,
        number: int,
        only_if_handled: bool = False,
        to_script: bool = False,
    ) -> None:
        """Send a signal to an attempt on every node that has it."""
        for executor in self._executors():
            executor.signal(attempt, number, only_if_handled, to_script)

    def suspend(self, attempt: AttemptId) -> None:
        """Suspend an attempt on every node that has it."""
        for executor in self._executors():
            executor.suspend(attempt)

    def resume(self, attempt: AttemptId) -> None:
        """Resume an attempt on every node that has it."""
        for executor in self._executors():
            executor.resume(attempt)

    def send_control(self, attempt: AttemptId, rank: int, name: str, text: str) -> None:
        """Write a control file for the part of an attempt with this rank."""
        for executor in self._executors():
            executor.send_control(attempt, rank, name, text)

    def follow_log(self, job: int) -> None:
        """Copy the output of a job more often for a while: a client reads it."""
        for node in self.nodes.values():
            node.executor.follow_log(job)

    def refresh(self, names: Iterable[str]) -> None:
        """Measure these nodes now, or try to reach them."""
        for name in names:
            self.nodes[name].executor.refresh()

    def when_refreshed(self, names: list[str], callback: Callable[[], None]) -> None:
        """Call back once all of these nodes were measured again or found unreachable."""
        self._refreshing.append((self.clock().boot, names, callback))
        self._report_refreshed()

    def _report_refreshed(self) -> None:
        waiting, self._refreshing = self._refreshing, []
        for since, names, callback in waiting:
            if all(self._is_refreshed(name, since) for name in names):
                callback()
            elif self.clock().boot < since + MAX_REFRESH_SECONDS:
                self._refreshing.append((since, names, callback))

    def _is_refreshed(self, name: str, since: float) -> bool:
        node = self.nodes.get(name)
        if node is None or node.failed_at > since:
            return True
        return node.is_up and node.seen > since and not node.is_fresh

    # -- queries ------------------------------------------------------------------------

    def uploads(self, job: Job) -> list[UploadView]:
        """Return the uploads of a job's files that are under way, one for each node."""
        views, now = [], time.monotonic()
        for part in job.placement.parts if job.placement is not None else ():
            executor = self.executor(part.node)
            id = AttemptId(job.id, job.attempt)
            upload = executor.upload_progress(id) if executor is not None else None
            if upload is not None:
                views.append(
                    UploadView(
                        node=part.node,
                        sent_bytes=upload.sent,
                        total_bytes=upload.total,
                        seconds_left=upload.seconds_left(now),
                        text=upload.text(part.node, now),
                    )
                )
        return views

    def address(self, name: str) -> str | None:
        """Return the address by which other nodes reach a node; None if it is not known."""
        node = self.nodes.get(name)
        if node is None:
            return None
        return (node.reading.address if node.reading else None) or node.executor.address

    def local_address(self, seen_from: Iterable[str]) -> str:
        """Return the address by which these nodes reach this one."""
        readings = [self.nodes[name].reading for name in seen_from if name in self.nodes]
        clients = (reading.client for reading in readings if reading is not None)
        return next(filter(None, clients), self.local_name)

    def is_training(self, job: int) -> bool:
        """Return whether a job uses the training library."""
        state = self.state()
        return state.spec(state.jobs[job]).training is not None

    def gpu_statistics(self, name: str) -> dict[str, dict[str, Any]]:
        """Return the last statistics of a node's GPUs, by UUID."""
        node = self.nodes.get(name)
        return node.detector.latest if node is not None else {}

    def allocation(self, name: str) -> Allocation | None:
        """Return what another scheduler says of a node; None if it provides none."""
        node = self.nodes.get(name)
        return node.executor.allocation if node is not None else None

    # -- reports of executors -------------------------------------------------------------

    def on_event(self, name: str, event: e.Event) -> None:
        """Queue an event of an executor."""
        self._incoming.append((name, event))

    def on_node_up(self, name: str, ended: Sequence[AttemptId]) -> None:
        """Note that all attempts on a node are accounted for."""
        node = self._connected(name)
        if node is not None:
            node.accounted(ended)

    def on_node_down(self, name: str, why: str) -> None:
        """Report a node that does not answer, once for each reason."""
        if (left := self.leaving.get(name)) is not None:
            left.state = NodeState.UNREACHABLE
            self.reactor.call_later(0.0, partial(self._close_left, left))
        node = self.nodes.get(name)
        if node is None:
            return
        self.gpu_memory.clear(name)
        if node.set_unreachable(why):
            now = self.clock()
            allocation = node.executor.allocation
            self._outgoing.append(
                e.NodeUnreachable(
                    at=now.wall, node=name, why=why, boot=now.boot,
                    queued=allocation is not None and allocation.is_queued,
                )
            )  # fmt: skip

    def on_node_gone(self, name: str, why: str) -> None:
        """Remove a node that has ended by itself; its attempts are lost."""
        if name in self.nodes:
            self._gone[name] = why

    def on_node_reading(self, name: str, reading: NodeReading) -> None:
        """Store a measurement of a node, and report what others use there."""
        node = self.nodes.get(name)
        if node is None:
            return  # it was removed a moment ago
        self._outgoing += node.take_reading(self.state(), reading)

    def on_reading_failed(self, name: str, error: str | None) -> None:
        """Note that the GPU driver of a node did not answer."""
        if name in self.nodes:
            self.nodes[name].reading_failed(error)

    def on_checkpoints_left_behind(self, name: str, attempt: AttemptId) -> None:
        """Note that a job can resume on the node that has its checkpoints only."""
        self._pinned[attempt.job] = name

    # -- events for the core --------------------------------------------------------------

    def collect(self, state: State) -> list[e.Event]:
        """Return what has happened on all nodes since the last call.

        An internal error about one event loses no other event.
        """
        # The attempts on a node that is gone are judged after the ends that it reported last.
        gone, self._gone = ({}, self._gone) if self._incoming else (self._gone, {})
        for name, why in gone.items():
            at = self.clock().wall
            self._outgoing += lost_attempts(state, name, why, at, preempted=True)
            self._outgoing.append(e.NodeRemoved(at=at, name=name, why=why))
        while self._incoming:
            name, event = self._incoming.popleft()
            self._outgoing += self.gangs.to_gang_events(name, event)
            if name in self.nodes:
                self._outgoing += self.nodes[name].close_if_full(event)
                self._outgoing += self._pin(state, event)
            if isinstance(event, ENDS):
                self._ended.setdefault(name, []).append(AttemptId(event.job, event.attempt))
        for node in self.nodes.values():
            self._outgoing += node.take_events(state, self.install)
        self._report_refreshed()
        events, self._outgoing = self._outgoing, []
        return events + self.gangs.take_events()

    @property
    def pending(self) -> bool:
        """Whether there is anything to collect."""
        if self._incoming or self._outgoing or self._gone or self.gangs.events:
            return True
        return any(node.has_news for node in self.nodes.values())

    @property
    def pending_exits(self) -> int:
        """How many exits of processes are to be collected."""
        return sum(type(event) is e.ProcessExited for _, event in self._incoming)

    def _pin(self, state: State, event: e.Event) -> list[e.Event]:
        """Pin a job to the node that has its checkpoints, after the end of its attempt."""
        if not isinstance(event, e.ProcessExited | e.AttemptLost):
            return []
        job, name = state.jobs.get(event.job), self._pinned.pop(event.job, None)
        succeeded = isinstance(event, e.ProcessExited) and event.code == 0
        if job is None or name is None or event.part is not None or succeeded:
            return []
        return pin_to_node(state, job, name, event.at)

    def on_events(self, state: State, events: Sequence[e.Event]) -> None:
        """Follow what the core has decided."""
        if any(isinstance(event, e.NodeAdded | e.NodeRemoved) for event in events):
            self.sync(state)
        for event in events:
            if isinstance(event, e.AttemptAbandoned) and event.node in self.nodes:
                abandoned = AttemptId(event.job, event.attempt)
                self.nodes[event.node].executor.abandon(abandoned)
        self.gangs.on_part_ends(state.running)
        self.gangs.forget_ended(self.records.is_expected)

    # -- acknowledgements -----------------------------------------------------------------

    def take_ended(self) -> dict[str, list[AttemptId]]:
        """Return the attempts with ends that were collected since the last call, by node."""
        ended, self._ended = self._ended, {}
        return ended

    def acknowledge(self, ended: Mapping[str, Sequence[AttemptId]]) -> None:
        """Let executors forget attempts: their ends are on disk."""
        for name, attempts in ended.items():
            if name == self.local_name:
                self.local.acknowledge(attempts)
            elif (node := self._connected(name)) is not None:
                node.executor.acknowledge(attempts)

    def _connected(self, name: str) -> RemoteNode | None:
        """Return a node to which there may be a connection."""
        return self.nodes.get(name) or self.leaving.get(name)

    def close(self) -> None:
        """Close all connections; attempts continue."""
        for node in (*self.nodes.values(), *self.leaving.values()):
            node.executor.close()
