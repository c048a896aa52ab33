"""A modelled kernel: processes, /proc and signals, under the real code of daemon and supervisors.

Files are real ones in a temporary directory. The daemon runs in the calling thread; each
supervisor runs the real `Keeper` in a thread of its own, and exactly one thread runs at a time.
Every system call is a step, before which other processes may take steps of their own, so a seed
decides what is read between two writes of another process.
"""

import contextlib
import errno
import io
import os
import resource
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from simulation.crash_points import Crash
from simulation.virtual_clock import VirtualClock
from stoker.daemon import recovery as setup
from stoker.daemon import unknown_attempts as recovered
from stoker.executors.linux import gpu_locks as holds
from stoker.executors.linux import log_file, procfs
from stoker.executors.linux import process_tree as tree
from stoker.executors.linux import shared_locks as lockfiles
from stoker.executors.local import claims, supervisor_pool, termination
from stoker.executors.local import executor as local
from stoker.executors.local import recovery as adoption
from stoker.executors.local import supervisor as keeper
from stoker.executors.local import supervisor_client as keepers
from stoker.store import replacement, salvage, sqlite, watermark

INIT = 1
UNLIMITED = b"unlimited"


class Killed(BaseException):
    """The process of this thread was killed here. Nothing of ours may catch it."""


@dataclass
class Process:
    """A process, alive or not yet waited for."""

    pid: int
    parent: int
    session: int
    name: str
    ticks: int
    limit: bytes = UNLIMITED
    environment: dict[str, str] = field(default_factory=dict)
    state: str = "S"
    status: int = 0
    adopts: bool = False
    """Orphans among its descendants become its children."""
    fds: set[int] = field(default_factory=set)
    inherited: set[int] = field(default_factory=set)
    """Descriptors that a child gets, too."""
    ignores_term: bool = False
    owner: int | None = None
    """The job that it belongs to."""
    left: float = 0.0
    """Seconds until it ends by itself, while it does not run."""
    due: float | None = None
    life: int = 0
    code: int = 0

    @property
    def key(self) -> str:
        """The attempt that it belongs to."""
        number = self.environment.get("STOKER_ATTEMPT", "")
        return f"{self.environment.get('STOKER_JOB_ID', '')}.{number}"

    @property
    def alive(self) -> bool:
        """Return False for a zombie."""
        return self.state != "Z"


@dataclass(frozen=True)
class Behaviour:
    """How the main process of an attempt behaves."""

    seconds: float = 1.0
    code: int = 0
    ignores_term: bool = False
    leaves: bool = False
    """It leaves a process behind that has left its session."""


class Supervisor:
    """The real supervisor, in a thread that takes one step when it is resumed."""

    def __init__(self, kernel: "Kernel", process: Process, sock: socket.socket, exits: str) -> None:
        self.kernel, self.process, self.sock, self.exits = kernel, process, sock, exits
        self.go, self.back = threading.Semaphore(0), threading.Semaphore(0)
        self.killed = self.over = self.stopped = False
        self.budget = 0
        self.error: BaseException | None = None
        self.is_ready: Callable[[], bool] = lambda: True
        self.thread = threading.Thread(target=self._body, daemon=True)
        self.thread.start()

    @property
    def runnable(self) -> bool:
        """Return True if it can take a step."""
        return not self.over and (self.killed or (not self.stopped and self.is_ready()))

    def resume(self, steps: int = 1) -> None:
        """Let it take some steps, fewer if it then has to wait for something."""
        before, self.kernel.current = self.kernel.current, self.process
        self.budget = steps
        self.go.release()
        self.back.acquire()
        self.kernel.current = before
        if self.over:
            self.thread.join()
            self.sock.close()
            self.kernel.exit(self.process, 9 if self.killed else 0)
        if self.error is not None:
            raise self.error

    def step(self) -> None:
        """Let others run before the next system call, if it has had its steps."""
        self.budget -= 1
        if self.budget > 0 and self.is_ready():
            return  # changing threads costs a hundred times what a step does
        self.back.release()
        self.go.acquire()
        if self.killed:
            raise Killed

    def kill(self) -> None:
        """Kill it where it stands."""
        self.killed = True
        while not self.over:  # what it does in `finally` ends at the next call
            self.resume()

    def _body(self) -> None:
        self.go.acquire()
        try:
            if not self.killed:
                self._serve(keeper.Supervisor(keeper.FramedSocket(self.sock), self.exits))
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again where it was resumed
            self.error = error
        self.over = True
        self.back.release()

    def _serve(self, real: keeper.Supervisor) -> None:
        """Do what `Keeper.run` does, without its epoll."""
        while real.wire is not None or real.children:
            self.is_ready = lambda: bool(
                real.reports
                or self.kernel.zombies(self.process.pid)
                or (real.wire is not None and _is_readable(self.sock.fileno()))
            )
            self.step()
            self.is_ready = lambda: True
            if real.wire is not None and _is_readable(self.sock.fileno()):
                messages = real._listen()
                if messages is None:
                    real.wire = None
                for message in messages or ():
                    real._handle(message)
                    real._reap()
                    real._send_reports()
            real._reap()
            real.urgent = True
            real._send_reports()


