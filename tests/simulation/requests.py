"""What clients of a simulated driver ask for, guarded as the daemon guards it."""

from __future__ import annotations

from _blake2 import blake2b
from collections.abc import Callable
from typing import Any

from msgspec.json import encode
from msgspec.structs import replace

from simulation.simulated_daemon import Decide
from stoker.core import events as e
from stoker.core.model.job import FINISHED, Job, JobState
from stoker.core.model.resources import GpuRequest, ResourceRequest
from stoker.core.model.spec import Spec
from stoker.core.model.sweep import Sweep, trial_of
from stoker.core.state.node_updates import held_on
from stoker.core.state.state import State
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.store.port import JobQuery, Store

Step = Callable[[State, Job, Instant], list[e.Event]]


def spec_of(request: ResourceRequest | None = None, **fields: Any) -> Spec:
    """A spec with the parts that do not matter here filled in."""
    common: dict[str, Any] = {
        "kind": "line", "user": "ada", "directory": "/tmp", "shell": "/bin/sh",
        "environment": "none", "name": "job",
    }  # fmt: skip
    asked = request if request is not None else ResourceRequest(gpus=GpuRequest(1000))
    return Spec(request=asked, **{**common, **fields})


def hash_of(spec: Spec) -> str:
    """A name for a spec by its content."""
    return blake2b(encode(spec), digest_size=8).hexdigest()


def submit(
    spec: Spec,
    key: str,
    count: int = 1,
    array: bool = False,
    priority: int = 0,
    held: bool = False,
    begin_in: float | None = None,
) -> Decide:
    """New jobs, once per key. The reply is the first id and the count."""

    def decide(state: State, now: Instant, store: Store) -> CommandResult:
        known = store.find_key(key)
        if known is not None:
            return CommandResult(reply=lambda _: known)
        first, hash = state.record.next_id, hash_of(spec)
        facts: list[e.Event] = []
        if hash not in state.specs:
            facts.append(e.SpecRecorded(at=now.wall, hash=hash, spec=spec))
        facts.append(
            e.JobsSubmitted(
                at=now.wall, first=first, count=count, spec=hash, key=key,
                lines=("true",) * count, indexes=tuple(range(count)) if array else None,
                priority=priority, held=held,
                begin_at=now.wall + begin_in if begin_in is not None else None,
            )
        )  # fmt: skip
        reply = (first, count)
        return CommandResult(events=facts, key=(key, first, count), reply=lambda _: reply)

    return decide


def sweep(spec: Spec, key: str, trials: int, **fields: Any) -> Decide:
    """A sweep with so many trials, once per key. The reply is its number and theirs."""

    def decide(state: State, now: Instant, store: Store) -> CommandResult:
        known = store.find_key(key)
        if known is not None:
            return CommandResult(reply=lambda _: known)
        id, hash = state.record.next_id, hash_of(spec)
        common: dict[str, Any] = {
            "user": "ada", "identity": key, "definition": "", "method": "grid", "metric": "loss",
        }  # fmt: skip
        asked = Sweep(id=id, name=spec.name, created_at=now.wall, **{**common, **fields})
        facts: list[e.Event] = []
        if hash not in state.specs:
            facts.append(e.SpecRecorded(at=now.wall, hash=hash, spec=spec))
        facts += [
            e.SweepDefined(at=now.wall, sweep=asked),
            _trials(now, id, id + 1, hash, 0, trials),
        ]
        return CommandResult(events=facts, key=(key, id, trials), reply=lambda _: (id, trials))

    return decide


def _trials(now: Instant, sweep: int, first: int, spec: str, number: int, count: int) -> e.Event:
    return e.JobsSubmitted(
        at=now.wall, first=first, count=count, spec=spec, sweep=sweep,
        trials=tuple((f'{{"x":{number + n}}}', "train") for n in range(count)),
    )  # fmt: skip


