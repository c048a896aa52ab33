"""The machines of a batch, in the daemon's books for as long as somebody uses them."""

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

OURS = "batch-"
"""How the names of machines begin that are there for batches only."""

UNSEEN = ("unreachable", "connecting")


class Member:
    """A machine that was named on the command line."""

    def __init__(self, typed: str) -> None:
        self.typed = typed
        self.values = read_values(find_machine(typed))
        self.address = address_of(self.values)
        # ssh would expand ~ too, but to the home that the password file has, whatever HOME says.
        self.key = os.path.abspath(os.path.expanduser(self.values["ssh_key_path"]))
        self.node = _own_name(self.address)
        self.lock: int | None = None
        """Held by whoever uses a machine that is there for batches only."""
        self.view: dict[str, Any] = {}

    @property
    def told(self) -> dict[str, object]:
        """The machine as its file has it."""
        known = {key: self.values[key] for key in KEYS}
        return {**known, "port": int(known["port"])}

    def release(self) -> None:
        """Use it no longer, or not as one that is there for batches only."""
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


class NodeLease:
    """Joins machines to the daemon's, looks at them, and leaves them as they were."""

    def __init__(self, client: Client, names: Sequence[str], program: str) -> None:
        self.client, self.program = client, program
        self.members = [Member(name) for name in names]
        seen: dict[str, Member] = {}
        for member in self.members:
            other = seen.setdefault(member.address, member)
            if other is not member:
                raise UsageError(f"{other.typed} and {member.typed} are the same machine.")

    def join(self) -> None:
        """Have all of them, each as it is now; raise when one cannot be reached."""
        for member in self.members:
            member.lock = _use(member.node)
        known = self._without_orphans(self.client.nodes()["nodes"])
        silent: list[tuple[Member, str]] = []
        for member in self.members:
            try:
                self._add(member, known)
            except StokerError as error:
                if error.code != "not_found":
                    raise
                silent.append((member, error.message.rstrip(".")))  # its key
        self.insist(silent or self.look())
        for member in self.members:
            if "bash" not in member.view["measured"]["tools"]:
                output.say(
                    f"{self.program}: {member.typed} has no bash: command lines run in sh,"
                    " without ~/.bashrc"
                )

    def _without_orphans(self, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Remove machines of batches that were killed; those that are left."""
        ours = {member.node for member in self.members}
        left = []
        for node in known:
            name, address = node["name"], node["address"]
            own = address is not None and not node["configured"] and name == _own_name(address)
            if not own or name in ours or node["jobs"] or not self._gone(name):
                left.append(node)
        return left

    def _gone(self, node: str) -> bool:
        """Remove a machine that nobody uses; whether that was so."""
        lock = _unused(node)
        if lock is None:
            return False
        try:
            self.client.remove_node(node)
        except StokerError:
            return False  # a job has come to run there
        finally:
            os.close(lock)
        return True

    @staticmethod
    def insist(silent: list[tuple[Member, str]]) -> None:
        """Raise unless all have answered."""
        if silent:
            raise StokerError(_not_connected(silent))

    def look(self) -> list[tuple[Member, str]]:
        """See how they are now; those that do not answer, and why."""
        views = self.client.refresh_nodes([member.node for member in self.members])["nodes"]
        by_name = {view["name"]: view for view in views}
        silent = []
        for member in self.members:
            member.view = by_name[member.node]
            if member.view["state"] in UNSEEN or member.view["measured"] is None:
                why = output.clean(member.view["why"] or "it has not answered in time")
                silent.append((member, why))
        return silent

    def _add(self, member: Member, known: list[dict[str, Any]]) -> None:
        """Use a machine that is there already, under whatever name, or add it for now."""
        there = next((node for node in known if _is_at(node, member.address)), None)
        if there is not None and there["name"] != member.node:
            member.node = there["name"]
            member.release()
        elif there is None or (there["key"] != member.key and there["state"] != "up"):
            self.client.add_node(member.node, member.address, key=member.key)

    def leave(self) -> None:
        """Machines that were there for batches only go when nobody uses them any more."""
        for member in self.members:
            if member.lock is None:
                continue
            try:
                if _alone(member.lock):
                    self.client.remove_node(member.node)
            except StokerError:
                pass  # a job of the queue runs there: whoever comes last removes it
            finally:
                member.release()


def _own_name(address: str) -> str:
    """What a machine is called that is there for batches only: each account has its own name."""
    user, _, place = address.removeprefix("ssh://").rpartition("@")
    host, _, port = place.rpartition(":")
    name = f"{OURS}{user}-{host}-{port}"
    plain = [user, *host.replace("-", ".").split(".")]
    if len(name) <= 60 and all(part.isascii() and part.isalnum() for part in plain):
        return name
    return f"{OURS}{places.digest(address)}"


def _is_at(node: dict[str, Any], address: str) -> bool:
    """Whether a machine that the daemon has is the one at this address."""
    known = node["address"] or ""
    user, _, place = known.removeprefix("ssh://").rstrip("/").rpartition("@")
    if place.endswith("]") or ":" not in place:
        place += ":22"
    ours, _, there = address.removeprefix("ssh://").rpartition("@")
    return place == there and user in ("", ours)  # none: the one that ssh is configured with


def _use(node: str) -> int:
    """Make known that a machine is in use; waits while somebody removes it."""
    import fcntl

    fd = _open_lock(node)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def _unused(node: str) -> int | None:
    """Keep others from beginning to use a machine, unless somebody does."""
    fd = _open_lock(node)
    if _alone(fd):
        return fd
    os.close(fd)
    return None


def _open_lock(node: str) -> int:
    path = os.path.join(places.secure_dir(places.runtime_dir()), f"{node}.lock")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _alone(lock: int) -> bool:
    """Whether nobody else uses it; nobody begins to before the lock is let go."""
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _not_connected(silent: list[tuple[Member, str]]) -> str:
    import json

    listed = json.dumps([member.told for member, _ in silent])
    if len(silent) == 1:
        return f"could not connect to machines: {listed}: {silent[0][1]}"
    whys = "; ".join(f"{member.typed}: {why}" for member, why in silent)
    return f"could not connect to machines: {listed}: {whys}"
