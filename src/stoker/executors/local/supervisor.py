"""The supervisor: a small process that spawns jobs, waits for them and outlives the daemon.

It is forked from the daemon before anything heavy is loaded and records how each job ended,
whether or not a daemon is connected. A daemon has two of them for all its jobs; a shell per job
would cost as much as the job itself (docs/decisions/0002). It does as little as possible, so
that it has no reason to fail.

Requests and reports are marshalled tuples with a length in front, over a socket pair.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import marshal
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any

from stoker.executors.linux.log_file import open_log
from stoker.executors.linux.procfs import read_stat
from stoker.executors.linux.shared_locks import lock_again
from stoker.executors.linux.subreaper import become_subreaper
from stoker.wire import RLIMIT_LOCKS

BOOT = time.CLOCK_BOOTTIME
PROCESS_NAME = "stoker-superv"
BATCH_SECONDS = 0.001
"""Time that the report of a start may wait for others."""
_PASSING = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT}
"""Shortages that may pass: the start is tried again."""
_RESET = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
"""Jobs do not inherit ignored signals from the process that started the daemon."""


class FramedSocket:
    """Frames over a stream socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = b""

    def send(self, message: tuple[Any, ...]) -> None:
        """Send one message whole."""
        self.sock.sendall(frame(message))

    def receive(self) -> list[tuple[Any, ...]] | None:
        """Return all messages that have arrived; None when the other side is gone."""
        chunk = self.sock.recv(1 << 18)
        if not chunk:
            return None
        buffer = self.buffer + chunk if self.buffer else chunk
        messages, start = [], 0
        while len(buffer) - start >= 4:
            end = start + 4 + int.from_bytes(buffer[start : start + 4], "little")
            if end > len(buffer):
                break
            messages.append(marshal.loads(memoryview(buffer)[start + 4 : end]))  # noqa: S302 - our own fork
            start = end
        self.buffer = buffer[start:]
        return messages


def frame(message: tuple[Any, ...]) -> bytes:
    """Return a message with its length in front."""
    data = marshal.dumps(message)
    return len(data).to_bytes(4, "little") + data