def more_trials(id: int, spec: Spec, count: int) -> Decide:
    """A sweep that wants more has thought of something."""

    def decide(state: State, now: Instant, _store: Store) -> CommandResult:
        found, hash = state.sweeps[id], hash_of(spec)
        if not found.needs_trials or id not in state.boards:
            raise CommandRejected(f"sweep {id} wants no more")
        facts: list[e.Event] = []
        if hash not in state.specs:
            facts.append(e.SpecRecorded(at=now.wall, hash=hash, spec=spec))
        facts.append(_trials(now, id, state.record.next_id, hash, found.issued, count))
        return CommandResult(events=facts, durable=False)

    return decide


def change_sweep(id: int, **fields: Any) -> Decide:
    """It goes on otherwise than before."""
    return lambda _state, now, _store: CommandResult(
        events=[e.SweepChanged(at=now.wall, sweep=id, **fields)]
    )


def cancel_sweep(id: int) -> Decide:
    """End all of it for good."""

    def decide(state: State, now: Instant, _store: Store) -> CommandResult:
        board = state.boards.get(id)
        jobs = [state.jobs.get(trial) for trial in board.trials] if board is not None else []
        facts: list[e.Event] = [
            e.JobCancelled(at=now.wall, job=job.id)
            for job in jobs
            if job is not None and not job.finished
        ]
        return CommandResult(events=[*facts, e.SweepChanged(at=now.wall, sweep=id, ended=True)])

    return decide


def _board(job: Job, state: State, now: Instant, store: Store) -> list[e.Event]:
    """What brings the board of a trial's sweep back to memory, if it has left it."""
    id = job.array
    if job.params is None or id is None or id in state.boards:
        return []
    rows = store.find_jobs(JobQuery(array=id, limit=max(state.sweeps[id].issued, 1)))
    return [e.TrialsLoaded(at=now.wall, sweep=id, trials=tuple(trial_of(row.job) for row in rows))]


def _for(id: int, states: set[JobState] | None, step: Step) -> Decide:
    def decide(state: State, now: Instant, _store: Store) -> CommandResult:
        job = state.jobs.get(id)
        if job is None or (states is not None and job.state not in states):
            raise CommandRejected(f"job {id} is not there or not in a state for this")
        return CommandResult(events=step(state, job, now))

    return decide


_LIVE = set(JobState) - FINISHED
_WAITING = {JobState.PENDING}


def cancel(id: int, at_once: bool = False) -> Decide:
    """End a job for good."""
    return _for(
        id, _LIVE, lambda _, job, now: [e.JobCancelled(at=now.wall, job=job.id, at_once=at_once)]
    )


def hold(id: int) -> Decide:
    """Keep a waiting job from starting."""
    return _for(id, _WAITING, lambda _, job, now: [e.JobHeld(at=now.wall, job=job.id)])


def release(id: int) -> Decide:
    """Let a held job go."""
    return _for(id, _WAITING, lambda _, job, now: [e.JobReleased(at=now.wall, job=job.id)])


def pause(id: int) -> Decide:
    """Stop a running job in place."""
    return _for(
        id, {JobState.RUNNING},
        lambda _, job, now: [e.JobPaused(at=now.wall, job=job.id, boot=now.boot)],
    )  # fmt: skip


def resume(id: int) -> Decide:
    """Let a paused job go on."""
    return _for(
        id, {JobState.SUSPENDED},
        lambda _, job, now: [e.JobResumed(at=now.wall, job=job.id, boot=now.boot)],
    )  # fmt: skip


def retry(id: int, same_devices: bool = False) -> Decide:
    """Run a finished job again, also one that has left memory."""

    def decide(state: State, now: Instant, store: Store) -> CommandResult:
        facts: list[e.Event] = []
        job = state.jobs.get(id)
        if job is None:
            rows = store.find_jobs(JobQuery(ids=[id]))
            if not rows:
                raise CommandRejected(f"there is no job {id}")
            job = rows[0].job
            facts.append(e.JobLoaded(at=now.wall, job=job, spec=rows[0].spec))
        if not job.finished:
            raise CommandRejected(f"job {id} is not over")
        facts = [*_board(job, state, now, store), *facts]
        facts.append(e.JobRetried(at=now.wall, job=id, same_devices=same_devices))
        return CommandResult(events=facts)

    return decide


