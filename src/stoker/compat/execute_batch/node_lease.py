"""NodeLease: the nodes of a batch, added to the daemon while they are used."""

from __future__ import annotations

import os

from stoker import places
from stoker.cli import output
from stoker.client.errors import StokerError, UsageError
from stoker.client.machine_files import KEYS, address_of, find_machine, read_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stoker.client.client import Client

LEASED_PREFIX = "batch-"
"""Prefix of the names of leased nodes."""

UNREACHABLE_STATES = ("unreachable", "connecting")


class LeasedNode:
    """A node given on the command line."""

    def __init__(self, machine_name: str) -> None:
        self.name = machine_name
        self.values = read_values(find_machine(machine_name))
        self.address = address_of(self.values)
        # ssh would expand ~ by the password database, not by HOME.
        self.key = os.path.abspath(os.path.expanduser(self.values["ssh_key_path"]))
        self.node = _lease_name(self.address)
        self.lock: int | None = None
        """Shared lock on a leased node; None if the node is not leased."""
        self.view: dict[str, Any] = {}

    @property
    def as_dict(self) -> dict[str, object]:
        """Return the values of the machine file."""
        known = {key: self.values[key] for key in KEYS}
        return {**known, "port": int(known["port"])}

    def release(self) -> None:
        """Release the lock."""
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


class NodeLease:
    """Adds nodes to the daemon, refreshes them, and removes those that it added."""

    def __init__(self, client: Client, names: Sequence[str], program: str) -> None:
        self.client, self.program = client, program
        self.nodes = [LeasedNode(name) for name in names]
        by_address: dict[str, LeasedNode] = {}
        for member in self.nodes:
            other = by_address.setdefault(member.address, member)
            if other is not member:
                raise UsageError(f"{other.name} and {member.name} are the same machine.")

    def acquire(self) -> None:
        """Add and measure all nodes; raise StokerError if one cannot be reached."""
        for member in self.nodes:
            member.lock = _lock_shared(member.node)
        known = self._remove_orphans(self.client.nodes()["nodes"])
        unreachable: list[tuple[LeasedNode, str]] = []
        for member in self.nodes:
            try:
                self._add(member, known)
            except StokerError as error:
                if error.code != "not_found":
                    raise
                unreachable.append((member, error.message.rstrip(".")))  # its key
        self.require_connected(unreachable or self.refresh())
        for member in self.nodes:
            if "bash" not in member.view["measured"]["tools"]:
                output.say(
                    f"{self.program}: {member.name} has no bash: command lines run in sh,"
                    " without ~/.bashrc"
                )

    def _remove_orphans(self, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Remove leased nodes of killed batches; return the other nodes."""
        leased = {member.node for member in self.nodes}
        others = []
        for node in known:
            name, address = node["name"], node["address"]
            is_leased = (
                address is not None and not node["configured"] and name == _lease_name(address)
            )
            if not is_leased or name in leased or node["jobs"] or not self._remove_unused(name):
                others.append(node)
        return others

    def _remove_unused(self, node: str) -> bool:
        """Remove a leased node if it is unused; return True if it was removed."""
        lock = _lock_exclusive(node)
        if lock is None:
            return False
        try:
            self.client.remove_node(node)
        except StokerError:
            return False  # a job runs on it
        finally:
            os.close(lock)
        return True

    @staticmethod
    def require_connected(unreachable: list[tuple[LeasedNode, str]]) -> None:
        """Raise StokerError if nodes are unreachable."""
        if unreachable:
            raise StokerError(_not_connected_message(unreachable))

    def refresh(self) -> list[tuple[LeasedNode, str]]:
        """See how they are now; those that do not answer, and why."""
        views = self.client.refresh_nodes([member.node for member in self.nodes])["nodes"]
        by_name = {view["name"]: view for view in views}
        unreachable = []
        for member in self.nodes:
            member.view = by_name[member.node]
            if member.view["state"] in UNREACHABLE_STATES or member.view["measured"] is None:
                why = output.clean(member.view["why"] or "it has not answered in time")
                unreachable.append((member, why))
        return unreachable

    def _add(self, member: LeasedNode, known: list[dict[str, Any]]) -> None:
        """Use a node that the daemon has under any name, else lease it."""
        present = next((node for node in known if _is_at(node, member.address)), None)
        if present is not None and present["name"] != member.node:
            member.node = present["name"]
            member.release()
        elif present is None or (present["key"] != member.key and present["state"] != "up"):
            self.client.add_node(member.node, member.address, key=member.key)

    def release(self) -> None:
        """Remove leased nodes that no other batch uses."""
        for member in self.nodes:
            if member.lock is None:
                continue
            try:
                if _try_exclusive(member.lock):
                    self.client.remove_node(member.node)
            except StokerError:
                pass  # a job runs on it: the last batch removes it
            finally:
                member.release()


def _lease_name(address: str) -> str:
    """Return the name of a leased node; it is unique per account."""
    user, _, host_and_port = address.removeprefix("ssh://").rpartition("@")
    host, _, port = host_and_port.rpartition(":")
    name = f"{LEASED_PREFIX}{user}-{host}-{port}"
    plain = [user, *host.replace("-", ".").split(".")]
    if len(name) <= 60 and all(part.isascii() and part.isalnum() for part in plain):
        return name
    return f"{LEASED_PREFIX}{places.digest(address)}"


def _is_at(node: dict[str, Any], address: str) -> bool:
    """Return True if a node of the daemon has this address."""
    known = node["address"] or ""
    user, _, host = known.removeprefix("ssh://").rstrip("/").rpartition("@")
    if host.endswith("]") or ":" not in host:
        host += ":22"
    own_user, _, own_host = address.removeprefix("ssh://").rpartition("@")
    return host == own_host and user in ("", own_user)  # empty: the user of the ssh configuration


def _lock_shared(node: str) -> int:
    """Lock a leased node as in use; wait while it is being removed."""
    import fcntl

    fd = _open_lock(node)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def _lock_exclusive(node: str) -> int | None:
    """Lock a leased node for removal, None if it is in use."""
    fd = _open_lock(node)
    if _try_exclusive(fd):
        return fd
    os.close(fd)
    return None


def _open_lock(node: str) -> int:
    path = os.path.join(places.secure_dir(places.runtime_dir()), f"{node}.lock")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_exclusive(lock: int) -> bool:
    """Try to get the exclusive lock; return False if another process holds the lock."""
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _not_connected_message(unreachable: list[tuple[LeasedNode, str]]) -> str:
    import json

    listed = json.dumps([member.as_dict for member, _ in unreachable])
    reasons = "; ".join(f"{member.name}: {why}" for member, why in unreachable)
    return f"could not connect to machines: {listed}: {reasons}"
