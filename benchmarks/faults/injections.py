"""The faults: each does one thing to an installation and notes when it did it."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.faults.audit import Kills
from benchmarks.faults.clients import Clients
from benchmarks.faults.installation import DAEMON, SUPERVISOR, Installation, boot_time

KILLS = ("daemon", "daemon starting", "supervisor", "client", "daemon and supervisor",
         "daemon and client", "ssh connection", "ssh agent", "daemon in repair")  # fmt: skip
"""Faults that end a process with SIGKILL."""
START_SECONDS = 0.9
"""About how long a daemon takes to start on a busy machine."""


@dataclass
class Timeline:
    """What was done, in order."""

    counts: Counter[str] = field(default_factory=Counter)
    entries: list[dict[str, Any]] = field(default_factory=list)

    def note(self, fault: str, **facts: object) -> None:
        """Count a fault that happened."""
        self.counts[fault] += 1
        self.entries.append({"at": round(boot_time(), 3), "fault": fault, **facts})


class Injector:
    """Injects faults into one installation."""

    def __init__(
        self,
        installation: Installation,
        clients: Clients,
        dice: random.Random,
        timeline: Timeline,
    ) -> None:
        self.installation, self.clients = installation, clients
        self.dice, self.timeline = dice, timeline
        self.kills = Kills()
        self.faults: dict[str, Callable[[], None]] = {
            "daemon": self.kill_daemon,
            "daemon starting": self.kill_starting_daemon,
            "supervisor": self.kill_supervisor,
            "client": self.kill_client,
            "daemon and supervisor": self.kill_both,
            "daemon and client": self.kill_daemon_and_client,
            "pause daemon": lambda: self.pause(DAEMON),
            "pause supervisor": lambda: self.pause(SUPERVISOR),
            "restart": self.restart,
            "delete socket": self.delete_socket,
            "delete run directory": self.delete_run_directory,
            "delete logs": self.delete_logs,
        }

    def inject(self, fault: str) -> None:
        """Do one fault."""
        self.faults[fault]()

    # -- kills --------------------------------------------------------------------------

    def _end_daemons(self) -> list[int]:
        killed = []
        for pid in self.installation.processes(DAEMON):
            begin = boot_time()
            if self.installation.signal(pid, signal.SIGKILL):
                self.kills.daemons.append((begin, boot_time()))
                killed.append(pid)
        return killed

    def _end_supervisors(self, pids: list[int]) -> list[int]:
        killed = []
        for pid in pids:
            self.kills.supervisors[pid] = boot_time()
            if self.installation.signal(pid, signal.SIGKILL):
                killed.append(pid)
            else:
                del self.kills.supervisors[pid]
        return killed

    def kill_daemon(self) -> None:
        """Kill the daemon; if there is none, one that starts."""
        killed = self._end_daemons()
        if killed:
            self.timeline.note("daemon", pids=killed)
        else:
            self.kill_starting_daemon()

    def kill_starting_daemon(
        self, fault: str = "daemon starting", is_due: Callable[[], bool] | None = None
    ) -> None:
        """Have a command start a daemon, and kill that at some moment of its start.

        With `is_due`, a moment after that has become true.
        """
        self._end_daemons()
        self.clients.run("daemon", "start")
        if is_due is None:
            time.sleep(self.dice.uniform(0.1, START_SECONDS))
        else:
            deadline = time.monotonic() + 3 * START_SECONDS
            while not is_due() and time.monotonic() < deadline:
                time.sleep(0.002)
            time.sleep(self.dice.uniform(0.0, 0.2))
        if killed := self._end_daemons():
            self.timeline.note(fault, pids=killed)

    def kill_supervisor(self) -> None:
        """Kill one supervisor, or all of them; the daemon lives."""
        found = self.installation.processes(SUPERVISOR)
        if found and self.dice.random() < 0.7:
            found = [self.dice.choice(found)]
        if killed := self._end_supervisors(found):
            self.timeline.note("supervisor", pids=killed)

    def kill_both(self) -> None:
        """Kill daemon and supervisors, in either order."""
        supervisors = self.installation.processes(SUPERVISOR)
        if self.dice.random() < 0.5:
            killed = [*self._end_supervisors(supervisors), *self._end_daemons()]
        else:
            killed = [*self._end_daemons(), *self._end_supervisors(supervisors)]
        if killed:
            self.timeline.note("daemon and supervisor", pids=killed)

    def kill_client(self) -> None:
        """Kill a command while it runs."""
        if self.clients.kill_one():
            self.timeline.note("client")

    def kill_daemon_and_client(self) -> None:
        """Kill a command and the daemon that serves it."""
        count = self.clients.kill_one()
        killed = self._end_daemons()
        if count and killed:
            self.timeline.note("daemon and client", pids=killed)
        elif killed:
            self.timeline.note("daemon", pids=killed)
        elif count:
            self.timeline.note("client")

    # -- other faults -------------------------------------------------------------------

    def pause(self, role: str) -> None:
        """Stop the daemon or a supervisor for a while."""
        found = self.installation.processes(role)
        pid = self.dice.choice(found) if found else 0
        if found and self.installation.signal(pid, signal.SIGSTOP):
            time.sleep(self.dice.uniform(0.05, 1.2))
            self.installation.signal(pid, signal.SIGCONT)
            self.timeline.note(f"pause {role}", pids=[pid])

    def restart(self) -> None:
        """Replace the daemon by a command."""
        begin = boot_time()
        process = self.clients.run("daemon", "restart")
        time.sleep(self.dice.uniform(0.0, START_SECONDS))
        if self.dice.random() < 0.5:
            self.kill_daemon()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        self.kills.daemons.append((begin, boot_time()))
        self.timeline.note("restart")

    def delete_socket(self) -> None:
        """Remove the daemon's socket."""
        with contextlib.suppress(OSError):
            os.unlink(self.installation.socket)
            self.timeline.note("delete socket")

    def delete_run_directory(self) -> None:
        """Remove the directory of the claims."""
        if self.installation.run_dir.exists():
            shutil.rmtree(self.installation.run_dir, ignore_errors=True)
            self.kills.claims_deleted = True
            self.timeline.note("delete run directory")

    def delete_logs(self) -> None:
        """Remove the directory of the jobs' output."""
        if self.installation.logs.exists():
            shutil.rmtree(self.installation.logs, ignore_errors=True)
            self.timeline.note("delete logs")
