"""From --ip and --port to a client that talks to the right server."""

from __future__ import annotations

from stoker.client.client import Client
from stoker.client.endpoint import Endpoint, is_loopback, read_token
from stoker.client.errors import DaemonUnreachable, UsageError
from stoker.frontdoors.auto import record
from stoker.frontdoors.auto.options import DOOR, PORT, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.cli.options import Args
    from stoker.frontdoors.auto.tunnel import Tunnel


class Reached:
    """A server and the way to it, for the length of one command."""

    def __init__(self, client: Client, away: bool = False, tunnel: Tunnel | None = None) -> None:
        self.client = client
        self.away = away
        """It is on another machine: our directory and environment mean nothing there."""
        self._tunnel = tunnel

    def __enter__(self) -> Reached:  # noqa: PYI034 - typing.Self costs an import
        """Nothing is left to do."""
        return self

    def __exit__(self, *error: object) -> None:
        """Take the way down again."""
        if self._tunnel is not None:
            self._tunnel.close()

    def note(self) -> dict[str, Any]:
        """Return what the server left for its clients."""
        for listener in self.client.daemon().get("listeners") or ():
            note: dict[str, Any] = listener.get("note") or {}
            if note.get("door") == DOOR:
                return note
        return {}


def reach(args: Args) -> Reached:
    """Find the server that was meant, within a second on this machine."""
    ip = args.text("ip") or "127.0.0.1"
    port = whole(args, "port", 0, 1, 65535)
    if not ip.strip() or ip.startswith("-") or any(char.isspace() for char in ip):
        raise UsageError(f"--ip takes an address, not {ip!r}.")
    from stoker.frontdoors.auto.trust import trusted

    pinned = trusted(ip, port or PORT)
    if pinned is not None:
        return Reached(Client(pinned), away=True)
    if is_loopback(ip):
        return Reached(Client(_here(ip, port)))
    from stoker.frontdoors.auto.tunnel import Tunnel

    tunnel = Tunnel(ip, port)
    return Reached(Client(tunnel.socket), away=True, tunnel=tunnel)


def _here(ip: str, port: int) -> Endpoint:
    """Return the server of this user on this machine."""
    found = record.read()
    if found is None:
        where = f" on port {port}" if port else ""
        raise DaemonUnreachable(
            f"No auto server of yours runs here{where}. Start one with: auto server --gpus 0 1"
        )
    if port and port != found["port"]:
        raise DaemonUnreachable(
            f"No auto server of yours listens on port {port}: it is on port {found['port']}."
        )
    return Endpoint(ip, found["port"], read_token(found["token_file"]))
