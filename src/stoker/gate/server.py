"""The main loop: accept users, hand their sockets to the system daemon, start user executors."""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import os
import pwd
import resource
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from stoker.gate import accounts, devices, process, protocol, trust
from stoker.gate.accounts import NotAllowed
from stoker.gate.config import Config, ConfigError
from stoker.gate.protocol import Notice, PeerClosed, ProtocolError, Request
from stoker.gate.rate import ConnectionRate
from stoker.gate.records import Records

BACKLOG = 4096
ACCEPTED_PER_TURN = 32
MAX_EXECUTORS_PER_USER = 4
MAX_STARTING = 64
REPORT_CHUNK_BYTES = 1024
PAUSE_SECONDS = 1.0
"""How long no user is accepted after a failed accept: the machine has no free descriptors."""


@dataclass
class Child:
    """A user executor that this gate started."""

    uid: int
    pid: int
    pidfd: int
    report: int | None
    """Pipe of its set-up, until exec."""
    wire: socket.socket | None
    """Its socket, until the system daemon gets it."""
    text: bytes = b""


class Gate:
    """Listens for all users and for one system daemon."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.daemon_uid, gid = _daemon_ids(config.daemon_user)
        for path, mode in (
            (config.run_dir, 0o755),
            (config.users_dir, 0o711),
            (config.state_dir, 0o700),
        ):
            reason = trust.own_directory(path, mode)
            if reason is not None:
                raise ConfigError(f"{path} is not used: {reason}")
        trust.give_directory(f"{config.run_dir}/gpus", self.daemon_uid, gid)
        self.lock = _lock(f"{config.state_dir}/lock")
        self.records = Records(config.state_dir)
        self.cgroup = config.cgroup or process.own_cgroup()
        self.device_root = _device_root(config)
        self.users = _listen(config.users_socket, socket.SOCK_STREAM, 0o666)
        self.daemons = _listen(config.daemon_socket, socket.SOCK_SEQPACKET, 0o660, gid)
        self.daemon: socket.socket | None = None
        self.outgoing: collections.deque[tuple[Notice, int | None]] = collections.deque()
        """What the system daemon has not been sent yet, with descriptors that are closed then."""
        self.children: dict[int, Child] = {}
        self.rate = ConnectionRate()
        self.last_connection: dict[int, int] = {}
        self.paused_until = 0.0
        self.is_stopping = False
        self.selector = selectors.DefaultSelector()
        self._wait_for(self.daemons, self.accept_daemon)

    # ------------------------------------------------------------------- loop

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT; user executors go on."""
        wakeup, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        self._wait_for(wakeup, self.stop)
        while not self.is_stopping:
            self.send_outgoing()
            self.choose_events()
            pause = max(0.0, self.paused_until - time.monotonic()) or None
            for key, _ in self.selector.select(pause):
                # An earlier one of this turn may have closed it.
                if self.selector.get_map().get(key.fd) is key:
                    key.data()

    def stop(self) -> None:
        """End the loop."""
        self.is_stopping = True

    def choose_events(self) -> None:
        """Accept users and read requests only when nothing waits to be sent: memory is bounded."""
        accepts = self.daemon is not None and not self.outgoing
        accepts = accepts and time.monotonic() >= self.paused_until
        self._wait_for(self.users, self.accept_user, accepts)
        if self.daemon is not None:
            events = selectors.EVENT_WRITE if self.outgoing else selectors.EVENT_READ
            callback = self.send_outgoing if self.outgoing else self.receive
            self._wait_for(self.daemon, callback, events=events)

    def _wait_for(
        self,
        file: socket.socket | int,
        callback: Callable[[], None],
        is_wanted: bool = True,
        events: int = selectors.EVENT_READ,
    ) -> None:
        with contextlib.suppress(KeyError):
            key = self.selector.get_key(file)
            if is_wanted and key.events == events:
                return
            self.selector.unregister(file)
        if is_wanted:
            self.selector.register(file, events, callback)

    # -------------------------------------------------------- the system daemon

    def accept_daemon(self) -> None:
        """Serve a system daemon, if it is one and the only one."""
        peer, _ = self.daemons.accept()
        pid, uid = protocol.credentials(peer)
        if self.daemon is not None and _has_hung_up(self.daemon):
            self.drop_daemon("it has ended")
        if uid != self.daemon_uid or self.daemon is not None:
            why = "there is one" if uid == self.daemon_uid else f"its uid is {uid}"
            log(f"refused a system daemon: {why} (pid {pid})")
            peer.close()
            return
        peer.setblocking(False)
        self.daemon = peer
        log(f"the system daemon has connected: pid {pid}")
        uids = self.records.authorized()
        step = protocol.MAX_UIDS_PER_HELLO
        for start in range(0, max(len(uids), 1), step):
            more = start + step < len(uids)
            part, groups = uids[start : start + step], self.device_root or ""
            self.queue(protocol.Hello(protocol.VERSION, part, groups, more))

    def queue(self, notice: Notice, fd: int | None = None) -> None:
        """Send a message as soon as the system daemon takes it; without one, drop it."""
        if self.daemon is not None:
            self.outgoing.append((notice, fd))
        elif fd is not None:
            os.close(fd)

    def send_outgoing(self) -> None:
        """Send what the system daemon takes now."""
        while self.outgoing and self.daemon is not None:
            notice, fd = self.outgoing[0]
            try:
                protocol.send(self.daemon, notice, fd)
            except BlockingIOError:
                return
            except OSError as error:
                self.drop_daemon(str(error))
                return
            self.outgoing.popleft()
            if fd is not None:
                os.close(fd)

    def drop_daemon(self, why: str) -> None:
        """Close the connection of the system daemon and what it was to be sent."""
        if self.daemon is None:
            return
        log(f"the connection of the system daemon is closed: {why}")
        self._wait_for(self.daemon, self.receive, is_wanted=False)
        self.daemon.close()
        self.daemon = None
        for _, fd in self.outgoing:
            if fd is not None:
                os.close(fd)
        self.outgoing.clear()

    def receive(self) -> None:
        """Carry out one request of the system daemon."""
        assert self.daemon is not None
        try:
            request = protocol.receive_request(self.daemon)
        except BlockingIOError:
            return
        except PeerClosed:
            self.drop_daemon("it has ended")
            return
        except (ProtocolError, OSError) as error:
            self.drop_daemon(str(error))
            return
        try:
            self.carry_out(request)
        except (NotAllowed, devices.DeviceGroupError, OSError) as error:
            kind = protocol.kind_of(request)
            log(f"refused {kind} of uid {request.uid}: {error}")
            self.queue(protocol.Refused(request.uid, kind, protocol.text(str(error))))

    def carry_out(self, request: Request) -> None:
        """Carry out a request, or raise NotAllowed."""
        match request:
            case protocol.StartExecutor(uid):
                self.start_executor(uid)
            case protocol.KillExecutor(uid, pid):
                self.kill_executor(uid, pid)
            case protocol.Release(uid, number):
                self.release(uid, number)
            case protocol.CreateDeviceGroup(uid, name, allowed):
                self.create_device_group(uid, name, allowed)
            case protocol.RemoveDeviceGroup(uid, name):
                devices.remove(self.device_root, uid, name)

    # -------------------------------------------------------------------- users

    def accept_user(self) -> None:
        """Accept connections of users and queue their sockets for the system daemon."""
        for _ in range(ACCEPTED_PER_TURN):
            try:
                client, _ = self.users.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ECONNABORTED:
                    log(f"no connection can be accepted: {error}")
                    self.paused_until = time.monotonic() + PAUSE_SECONDS
                return
            pid, uid = protocol.credentials(client)
            now = time.monotonic()
            if not self.rate.allows(uid, now):
                client.close()
                if not self.rate.is_reported(uid, now):
                    log(f"closed connections of uid {uid}: too many per second")
                continue
            notice = protocol.Connection(uid, pid, self.next_number(uid), self.authorize(uid))
            self.queue(notice, client.detach())

    def authorize(self, uid: int) -> str:
        """Note that this user has connected; return why it may not run jobs, or nothing."""
        if self.records.name_of(uid) is not None:
            return ""
        try:
            accounts.check_uid(self.config, uid)
            name = accounts.entry_of(uid).pw_name
            self.records.authorize(uid, name)
        except (NotAllowed, OSError) as error:
            return protocol.text(str(error))
        log(f"authorized uid {uid} ({name})")
        return ""

    def next_number(self, uid: int) -> int:
        """Return a number for a connection, larger than all before, also those of other gates."""
        number = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self.last_connection[uid] = number
        return number

    def release(self, uid: int, number: int) -> None:
        """Forget that this user has connected, unless it has connected again since `number`."""
        if self.last_connection.get(uid, 0) > number:
            raise NotAllowed("it has connected again")
        self.records.release(uid)
        self.last_connection.pop(uid, None)
        log(f"released uid {uid}")

    def _authorized(self, uid: int) -> int:
        if self.records.name_of(uid) is None:
            raise NotAllowed(f"uid {uid} has not connected")
        return uid

    # ---------------------------------------------------------------- executors

    def start_executor(self, uid: int) -> None:
        """Fork the process of a user; `read_report` tells the system daemon what became of it."""
        self._authorized(uid)
        accounts.check_uid(self.config, uid)
        name = self.records.name_of(uid)
        assert name is not None
        if sum(child.uid == uid for child in self.children.values()) >= MAX_EXECUTORS_PER_USER:
            raise NotAllowed(f"uid {uid} has {MAX_EXECUTORS_PER_USER} executors")
        if sum(child.report is not None for child in self.children.values()) >= MAX_STARTING:
            raise NotAllowed(f"{MAX_STARTING} executors are starting")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        report, report_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        cgroup = f"{self.cgroup}/user-{uid}" if self.cgroup else None
        pid = os.fork()
        if pid == 0:
            process.become(self.config, uid, name, cgroup, self.device_root, theirs, report_write)
        theirs.close()
        os.close(report_write)
        child = Child(uid, pid, os.pidfd_open(pid), report, ours)
        self.children[pid] = child
        self._wait_for(report, lambda: self.read_report(child))
        self._wait_for(child.pidfd, lambda: self.reap(child))
        log(f"starting an executor for uid {uid} ({name}): pid {pid}")

    def read_report(self, child: Child) -> None:
        """Read what the set-up of a process reports; at its end, pass the executor on."""
        assert child.report is not None
        with contextlib.suppress(BlockingIOError):
            while data := os.read(child.report, REPORT_CHUNK_BYTES):
                child.text += data
            self.finish_start(child)

    def finish_start(self, child: Child) -> None:
        """Pass an executor on to the system daemon, or why there is none."""
        assert child.report is not None
        self._wait_for(child.report, self.stop, is_wanted=False)
        os.close(child.report)
        child.report = None
        assert child.wire is not None
        with child.wire as wire:
            child.wire = None
            if child.text == process.READY:
                executor = protocol.Executor(child.uid, child.pid)
                self.queue(executor, os.dup(wire.fileno()))
                return
        why = child.text.removeprefix(process.READY).decode(errors="replace")
        why = protocol.text(why or "the set-up of its process took too long or was killed")
        log(f"no executor for uid {child.uid}: {why}")
        self.queue(protocol.Refused(child.uid, "start_executor", why))

    def reap(self, child: Child) -> None:
        """Collect a child that has ended and tell the system daemon."""
        if child.report is not None:
            self.read_report(child)
        if child.report is not None:
            self.finish_start(child)  # a process that the set-up left behind has the pipe too
        _, status = os.waitpid(child.pid, 0)
        self._wait_for(child.pidfd, self.stop, is_wanted=False)
        os.close(child.pidfd)
        del self.children[child.pid]
        code = os.waitstatus_to_exitcode(status)
        log(f"the executor of uid {child.uid} has ended: pid {child.pid}, status {code}")
        if child.text == process.READY:
            self.queue(protocol.Ended(child.uid, child.pid, code))

    def kill_executor(self, uid: int, pid: int) -> None:
        """Kill a process that this gate started for this user, and nothing else."""
        child = self.children.get(pid)
        if child is None or child.uid != uid:
            raise NotAllowed(f"pid {pid} is no executor of uid {uid} that this gate started")
        signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
        log(f"killed the executor of uid {uid}: pid {pid}")

    def create_device_group(self, uid: int, name: str, allowed: list[list[int]]) -> None:
        """Create a device group and answer with its directory."""
        path, why = "", ""
        try:
            path = devices.create(self.device_root, self._authorized(uid), name, allowed)
        except (NotAllowed, devices.DeviceGroupError) as error:
            why = protocol.text(str(error))
        log(f"device group {name} of uid {uid}: {why or allowed}")
        self.queue(protocol.DeviceGroup(uid, name, path, why))


