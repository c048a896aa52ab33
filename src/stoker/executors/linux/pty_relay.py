"""Runs a job on a terminal: `python -m stoker.executors.linux.pty_relay SOCKET ARGV...`.

This is the job's own process, so it outlives the daemon like any other. A client that connects
to the socket gets the terminal; the first line it sends is its size, `ROWS COLS`. The output of
the terminal goes to the log as well.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import socket
import struct
import sys
import termios


def main(argv: list[str]) -> int:
    """Run a command on a new terminal and offer that terminal on a socket."""
    path, *command = argv
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    old = os.umask(0o177)
    listener.bind(path)
    os.umask(old)
    listener.listen(1)
    pid, terminal = pty.fork()
    if pid == 0:
        with contextlib.suppress(OSError):
            os.execvp(command[0], command)
        os.write(2, f"{command[0]}: not found\r\n".encode())
        os._exit(127)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda got, _: _pass_on(pid, got))
    try:
        _shuttle(listener, terminal)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _pass_on(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGHUP if number == signal.SIGTERM else number)


def _shuttle(listener: socket.socket, terminal: int) -> None:
    """Copy between the terminal, the log and an attached client, until the program ends."""
    client: socket.socket | None = None
    greeting: bytes | None = b""
    recent = b""
    while True:
        watched: list[int | socket.socket] = [terminal, listener if client is None else client]
        ready = select.select(watched, [], [])[0]
        if terminal in ready:
            try:
                shown = os.read(terminal, 65536)
            except OSError:
                shown = b""  # the last program on this terminal has ended
            if not shown:
                if client is not None:
                    client.close()
                return
            os.write(1, shown)
            recent = (recent + shown)[-65536:]
            if client is not None and greeting is None:
                client = _send(client, shown)
        if listener in ready and client is None:
            client, _ = listener.accept()
            greeting = b""
        elif client is not None and client in ready:
            typed = _receive(client)
            if not typed:
                client.close()
                client = None
            elif greeting is None:
                os.write(terminal, typed)
            else:
                greeting += typed
                line, newline, typed_ahead = greeting.partition(b"\n")
                if newline:
                    _resize(terminal, line)
                    greeting = None
                    client = _send(client, recent)  # output from before a client attached
                    if typed_ahead:
                        os.write(terminal, typed_ahead)


def _send(guest: socket.socket, data: bytes) -> socket.socket | None:
    try:
        guest.sendall(data)
    except OSError:
        guest.close()
        return None
    return guest


def _receive(guest: socket.socket) -> bytes:
    try:
        return guest.recv(65536)
    except OSError:
        return b""


def _resize(terminal: int, line: bytes) -> None:
    with contextlib.suppress(ValueError, OSError, struct.error):
        rows, columns = (int(word) for word in line.split())
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
