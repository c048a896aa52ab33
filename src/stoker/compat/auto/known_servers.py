"""Trusted servers on other hosts (--bind): their certificates and tokens."""

from __future__ import annotations

import os
import sys

from stoker import places
from stoker.cli import output
from stoker.cli.options import Args
from stoker.client import fast_json
from stoker.client.client import Client
from stoker.client.errors import StokerError, UsageError
from stoker.client.tcp_endpoint import Endpoint

HEX = frozenset("0123456789abcdef")


def path() -> str:
    """Return the file of trusted servers, readable by its owner only."""
    return os.path.join(places.state_dir(), "trusted.json")


def find_trusted(ip: str, port: int) -> Endpoint | None:
    """Return the trusted server at an address, None if there is none."""
    entry = _read().get(_server_name(ip, port))
    return Endpoint(ip, port, entry["token"], entry["fingerprint"]) if entry else None


def trust(args: Args) -> int:
    """Trust a server after checking its certificate and the token."""
    ip, port = _parse_address(args)
    if args.flag("forget"):
        _update_entry(_server_name(ip, port), None)
        output.say(f"auto: {_server_name(ip, port)} is no longer trusted")
        return 0
    if len(args.words) != 2:
        raise UsageError("Usage: auto trust ADDRESS:PORT FINGERPRINT, as printed by the server.")
    fingerprint = args.words[1].lower()
    kind, _, digits = fingerprint.partition(":")
    if kind != "sha256" or len(digits) != 64 or set(digits) - HEX:
        raise UsageError("The fingerprint must be sha256: and 64 hexadecimal digits.")
    endpoint = Endpoint(ip, port, _read_token(), fingerprint)
    client = Client(endpoint)
    client.check_version = False
    client.daemon()
    _update_entry(_server_name(ip, port), {"fingerprint": fingerprint, "token": endpoint.token})
    output.say(f"auto: {endpoint} is trusted; now: auto --ip {ip} --port {port} status")
    return 0


def _parse_address(args: Args) -> tuple[str, int]:
    host, _, port = (args.words[0] if args.words else "").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError("Usage: auto trust ADDRESS:PORT FINGERPRINT, as printed by the server.")
    return host.strip("[]"), int(port)


def _read_token() -> str:
    """Read the token from stdin; on the command line it would be in the shell history."""
    if output.is_terminal(0):
        from getpass import getpass

        text = getpass("Token (from the file that the server printed): ")
    else:
        text = sys.stdin.readline(4096) if sys.stdin is not None else ""
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError("No token on stdin. It is in the file that the server printed.")
    return token


def _server_name(ip: str, port: int) -> str:
    return f"{ip}:{port}"


def _read() -> dict[str, dict[str, str]]:
    try:
        with open(path(), encoding="utf-8") as file:
            entries = fast_json.loads(file.read())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StokerError(f"{path()} cannot be read: {error.strerror}.") from None
    except ValueError:
        entries = None
    if not isinstance(entries, dict) or not all(map(_is_valid_entry, entries.values())):
        raise StokerError(f"{path()} is invalid. Remove it, then trust your servers again.")
    return entries


def _is_valid_entry(entry: object) -> bool:
    return isinstance(entry, dict) and all(
        isinstance(entry.get(key), str) for key in ("fingerprint", "token")
    )


def _update_entry(name: str, entry: dict[str, str] | None) -> None:
    """Add or remove a server under a lock."""
    import fcntl

    places.secure_dir(places.state_dir())
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(f"{path()}.lock", flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = _read()
        if entry is not None:
            known[name] = entry
        elif known.pop(name, None) is None:
            raise StokerError(f"{name} is not a trusted server.")
        new = f"{path()}.new"
        with open(os.open(new, flags | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(fast_json.dumps(known))
        os.rename(new, path())
    finally:
        os.close(lock)