def log(line: str) -> None:
    """Write one line about one decision."""
    print(protocol.text(line), file=sys.stderr, flush=True)


def serve(config: Config) -> None:
    """Run the gate until it is stopped."""
    if os.geteuid() != 0:
        raise ConfigError("the gate must be started by root")
    os.umask(0o022)
    process.forbid_tracing()
    for path in (sys.executable, os.path.dirname(__file__), config.executor_command[0]):
        reason = trust.reason_against(path)
        if reason is not None:
            raise ConfigError(f"{path} is not used: {reason}")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gate = Gate(config)
    log(f"listening on {config.users_socket} and {config.daemon_socket}")
    notify_ready()
    gate.run()
    log("stopped; user executors and jobs go on")


def notify_ready() -> None:
    """Tell systemd, if it started this process, that the sockets are there."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as peer:
            peer.connect("\0" + address[1:] if address.startswith("@") else address)
            peer.send(b"READY=1")


def _daemon_ids(name: str) -> tuple[int, int]:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(
            f"there is no user {name} (daemon_user); see stoker system install"
        ) from None
    if entry.pw_uid == 0:
        raise ConfigError("daemon_user must not be root")
    return entry.pw_uid, entry.pw_gid


def _has_hung_up(peer: socket.socket) -> bool:
    poll = select.poll()
    poll.register(peer, 0)
    return bool(poll.poll(0))


def _lock(path: str) -> int:
    """Return a descriptor that holds the lock of the only gate."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError("another gate is running") from None
    return fd


def _listen(path: str, kind: socket.SocketKind, mode: int, gid: int = -1) -> socket.socket:
    """Listen at `path` in place of an earlier gate; the directory is root's."""
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.setblocking(False)
    temporary = f"{path}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    listener.bind(temporary)
    os.chown(temporary, -1, gid)
    os.chmod(temporary, mode)
    listener.listen(BACKLOG)
    os.rename(temporary, path)
    return listener


def _device_root(config: Config) -> str | None:
    """Return where device groups are made; None where the kernel does not isolate GPUs."""
    try:
        return devices.prepare(config.device_groups or devices.find_root())
    except devices.DeviceGroupError as error:
        log(f"every job can open all GPUs: {error}")
        return None
