"""A bench for UserExecutor: the process of a user is started without a gate, as this user."""

import fcntl
import os
import signal
import socket
import sys
from pathlib import Path

from executors.contract import ENDS
from executors.process_bench import GRACE_SECONDS, ProcessBench
from specs import launch_of
from stoker.core.launch.launch import Launch
from stoker.core.model.job import AttemptId, JobState
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.executors.linux.gpu_locks import GpuLocks
from stoker.executors.local.recovery import COMPLETE
from stoker.executors.port import RecoverableAttempt
from stoker.executors.user.executor import UserExecutor
from stoker.executors.user.process import WIRE_FD


def start_process(directory: str) -> tuple[int, socket.socket]:
    """Start the process of a user as the gate does, but as this user; return pid and socket."""
    ours, theirs = socket.socketpair()
    wire = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, WIRE_FD + 1)
    theirs.close()
    words = [sys.executable, "-I", "-m", "stoker.executors.user.process", directory]
    pid = os.posix_spawn(
        sys.executable, words, {"PATH": os.environ["PATH"], "HOME": directory},
        file_actions=[(os.POSIX_SPAWN_DUP2, wire, WIRE_FD)], setsid=True,
    )  # fmt: skip
    os.close(wire)
    return pid, ours


class UserBench(ProcessBench):
    """The executor of the system daemon, with the process of one user."""

    def __init__(self, base: Path, home: Path, install: str) -> None:
        self.states: dict[AttemptId, JobState] = {}
        """States of jobs in the journal, where they are not those of a running attempt."""
        super().__init__(base, home, install)

    def open(self) -> None:
        self.directory = self.base / "user"
        self.directory.mkdir(exist_ok=True)
        (self.directory / "run").mkdir(exist_ok=True)
        (self.directory / "run" / COMPLETE).touch()
        environment = f"PATH={os.environ['PATH']}\0HOME={self.home}\0".encode()
        self.reactor = EpollReactor()
        self.pids: list[int] = []
        self.executor = UserExecutor(
            self.install, self.reactor, lambda _: environment, lambda _: None, self.under_way,
            self.request, grace=GRACE_SECONDS, gpu_locks=GpuLocks(str(self.base / "locks")),
        )  # fmt: skip
        self.executor.open(self.sink)
        self.is_open = True

    def request(self, uid: int) -> None:
        def start() -> None:
            pid, sock = start_process(str(self.directory))
            self.pids.append(pid)
            self.executor.on_process(uid, pid, sock)

        self.reactor.call_later(0.0, start)

    def stop(self) -> None:
        super().stop()
        while self.pids:
            os.waitpid(self.pids.pop(), 0)

    def kill_process(self) -> None:
        """Kill the process of the user, and wait for its end."""
        os.kill(self.pids[-1], signal.SIGKILL)
        os.waitpid(self.pids.pop(), 0)

    def under_way(self, uid: int) -> list[RecoverableAttempt]:
        return [self.recoverable(each) for each in self.launches if not self.of(each, *ENDS)]

    def script(self, attempt: AttemptId, script: str) -> Launch:
        launch = self.launches[attempt] = launch_of(
            super().script(attempt, script), uid=os.getuid()
        )
        return launch

    def recoverable(self, attempt: AttemptId) -> RecoverableAttempt:
        made = super().recoverable(attempt)
        made.job.state = self.states.get(attempt, made.job.state)
        return RecoverableAttempt(made.job, self.launches[attempt].spec, made.out, made.err)

    def claims(self) -> list[str]:
        return [path.name for path in (self.directory / "run").iterdir() if path.name != COMPLETE]