def move(id: int, rank: int, priority: int) -> Decide:
    """Give a waiting job another place in line."""
    return _for(
        id, _WAITING,
        lambda _, job, now: [e.JobMoved(at=now.wall, job=job.id, priority=priority, rank=rank)],
    )  # fmt: skip


def edit(id: int, priority: int | None = None, **fields: Any) -> Decide:
    """Change what a pending job requests; of a running job only the limit and the priority."""

    def step(state: State, job: Job, now: Instant) -> list[e.Event]:
        changed = {key: fields[key] for key in fields if key == "limit" or not job.holding}
        spec = replace(state.spec(job), **changed)
        facts: list[e.Event] = []
        if hash_of(spec) not in state.specs:
            facts.append(e.SpecRecorded(at=now.wall, hash=hash_of(spec), spec=spec))
        facts.append(
            e.JobEdited(
                at=now.wall, job=job.id, spec=hash_of(spec), name=spec.name,
                priority=job.priority if priority is None else priority, begin_at=job.begin_at,
            )
        )  # fmt: skip
        return facts

    return _for(id, _LIVE - {JobState.COMPLETING}, step)


def add_node(name: str, user: str = "ada") -> Decide:
    """A machine over SSH belongs to us, or has another address."""
    return lambda _state, now, _store: CommandResult(
        events=[e.NodeAdded(at=now.wall, name=name, address=f"ssh://{user}@{name}")]
    )


def remove_node(name: str, force: bool = False) -> Decide:
    """Remove a machine over SSH; with `force`, the attempts that run there are given up."""

    def decide(state: State, now: Instant, _store: Store) -> CommandResult:
        running = [job for job in state.running.values() if held_on([job], name)]
        if name not in state.record.remotes or (running and not force):
            raise CommandRejected(f"{name} is not there, or jobs run on it")
        if any(job.started_at is None for job in running):
            raise CommandRejected(f"an order to start a job may be on its way to {name}")
        lost = [_lost_with(job, name, now) for job in running]
        return CommandResult(events=[*lost, e.NodeRemoved(at=now.wall, name=name)])

    return decide


def _lost_with(job: Job, node: str, now: Instant) -> e.AttemptLost:
    assert job.placement is not None
    rank = [part.node for part in job.placement.parts].index(node)
    part = rank if job.placement.other_parts else None
    return e.AttemptLost(
        at=now.wall, job=job.id, attempt=job.attempt, why=f"{node} was removed", part=part
    )


def measure_node(name: str, cpus: int, memory: int) -> Decide:
    """Others use so much of a machine."""
    return lambda _state, now, _store: CommandResult(
        events=[e.NodeLoadMeasured(at=now.wall, node=name, cpus=cpus, memory=memory)]
    )


def drain(*devices: tuple[str, str, str]) -> Decide:
    """Close devices to new jobs."""
    return lambda _state, now, _store: CommandResult(
        events=[e.DevicesDrained(at=now.wall, devices=devices, reason="maintenance")]
    )


def undrain(*devices: tuple[str, str, str]) -> Decide:
    """Open devices again."""
    return lambda _state, now, _store: CommandResult(
        events=[e.DevicesUndrained(at=now.wall, devices=devices)]
    )


def define_queue(name: str, **limits: Any) -> Decide:
    """Make or change a named queue."""
    return lambda _state, now, _store: CommandResult(
        events=[e.QueueDefined(at=now.wall, name=name, **limits)]
    )


def choose_policy(name: str, queue: str = "*", **parameters: float) -> Decide:
    """Have queues go by something else."""
    return lambda _state, now, _store: CommandResult(
        events=[e.PolicyChosen(at=now.wall, queue=queue, name=name, parameters=parameters)]
    )


def delete_queue(name: str) -> Decide:
    """Forget a named queue."""
    return lambda _state, now, _store: CommandResult(
        events=[e.QueueDeleted(at=now.wall, name=name)]
    )
