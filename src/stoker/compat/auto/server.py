"""Server: starts a daemon if needed, opens a port for clients, and logs events.

The daemon keeps the queue and runs the tasks, also without the server.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from stoker import places
from stoker.cli.output import counted
from stoker.client.client import Client
from stoker.client.errors import DaemonUnreachable, StokerError
from stoker.client.events import EventStream
from stoker.compat.auto.event_log import EventLog
from stoker.compat.auto.options import NAME
from stoker.compat.auto.server_file import ServerFile
from stoker.compat.auto.settings import ServerSettings
from stoker.compat.auto.tasks import HOLDING, UNFINISHED
from stoker.compat.stop_signals import stop_signal_fd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.cli.options import Args

SUCCESSOR_SECONDS = 15.0
"""How long a restarted daemon may take."""


def server(args: Args) -> int:
    """Serve until stopped."""
    settings = ServerSettings(args)
    server_file = ServerFile()
    try:
        return Server(settings, server_file).run()
    finally:
        server_file.close()


class Server:
    """One server and its daemon."""

    def __init__(self, settings: ServerSettings, server_file: ServerFile) -> None:
        self.settings, self.server_file = settings, server_file
        self.client = Client()
        self.log = EventLog(settings.log_file)
        self.daemon: dict[str, Any] = {}
        self.addresses: list[str] = []
        self.previous_thresholds: dict[str, Any] = {}
        """Thresholds of foreign GPU use before the server started; restored at its end."""
        self.stop_fd = stop_signal_fd(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def run(self) -> int:
        """Open the listeners, log events until stopped, close."""
        self._connect_daemon()
        self._open_listeners()
        self._log_start()
        stream = EventStream(self.client)
        stream.last = stream.last or int(self.daemon["seq"])
        try:
            while self._follow_events(stream):
                if not self._reconnect():
                    return DaemonUnreachable("").exit_code
                stream.reopen()
        finally:
            stream.close()
        self._close_listeners()
        return 0

    # -- the daemon -----------------------------------------------------------------------

    def _connect_daemon(self) -> None:
        """Connect to a daemon with these GPUs; start one if none runs."""
        names = self.settings.gpus
        try:
            self.daemon = self.client.daemon()
            started = False
        except DaemonUnreachable:
            from stoker.client.autostart import start_daemon
            from stoker.client.route import require_own

            require_own()
            start_daemon(["--also", ",".join(names)])
            self.daemon = self.client.daemon()
            started = True
        gpus = self.client.gpus()["gpus"]
        local = {gpu["id"]: gpu for gpu in gpus if gpu["node"] == self.daemon["node"]}
        remote = {gpu["id"] for gpu in gpus} - set(local)
        real = [name for name, gpu in local.items() if gpu["uuid"]]
        missing = [
            name
            for name in names
            if name not in remote and (name not in local or (real and name not in real))
        ]
        if not missing:
            return
        if started:
            # It declared GPUs that a host with real GPUs does not have.
            fd = os.pidfd_open(int(self.daemon["pid"]))
            self.client.stop()
            select.select([fd], [], [], SUCCESSOR_SECONDS)  # the next server must not find it
            os.close(fd)
        present = f"it has {', '.join(real or local)}" if local else "it has none"
        message = f"This host has no GPU {', '.join(missing)}: {present}."
        if not started and not real:
            all_gpus = ",".join(dict.fromkeys((*local, *names)))
            message += f" To declare them: stoker daemon restart --gpus {all_gpus}"
        raise StokerError(message, 2, "usage")

    def _open_listeners(self) -> None:
        """Define the queue, set the thresholds and open the listeners."""
        settings = self.settings
        self.client.define_queue(
            NAME,
            devices=settings.gpus,
            max_waiting=settings.max_run,
            max_job_gpus=str(settings.limit),
        )
        previous = self.server_file.previous
        same_daemon = previous.get("daemon") == self.daemon["pid"]
        self.previous_thresholds = (
            previous.get("thresholds") if same_daemon else None
        ) or self.daemon["thresholds"]
        self.client.thresholds(load=settings.max_load, memory=settings.max_memory, processes=False)
        for address in previous.get("addresses") or ():
            with contextlib.suppress(StokerError):
                self.client.unlisten(address)  # of a killed server
        note = {"client": NAME, "records": str(settings.num_records), "directory": os.getcwd()}
        opened = self.client.listen(f"127.0.0.1:{settings.port}", note=note)
        self.addresses = [opened["address"]]
        settings.port = int(opened["address"].rpartition(":")[2])
        self.bound: dict[str, Any] | None = None
        if settings.bind is not None:
            host = f"[{settings.bind}]" if ":" in settings.bind else settings.bind
            try:
                self.bound = self.client.listen(f"{host}:{settings.port}", tls=True, note=note)
            except StokerError:
                self.client.unlisten(self.addresses[0])
                raise
            self.addresses.append(self.bound["address"])
        self.server_file.write(
            pid=os.getpid(), port=settings.port, addresses=self.addresses,
            token_file=opened["token_file"], socket=places.socket_path(),
            daemon=self.daemon["pid"], thresholds=self.previous_thresholds,
        )  # fmt: skip

    def _reconnect(self) -> bool:
        """Connect to a new daemon after the old one ended; start one only after a crash."""
        crashed = os.path.exists(places.socket_path())  # a normal exit removes it
        if not crashed and self.daemon.get("mode") != "feed":
            self.log("the daemon was stopped; waiting for the next one")
            if not self._await_new_daemon():
                self.log(
                    "no daemon is running any more, so this server ends; running tasks continue"
                )
                return False
        self._connect_daemon()
        self._open_listeners()
        self.log(f"connected to the new daemon (pid {self.daemon['pid']})")
        return True

    def _await_new_daemon(self) -> bool:
        deadline = time.monotonic() + SUCCESSOR_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(DaemonUnreachable):
                return bool(self.client.daemon())
            if select.select([self.stop_fd], [], [], 0.1)[0]:
                return False
        return False

    # -- events ---------------------------------------------------------------------------

    def _log_start(self) -> None:
        settings, gpus = self.settings, ",".join(self.settings.gpus)
        self.log(
            f"serving GPU {gpus} on {self.addresses[0]}; daemon pid {self.daemon['pid']},"
            f" task output in {self.daemon['state_dir']}/logs"
        )
        self.log(
            f"a GPU is free below {settings.max_load:.0%} load and {settings.max_memory:.0%}"
            " memory; this applies to all jobs of this daemon"
        )
        count = _count_tasks(self.client, UNFINISHED)
        if count:
            self.log(f"{counted(count, 'unfinished task')} from an earlier server")
        if self.bound is not None:
            address, fingerprint = self.bound["address"], self.bound["fingerprint"]
            self.log(
                f"clients on other hosts connect to {address} with TLS. Run once on each host:"
            )
            host, token = address.rpartition(":")[0].strip("[]"), self.bound["token_file"]
            self.log(f"    ssh {host} cat {token} | auto trust {address} {fingerprint}")

    def _follow_events(self, stream: EventStream) -> bool:
        """Log events; return True if the daemon is gone, False if the server must stop."""
        connected = True
        while connected:
            with contextlib.suppress(DaemonUnreachable):
                self.log.log_events(self.client, stream.take())
            ready = select.select([stream.fileno(), self.stop_fd], [], [])[0]
            if self.stop_fd in ready:
                return False
            connected = stream.receive()
        return True

    def _close_listeners(self) -> None:
        """Close the listeners and restore the thresholds; the daemon keeps the tasks."""
        for address in self.addresses:
            with contextlib.suppress(StokerError):
                self.client.unlisten(address)
        text = "stopped"
        with contextlib.suppress(StokerError):
            self.client.thresholds(**self.previous_thresholds)
            running = _count_tasks(self.client, HOLDING)
            pending = _count_tasks(self.client, "PENDING")
            if running or pending:
                text += f"; {running} running and {pending} pending tasks continue without it"
        self.log(f"{text}. To stop the daemon too: stoker daemon stop")


def _count_tasks(client: Client, states: str) -> int:
    """Return the number of tasks in these states."""
    reply = client.jobs(client=NAME, state=states, limit=1)
    return len(reply["jobs"]) + int(reply["more"])
