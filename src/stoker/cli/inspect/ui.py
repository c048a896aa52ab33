"""Open the web page of the daemon in a browser.

The page is served on a port of this machine; the link opens one session within a minute. --share
prints a link with which others may look, for as long as you say; it is useful at a port for other
machines (stoker daemon restart --listen HOST:PORT; of a system daemon: [api] listen).
"""

from __future__ import annotations

import os

from stoker import places
from stoker.cli import output
from stoker.cli.options import Args, Option, parse
from stoker.cli.output import clean, table
from stoker.cli.output.table import Column
from stoker.cli.output.times import parse_duration, relative
from stoker.client.client import Client, connect
from stoker.client.errors import PermissionDenied, UsageError
from stoker.wire import JsonObject, is_loopback

USAGE = (
    "ui [--no-open] [--print] [--port N] [--read-only] [--on MACHINE]",
    "ui --share 8h [--no-logs]",
    "ui --sessions | --revoke ID",
)
OPTIONS = (
    Option("--no-open", None, "print the link, open no browser"),
    Option("--print", None, "print nothing but the link, open no browser", key="only_link"),
    Option("--port", "N", "use this port; default: an open one, else any free one"),
    Option("--read-only", None, "the session may look, but change nothing"),
    Option("--share", "TIME", "print a link that others may open for this long, to look only"),
    Option("--no-logs", None, "with --share: without the output of jobs"),
    Option("--sessions", None, "list the open sessions and shared links"),
    Option("--revoke", "ID", "end a session, or a shared link with all its sessions"),
    Option("--on", "MACHINE", "of the daemon on another machine, over ssh"),
)
SESSION_SECONDS = 43200
MIN_SHARE_SECONDS, MAX_SHARE_SECONDS = 60, 90 * 86400
MAX_ID_LENGTH = 40
ANY_ADDRESS = ("0.0.0.0", "::", "[::]", "")  # noqa: S104 - it is compared, not bound
COLUMNS = (Column("ID"), Column("RIGHTS"), Column("KIND"), Column("OPENED"), Column("USED"),
           Column("EXPIRES"), Column("NOTE", cut=True))  # fmt: skip


def main(argv: list[str]) -> int:
    """Open the page, or list or end sessions."""
    args = parse(OPTIONS, argv, verb="ui")
    if args.words:
        raise UsageError(f"stoker ui takes no arguments, but {args.words[0]!r} was given.")
    _check(args)
    machine = args.text("on")
    if machine is not None:
        from stoker.cli.session.forward import SocketForward

        with SocketForward(machine, args.count("port", 0) or 0) as forward:
            code = _run(Client(forward.path), args, forward.address)
            if not (args.flag("sessions") or args.text("revoke")):
                output.say(f"stoker: connected to {machine}; ^C ends the connection")
                forward.wait()
            return code
    return _run(connect(), args, None)


def _check(args: Args) -> None:
    """Reject options that contradict each other, and values that the daemon does not accept."""
    share, id = args.text("share"), args.text("revoke")
    actions = [
        name for name, is_given in (
            ("--share", share is not None), ("--sessions", args.flag("sessions")),
            ("--revoke", id is not None),
        ) if is_given
    ]  # fmt: skip
    if len(actions) > 1:
        raise UsageError(f"Give either {actions[0]} or {actions[1]}, not both.")
    if args.flag("no_logs") and share is None:
        raise UsageError("--no-logs needs --share TIME.")
    if share is not None and not MIN_SHARE_SECONDS <= parse_duration(share) <= MAX_SHARE_SECONDS:
        raise UsageError(f"--share takes a time from 1m to 90d, not {share!r}.")
    if id is not None and not (id.isascii() and id.isalnum() and len(id) <= MAX_ID_LENGTH):
        raise UsageError(f"{id[:MAX_ID_LENGTH]!r} is not a session id; see stoker ui --sessions.")


def _run(client: Client, args: Args, address: str | None) -> int:
    if args.flag("sessions"):
        return _list(client, args)
    id = args.text("revoke")
    if id is not None:
        return _revoke(client, args, id)
    share = args.text("share")
    seconds = int(parse_duration(share)) if share is not None else SESSION_SECONDS
    is_view = share is not None or args.flag("read_only")
    url = _page_address(client, args, address, is_shared=share is not None)
    session = client.create_session(
        rights="view" if is_view else "act", seconds=seconds, share=share is not None,
        logs=not args.flag("no_logs"),
    )  # fmt: skip
    link = f"{url}/#c={session['code']}"
    if args.flag("json"):
        return output.emit({"url": link, **session})
    print(link, flush=True)
    if args.flag("only_link"):
        return 0
    if share is not None:
        output.say(f"stoker: valid until {session['expires']}; ends with: stoker ui --revoke "
                   f"{session['id']}")  # fmt: skip
    elif args.flag("no_open") or not _has_display():
        output.say("stoker: open the link within a minute; it can be used once")
    else:
        _open_browser(link)
    return 0


def _page_address(client: Client, args: Args, address: str | None, is_shared: bool) -> str:
    """Return the address of the page, after opening a port if there is none."""
    if address is not None:
        return f"http://{address}"
    port, status = args.count("port"), client.daemon()
    listeners = [each for each in status["listeners"] if "serves" not in each["note"]]
    if is_shared and port is None:
        for listener in listeners:
            if listener["tls"]:
                return _shared_address(listener["address"], status["names"])
        opens = "[api] listen" if status["mode"] == "system" else "stoker daemon restart --listen"
        output.say(
            f"stoker: this link works on this machine only; a port for others: {opens} "
            "0.0.0.0:25647"
        )
    for listener in listeners:
        host, number = _split(listener["address"])
        if is_loopback(host) and not listener["tls"] and port in (None, number):
            return f"http://{listener['address']}"
    for listener in listeners:
        host, number = _split(listener["address"])
        if status["mode"] == "system" and listener["tls"] and port in (None, number):
            host = "127.0.0.1" if host in ANY_ADDRESS else host
            return f"https://{f'[{host}]' if ':' in host else host}:{number}"
    return _open_port(client, port)


def _split(address: str) -> tuple[str, int]:
    host, _, number = address.rpartition(":")
    return host.strip("[]"), int(number)


def _open_port(client: Client, port: int | None) -> str:
    """Open a port; if only administrators may, raise an error that says what to set."""
    try:
        opened = client.listen(f"127.0.0.1:{port or 0}", keep=True)
    except PermissionDenied:
        raise PermissionDenied(
            f"The system daemon has no port {port or 'for browsers'}; an administrator opens one: "
            f'[api] listen = "127.0.0.1:{port or 25647}" in /etc/stoker/config.toml, and a '
            "restart of the daemon."
        ) from None
    return f"http://{opened['address']}"


def _shared_address(address: str, names: list[str]) -> str:
    """Return the address under which other machines reach a port."""
    host, port = _split(address)
    host = f"[{host}]" if ":" in host else host
    if host in ANY_ADDRESS:
        host = names[0] if names else os.uname().nodename
    if host not in names:
        output.say(f'stoker: browsers are refused there until the configuration has: [api] names = '
                   f'["{host}"]')  # fmt: skip
    return f"https://{host}:{port}"


def _has_display() -> bool:
    if os.environ.get("SSH_CONNECTION"):
        return False
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open_browser(link: str) -> None:
    """Open the link from a private file: other users can see the arguments of a browser."""
    import subprocess

    path = os.path.join(places.state_dir(), "open-page.html")
    places.write_private(path, f'<!doctype html><meta http-equiv="refresh" content="0;url={link}">')
    try:
        subprocess.Popen(
            ["xdg-open", path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except OSError:
        output.say("stoker: no browser can be opened; open the link within a minute")


def _list(client: Client, args: Args) -> int:
    reply = client.sessions()
    if args.flag("json"):
        return output.emit(reply)
    rows = [_row(session) for session in reply["sessions"]]
    if rows:
        print("\n".join(table.render(COLUMNS, rows)))
    else:
        output.say("no sessions")
    return 0


def _row(session: JsonObject) -> list[str]:
    return [
        session["id"], session["rights"] + ("" if session["logs"] else ", no logs"),
        "shared link" if session["share"] else "session", relative(session["created"]),
        relative(session["used"]) if session["used"] else "-", relative(session["expires"]),
        clean(session["note"]),
    ]  # fmt: skip


def _revoke(client: Client, args: Args, id: str) -> int:
    reply = client.end_session(id)
    if args.flag("json"):
        return output.emit(reply)
    output.say(f"stoker: session {reply['id']} ended")
    return 0
