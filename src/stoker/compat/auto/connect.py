"""From --ip and --port to a client that talks to the right server."""

from __future__ import annotations

from stoker.client.client import Client
from stoker.client.errors import DaemonUnreachable, UsageError
from stoker.compat.auto import server_file as record
from stoker.compat.auto.options import DOOR, PORT, whole
from stoker.wire import is_ipv4, is_loopback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.cli.options import Args
    from stoker.compat.auto.tunnel import Tunnel


class Reached:
    """A server and the way to it, for the length of one command."""

    def __init__(
        self, client: Client, port: int, away: bool = False, tunnel: Tunnel | None = None
    ) -> None:
        self.client = client
        self.port = port
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
            # A port of a server that was killed may still be open, with what that one left.
            if note.get("door") == DOOR and listener["address"].endswith(f":{self.port}"):
                return note
        return {}


def reach(args: Args) -> Reached:
    """Find the server that was meant, within a second on this machine."""
    ip = _address(args.text("ip"))
    port = whole(args, "port", 0, 1, 65535)
    from stoker.compat.auto.known_servers import trusted

    pinned = trusted(ip, port or PORT)
    if pinned is not None:
        return Reached(Client(pinned), pinned.port, away=True)
    if is_loopback(ip):
        found = _here(port)
        # By its socket, where no stranger can stand in the way, and no token is needed.
        return Reached(Client(found["socket"]), found["port"])
    from stoker.compat.auto.tunnel import Tunnel

    tunnel = Tunnel(ip, port)
    return Reached(Client(tunnel.socket), tunnel.port, away=True, tunnel=tunnel)


def _address(text: str | None) -> str:
    """Return the machine that was typed; `127.1` would be read differently by everybody."""
    ip = "127.0.0.1" if text is None else text.strip("[]")
    numeric = ip.replace(".", "").isdecimal()
    if not ip or ip[0] == "-" or any(map(str.isspace, ip)) or (numeric and not is_ipv4(ip)):
        raise UsageError(f"--ip takes an address such as 10.0.0.5, not {text!r}.")
    return ip


def _here(port: int) -> dict[str, Any]:
    """Return what the server of this user on this machine wrote about itself."""
    found = record.read()
    if found is None:
        where = f" on port {port}" if port else ""
        raise DaemonUnreachable(
            f"You have no auto server on this host{where}. Start one: auto server --gpus 0 1"
        )
    if port and port != found["port"]:
        raise DaemonUnreachable(
            f"Your auto server does not use port {port}. Use --port {found['port']}."
        )
    return found
