"""Processes on this machine: started by the keeper, adopted by pidfd, ended as a tree."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable

import msgspec

from stoker.core.events import (
    AttemptLost,
    Event,
    ForeignUseChanged,
    ProcessExited,
    ProcessStarted,
    StartCalledOff,
    StartFailed,
)
from stoker.core.foreign import in_words
from stoker.core.instructions import EndAttempt, SignalAttempt, StartProcess
from stoker.core.job import Job
from stoker.core.launch import Launch
from stoker.executors.launch import container
from stoker.executors.launch.command import CommandBuilder, NoContainer
from stoker.executors.launch.paths import ExecutorPaths
from stoker.executors.linux import cgroup
from stoker.executors.linux import oom as symptoms
from stoker.executors.linux import process_tree as tree
from stoker.executors.linux.gpu_locks import GpuLocks
from stoker.executors.linux.procfs import has_signal_handler
from stoker.executors.local.attempt import LocalAttempt
from stoker.executors.local.claims import (
    Claim,
    ExitLog,
    claim_path,
    note_signal,
    read_claim,
    take_claim,
    take_empty_claim,
)
from stoker.executors.local.recovery import KEPT, AttemptRecovery
from stoker.executors.local.supervisor import BOOT, PASSING, spawn_keeper
from stoker.executors.local.supervisor_client import KEEPERS, SupervisorClient
from stoker.executors.port import Executor
from stoker.executors.reactor import Reactor

logger = logging.getLogger(__name__)

RESCAN = 0.05
"""Seconds between looks at a tree that is being ended: its last breath makes no event."""
SHORTAGE = 10.0
"""Seconds before a start is tried again that failed for want of memory, processes or disk."""
BLOCKED = 2.0
"""Seconds before a start is tried again that found a GPU locked."""
TERMINAL = {signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT,
            signal.SIGSTOP, signal.SIGCONT}  # fmt: skip
DIRECT = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT}
"""Signals that nobody can pass on."""

Key = tuple[int, int]


class LocalExecutor(Executor):
    """Runs attempts on this machine."""

    def __init__(
        self,
        places: ExecutorPaths,
        install: str,
        keepers: list[SupervisorClient],
        poller: Reactor,
        secret: Callable[[str], bytes | None],
        blob: Callable[[str], bytes | None],
        grace: float = 10.0,
        cgroups: cgroup.Cgroups | None = None,
        holds: GpuLocks | None = None,
        engine: str = "",
    ) -> None:
        self.places, self.install, self.grace = places, install, grace
        self.keepers = keepers
        self.poller, self.secret, self.blob = poller, secret, blob
        self.commands = CommandBuilder(places, secret, blob, grace, engine)
        self.cgroups = cgroups or cgroup.Cgroups(None)
        self.holds = holds or GpuLocks()
        self.oom = symptoms.OomCounter()
        self.facts: list[Event] = []
        self.attempts: dict[Key, LocalAttempt] = {}
        self.busy: set[Key] = set()
        """Attempts that need a look now and then: being ended, or waiting for a record."""
        self.settled: list[str] = []
        self.exits = ExitLog(places.exits)
        self.adoption = AttemptRecovery(self)
        for link in keepers:
            self._listen_to(link)

    def token(self, job: int, attempt: int) -> str:
        """The mark that every process of an attempt carries."""
        return f"{self.install}.{job}.{attempt}"

    # -- wishes -------------------------------------------------------------------------

    def start(self, wish: StartProcess, launch: Launch) -> None:
        """Hand an attempt to the keeper that has the least to do."""
        key = (wish.job, wish.attempt)
        attempt = LocalAttempt(key, launch.extra["STOKER_TOKEN"], out=launch.out, err=launch.err)
        # Registered before anything can fail: `close` keeps the proof that it never started.
        self.attempts[key] = attempt
        if launch.trains:
            with contextlib.suppress(OSError):  # should it need the directory, it will say so
                os.makedirs(launch.checkpoints, 0o700, exist_ok=True)
        blocked = self.holds.take(key, launch.gpus) if launch.gpus else None
        if blocked is not None:
            self.gone(attempt)
            self._call_off(wish, blocked)
            return
        self._complete_keepers()
        try:
            if not self.keepers:
                raise OSError(errno.EAGAIN, "the supervisor process cannot be started")
            link = min(self.keepers, key=lambda each: each.starting)
            link.provide(launch.environment, self.commands.environment)
            argv, extra = self.commands.compose(launch)
        except (OSError, KeyError, NoContainer) as error:
            self._not_started(attempt, error)
            return
        attempt.oom_before = self.oom.before()
        attempt.group = self.cgroups.create(attempt.token)
        attempt.keeper = link.pid
        link.starting += 1
        link.send(
            "start",
            f"{wish.job}.{wish.attempt}",
            claim_path(self.places.run, *key),
            argv,
            launch.directory,
            launch.umask,
            launch.environment,
            extra,
            launch.out,
            launch.err,
            self.holds.paths(key),
            attempt.group,
            tree.mark_of(attempt.token),
            msgspec.json.encode(wish.placement),
        )

    def _not_started(self, attempt: LocalAttempt, error: Exception) -> None:
        """Nothing was handed over: a shortage may pass, any other error would come again."""
        self.gone(attempt)
        (job, number), now = attempt.key, time.time()
        why = str(error) if isinstance(error, NoContainer) else f"cannot start: {error}"
        if isinstance(error, OSError) and error.errno in PASSING:
            self.facts.append(
                StartCalledOff(at=now, job=job, attempt=number, why=why, delay=SHORTAGE)
            )
        else:
            self.facts.append(StartFailed(at=now, job=job, attempt=number, why=why))

    def _call_off(self, wish: StartProcess, mark: str) -> None:
        """A GPU cannot be had: the start is cancelled, and no other job is put there for now."""
        now, why = time.time(), f"a GPU {in_words(mark)}"
        # The delay is for jobs that are placed whatever the marks of GPUs say.
        self.facts.append(
            StartCalledOff(at=now, job=wish.job, attempt=wish.attempt, why=why, delay=BLOCKED)
        )
        self.facts += [
            ForeignUseChanged(at=now, node=wish.placement.node, device=name, stranger=mark)
            for name in wish.placement.names("gpu")
        ]

    def cancel_start(self, wish: StartProcess, why: str) -> None:
        """The order to start has failed inside the daemon: requeue the job if nothing runs."""
        key = (wish.job, wish.attempt)
        path = claim_path(self.places.run, *key)
        if key in self.attempts or not take_claim(path):
            return  # its keeper may have the order: what becomes of it is reported as usual
        self.holds.drop(key)
        self.settled.append(path)
        self.facts.append(
            StartCalledOff(at=time.time(), job=key[0], attempt=key[1], why=why, delay=SHORTAGE)
        )

    def end(self, wish: EndAttempt) -> None:
        """Begin to end a tree: TERM with the next tick, KILL after the grace."""
        attempt = self.attempts.get((wish.job, wish.attempt))
        if attempt is None:
            return
        now = time.clock_gettime(BOOT)
        if attempt.ending_since is None:
            attempt.ending_since = now
        grace = self.grace
        if wish.at_once:
            grace = container.LAST_WORD if self._is_contained(attempt) else 0.0
        attempt.kill_at = min(attempt.kill_at or now + grace, now + grace)
        self.busy.add(attempt.key)
        if grace or not wish.at_once:
            attempt.terminate = wish.at_once

    @staticmethod
    def _is_contained(attempt: LocalAttempt) -> bool:
        return attempt.pid is not None and container.looked_after_by(attempt.pid, attempt.token)

    def _terminate(self, attempt: LocalAttempt, seen: tree.Snapshot) -> None:
        """Ask a tree to end; of a container, only its looker-after, who knows how that is done."""
        assert attempt.pid is not None
        pids, at_once = self._members(attempt, seen), attempt.terminate
        attempt.terminate = None
        if self._is_contained(attempt):
            tree.signal_all([attempt.pid], container.AT_ONCE if at_once else signal.SIGTERM)
            tree.signal_all(pids, signal.SIGCONT)
        else:
            tree.end(pids, signal.SIGTERM)

    def signal(self, wish: SignalAttempt) -> None:
        """Pass a signal on; a shell that waits for a child gets it only if it has a trap for it."""
        attempt = self.attempts.get((wish.job, wish.attempt))
        if attempt is None or attempt.pid is None:
            return
        pids, leader = self._members(attempt), attempt.pid
        if wish.if_caught:
            contained = self._is_contained(attempt)  # whose looker-after catches everything
            hearing = [
                pid
                for pid in pids
                if has_signal_handler(pid, wish.signal) and not (contained and pid == leader)
            ]
            attempt.unheard = not hearing
            if hearing:
                note_signal(claim_path(self.places.run, *attempt.key))
            pids = [leader] if contained and hearing else hearing
        elif wish.signal not in DIRECT and self._is_contained(attempt):
            pids = [leader] if has_signal_handler(leader, wish.signal) else []
        elif len(pids) > 1 and wish.signal not in TERMINAL:
            pids = [pid for pid in pids if pid != leader or has_signal_handler(pid, wish.signal)]
        tree.signal_all(pids, wish.signal)

    def suspend(self, job: int, attempt: int) -> None:
        """Stop the tree in place."""
        self._signal_tree((job, attempt), signal.SIGSTOP)

    def resume(self, job: int, attempt: int) -> None:
        """Let the tree go on."""
        self._signal_tree((job, attempt), signal.SIGCONT)

    def _signal_tree(self, key: Key, number: int) -> None:
        attempt = self.attempts.get(key)
        if attempt is not None and attempt.pid is not None:
            tree.signal_all(self._members(attempt), number)

    def snapshot(self, stop: Iterable[str] = ()) -> tree.Snapshot:
        """All processes of this moment; those that supervise jobs belong to none of them."""
        return tree.Snapshot({*(link.pid for link in self.keepers), *self.exits.keepers()}, stop)

    def _members(self, attempt: LocalAttempt, seen: tree.Snapshot | None = None) -> list[int]:
        """The living processes of an attempt."""
        found = (seen or self.snapshot()).members(attempt.token, attempt.pid, attempt.ticks)
        if attempt.group is not None:
            found = sorted({*found, *cgroup.pids(attempt.group)})
        return found

    # -- what the keepers say -----------------------------------------------------------

    def _listen_to(self, link: SupervisorClient) -> None:
        self.poller.add_reader(link.wire.sock.fileno(), lambda: self._hear(link))

    def _hear(self, link: SupervisorClient) -> None:
        reports = link.receive()
        if reports is None:
            self._keeper_died(link)
            return
        for what, text, *rest in reports:
            job, _, number = text.partition(".")
            key = (int(job), int(number))
            attempt = self.attempts.get(key)
            if attempt is None:
                continue
            if what == "started":
                self.started(attempt, *rest)
            elif what == "exited":
                attempt.status, _, attempt.ended_at, orphans = rest
                self.process_gone(attempt, look_around=orphans)
            elif what == "failed":
                self.gone(attempt)
                self.facts.append(
                    StartFailed(at=time.time(), job=key[0], attempt=key[1], why=rest[0])
                )
            elif what == "busy":
                self.gone(attempt)
                self.settled.append(claim_path(self.places.run, *key))
                self.facts.append(
                    StartCalledOff(
                        at=time.time(), job=key[0], attempt=key[1], why=rest[0], delay=SHORTAGE
                    )
                )
            elif what == "late":
                self._late(attempt)

    def _late(self, attempt: LocalAttempt) -> None:
        """Its claim was there before: it was given up, or an earlier daemon's keeper starts it."""
        (job, number), why = attempt.key, "this attempt was already claimed"
        claim = read_claim(claim_path(self.places.run, job, number))
        if claim is None or claim.taken or claim.withdrawn:
            self.gone(attempt)
            self.facts.append(StartCalledOff(at=time.time(), job=job, attempt=number, why=why))
        else:
            attempt.keeper = None
            self.adoption.expect_record(attempt)

    def started(
        self, attempt: LocalAttempt, pid: int, ticks: int, boot: float, wall: float
    ) -> None:
        """Its process exists."""
        attempt.pid, attempt.ticks = pid, ticks
        job, number = attempt.key
        self.facts.append(ProcessStarted(at=wall, job=job, attempt=number, pid=pid, boot=boot))

    def _keeper_died(self, link: SupervisorClient) -> None:
        """Somebody killed a keeper: get another, and watch its orphans ourselves.

        They are our children now (see `become_subreaper`), so their codes are not lost.
        """
        logger.warning("supervisor process %d died; starting a new one", link.pid)
        self.poller.remove_reader(link.wire.sock.fileno())
        link.bury()
        self.keepers.remove(link)
        self._complete_keepers()
        for attempt in list(self.attempts.values()):
            if attempt.keeper == link.pid:
                self._orphan(attempt)
        self._reap(self.snapshot())

    def _reap(self, seen: tree.Snapshot) -> None:
        """Reap ended processes that fell to the daemon when their supervisor was killed.

        Those of an attempt whose end is not known yet wait: one may be its main process.
        """
        zombies = seen.zombies()
        if zombies:
            unknown = {
                b"%d" % tree.mark_of(a.token) for a in self.attempts.values() if a.status is None
            }
            for pid in [pid for pid, mark in zombies if mark not in unknown]:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _complete_keepers(self) -> None:
        """Fork what keepers are missing; the machine may have no room for a process just now."""
        with contextlib.suppress(OSError):
            while len(self.keepers) < KEEPERS:
                self.keepers.append(link := SupervisorClient(*spawn_keeper(self.places.exits)))
                self._listen_to(link)

    def _orphan(self, attempt: LocalAttempt) -> None:
        job, number = attempt.key
        path = claim_path(self.places.run, job, number)
        claim = read_claim(path)
        if attempt.pid is not None:
            if attempt.status is None and attempt.pidfd < 0 and attempt.record_by is None:
                self.adoption.watch(attempt)
        elif take_claim(path) if claim is None else claim.empty and take_empty_claim(path):
            self.call_off(attempt)
        else:
            self.adoption.expect_record(attempt)

    def call_off(self, attempt: LocalAttempt) -> None:
        """The keeper that should have started it was killed before it did."""
        job, number = attempt.key
        self.gone(attempt)
        self.settled.append(claim_path(self.places.run, job, number))
        why = "the supervisor process was killed"
        self.facts.append(StartCalledOff(at=time.time(), job=job, attempt=number, why=why))

    # -- ends ---------------------------------------------------------------------------

    def process_gone(self, attempt: LocalAttempt, look_around: bool = True) -> None:
        """The main process has ended and we know how; the tree may not have."""
        alone = attempt.ending_since is None and not look_around
        if alone and attempt.pid is not None and not tree.group_alive(attempt.pid):
            self.finish(attempt)
        else:
            attempt.main_ended = True
            self.busy.add(attempt.key)  # the next tick looks at the processes of all such attempts

    def finish(self, attempt: LocalAttempt) -> None:
        """The last process is gone: report, and let go of what was held."""
        job, number = attempt.key
        status = attempt.status
        self.gone(attempt)
        self.settled.append(claim_path(self.places.run, job, number))
        if status is None:
            why = "the process ended without an exit record"
            self.facts.append(AttemptLost(at=time.time(), job=job, attempt=number, why=why))
            return
        code = os.waitstatus_to_exitcode(status)
        self.facts.append(
            ProcessExited(
                at=attempt.ended_at or time.time(),
                job=job,
                attempt=number,
                code=code if code >= 0 else None,
                signal=-code if code < 0 else None,
                memory=self._memory_trouble(attempt, code) if code else None,
                note=self._note(attempt),
                uncaught=attempt.unheard,
            )
        )

    def _memory_trouble(self, attempt: LocalAttempt, code: int) -> str | None:
        if attempt.ending_since is not None and not attempt.left_behind:
            return None
        if attempt.group is not None and cgroup.killed_for_memory(attempt.group):
            return "host"
        killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)
        if killed and symptoms.oom_kills() > attempt.oom_before:
            return "host"
        return "cuda" if symptoms.cuda_out_of_memory(attempt.out, attempt.err) else None

    @staticmethod
    def _note(attempt: LocalAttempt) -> str | None:
        if attempt.left_behind:
            how = "killed" if attempt.killed else "ended"
            left = "1 process" if attempt.left_behind == 1 else f"{attempt.left_behind} processes"
            return f"left {left} behind, {how} with the job"
        return "killed after the grace period" if attempt.killed else None

    def gone(self, attempt: LocalAttempt) -> None:
        self.attempts.pop(attempt.key, None)
        self.busy.discard(attempt.key)
        self.holds.drop(attempt.key)
        if attempt.pidfd >= 0:
            self.poller.remove_reader(attempt.pidfd)
            os.close(attempt.pidfd)
        if attempt.group is not None:
            cgroup.remove(attempt.group)

    def tick(self, boot: float) -> float | None:
        """Look after trees that are being ended and ends that are being written down."""
        self.adoption.look(self.unrecorded(), boot)
        self._press([self.attempts[key] for key in self.busy], boot)
        unsent = [link.flush() for link in self.keepers]
        return RESCAN if self.busy or any(unsent) else None

    def unrecorded(self) -> list[LocalAttempt]:
        """Attempts whose ends should be on record by now, or soon."""
        busy = [self.attempts[key] for key in self.busy]
        return [a for a in busy if a.record_by is not None and a.status is None]

    def _press(self, attempts: list[LocalAttempt], boot: float) -> None:
        """One step of ending trees: all of them at once, since it takes a look at all processes."""
        asked = [a for a in attempts if a.terminate is not None and a.pid is not None]
        due = [a for a in attempts if a.kill_at is not None and boot >= a.kill_at]
        over = [a for a in attempts if a.status is not None or a.lost]
        if not (asked or due or over):
            return
        seen = self.snapshot()
        for attempt in asked:
            self._terminate(attempt, seen)
        left = {a.key: self._members(a, seen) for a in (*due, *over)}
        for attempt in over:
            if left[attempt.key]:
                self._end_rest(attempt, left[attempt.key], boot)
            elif seen.complete:
                self.finish(attempt)
        self._reap(seen)
        self._kill([(a, left[a.key]) for a in due if left[a.key]], boot)

    def _end_rest(self, attempt: LocalAttempt, left: list[int], boot: float) -> None:
        """Its main process has ended, others have not: these are left behind."""
        if attempt.main_ended:
            attempt.main_ended, attempt.left_behind = False, len(left)
        if attempt.ending_since is None:
            attempt.ending_since, attempt.kill_at = boot, boot + self.grace
            tree.end(left, signal.SIGTERM)

    def _kill(self, trees: list[tuple[LocalAttempt, list[int]]], boot: float) -> None:
        """Kill trees, also those whose processes flee.

        Of a container, kill what runs in it first: then its engine removes the container.
        """
        attempts = []
        for attempt, pids in trees:
            inside = [] if attempt.killed else tree.in_other_namespaces(pids)
            attempt.killed = True
            if inside:
                tree.signal_all(inside, signal.SIGKILL)
                attempt.kill_at = boot + container.REMOVAL_SECONDS
                continue
            attempts.append(attempt)
            if attempt.group is not None:
                cgroup.kill(attempt.group)
        if attempts:
            # A group may have been joined a moment too late to hold the first children.
            tree.kill(self._living(attempts))

    def _living(self, attempts: list[LocalAttempt]) -> Callable[[], set[int]]:
        def find() -> set[int]:
            seen = self.snapshot(stop=[attempt.token for attempt in attempts])
            return {pid for attempt in attempts for pid in self._members(attempt, seen)}

        return find

    # -- adoption -----------------------------------------------------------------------

    def adopt(self, jobs: list[Job], same_boot: bool) -> None:
        """Take over the attempts that an earlier daemon started."""
        if jobs:
            self.adoption.take_over(jobs, same_boot)

    def adopted(self, key: Key, claim: Claim) -> LocalAttempt:
        """Begin to look after somebody else's attempt."""
        attempt = LocalAttempt(key, self.token(*key), pid=claim.pid, ticks=claim.ticks)
        attempt.unheard = claim.keeper is not None and not claim.signalled
        attempt.group = self.cgroups.existing(attempt.token)
        attempt.oom_before = self.oom.before()
        self.attempts[key] = attempt
        return attempt

    def close(self, finished: bool, recorded: bool = True) -> None:
        """Let the keeper go; if every attempt in the journal is over, clear the run directory.

        `recorded` says whether all that was ever reported is in the journal: only then can the
        claims go that prove it.
        """
        recorded = recorded and not self.facts
        if recorded:
            self.settle()
        for link in self.keepers:
            link.wire.sock.close()
        if finished and recorded and not self.attempts:
            with contextlib.suppress(OSError):
                os.unlink(f"{self.places.run}/{KEPT}")
                os.rmdir(self.places.run)
                os.rmdir(os.path.dirname(self.places.run))

    def settle(self) -> None:
        """The ends are on disk: their claims may go."""
        for path in self.settled:
            with contextlib.suppress(OSError):
                os.unlink(path)
        self.settled = []