class Kernel:
    """All processes of one machine, and the calls by which they see each other."""

    def __init__(
        self, world: VirtualClock, random: Random, behaviour: Callable[[int, int], Behaviour]
    ) -> None:
        self.world, self.random, self.behaviour = world, random, behaviour
        self.processes: dict[int, Process] = {}
        self.last_pid = 4999
        self.supervisors: list[Supervisor] = []
        self.daemon = self.current = self._new(INIT, "python")
        self.calls_left: int | None = None
        """After this many calls of the daemon it is killed."""
        self.lock_error = 0.0
        self.spawn_error = 0.0
        self.started: list[tuple[int, int]] = []
        self.ended: dict[tuple[int, int], int] = {}
        """The wait status of main processes that ended."""
        self.unseen: set[str] = set()
        """Attempts whose exit status no process of stoker could read, or one that then died."""
        self.waited: set[str] = set()
        """Attempts whose exit status the daemon has from the kernel: their supervisor died."""
        self.wrong: list[tuple[str, str]] = []
        self.pidfds: dict[int, int] = {}
        self.os, self.time, self.resource = Calls(self), _clock(self), _Limits(self)

    # -- processes ----------------------------------------------------------------------

    def _new(self, parent: int, name: str, **facts: Any) -> Process:
        self.last_pid += 1
        ticks = int(self.world.moment().boot * os.sysconf("SC_CLK_TCK"))
        process = Process(self.last_pid, parent, facts.pop("session", self.last_pid), name, ticks)
        for field_name, value in facts.items():
            setattr(process, field_name, value)
        self.processes[process.pid] = process
        return process

    def new_daemon(self) -> None:
        """Create the process of the next daemon."""
        self.daemon = self.current = self._new(INIT, "python", adopts=True)

    def spawn_supervisor(self, exits: str, *_: object) -> tuple[int, keeper.FramedSocket]:
        """Fork a supervisor."""
        ours, theirs = socket.socketpair()
        process = self._new(self.daemon.pid, "stoker-superv", adopts=True)
        fd = ours.detach()
        self.daemon.fds.add(fd)
        wire = keeper.FramedSocket(_Socket(self, fd))  # type: ignore[arg-type]
        self.supervisors.append(Supervisor(self, process, theirs, exits))
        return process.pid, wire

    def spawn(self, environment: dict[str, str]) -> int:
        """Start the main process of an attempt."""
        parent = self.current
        fds = {os.dup(fd) for fd in parent.inherited & parent.fds}
        job, number = int(environment["STOKER_JOB_ID"]), int(environment["STOKER_ATTEMPT"])
        how = self.behaviour(job, number)
        process = self._new(
            parent.pid, "job", limit=parent.limit, environment=environment, fds=fds,
            ignores_term=how.ignores_term, left=how.seconds, code=how.code, owner=job,
        )  # fmt: skip
        self._check_start(process, job, number)
        self.started.append((job, number))
        if how.leaves:
            child = self._new(
                process.pid, "left", limit=parent.limit, left=60.0, owner=job,
                fds={os.dup(fd) for fd in fds},
            )  # fmt: skip
            self._run(child)
        self._run(process)
        return process.pid

    def _check_start(self, process: Process, job: int, number: int) -> None:
        if (job, number) in self.started:
            self.wrong.append(("doubled", f"attempt {number} of job {job} was started again"))
        for other in self.jobs():
            if other is process:
                continue
            if other.environment["STOKER_JOB_ID"] == str(job):
                self.wrong.append(("doubled", f"{other.key} runs, and {process.key} starts"))
            for gpu in set(_gpus(other)) & set(_gpus(process)):
                self.wrong.append(("over-committed", f"{other.key} and {process.key} have {gpu}"))

    def jobs(self) -> list[Process]:
        """Return the living main processes of attempts."""
        return [each for each in self.processes.values() if each.alive and each.name == "job"]

    def _run(self, process: Process) -> None:
        process.life += 1
        life, process.due = process.life, self.world.time + process.left

        def end() -> None:
            if process.alive and process.life == life and process.due is not None:
                self.exit(process, process.code << 8)

        self.world.after(process.left, end)

    def exit(self, process: Process, status: int) -> None:
        """End a process: its descriptors close, its children get another parent."""
        process.state, process.status = "Z", status
        if process.name == "job":
            key = process.environment["STOKER_JOB_ID"], process.environment["STOKER_ATTEMPT"]
            self.ended[int(key[0]), int(key[1])] = status
        for fd in process.fds:
            self.pidfds.pop(fd, None)
            os.close(fd)
        process.fds.clear()
        for fd in [fd for fd, pid in self.pidfds.items() if pid == process.pid]:
            os.eventfd_write(fd, 1)
        for child in [each for each in self.processes.values() if each.parent == process.pid]:
            child.parent = self._subreaper(process.parent)
            if child.parent == INIT and not child.alive:
                self._forget(child)
        if process.parent == INIT:
            self._forget(process)

    def _subreaper(self, pid: int) -> int:
        while pid != INIT:
            process = self.processes.get(pid)
            if process is not None and process.alive and process.adopts:
                return pid
            pid = process.parent if process is not None else INIT
        return INIT

    def _forget(self, process: Process) -> None:
        """Remove a child of init, which waits for it at once."""
        del self.processes[process.pid]
        if process.name == "job":
            self.unseen.add(process.key)

    def zombies(self, parent: int) -> list[Process]:
        """Return the children that have ended and were not waited for."""
        return [
            each for each in self.processes.values() if each.parent == parent and not each.alive
        ]

    def kill(self, pid: int, number: int) -> None:
        """Send a signal."""
        process = self.processes.get(pid)
        if process is None:
            raise ProcessLookupError
        if number == 0 or not process.alive:
            return
        found = [each for each in self.supervisors if each.process is process]
        if found:
            if number == signal.SIGKILL:
                found[0].kill()
            elif number in (signal.SIGSTOP, signal.SIGCONT):
                found[0].stopped = number == signal.SIGSTOP
                process.state = "T" if found[0].stopped else "S"
        elif number == signal.SIGSTOP and process.due is not None:
            process.left, process.due = process.due - self.world.time, None
            process.state = "T"
        elif number == signal.SIGCONT and process.due is None:
            process.state = "S"
            self._run(process)
        elif number == signal.SIGKILL or (
            number in (signal.SIGTERM, signal.SIGINT)
            and not process.ignores_term
            and process.due is not None
        ):
            self.exit(process, number)

    def kill_daemon(self) -> None:
        """Kill the daemon."""
        self.exit(self.daemon, signal.SIGKILL)

    # -- steps --------------------------------------------------------------------------

    def step(self) -> None:
        """Another process may run before this call."""
        if self.current is not self.daemon:
            next(each for each in self.supervisors if each.process is self.current).step()
            return
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left <= 0:
                raise Crash("a system call")
        if self.random.random() < 0.1:
            for _ in range(self.random.choice([1, 2, 5])):
                if not self.run_one() or self.random.random() < 0.1:
                    self.world.advance(self.random.choice([0.0, 0.001, 0.01]))

    def run_one(self) -> bool:
        """Let one supervisor take a few steps; False if none can."""
        able = [each for each in self.supervisors if each.runnable]
        if able:
            self.random.choice(able).resume(self.random.choice([1, 2, 8, 40]))
            self.supervisors = [each for each in self.supervisors if not each.over]
        return bool(able)

    def sleep(self, seconds: float) -> None:
        """Let time pass, and supervisors do what they have to do."""
        self.world.advance(seconds)
        while self.current is self.daemon and self.run_one():
            pass

    def close(self) -> None:
        """End everything."""
        for each in self.supervisors:
            each.kill()
        for process in list(self.processes.values()):
            if process.alive:
                self.exit(process, signal.SIGKILL)

    # -- /proc --------------------------------------------------------------------------

    def read_proc(self, path: str) -> bytes:
        """Return the content of a file in /proc."""
        words = path.split("/")[2:]
        if words[0] in ("sys", "loadavg"):
            return b"%d\n" % self.last_pid
        process = self.processes.get(int(words[0]))
        if process is None:
            raise FileNotFoundError(errno.ENOENT, path)
        match words[-1]:
            case "stat":
                fields = [process.state, process.parent, process.session, process.session]
                text = " ".join(map(str, [*fields, *[0] * 15, process.ticks, 0]))
                return f"{process.pid} ({process.name}) {text}".encode()
            case "comm":
                return process.name.encode() + b"\n"
            case "environ":
                pairs = process.environment.items() if process.alive else ()
                return b"".join(f"{name}={value}\0".encode() for name, value in pairs)
            case "limits":
                return b"Max file locks            %s unlimited locks\n" % process.limit
            case "children":
                pids = [each.pid for each in self.processes.values() if each.parent == process.pid]
                return "".join(f"{pid} " for pid in pids).encode()
            case "status":
                return b"Name:\tjob\nSigCgt:\t0000000000000000\n"
        raise FileNotFoundError(errno.ENOENT, path)

    def open(self, path: str | int, mode: str = "r", **more: Any) -> Any:
        """Do what `open` does."""
        self.step()
        if str(path).startswith("/proc/"):
            return io.BytesIO(self.read_proc(str(path)))
        file = open(path, mode, **more)  # noqa: SIM115 - as the caller asks for
        self.current.fds.discard(file.fileno())  # the file object closes it
        return file

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Patch the real modules so that they call this kernel."""
        with contextlib.ExitStack() as stack:
            files = (recovered, replacement, salvage, setup, sqlite, watermark)
            processes = (
                adoption, claims, holds, keeper, keepers, local, lockfiles, log_file, procfs, tree
            )  # fmt: skip
            for module in (*processes, *files):
                stack.enter_context(mock.patch.object(module, "os", self.os))
            for module in (adoption, holds, keeper, local, lockfiles, termination):
                stack.enter_context(mock.patch.object(module, "time", self.time))
            for module in (keeper, tree):
                stack.enter_context(mock.patch.object(module, "resource", self.resource))
            for module in (claims, *files):
                stack.enter_context(mock.patch.object(module, "open", self.open, create=True))
            for module in (keepers, supervisor_pool):
                stack.enter_context(
                    mock.patch.object(module, "spawn_supervisor", self.spawn_supervisor)
                )
            for module in (recovered, setup):
                stack.enter_context(mock.patch.object(module, "system_clock", self.world.moment))
            boot = mock.patch.object(setup.host, "boot_id", return_value=self.world.boot_id)
            stack.enter_context(boot)
            contained = mock.patch.object(
                termination.container, "is_supervisor_of", return_value=False
            )
            stack.enter_context(contained)
            yield


class Calls:
    """`os` as the current process of the kernel has it: files are real, processes are not."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    # -- files --------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        kernel = self.kernel
        kernel.step()
        if path.startswith("/proc/"):
            content = kernel.read_proc(path)
            fd = os.memfd_create("proc")
            os.write(fd, content)
            os.lseek(fd, 0, os.SEEK_SET)
        else:
            if dir_fd is not None and kernel.random.random() < kernel.lock_error:
                raise OSError(kernel.random.choice([errno.ENOSPC, errno.EMFILE]), "no room", path)
            fd = os.open(path, flags, mode, dir_fd=dir_fd)
        kernel.current.fds.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.kernel.current.fds.discard(fd)
        self.kernel.current.inherited.discard(fd)
        self.kernel.pidfds.pop(fd, None)
        os.close(fd)

    def write(self, fd: int, data: bytes) -> int:
        self.kernel.step()
        return os.write(fd, data)

    def pread(self, fd: int, size: int, at: int) -> bytes:
        self.kernel.step()
        return os.pread(fd, size, at)

    def link(self, old: str, new: str) -> None:
        self.kernel.step()
        os.link(old, new)

    def unlink(self, path: str) -> None:
        self.kernel.step()
        os.unlink(path)

    def rename(self, old: str, new: str) -> None:
        self.kernel.step()
        os.rename(old, new)

    def listdir(self, path: str) -> list[str]:
        self.kernel.step()
        if path == "/proc":
            return [str(pid) for pid in self.kernel.processes]
        return os.listdir(path)

    def readlink(self, path: str) -> str:
        return "pid:[1]" if path.endswith("/ns/pid") else os.readlink(path)

    def set_inheritable(self, fd: int, yes: bool) -> None:
        self.kernel.current.inherited.add(fd)

    # -- processes ----------------------------------------------------------------------

    def getpid(self) -> int:
        return self.kernel.current.pid

    def chdir(self, path: str) -> None:
        """Nothing here depends on it."""

    def umask(self, mask: int) -> int:
        return 0o077

    def posix_spawn(self, path: str, argv: Any, environment: dict[str, str], **how: Any) -> int:
        self.kernel.step()
        if self.kernel.random.random() < self.kernel.spawn_error:
            raise OSError(errno.EAGAIN, "no room for a process")
        return self.kernel.spawn(environment)

    posix_spawnp = posix_spawn

    def kill(self, pid: int, number: int) -> None:
        self.kernel.step()
        self.kernel.kill(pid, number)

    def killpg(self, group: int, number: int) -> None:
        self.kernel.step()
        members = [
            each for each in self.kernel.processes.values() if each.session == group and each.alive
        ]
        if not members:
            raise ProcessLookupError

    def pidfd_open(self, pid: int) -> int:
        self.kernel.step()
        process = self.kernel.processes.get(pid)
        if process is None:
            raise ProcessLookupError
        fd = os.eventfd(0 if process.alive else 1, os.EFD_CLOEXEC)
        self.kernel.pidfds[fd] = pid
        self.kernel.current.fds.add(fd)
        return fd

    def waitid(self, kind: int, pid: int, options: int) -> Any:
        self.kernel.step()
        me = self.kernel.current.pid
        if not any(each.parent == me for each in self.kernel.processes.values()):
            raise ChildProcessError
        for child in self.kernel.zombies(me):
            code = os.CLD_KILLED if child.status & 0x7F else os.CLD_EXITED
            status = child.status & 0x7F or child.status >> 8
            return SimpleNamespace(si_pid=child.pid, si_code=code, si_status=status)
        return None

    def waitpid(self, pid: int, options: int) -> tuple[int, int]:
        self.kernel.step()
        child = self.kernel.processes.get(pid)
        if child is None or child.parent != self.kernel.current.pid:
            raise ChildProcessError
        if child.alive:
            assert options & os.WNOHANG, f"waits for {child}"
            return 0, 0
        del self.kernel.processes[pid]
        if self.kernel.current is self.kernel.daemon and child.name == "job":
            self.kernel.waited.add(child.key)
        return pid, child.status

    def wait4(self, pid: int, options: int) -> tuple[int, int, SimpleNamespace]:
        used = SimpleNamespace(ru_utime=0.0, ru_stime=0.0, ru_maxrss=0)
        return (*self.waitpid(pid, options), used)


