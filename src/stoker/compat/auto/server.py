"""The server: makes sure that a daemon runs, opens a port for clients, and tells what happens.

The daemon does the work; what is queued and what runs is its business, and goes on without us.
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
from stoker.compat.auto.options import DOOR
from stoker.compat.auto.server_file import ServerFile
from stoker.compat.auto.settings import Settings, read
from stoker.compat.auto.tasks import HOLDING, UNFINISHED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.cli.options import Args

SUCCESSOR_SECONDS = 15.0
"""How long a daemon that was stopped may take to come back, in a restart."""


def server(args: Args) -> int:
    """Serve until stopped."""
    settings = read(args)
    record = ServerFile()
    try:
        return Server(settings, record).run()
    finally:
        record.close()


class Server:
    """One server, with the daemon that it stands in front of."""

    def __init__(self, settings: Settings, record: ServerFile) -> None:
        self.settings, self.record = settings, record
        self.client = Client()
        self.say = EventLog(settings.log_file)
        self.daemon: dict[str, Any] = {}
        self.addresses: list[str] = []
        self.usual: dict[str, Any] = {}
        """From when on a GPU counted as used by others before we came, and will again."""
        self.stopped = _signals()

    def run(self) -> int:
        """Open, tell what happens, close."""
        self._meet_daemon()
        self._open()
        self._introduce()
        stream = EventStream(self.client)
        stream.last = stream.last or int(self.daemon["seq"])
        try:
            while self._listen(stream):
                if not self._again():
                    return DaemonUnreachable("").exit_code
                stream.reopen()
        finally:
            stream.close()
        self._close()
        return 0

    # -- the daemon -----------------------------------------------------------------------

    def _meet_daemon(self) -> None:
        """Have a daemon with these GPUs: the one that runs, else a new one."""
        names = self.settings.gpus
        try:
            self.daemon = self.client.daemon()
            started = False
        except DaemonUnreachable:
            from stoker.client.autostart import start_daemon

            start_daemon(["--also", ",".join(names)])
            self.daemon = self.client.daemon()
            started = True
        gpus = self.client.gpus()["gpus"]
        found = {gpu["id"]: gpu for gpu in gpus if gpu["node"] == self.daemon["node"]}
        elsewhere = {gpu["id"] for gpu in gpus} - set(found)
        real = [name for name, gpu in found.items() if gpu["uuid"]]
        missing = [
            name
            for name in names
            if name not in elsewhere and (name not in found or (real and name not in real))
        ]
        if not missing:
            return
        if started:
            # It declared GPUs that a machine with real ones does not have.
            fd = os.pidfd_open(int(self.daemon["pid"]))
            self.client.stop()
            select.select([fd], [], [], SUCCESSOR_SECONDS)  # the next server must not meet it
            os.close(fd)
        there = f"it has {', '.join(real or found)}" if found else "it has none"
        sentence = f"This host has no GPU {', '.join(missing)}: {there}."
        if not started and not real:
            wanted = ",".join(dict.fromkeys((*found, *names)))
            sentence += f" To declare them: stoker daemon restart --gpus {wanted}"
        raise StokerError(sentence, 2, "usage")

    def _open(self) -> None:
        """Tell the daemon what this door gives out, and where its clients come in."""
        chosen = self.settings
        self.client.define_queue(
            DOOR, devices=chosen.gpus, max_waiting=chosen.max_run, max_job_gpus=str(chosen.limit)
        )
        before = self.record.before
        same = before.get("daemon") == self.daemon["pid"]
        self.usual = (before.get("thresholds") if same else None) or self.daemon["thresholds"]
        self.client.thresholds(load=chosen.max_load, memory=chosen.max_memory, processes=False)
        for address in before.get("addresses") or ():
            with contextlib.suppress(StokerError):
                self.client.unlisten(address)  # of a server that was killed
        note = {"door": DOOR, "records": str(chosen.num_records), "directory": os.getcwd()}
        opened = self.client.listen(f"127.0.0.1:{chosen.port}", note=note)
        self.addresses = [opened["address"]]
        chosen.port = int(opened["address"].rpartition(":")[2])
        self.bound: dict[str, Any] | None = None
        if chosen.bind is not None:
            host = f"[{chosen.bind}]" if ":" in chosen.bind else chosen.bind
            try:
                self.bound = self.client.listen(f"{host}:{chosen.port}", tls=True, note=note)
            except StokerError:
                self.client.unlisten(self.addresses[0])
                raise
            self.addresses.append(self.bound["address"])
        self.record.write(
            pid=os.getpid(), port=chosen.port, addresses=self.addresses,
            token_file=opened["token_file"], socket=places.socket_path(),
            daemon=self.daemon["pid"], thresholds=self.usual,
        )  # fmt: skip

    def _again(self) -> bool:
        """The daemon is gone: find or make another, unless somebody stopped it on purpose."""
        crashed = os.path.exists(places.socket_path())  # one that ends tidily takes it away
        if not crashed and self.daemon.get("mode") != "feed":
            self.say("the daemon was stopped; waiting for the next one")
            if not self._successor():
                self.say(
                    "no daemon is running any more, so this server ends; running tasks continue"
                )
                return False
        self._meet_daemon()
        self._open()
        self.say(f"connected to the new daemon (pid {self.daemon['pid']})")
        return True

    def _successor(self) -> bool:
        until = time.monotonic() + SUCCESSOR_SECONDS
        while time.monotonic() < until:
            with contextlib.suppress(DaemonUnreachable):
                return bool(self.client.daemon())
            if select.select([self.stopped], [], [], 0.1)[0]:
                return False
        return False

    # -- telling --------------------------------------------------------------------------

    def _introduce(self) -> None:
        chosen, gpus = self.settings, ",".join(self.settings.gpus)
        self.say(
            f"serving GPU {gpus} on {self.addresses[0]}; daemon pid {self.daemon['pid']},"
            f" task output in {self.daemon['state_dir']}/logs"
        )
        self.say(
            f"a GPU is free below {chosen.max_load:.0%} load and {chosen.max_memory:.0%} memory;"
            " this applies to all jobs of this daemon"
        )
        count = _count(self.client, UNFINISHED)
        if count:
            self.say(f"{counted(count, 'unfinished task')} from an earlier server")
        if self.bound is not None:
            address, fingerprint = self.bound["address"], self.bound["fingerprint"]
            self.say(
                f"clients on other hosts connect to {address} with TLS. Run once on each host:"
            )
            host, token = address.rpartition(":")[0].strip("[]"), self.bound["token_file"]
            self.say(f"    ssh {host} cat {token} | auto trust {address} {fingerprint}")

    def _listen(self, stream: EventStream) -> bool:
        """Tell what happens; True when the daemon has gone, False when we are to stop."""
        here = True
        while here:
            with contextlib.suppress(DaemonUnreachable):
                self.say.events(self.client, stream.take())
            ready = select.select([stream.fileno(), self.stopped], [], [])[0]
            if self.stopped in ready:
                return False
            here = stream.receive()
        return True

    def _close(self) -> None:
        """Let nobody in any more. The daemon keeps what is queued and what runs."""
        for address in self.addresses:
            with contextlib.suppress(StokerError):
                self.client.unlisten(address)
        text = "stopped"
        with contextlib.suppress(StokerError):
            self.client.thresholds(**self.usual)
            running, waiting = _count(self.client, HOLDING), _count(self.client, "PENDING")
            if running or waiting:
                text += f"; {running} running and {waiting} pending tasks continue without it"
        self.say(f"{text}. To stop the daemon too: stoker daemon stop")


def _count(client: Client, states: str) -> int:
    """Return how many tasks are in these states."""
    reply = client.jobs(client=DOOR, state=states, limit=1)
    return len(reply["jobs"]) + int(reply["more"])


def _signals() -> int:
    """Return a descriptor that is readable as soon as we are asked to stop."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # `nohup` and background shells ignore some of these on purpose.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    return read_end
