"""Connect to the server given by --ip and --port."""

from __future__ import annotations

from stoker.client.client import Client
from stoker.client.errors import DaemonUnreachable, UsageError
from stoker.compat.auto import server_file
from stoker.compat.auto.options import DEFAULT_PORT, NAME, parse_count
from stoker.wire import is_ipv4, is_loopback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.cli.options import Args
    from stoker.compat.auto.tunnel import Tunnel


class ServerConnection:
    """Connection to a server for one command; closes its tunnel at the end."""

    def __init__(
        self, client: Client, port: int, away: bool = False, tunnel: Tunnel | None = None
    ) -> None:
        self.client = client
        self.port = port
        self.is_remote = away
        """On another host, where the local directory and environment are not valid."""
        self._tunnel = tunnel

    def __enter__(self) -> ServerConnection:  # noqa: PYI034 - typing.Self costs an import
        """Return the connection, which is open already."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the tunnel."""
        if self._tunnel is not None:
            self._tunnel.close()

    def note(self) -> dict[str, Any]:
        """Return the note that the server attached to its listener."""
        for listener in self.client.daemon().get("listeners") or ():
            note: dict[str, Any] = listener.get("note") or {}
            # The listener of a killed server may still be open, with its old note.
            if note.get("client") == NAME and listener["address"].endswith(f":{self.port}"):
                return note
        return {}


def connect_server(args: Args) -> ServerConnection:
    """Connect to the server of --ip and --port."""
    ip = _parse_address(args.text("ip"))
    port = parse_count(args, "port", 0, 1, 65535)
    from stoker.compat.auto.known_servers import find_trusted

    pinned = find_trusted(ip, port or DEFAULT_PORT)
    if pinned is not None:
        return ServerConnection(Client(pinned), pinned.port, away=True)
    if is_loopback(ip):
        server = _local_server(port)
        # By the daemon's socket, which only this user can create and which needs no token.
        return ServerConnection(Client(server["socket"]), server["port"])
    from stoker.compat.auto.tunnel import Tunnel

    tunnel = Tunnel(ip, port)
    return ServerConnection(Client(tunnel.socket), tunnel.port, away=True, tunnel=tunnel)


def _parse_address(text: str | None) -> str:
    """Return the address of --ip; reject short forms such as `127.1`, which are ambiguous."""
    ip = "127.0.0.1" if text is None else text.strip("[]")
    numeric = ip.replace(".", "").isdecimal()
    if not ip or ip[0] == "-" or any(map(str.isspace, ip)) or (numeric and not is_ipv4(ip)):
        raise UsageError(f"--ip takes an address such as 10.0.0.5, not {text!r}.")
    return ip


def _local_server(port: int) -> dict[str, Any]:
    """Return the server file of this user on this host."""
    server = server_file.read()
    if server is None:
        port_text = f" on port {port}" if port else ""
        raise DaemonUnreachable(
            f"You have no auto server on this host{port_text}. Start one: auto server --gpus 0 1"
        )
    if port and port != server["port"]:
        raise DaemonUnreachable(
            f"Your auto server does not use port {port}. Use --port {server['port']}."
        )
    return server