class _Socket:
    """The daemon's end of a supervisor's socket, which is closed when the daemon dies."""

    def __init__(self, kernel: Kernel, fd: int) -> None:
        self.kernel, self.fd = kernel, fd

    def fileno(self) -> int:
        return self.fd

    def send(self, data: bytes, flags: int = 0) -> int:
        self.kernel.step()
        return os.write(self.fd, data)

    def recv(self, size: int) -> bytes:
        self.kernel.step()
        return os.read(self.fd, size)

    def close(self) -> None:
        if self.fd in self.kernel.daemon.fds:
            self.kernel.daemon.fds.remove(self.fd)
            os.close(self.fd)


class _Limits:
    """`resource` as the current process has it."""

    RLIM_INFINITY = resource.RLIM_INFINITY

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def getrlimit(self, which: int) -> tuple[int, int]:
        return self.RLIM_INFINITY, self.RLIM_INFINITY

    def setrlimit(self, which: int, limits: tuple[int, int]) -> None:
        soft = limits[0]
        self.kernel.current.limit = UNLIMITED if soft == self.RLIM_INFINITY else b"%d" % soft


def _clock(kernel: Kernel) -> SimpleNamespace:
    world = kernel.world
    return SimpleNamespace(
        time=lambda: world.moment().wall,
        monotonic=lambda: world.moment().boot,
        clock_gettime=lambda _: world.moment().boot,
        sleep=kernel.sleep,
    )


def _gpus(process: Process) -> list[str]:
    if process.environment.get("STOKER_GPU_COUNT") in ("", "0", None):
        return []
    return process.environment["STOKER_GPUS"].split(",")


def _is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])