def spawn_supervisor(exits_dir: str) -> tuple[int, FramedSocket]:
    """Fork a supervisor; call this while the process is still small and single-threaded."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, FramedSocket(ours)
    status = 1
    try:
        ours.close()
        # Error messages, also of a crash in native code, go to the daemon's log.
        _detach(theirs.fileno(), os.path.join(os.path.dirname(exits_dir), "daemon.log"))
        Supervisor(FramedSocket(theirs), exits_dir).run()
        status = 0
    except Exception:  # noqa: BLE001 - logged; the daemon starts another
        import traceback

        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)


def _detach(keep: int, log: str) -> None:
    """Share nothing with the parent process: no terminal, files, locks or signals."""
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    with contextlib.suppress(OSError):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    os.closerange(3, keep)
    os.closerange(keep + 1, 1 << 20)
    faulthandler.enable(2)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write(PROCESS_NAME)


def start_ticks(pid: int) -> int:
    """Return the start time of a process, which tells it from a later one with that pid."""
    stat = read_stat(pid)
    return stat.start_ticks if stat is not None else 0


def may_pass(error: OSError, path: str) -> bool:
    """Return whether a start may succeed later.

    A shortage may end. The daemon creates a deleted directory of its state again, within a second;
    `path` leads to a file two levels below that.
    """
    if error.errno in _PASSING:
        return True
    state, directory = os.path.dirname(os.path.dirname(path)), os.path.dirname(str(error.filename))
    is_ours = directory.startswith(f"{state}/")
    return error.errno == errno.ENOENT and is_ours and not os.path.isdir(directory)


class Supervisor:
    """Starts jobs, waits for them, records their exits."""

    def __init__(self, wire: FramedSocket, exits_dir: str) -> None:
        self.wire: FramedSocket | None = wire
        me = os.getpid()
        self.name = b"keeper %d %d" % (me, start_ticks(me))
        self.children: dict[int, tuple[str, int]] = {}
        self.environments: dict[str, dict[str, str]] = {}
        self.reports: list[tuple[Any, ...]] = []
        self.urgent = False
        self.unsent = b""
        self.exits_path, self.exits = f"{exits_dir}/{me}", -1
        self._open_exits()
        self.children_path = f"/proc/{me}/task/{me}/children"
        self.device_group: str | None = None
        self.umask = 0o077
        os.umask(self.umask)
        self.limits = resource.getrlimit(RLIMIT_LOCKS)
        self.null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def _open_exits(self) -> None:
        if self.exits >= 0:
            os.close(self.exits)
            self.exits = -1
        with contextlib.suppress(OSError):  # a full disk: until then the claims have the exits
            self.exits = open_log(self.exits_path, 0o600)

    def run(self) -> None:
        """Serve until the daemon is gone and the last job has ended."""
        wake, wake_write = socket.socketpair()
        for end in (wake, wake_write):
            end.setblocking(False)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.epoll()
        poll.register(wake.fileno(), select.EPOLLIN)
        assert self.wire is not None
        orders = self.wire.sock.fileno()
        poll.register(orders, select.EPOLLIN)
        become_subreaper()
        full = False
        while self.wire is not None or self.children:
            events = poll.poll(BATCH_SECONDS if self.reports else None)
            self.urgent = self.urgent or not events
            for fd, what in events:
                if fd == orders and what == select.EPOLLOUT:
                    continue  # there is room for what could not be said before
                if fd == orders and self.wire is not None:
                    messages = self._listen()
                    if messages is None:
                        poll.unregister(orders)
                        self.wire = None
                    for message in messages or ():
                        self._handle(message)
                        self._reap()
                        self._send_reports()  # the daemon can think while we start the next one
                else:
                    with contextlib.suppress(BlockingIOError):
                        wake.recv(4096)
            self._reap()
            self._send_reports()
            if self.wire is not None and full != bool(self.unsent):
                full = bool(self.unsent)
                poll.modify(orders, select.EPOLLIN | (select.EPOLLOUT if full else 0))
        with contextlib.suppress(OSError):
            if os.fstat(self.exits).st_size == 0:
                os.unlink(self.exits_path)

    def _listen(self) -> list[tuple[Any, ...]] | None:
        assert self.wire is not None
        try:
            return self.wire.receive()
        except ConnectionError:
            return None

    def _queue_report(self, kind: str, *details: Any) -> None:
        """Queue a report; that of a start is not urgent and is sent with others."""
        self.reports.append((kind, *details))
        self.urgent = self.urgent or kind != "started"

    def _send_reports(self) -> None:
        """Send queued reports without blocking: the daemon may be waiting for this process."""
        if not self.urgent:
            return
        reports, self.reports = self.reports, []
        self.urgent = bool(self.unsent)
        if self.wire is None:
            return
        if reports:
            self.unsent += frame(tuple(reports))
        if self.unsent:
            try:
                sent = self.wire.sock.send(self.unsent, socket.MSG_DONTWAIT)
                self.unsent = self.unsent[sent:]
            except BlockingIOError:
                pass
            except OSError:
                self.unsent = b""  # the daemon has ended, as the next read shows

    def _handle(self, message: tuple[Any, ...]) -> None:
        if message[0] == "environment":
            _, hash, values = message
            self.environments[hash] = values
        elif message[0] == "forget":
            self.environments.pop(message[1], None)
        elif message[0] == "start":
            self._start(*message[1:])

    def _start(
        self,
        key: str,
        claim: str,
        argv: tuple[str, ...],
        directory: str,
        umask: int,
        hash: str,
        extra: dict[str, str],
        out: str,
        err: str | None,
        locks: list[str],
        cgroup: str | None,
        device_group: str | None,
        mark: int,
        note: bytes,
    ) -> None:
        """Claim, then start: only the process that created the claim file may start it."""
        try:
            record = self._claim(claim, note)
        except OSError as error:
            what = f"cannot write {claim}: {error.strerror}"
            # The daemon soon creates a deleted run directory again.
            passing = may_pass(error, claim)
            self._queue_report("busy" if passing else "failed", key, what)
            return
        if record is None:
            self._queue_report("late", key)
            return
        opened: list[int] = []
        try:
            self._join(device_group)
            pid = self._spawn(
                argv,
                directory,
                umask,
                {**self.environments[hash], **extra},
                out,
                err,
                locks,
                opened,
                mark,
            )
            if cgroup is not None:
                with contextlib.suppress(OSError), open(f"{cgroup}/cgroup.procs", "w") as procs:
                    procs.write(str(pid))
        except (OSError, ValueError, KeyError) as error:
            what = _explain(error, argv, directory)
            passing = isinstance(error, OSError) and may_pass(error, self.exits_path)
            line = "withdrawn\n" if passing else f"failed {what}\n"
            with contextlib.suppress(OSError):
                os.write(record, line.encode("utf-8", "replace"))
            os.close(record)
            self._queue_report("busy" if passing else "failed", key, what)
            return
        finally:
            for fd in opened:
                os.close(fd)
            with contextlib.suppress(OSError):  # the next start tries again
                self._join(None)
        ticks, boot, wall = start_ticks(pid), time.clock_gettime(BOOT), time.time()
        with contextlib.suppress(OSError):  # a full disk: its token still identifies it
            os.write(record, b"pid %d %d %.3f %.3f %s\n" % (pid, ticks, boot, wall, self.name))
        self.children[pid] = (key, record)
        self._queue_report("started", key, pid, ticks, boot, wall)

    def _join(self, group: str | None) -> None:
        """Join a device group, which processes inherit; None: that without GPUs, if there is one.

        The supervisor itself moves, because a process that is moved after its start could have
        used GPUs, or have children, before.
        """
        if group == self.device_group:
            return
        home = f"{os.path.dirname(os.path.dirname(self.device_group or ''))}/no-gpus"
        try:
            procs = os.open(f"{group or home}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(procs, b"0")
            finally:
                os.close(procs)
        except OSError as error:
            raise OSError(errno.EAGAIN, f"the device group cannot be joined: {error}") from None
        self.device_group = group

    def _claim(self, path: str, note: bytes) -> int | None:
        """Create the claim and write the first line to it; None if another process has it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        try:
            record = os.open(path, flags, 0o600)
        except FileExistsError:
            return None
        try:
            os.write(record, b"%s %s\n" % (self.name, note))
            # This process may have been stopped meanwhile, and a new daemon been faster.
            if os.pread(record, len(self.name), 0) == self.name:
                return record
        except OSError:
            os.close(record)
            os.unlink(path)
            raise
        os.close(record)
        return None

    def _spawn(
        self,
        argv: tuple[str, ...],
        directory: str,
        umask: int,
        environment: dict[str, str],
        out: str,
        err: str | None,
        locks: list[str],
        opened: list[int],
        mark: int,
    ) -> int:
        for path in locks:  # held until the last process that inherits it has ended
            try:
                opened.append(fd := lock_again(path))
            except OSError as error:
                # The daemon had it a moment ago: the next start shows what happened.
                raise OSError(errno.EAGAIN, f"the GPU is not locked: {error}") from None
            os.set_inheritable(fd, True)
        os.chdir(directory)
        if umask != self.umask:
            os.umask(umask)
            self.umask = umask
        opened.append(log := open_log(out))
        actions: list[tuple[Any, ...]] = [
            (os.POSIX_SPAWN_DUP2, self.null, 0),
            (os.POSIX_SPAWN_DUP2, log, 1),
        ]
        if err is None:
            actions.append((os.POSIX_SPAWN_DUP2, log, 2))
        else:
            opened.append(error_log := open_log(err))
            actions.append((os.POSIX_SPAWN_DUP2, error_log, 2))
        start = os.posix_spawn if "/" in argv[0] else os.posix_spawnp
        if start is os.posix_spawnp:
            # The program is searched in the job's PATH.
            os.environ["PATH"] = environment.get("PATH", "/usr/local/bin:/usr/bin:/bin")
        how: dict[str, Any] = {
            "file_actions": actions, "setsid": True, "setsigmask": (), "setsigdef": _RESET,
        }  # fmt: skip
        with contextlib.suppress(
            ValueError, OSError
        ):  # a lower hard limit: the session identifies it
            resource.setrlimit(RLIMIT_LOCKS, (mark, self.limits[1]))
        try:
            return start(argv[0], argv, environment, **how)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            # A script without #!: run it with a shell, as every shell does.
            return os.posix_spawn("/bin/sh", ("sh", *argv), environment, **how)
        finally:
            resource.setrlimit(RLIMIT_LOCKS, self.limits)

    def _reap(self) -> None:
        while True:
            # The zombie stays until its exit is recorded: if this process were killed in between,
            # there would be neither.
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            known = self.children.pop(pid, None)
            if known is None:
                os.waitpid(pid, 0)  # an orphan of a job, inherited by this process
                continue
            key, record = known
            status = _wait_status(ended)
            boot, wall = time.clock_gettime(BOOT), time.time()
            line = b"exit %d %.3f %.3f\n" % (status, boot, wall)
            if self.exits < 0 or not os.fstat(self.exits).st_nlink:  # it was deleted
                self._open_exits()
            for fd, data in ((record, line), (self.exits, key.encode() + b" " + line)):
                with contextlib.suppress(OSError):  # a full disk: the other copy has it
                    os.write(fd, data)
            used = os.wait4(pid, 0)[2]
            seconds, peak = used.ru_utime + used.ru_stime, used.ru_maxrss >> 10
            with contextlib.suppress(OSError):
                os.write(record, b"used %.3f %d\n" % (seconds, peak))
            os.close(record)
            self._queue_report(
                "exited", key, status, boot, wall, self._has_orphans(), seconds, peak
            )

    def _has_orphans(self) -> bool:
        """Return whether a job has left processes behind, which this process inherits."""
        try:
            fd = os.open(self.children_path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return True  # an old kernel: a scan finds out
        try:
            count = 0
            while part := os.read(fd, 1 << 16):
                count += part.count(b" ")
            return count > len(self.children)
        finally:
            os.close(fd)


def _wait_status(ended: os.waitid_result) -> int:
    """Return the status as waitpid would."""
    if ended.si_code == os.CLD_EXITED:
        return ended.si_status << 8
    return ended.si_status | (0x80 if ended.si_code == os.CLD_DUMPED else 0)


def _explain(error: Exception, argv: tuple[str, ...], directory: str) -> str:
    """Return why a job could not be started, as one sentence."""
    if not isinstance(error, OSError):
        return f"cannot start: {error}"
    name = argv[0]
    if not os.path.isdir(directory):
        return f"the directory {directory} does not exist"
    if isinstance(error, FileNotFoundError) and error.filename in (None, name):
        return _missing(name)
    if isinstance(error, PermissionError) and error.filename in (None, name):
        return f"{name}: permission denied"
    where = f" ({error.filename})" if error.filename else ""
    return f"cannot start: {error.strerror}{where}"


def _missing(name: str) -> str:
    """Return the message for a missing program, or a script with a missing interpreter."""
    try:
        with open(name, "rb") as file:
            first = file.readline(256)
    except OSError:
        return f"{name}: not found"
    interpreter = first.removeprefix(b"#!").split()[:1]
    shown = os.fsdecode(interpreter[0]) if interpreter else "the interpreter"
    ending = " (the script has Windows line ends)" if first.endswith(b"\r\n") else ""
    return f"{shown}: not found; the script names it in its #! line{ending}"


if sys.platform != "linux":
    raise ImportError("stoker runs jobs on Linux only")
