"""Parse what a remote node reports about itself (written by the agent's measure.sh)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from ipaddress import ip_address

import msgspec

from stoker.core.model.job import AttemptId
from stoker.core.model.resources import GPU, DeviceFacts, NodeFacts
from stoker.core.model.units import printable
from stoker.probes.gpu_reading import GpuFacts, GpuProcess, GpuUse, Reading
from stoker.probes.gpu_samples import OwnerOf, parse_token
from stoker.probes.node_devices import gpus, pools

_NUMBER = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?", re.ASCII)
_DISK = re.compile(r"[0-9]+ +[0-9]+ +(-?[0-9]{1,18}) +(?:[0-9]+%|-) ", re.ASCII)
"""Blocks, used, free, percentage: searched for, since the device name may contain blanks."""
_MAX_LINE, _MAX_TEXT, _MAX_NAME, _MAX_HOME = 1000, 200, 100, 4096
"""Characters of a line, of a command or an error and of a name; bytes of a path."""
_TOOLS = frozenset({"bash", "rsync", "tar", "setsid", "nvidia-smi"})
MAX_CORES, MAX_MEMORY, MAX_GPUS, MAX_GPU_MEMORY = 1 << 16, 1 << 32, 256, 1 << 24
"""Larger numbers (MiB of memory) are rejected; they would overflow the journal."""
_NO_DEVICES = "No devices were found"
"""Message of nvidia-smi for a driver without GPUs."""


class BadReport(ValueError):
    """A node reports something impossible; the message says what."""


class ProcessOwner(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a process on a GPU; empty if the node hides processes of other users."""

    user: str = ""
    command: str = ""
    token: str | None = None
    session: int | None = None


class RemoteFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One report of a node: its hardware and its load."""

    complete: bool = False
    """False if the report was truncated; then missing lines mean nothing."""
    boot: str = ""
    home: str = ""
    cores: int = 0
    tools: frozenset[str] = frozenset()
    memory_total: int = 0
    memory_available: int = 0
    """MiB, both."""
    jiffies: tuple[int, int] = (0, 0)
    """Busy and total since boot, over all cores; the load is the difference of two reports."""
    load1: float = 0.0
    disk_free: int = 0
    """MiB, on the file system of stoker's files."""
    address: str | None = None
    """The address of the node in this connection; other nodes may reach it there, too."""
    client: str | None = None
    """The address of the daemon's host as seen by the node."""
    reading: Reading = Reading()
    hung: bool = False
    """The driver did not answer: the state of the GPUs is unknown and stays as it was."""
    owners: dict[int, ProcessOwner] = {}
    """Processes on the GPUs, by pid; one that is missing here has ended."""

    def owner_lookup(self, install: str, sessions: Mapping[int, AttemptId]) -> OwnerOf:
        """Return a function pid -> attempt, by session or by the token of this install."""

        def owner_of(pid: int) -> AttemptId | None:
            owner = self.owners.get(pid)
            if owner is None:
                return None
            by_session = sessions.get(owner.session) if owner.session is not None else None
            return by_session or parse_token(owner.token, install)

        return owner_of

    @property
    def driver_error(self) -> str | None:
        """The message of the GPU driver."""
        return self.reading.error

    def node_facts(self, name: str) -> NodeFacts:
        """Return the resources of the node for the core."""
        types = pools(self.cores, self.memory_total)
        devices: tuple[DeviceFacts, ...] = tuple(gpus(self.reading.facts))
        if devices:
            types[GPU] = devices
        return NodeFacts(name, types)

    def identify(self, pid: int) -> tuple[str, str] | None:
        """Return user and command of a process; None if it has ended."""
        owner = self.owners.get(pid)
        return None if owner is None else (owner.user, owner.command)


def parse(text: bytes) -> RemoteFacts:
    """Parse a report; invalid lines are skipped, impossible numbers are rejected."""
    parser = _Parser()
    seen: set[bytes] = set()
    for line in text.split(b"\n"):
        key, _, value = line.partition(b" ")
        if key in seen and key not in _REPEATED:
            continue
        seen.add(key)
        if key in _FIELDS:
            name, read = _FIELDS[key]
            parser.values[name] = read(value)
        elif key in _HANDLERS:
            _HANDLERS[key](parser, value)
    return parser.result()


