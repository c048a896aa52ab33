"""Packets between the gate and the system daemon: one JSON object, at most one descriptor each.

A packet is `{KIND: {FIELD: VALUE, ...}}` on a SOCK_SEQPACKET socket. Each side accepts only the
kinds that the other one sends, with exactly the fields below; anything else raises ProtocolError.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple, TypeVar

VERSION = 1
MAX_PACKET_BYTES = 4096
MAX_UIDS_PER_HELLO = 256
MAX_TEXT_CHARACTERS = 400
MAX_DEVICES = 254
WIRE_FD = 3
"""Descriptor on which a user executor finds its socket to the system daemon."""
_FD_BYTES = struct.calcsize("i")


class ProtocolError(Exception):
    """The peer sent something that the protocol does not have."""


class PeerClosed(Exception):
    """The peer closed the connection."""


# ------------------------------------------------------------- from the system daemon to the gate


class StartExecutor(NamedTuple):
    """Start the user executor of `uid`; answered by Executor or Refused."""

    uid: int


class KillExecutor(NamedTuple):
    """Kill a user executor that this gate started."""

    uid: int
    pid: int


class Release(NamedTuple):
    """`uid` has no unfinished jobs, and `number` is its last connection: forget that it came."""

    uid: int
    number: int


class CreateDeviceGroup(NamedTuple):
    """Make a group for a job of `uid` that may open, of all NVIDIA GPUs, only `devices`."""

    uid: int
    name: str
    devices: list[list[int]]


class RemoveDeviceGroup(NamedTuple):
    """Remove a group made by CreateDeviceGroup whose processes have ended."""

    uid: int
    name: str


# ------------------------------------------------------------- from the gate to the system daemon


class Hello(NamedTuple):
    """The first packets of a connection: the authorized uids, in several packets if `more`.

    `device_groups`: the directory of device groups; empty if GPUs are not isolated.
    """

    version: int
    uids: list[int]
    device_groups: str
    more: bool


class Connection(NamedTuple):
    """A client has connected; its socket comes along. `why`: why it may not run jobs, or ""."""

    uid: int
    pid: int
    number: int
    why: str


class Executor(NamedTuple):
    """A user executor has started; its socket (SOCK_STREAM) comes along."""

    uid: int
    pid: int


class Refused(NamedTuple):
    """A request (its kind) was not carried out."""

    uid: int
    request: str
    why: str


class Ended(NamedTuple):
    """A user executor has ended; `status` as of subprocess.Popen.returncode."""

    uid: int
    pid: int
    status: int


class DeviceGroup(NamedTuple):
    """Answer to CreateDeviceGroup: the directory of the group, or `why` there is none."""

    uid: int
    name: str
    path: str
    why: str


Request = StartExecutor | KillExecutor | Release | CreateDeviceGroup | RemoveDeviceGroup
Notice = Hello | Connection | Executor | Refused | Ended | DeviceGroup
Message = TypeVar("Message")

REQUESTS: dict[str, Callable[..., Request]] = {
    "start_executor": StartExecutor,
    "kill_executor": KillExecutor,
    "release": Release,
    "create_device_group": CreateDeviceGroup,
    "remove_device_group": RemoveDeviceGroup,
}
NOTICES: dict[str, Callable[..., Notice]] = {
    "hello": Hello,
    "connection": Connection,
    "executor": Executor,
    "refused": Refused,
    "ended": Ended,
    "device_group": DeviceGroup,
}
_KINDS: dict[object, str] = {
    make: kind for kinds in (REQUESTS, NOTICES) for kind, make in kinds.items()
}
_WITH_FD = (Connection, Executor)

# --------------------------------------------------------------------------- fields


def _is_int(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def is_uid(value: object) -> bool:
    """Return whether this is a uid; 4294967295 is the kernel's "leave it unchanged"."""
    return _is_int(value, 0, 2**32 - 2)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT_CHARACTERS and _is_plain(value)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,63}", value) is not None


