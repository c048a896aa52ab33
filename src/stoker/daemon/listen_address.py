"""Parse and print HOST:PORT listen addresses."""

from __future__ import annotations

from stoker.core.model.units import BadValue


def split(text: str) -> tuple[str, int]:
    """Return address and port of `127.0.0.1:25647` or `[::1]:25647`; port 0 is any free port."""
    from ipaddress import ip_address

    host, colon, port = text.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host
    try:
        address = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        address = None
    if not colon or address is None or not port.isdecimal() or int(port) > 65535:
        raise BadValue(f"'{text}' is not an address to listen on; type it as 127.0.0.1:25647.")
    return str(address), int(port)


def join(host: str, port: int) -> str:
    """Return an address and a port as HOST:PORT."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