class _Parser:
    """Collects the lines of a report."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.tools: set[str] = set()
        self.gpus: dict[str, tuple[GpuFacts, GpuUse]] = {}
        self.indexes: set[int] = set()
        self.processes: dict[str, dict[int, GpuProcess]] = {}
        self.processes_known = False
        self.error: str | None = None
        self.owners: dict[int, ProcessOwner] = {}
        self.buses: dict[str, tuple[int, ...]] = {}
        """Addresses on the PCI bus by UUID."""
        self.xids: dict[tuple[int, ...], int] = {}
        """The last fault by address."""

    def result(self) -> RemoteFacts:
        """Return the report."""
        total = self.values.get("memory_total", 0)
        # Kernels before 2014 do not report available memory.
        values = {"memory_available": total, **self.values}
        reading = Reading(
            facts=tuple(facts for facts, _ in self.gpus.values()),
            use=tuple(self._use(use) for _, use in self.gpus.values()),
            error=self.error,
        )
        report = RemoteFacts(tools=frozenset(self.tools), reading=reading, owners=self.owners)
        report = msgspec.structs.replace(report, **values)
        _check(report)
        return report

    def _use(self, use: GpuUse) -> GpuUse:
        processes = self.processes.get(use.uuid, {})
        return msgspec.structs.replace(
            use,
            processes=tuple(processes[pid] for pid in sorted(processes)),
            processes_known=self.processes_known,
            xid=self.xids.get(self.buses.get(use.uuid, ())),
        )

    # -- one method per key -------------------------------------------------------------

    def connection(self, field: bytes) -> None:
        words = _text(field).split()
        if len(words) == 4:
            self.values["client"], self.values["address"] = _ip(words[0]), _ip(words[2])

    def tool(self, field: bytes) -> None:
        self.tools |= {_text(field)} & _TOOLS

    def disk(self, field: bytes) -> None:
        match = _DISK.search(_text(field) + " ")
        if match:
            self.values["disk_free"] = max(int(match[1]), 0) // 1024

    def gpu_health(self, line_value: bytes) -> None:
        """Take a row with address, memory errors and whether heat slows the GPU down."""
        fields = _text(line_value).split(",", 5)
        if len(fields) < 6:
            self._add_error(",".join(fields))
            return
        index, uuid, bus, errors, slowed, rest = fields
        self.gpu(f"{index},{uuid},{rest}".encode())
        facts, use = self.gpus.get(uuid.strip(), (None, None))
        if facts is not None and use is not None:
            self.buses[use.uuid] = _bus_address(bus)
            is_slowed = {"Active": True, "Not Active": False}.get(slowed.strip())
            count = _int(errors)
            errors_known = count if count is not None and count >= 0 else None
            use = msgspec.structs.replace(use, ecc_errors=errors_known, is_slowed=is_slowed)
            self.gpus[use.uuid] = facts, use

    def xid(self, field: bytes) -> None:
        words = _text(field).split()
        number = _int(words[1]) if len(words) == 2 else None
        if number is not None and len(self.xids) < MAX_GPUS:
            self.xids[_bus_address(words[0])] = number

    def gpu(self, line_value: bytes) -> None:
        text = _text(line_value)
        head = text.split(",", 2)
        tail = head[-1].rsplit(",", 5)  # the rest is the name, which may contain commas
        if len(head) < 3 or len(tail) < 6 or not head[1].strip():
            self._add_error(text)
            return
        index, uuid = _int(head[0]), head[1].strip()
        if index is None or index < 0 or index in self.indexes or len(uuid) > _MAX_NAME:
            self._add_error(text)
            return
        if len(self.gpus) >= MAX_GPUS:
            raise BadReport(f"more than {MAX_GPUS} GPUs")
        total, used, load, temperature = (_int(field) for field in tail[1:5])
        facts = GpuFacts(
            index=index,
            uuid=uuid,
            model=printable(tail[0].strip(), _MAX_NAME) or "NVIDIA GPU",
            memory=total if total and 0 < total <= MAX_GPU_MEMORY else None,
            vendor="nvidia",
        )
        use = GpuUse(
            uuid=uuid,
            memory_used=_mebibytes(used),
            utilization=load if load is not None and 0 <= load <= 100 else None,
            temperature=temperature,
            power=_decimal(tail[5].strip()),
            processes=(),
            processes_known=False,
        )
        if uuid not in self.gpus:
            self.gpus[uuid] = facts, use
            self.indexes.add(index)

    def apps(self, _: bytes) -> None:
        self.processes_known = True

    def app(self, field: bytes) -> None:
        if not field.strip():
            return
        fields = _text(field).split(",")
        pid = _int(fields[1]) if len(fields) == 3 else None
        if pid is None or pid <= 0:
            self.processes_known = False  # there is a process, or the list is hidden
            return
        process = GpuProcess(pid=pid, memory=_mebibytes(_int(fields[2])))
        self.processes.setdefault(fields[0].strip(), {})[pid] = process

    def gpu_error(self, field: bytes) -> None:
        self._add_error(_text(field))
        self.values["hung"] = not self.gpus

    def owner(self, field: bytes) -> None:
        words = _text(field).split(" ", 4)
        pid = _int(words[0])
        if pid is None or len(words) < 4:
            return
        session, user, token = (None if word == "-" else word for word in words[1:4])
        self.owners[pid] = ProcessOwner(
            user=printable(user or "", _MAX_NAME),
            command=printable(words[4].strip(), _MAX_TEXT) if len(words) > 4 else "",
            token=token,
            session=_int(session or ""),
        )

    def _add_error(self, text: str) -> None:
        """Keep the first error: the others mostly repeat it for the next GPU."""
        text = printable(text.strip(), _MAX_TEXT)
        if text and text != _NO_DEVICES and self.error is None:
            self.error = text


_HANDLERS: dict[bytes, Callable[[_Parser, bytes], None]] = {
    b"connection": _Parser.connection,
    b"tool": _Parser.tool,
    b"disk": _Parser.disk,
    b"gpu": _Parser.gpu,
    b"gpu-health": _Parser.gpu_health,
    b"xid": _Parser.xid,
    b"apps": _Parser.apps,
    b"app": _Parser.app,
    b"gpu-error": _Parser.gpu_error,
    b"owner": _Parser.owner,
}
_REPEATED = frozenset(
    {b"tool", b"gpu", b"gpu-health", b"xid", b"apps", b"app", b"gpu-error", b"owner"}
)
"""Keys that may occur several times; of the others the first line is used."""


def _check(report: RemoteFacts) -> None:
    """Reject numbers that no node has: they would overflow later computations."""
    if report.cores > MAX_CORES:
        raise BadReport(f"{report.cores} cores")
    if max(report.memory_total, report.memory_available) > MAX_MEMORY:
        raise BadReport(f"{max(report.memory_total, report.memory_available)} MiB of memory")
    home = os.fsencode(report.home)
    if report.complete and (not home.startswith(b"/") or b"\0" in home or len(home) > _MAX_HOME):
        raise BadReport("a home directory that is not a path")


def _text(data: bytes) -> str:
    """Decode text without control characters, which a terminal would obey."""
    return printable(data[: 4 * _MAX_LINE].decode(errors="replace"), _MAX_LINE)


def _int(text: str) -> int | None:
    text = text.strip()
    return int(text) if _NUMBER.fullmatch(text) else None


def _bus_address(text: str) -> tuple[int, ...]:
    """Return domain, bus and device of `00000000:01:00.0` or `0000:01:00`; () of anything else."""
    parts = text.strip().partition(".")[0].split(":")
    if len(parts) != 3 or not all(re.fullmatch("[0-9A-Fa-f]{1,8}", part) for part in parts):
        return ()
    return tuple(int(part, 16) for part in parts)


def _mebibytes(number: int | None) -> int | None:
    return number if number is not None and 0 <= number <= MAX_GPU_MEMORY else None


def _decimal(text: str) -> float | None:
    return float(text) if _DECIMAL.fullmatch(text) else None


def _kibibytes(field: bytes) -> int:
    words = _text(field).split()
    return max(_int(words[0]) or 0, 0) // 1024 if words else 0


def _ip(text: str) -> str | None:
    """Return an IP address unchanged; None for anything else (sshd may have none)."""
    address, _, zone = text.partition("%")
    if not re.fullmatch(r"[A-Za-z0-9._-]{0,32}", zone):
        return None
    try:
        ip_address(address)
    except ValueError:
        return None
    return text


def _jiffies(field: bytes) -> tuple[int, int]:
    numbers = [_int(word) or 0 for word in _text(field).split()]
    # The last two are time of guests, which `user` and `nice` include.
    user, nice, system, idle, waiting, *more = (*numbers, 0, 0, 0, 0, 0)[: max(len(numbers), 5)]
    busy = user + nice + system + sum(more[:3])
    return busy, busy + idle + waiting


_FIELDS: dict[bytes, tuple[str, Callable[[bytes], object]]] = {
    b"boot": ("boot", _text),
    b"home": ("home", os.fsdecode),  # any bytes: it is only sent back to the node
    b"cores": ("cores", lambda field: max(_int(_text(field)) or 0, 0)),
    b"MemTotal:": ("memory_total", _kibibytes),
    b"MemAvailable:": ("memory_available", _kibibytes),
    b"cpu": ("jiffies", _jiffies),
    b"load": ("load1", lambda field: _decimal(_text(field).partition(" ")[0]) or 0.0),
    b"end": ("complete", lambda _: True),
}
"""Keys with a value of their own in the report: its name, and how it is read."""