def _is_device(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(_is_int(n, 0, 2**20) for n in value)


def _is_list(value: object, check: Callable[[object], bool], limit: int) -> bool:
    return isinstance(value, list) and len(value) <= limit and all(map(check, value))


_CHECKS: dict[str, Callable[[object], bool]] = {
    "uid": is_uid,
    "pid": lambda value: _is_int(value, 0, 2**31 - 1),  # 0: of another pid namespace
    "number": lambda value: _is_int(value, 0, 2**63 - 1),
    "status": lambda value: _is_int(value, -255, 255),
    "version": lambda value: _is_int(value, 1, 2**31 - 1),
    "more": lambda value: isinstance(value, bool),
    "uids": lambda value: _is_list(value, is_uid, MAX_UIDS_PER_HELLO),
    "devices": lambda value: _is_list(value, _is_device, MAX_DEVICES),
    "name": _is_name,
    "request": _is_text,
    "path": _is_text,
    "device_groups": _is_text,
    "why": _is_text,
}

# --------------------------------------------------------------------------- packets


def encode(message: Request | Notice) -> bytes:
    """Return the packet of a message."""
    packet = json.dumps({kind_of(message): message._asdict()}, separators=(",", ":")).encode()
    if len(packet) > MAX_PACKET_BYTES:
        raise ProtocolError(f"a packet of {len(packet)} bytes, more than {MAX_PACKET_BYTES}")
    return packet


def kind_of(message: Request | Notice) -> str:
    """Return the kind of a message."""
    return _KINDS[type(message)]


def decode_request(packet: bytes) -> Request:
    """Return the request in a packet of the system daemon."""
    return _decode(packet, REQUESTS)


def decode_notice(packet: bytes) -> Notice:
    """Return the message in a packet of the gate."""
    return _decode(packet, NOTICES)


def _decode(packet: bytes, kinds: dict[str, Callable[..., Message]]) -> Message:
    if len(packet) > MAX_PACKET_BYTES:
        raise ProtocolError(f"a packet of more than {MAX_PACKET_BYTES} bytes")
    try:
        message = json.loads(packet.decode(), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a packet that is not JSON") from error
    if not isinstance(message, dict) or len(message) != 1:
        raise ProtocolError("a packet that is not an object with one key")
    [(kind, fields)] = message.items()
    make = kinds.get(kind)
    if make is None:
        raise ProtocolError("a message of unknown kind")
    names = make._fields  # type: ignore[attr-defined]  # they are classes of named tuples
    if not isinstance(fields, dict) or fields.keys() != set(names):
        raise ProtocolError(f"{kind} with other fields than {', '.join(names)}")
    for name in names:
        if not _CHECKS[name](fields[name]):
            raise ProtocolError(f"{kind} with an invalid {name}")
    return make(**fields)


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("duplicate key")
    return dict(pairs)


def text(value: str) -> str:
    """Return `value` as a text that a message may carry."""
    return "".join(c if _is_plain(c) else "?" for c in value[:MAX_TEXT_CHARACTERS])


def _is_plain(value: str) -> bool:
    return value.isascii() and value.isprintable()


# --------------------------------------------------------------------------- sockets


def send(peer: socket.socket, message: Request | Notice, fd: int | None = None) -> None:
    """Send a message and, with those that carry one, a descriptor."""
    if (fd is not None) != isinstance(message, _WITH_FD):
        raise ProtocolError("a descriptor that the message does not carry, or none")
    if fd is None:
        peer.send(encode(message))
    else:
        socket.send_fds(peer, [encode(message)], [fd])


def receive_request(peer: socket.socket) -> Request:
    """Return the next request; descriptors that come along are closed by the kernel."""
    packet, _, flags, _ = peer.recvmsg(MAX_PACKET_BYTES)
    if flags & socket.MSG_CTRUNC:
        raise ProtocolError("a descriptor, which no request carries")
    return decode_request(_whole(packet, flags))


def receive_notice(peer: socket.socket) -> tuple[Notice, int | None]:
    """Return the next message of the gate and its descriptor, which the caller must close."""
    packet, ancillary, flags, _ = peer.recvmsg(
        MAX_PACKET_BYTES, socket.CMSG_LEN(_FD_BYTES), socket.MSG_CMSG_CLOEXEC
    )
    fds = [fd for _, _, data in ancillary for (fd,) in struct.iter_unpack("i", data)]
    try:
        message = decode_notice(_whole(packet, flags))
        if flags & socket.MSG_CTRUNC or len(fds) != isinstance(message, _WITH_FD):
            raise ProtocolError(f"{len(fds)} descriptors, or more")
    except (PeerClosed, ProtocolError):
        for fd in fds:
            os.close(fd)
        raise
    return message, fds[0] if fds else None


def _whole(packet: bytes, flags: int) -> bytes:
    if flags & socket.MSG_TRUNC:
        raise ProtocolError(f"a packet of more than {MAX_PACKET_BYTES} bytes")
    if not packet:
        raise PeerClosed
    return packet


def credentials(peer: socket.socket) -> tuple[int, int]:
    """Return pid and uid of the process that connected, as the kernel has them."""
    pid, uid, _ = struct.unpack("iII", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid
