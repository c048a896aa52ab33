"""Attach to a job's terminal: raw bytes over the socket that its view names."""

from __future__ import annotations

import os
import select
import signal
import termios
import time
import tty
from _socket import AF_UNIX, SOCK_STREAM
from _socket import socket as Socket  # noqa: N812

from stoker.cli import output
from stoker.cli.session.follow import detach
from stoker.client import reconnect
from stoker.client.client import Client
from stoker.client.errors import StokerError


def attach(client: Client, label: str) -> int:
    """Wait for the job to start, relay its terminal until it ends; return its exit code."""
    try:
        sock = _connect(client, label)
    except KeyboardInterrupt:
        return detach(client, label)
    if sock is not None:
        _relay_raw(sock)
        sock.close()
    views = reconnect.wait(client, [label])["jobs"]
    return max((int(view.get("result") or 0) for view in views), default=0)


def _connect(client: Client, label: str) -> Socket | None:
    """Connect to the job's terminal once it exists; return None if the job has ended.

    The system daemon names the socket of another user without seeing whether it exists yet.
    """
    reported = False
    polls = 30  # the socket may appear a moment after the process
    while True:
        view = client.jobs([label])["jobs"][0]
        if view.get("attach"):
            sock = Socket(AF_UNIX, SOCK_STREAM)
            try:
                sock.connect(view["attach"])
            except (FileNotFoundError, ConnectionRefusedError):
                sock.close()
            else:
                return sock
        if view.get("result") is not None:
            return None
        polls -= view["state"] == "RUNNING"
        if polls < 0:
            raise StokerError(f"Job {label} runs, but its terminal cannot be reached.")
        if not reported and view.get("reason_text"):
            output.say(f"stoker: waiting: {view['reason_text']}")
            reported = True
        time.sleep(0.1)


def _relay_raw(sock: Socket) -> None:
    size = os.get_terminal_size(0)
    sock.sendall(f"{size.lines or 24} {size.columns or 80}\n".encode())
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0)
        _relay(sock)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _relay(sock: Socket) -> None:
    """Copy both ways until the job closes its side; the end of our stdin is ignored."""
    sources: list[int] = [0, sock.fileno()]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is sent to the job as a byte
    try:
        while True:
            ready = select.select(sources, [], [])[0]
            if sock.fileno() in ready:
                piece = sock.recv(65536)
                if not piece:
                    return
                _write(1, piece)
            if 0 in ready:
                keys = os.read(0, 4096)
                if keys:
                    sock.sendall(keys)
                else:
                    sources.remove(0)
    except OSError:
        return
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
