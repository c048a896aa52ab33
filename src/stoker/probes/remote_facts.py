"""What a machine over SSH wrote about itself: executors/ssh/facts.sh writes, this reads."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping

import msgspec

from stoker.core.cluster import DeviceFacts, NodeFacts
from stoker.core.request import GPU
from stoker.core.text import printable
from stoker.probes.gpu_reading import GpuFacts, GpuProcess, GpuUse, Reading
from stoker.probes.gpu_samples import AttemptId, OwnerOf, parse_token
from stoker.probes.node_devices import gpus, pools

_NUMBER = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?", re.ASCII)
_DISK = re.compile(r"[0-9]+ +[0-9]+ +(-?[0-9]{1,18}) +(?:[0-9]+%|-) ", re.ASCII)
"""Blocks, used, free, share: looked for, since a file system's name may have blanks in it."""
_LONGEST_LINE, _LONGEST_TEXT, _LONGEST_NAME, _LONGEST_HOME = 1000, 200, 100, 4096
"""Characters of a line, of a command or a complaint and of a name; bytes of a path."""
_TOOLS = frozenset({"bash", "rsync", "tar", "setsid", "nvidia-smi"})
MAX_CORES, MAX_MEMORY, MAX_GPUS, MAX_GPU_MEMORY = 1 << 16, 1 << 32, 256, 1 << 24
"""More of anything (MiB of memory) is not believed; larger ones would overflow the journal."""
_NO_DEVICES = "No devices were found"
"""What nvidia-smi says where there is a driver and no GPU."""


class BadReport(ValueError):
    """A node reports about itself what cannot be true; the message says what."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """OwnerOf a process on a GPU is; all unknown where the machine hides other users' processes."""

    user: str = ""
    command: str = ""
    token: str | None = None
    session: int | None = None


class RemoteFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a machine: what it has, and how busy it is."""

    whole: bool = False
    """False: it was cut short, and what is missing means nothing."""
    boot: str = ""
    home: str = ""
    cores: int = 0
    tools: frozenset[str] = frozenset()
    memory_total: int = 0
    memory_available: int = 0
    """MiB, both."""
    jiffies: tuple[int, int] = (0, 0)
    """Busy and all, since boot, summed over the cores: two looks make a share."""
    load1: float = 0.0
    disk_free: int = 0
    """MiB, where we keep our files."""
    address: str | None = None
    """Where it was reached: other machines of the lab may find it there too."""
    client: str | None = None
    """What it knows us by."""
    reading: Reading = Reading()
    hung: bool = False
    """The driver did not answer: nothing is known about the GPUs, and old verdicts hold."""
    owners: dict[int, Owner] = {}
    """Who is on the GPUs; a process that is missing here has ended."""

    def ours(self, install: str, sessions: Mapping[int, AttemptId]) -> OwnerOf:
        """Tell whose a process is, by the session of an attempt or the token of this install."""

        def whose(pid: int) -> AttemptId | None:
            owner = self.owners.get(pid)
            if owner is None:
                return None
            by_session = sessions.get(owner.session) if owner.session is not None else None
            return by_session or parse_token(owner.token, install)

        return whose

    def identify(self, pid: int) -> tuple[str, str] | None:
        """The user and the command of a process; None when it has ended."""
        owner = self.owners.get(pid)
        return None if owner is None else (owner.user, owner.command)


def node_facts(name: str, look: RemoteFacts) -> NodeFacts:
    """The machine as the core sees it."""
    types = pools(look.cores, look.memory_total)
    devices: tuple[DeviceFacts, ...] = tuple(gpus(look.reading.facts))
    if devices:
        types[GPU] = devices
    return NodeFacts(name, types)


def parse(text: bytes) -> RemoteFacts:
    """Read a measurement; lines that make no sense are skipped, impossible figures are refused."""
    parser = _Parser()
    seen: set[bytes] = set()
    for line in text.split(b"\n"):
        word, _, rest = line.partition(b" ")
        read = _READERS.get(word)
        if read is not None and (word not in seen or word in _REPEATED):
            seen.add(word)
            read(parser, rest)
    return parser.look()


class _Parser:
    """What has been read so far."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.tools: set[str] = set()
        self.gpus: dict[str, tuple[GpuFacts, GpuUse]] = {}
        self.indexes: set[int] = set()
        self.processes: dict[str, dict[int, GpuProcess]] = {}
        self.processes_known = False
        self.error: str | None = None
        self.owners: dict[int, Owner] = {}

    def look(self) -> RemoteFacts:
        """All of it."""
        total = self.values.get("memory_total", 0)
        # Without a word about it (kernels of before 2014), nobody is known to use any.
        values = {"memory_available": total, **self.values}
        reading = Reading(
            facts=tuple(facts for facts, _ in self.gpus.values()),
            use=tuple(self._use(use) for _, use in self.gpus.values()),
            error=self.error,
        )
        look = RemoteFacts(tools=frozenset(self.tools), reading=reading, owners=self.owners)
        look = msgspec.structs.replace(look, **values)
        _check(look)
        return look

    def _use(self, use: GpuUse) -> GpuUse:
        processes = self.processes.get(use.uuid, {})
        return msgspec.structs.replace(
            use,
            processes=tuple(processes[pid] for pid in sorted(processes)),
            processes_known=self.processes_known,
        )

    # -- one per kind of line -----------------------------------------------------------

    def end(self, _: bytes) -> None:
        self.values["whole"] = True

    def boot(self, rest: bytes) -> None:
        self.values["boot"] = _text(rest)

    def home(self, rest: bytes) -> None:
        self.values["home"] = os.fsdecode(rest)  # any bytes: it is sent back to the node

    def connection(self, rest: bytes) -> None:
        words = _text(rest).split()
        if len(words) == 4:
            self.values["client"], self.values["address"] = _ip(words[0]), _ip(words[2])

    def cores(self, rest: bytes) -> None:
        self.values["cores"] = max(_int(_text(rest)) or 0, 0)

    def tool(self, rest: bytes) -> None:
        self.tools |= {_text(rest)} & _TOOLS

    def memory_total(self, rest: bytes) -> None:
        self.values["memory_total"] = _kibibytes(rest)

    def memory_available(self, rest: bytes) -> None:
        self.values["memory_available"] = _kibibytes(rest)

    def cpu(self, rest: bytes) -> None:
        numbers = [_int(word) or 0 for word in _text(rest).split()]
        # The two after these eight are time of guests, which `user` and `nice` hold already.
        user, nice, system, idle, waiting, *more = (*numbers, 0, 0, 0, 0, 0)[: max(len(numbers), 5)]
        busy = user + nice + system + sum(more[:3])
        self.values["jiffies"] = (busy, busy + idle + waiting)

    def load(self, rest: bytes) -> None:
        self.values["load1"] = _decimal(_text(rest).partition(" ")[0]) or 0.0

    def disk(self, rest: bytes) -> None:
        match = _DISK.search(_text(rest) + " ")
        if match:
            self.values["disk_free"] = max(int(match[1]), 0) // 1024

    def gpu(self, rest: bytes) -> None:
        text = _text(rest)
        head = text.split(",", 2)
        tail = head[-1].rsplit(",", 5)  # what is between is the name, with commas or not
        if len(head) < 3 or len(tail) < 6 or not head[1].strip():
            self._complain(text)
            return
        index, uuid = _int(head[0]), head[1].strip()
        if index is None or index < 0 or index in self.indexes or len(uuid) > _LONGEST_NAME:
            self._complain(text)
            return
        if len(self.gpus) >= MAX_GPUS:
            raise BadReport(f"more than {MAX_GPUS} GPUs")
        total, used, load, temperature = (_int(field) for field in tail[1:5])
        facts = GpuFacts(
            index=index,
            uuid=uuid,
            model=printable(tail[0].strip(), _LONGEST_NAME) or "NVIDIA GPU",
            memory=total if total and 0 < total <= MAX_GPU_MEMORY else None,
            vendor="nvidia",
            pci=None,
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

    def app(self, rest: bytes) -> None:
        if not rest.strip():
            return
        fields = _text(rest).split(",")
        pid = _int(fields[1]) if len(fields) == 3 else None
        if pid is None or pid <= 0:
            self.processes_known = False  # somebody is there, or nobody may know
            return
        process = GpuProcess(pid=pid, memory=_mebibytes(_int(fields[2])))
        self.processes.setdefault(fields[0].strip(), {})[pid] = process

    def gpu_error(self, rest: bytes) -> None:
        self._complain(_text(rest))
        self.values["hung"] = not self.gpus

    def owner(self, rest: bytes) -> None:
        words = _text(rest).split(" ", 4)
        pid = _int(words[0])
        if pid is None or len(words) < 4:
            return
        session, user, token = (None if word == "-" else word for word in words[1:4])
        self.owners[pid] = Owner(
            user=printable(user or "", _LONGEST_NAME),
            command=printable(words[4].strip(), _LONGEST_TEXT) if len(words) > 4 else "",
            token=token,
            session=_int(session or ""),
        )

    def _complain(self, text: str) -> None:
        """Keep the first sentence: the others mostly say the same of the next GPU."""
        text = printable(text.strip(), _LONGEST_TEXT)
        if text and text != _NO_DEVICES and self.error is None:
            self.error = text


_READERS: dict[bytes, Callable[[_Parser, bytes], None]] = {
    b"boot": _Parser.boot,
    b"home": _Parser.home,
    b"connection": _Parser.connection,
    b"cores": _Parser.cores,
    b"tool": _Parser.tool,
    b"MemTotal:": _Parser.memory_total,
    b"MemAvailable:": _Parser.memory_available,
    b"cpu": _Parser.cpu,
    b"load": _Parser.load,
    b"disk": _Parser.disk,
    b"gpu": _Parser.gpu,
    b"apps": _Parser.apps,
    b"app": _Parser.app,
    b"gpu-error": _Parser.gpu_error,
    b"owner": _Parser.owner,
    b"end": _Parser.end,
}


_REPEATED = frozenset({b"tool", b"gpu", b"apps", b"app", b"gpu-error", b"owner"})
"""Lines of which there may be several; of the others the first counts."""


def _check(look: RemoteFacts) -> None:
    """Refuse what no node has: such numbers would overflow what is computed with them."""
    if look.cores > MAX_CORES:
        raise BadReport(f"{look.cores} cores")
    if max(look.memory_total, look.memory_available) > MAX_MEMORY:
        raise BadReport(f"{max(look.memory_total, look.memory_available)} MiB of memory")
    home = os.fsencode(look.home)
    if look.whole and (not home.startswith(b"/") or b"\0" in home or len(home) > _LONGEST_HOME):
        raise BadReport("a home directory that is not a path")


def _text(data: bytes) -> str:
    """Text that may be printed: no terminal obeys what a command line holds."""
    return printable(data[: 4 * _LONGEST_LINE].decode(errors="replace"), _LONGEST_LINE)


def _int(text: str) -> int | None:
    text = text.strip()
    return int(text) if _NUMBER.fullmatch(text) else None


def _mebibytes(number: int | None) -> int | None:
    return number if number is not None and 0 <= number <= MAX_GPU_MEMORY else None


def _decimal(text: str) -> float | None:
    return float(text) if _DECIMAL.fullmatch(text) else None


def _kibibytes(rest: bytes) -> int:
    words = _text(rest).split()
    return max(_int(words[0]) or 0, 0) // 1024 if words else 0


def _ip(text: str) -> str | None:
    """An IP address as it stands; None for what sshd says where there is none."""
    address, _, zone = text.partition("%")
    if not re.fullmatch(r"[A-Za-z0-9._-]{0,32}", zone):
        return None
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, address)
        except (OSError, ValueError):
            continue
        return text
    return None
