"""AgentSession: one connection to the agent of a node; it never blocks.

The transport opens the connection. On the other side runs agent.sh; its head explains the
framing: every line of the agent begins with a nonce that no job has ever seen.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import subprocess
import time
from collections.abc import Callable

from msgspec import Struct

from stoker.core.model.units import printable
from stoker.executors.agent.session.framing import Bulks, Lines, ProtocolError, number
from stoker.executors.agent.session.transport import Transport
from stoker.executors.rate_limit import RateLimit
from stoker.executors.reactor import Reactor

log = logging.getLogger(__name__)

CHUNK = 1 << 16
UNASKED_BURST, UNASKED_RATE = 4 << 20, 256 << 10
"""Bytes that a node may send without a request, at once and per second."""
PROGRESS = 16 << 10
"""Bytes of bulk data that show that a node still answers."""
MAX_REASON_LENGTH = 300
"""Characters of the reason for which a connection ended."""
EXIT_SECONDS, EXIT_POLL_SECONDS = 1.0, 0.02
"""Time that the transport's process has to exit after its output ended, and between checks."""
PREAMBLE = "\n" * 8
"""Empty lines for login scripts that read standard input; the agent's text follows them."""

STARTER = (
    "exec sh -c 'while read -r line; do "
    'if [ "$line" = stoker ]; then eval "$(dd bs=1 count=%d 2>/dev/null)"; fi; '
    "done'"
)
"""Accepted by any login shell; runs exactly that number of bytes of standard input in sh."""

OnReply = Callable[[list[str]], None]
"""Called with the words of each line of a reply."""
OnBytes = Callable[[bytes], None]
"""Called once with a whole reply."""


class PendingRequest(Struct):
    """A request without a complete reply."""

    on_reply: OnReply
    max_lines: int
    """How many more lines the reply may have."""
    is_single: bool
    """Whether the reply is one line; otherwise `done` ends it."""


def quoted(word: str) -> str:
    """Return a string quoted for the shell, on one line whatever it contains."""
    inner = word.replace("'", "'\\''").replace("\n", "'\"$NL\"'")
    return f"'{inner}'"


def agent_program(variables: dict[str, str]) -> str:
    """Return the agent as a program for sh, with these variables set."""
    agent = ""
    for name in ("measure.sh", "agent.sh"):  # the agent, with its loop, comes last
        with open(os.path.join(os.path.dirname(__file__), name)) as file:
            agent += file.read()
    variables = {"BATCH": "", **variables}
    head = "".join(f"{name}={quoted(value)}\n" for name, value in variables.items())
    # Unset first: were it exported by a login script, jobs would see it.
    return f"unset NONCE\n{head}{agent}"


class AgentSession:
    """An open connection, or an attempt to open one; a new object for each."""

    def __init__(
        self,
        transport: Transport,
        variables: dict[str, str],
        reactor: Reactor,
        on_notification: OnReply,
        on_closed: Callable[[str], None],
    ) -> None:
        """`variables` are set for the agent; `on_closed` is called once, with the reason."""
        self.transport, self.reactor = transport, reactor
        self.on_notification, self.on_closed = on_notification, on_closed
        self.is_up = self._closed = False
        self.is_malformed = False
        """Whether it was closed because of what the node sent."""
        self.nonce = secrets.token_hex(16)
        self._last_line = self._last_bulk = time.monotonic()
        self._requests: dict[str, PendingRequest] = {}
        """By number, the oldest first: the agent answers them in this order."""
        self._bulks: dict[str, OnBytes] = {}
        self._last = 0
        self._in_lines, self._in_bulk = Lines(self.nonce), Bulks(self.nonce)
        self._unasked = RateLimit(UNASKED_BURST, UNASKED_RATE, time.monotonic())
        self._early_stderr = b""
        """What came on stderr before the agent answered."""
        self._unsent = b""
        self.process = self._spawn(variables)
        out, err = self.process.stdout, self.process.stderr
        into = self.process.stdin
        assert out is not None
        assert err is not None
        assert into is not None
        for stream in (out, err, into):
            os.set_blocking(stream.fileno(), False)
        reactor.add_reader(out.fileno(), self._read_lines)
        reactor.add_reader(err.fileno(), self._read_bulk)
        self._write()

    def _spawn(self, variables: dict[str, str]) -> subprocess.Popen[bytes]:
        text = os.fsencode(agent_program(variables | {"NONCE": self.nonce}))
        process = self.transport.connect(STARTER % len(text))
        self._unsent = PREAMBLE.encode() + b"stoker\n" + text
        return process

    # -- out ----------------------------------------------------------------------------

    def request(self, on_reply: OnReply | None, verb: str, *words: str, max_lines: int = 1) -> None:
        """Send a request; its reply is one line, or up to `max_lines` lines until `done`."""
        self._last += 1
        request = str(self._last)
        if on_reply is not None:
            is_single = max_lines == 1
            self._requests[request] = PendingRequest(on_reply, max_lines, is_single)
        self._send(request, verb, words)

    def request_bytes(self, on_bytes: OnBytes, verb: str, *words: str, max_bytes: int) -> None:
        """Send a request with a reply of at most `max_bytes` bytes."""
        self._last += 1
        request = str(self._last)
        self._bulks[request] = on_bytes
        self._in_bulk.expect(request, max_bytes)
        self._send(request, verb, words)

    def ping(self) -> None:
        """Make the agent answer on both streams, after all earlier requests."""
        self.request_bytes(lambda _: None, "ping", max_bytes=0)
        self._requests[str(self._last)] = PendingRequest(lambda _: None, 1, is_single=True)

    @property
    def last_reply(self) -> float:
        """When the last part of a reply arrived on both streams; notifications do not count."""
        return min(self._last_line, self._last_bulk)

    def _send(self, request: str, verb: str, words: tuple[str, ...]) -> None:
        line = " ".join((request, verb, *map(quoted, words)))
        waiting = bool(self._unsent)
        self._unsent += os.fsencode(line) + b"\n"
        if not waiting:
            self._write()

    def _write(self) -> None:
        pipe = self.process.stdin
        if pipe is None or pipe.closed or not self._unsent:
            return
        try:
            sent = os.write(pipe.fileno(), self._unsent)
        except BlockingIOError:
            sent = 0
        except BrokenPipeError:
            return  # the end of its output follows
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self.reactor.add_writer(pipe.fileno(), self._write)

    # -- in -----------------------------------------------------------------------------

    def _read_lines(self) -> None:
        """Read lines: replies and notifications."""
        assert self.process.stdout is not None
        try:
            chunk = os.read(self.process.stdout.fileno(), CHUNK)
        except BlockingIOError:
            return
        if chunk:
            self._guard(self._take_lines, chunk)
        elif self.is_up:
            self.close("the connection was lost")
        else:
            self.reactor.remove_reader(self.process.stdout.fileno())
            self.reactor.call_later(0.0, lambda: self._await_exit(EXIT_SECONDS))

    def _read_bulk(self) -> None:
        """Read bulk data."""
        assert self.process.stderr is not None
        try:
            chunk = os.read(self.process.stderr.fileno(), CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            self.reactor.remove_reader(self.process.stderr.fileno())
            return
        if not self.is_up:
            self._early_stderr = (self._early_stderr + chunk)[-2000:]
        self._guard(self._take_bulk, chunk)

    def _guard(self, take: Callable[[bytes], None], chunk: bytes) -> None:
        """Handle data from the node: an error ends this connection and nothing else."""
        try:
            take(chunk)
        except (ValueError, IndexError) as error:
            self.is_malformed = True
            self.close(
                f"protocol error: {error}; the connection was closed, check what answers"
                " at this address"
            )
        except Exception as error:
            log.exception("cannot handle data from %s", self.transport.host)
            self.is_malformed = True
            self.close(f"internal error while handling its data: {error!r}; see: stoker daemon log")

    def _take_lines(self, chunk: bytes) -> None:
        noise = self._in_lines.noise
        lines = self._in_lines.feed(chunk)
        self._allow(self._in_lines.noise - noise)
        for words in lines:
            if self._closed:  # because of the line before
                return
            self._on_line(words)

    def _allow(self, size: int) -> None:
        """Count data that was not requested; raise ProtocolError if it is too much."""
        if not self._unasked.try_spend(size, time.monotonic()):
            raise ProtocolError("far more data than requested")

    def _on_line(self, words: list[str]) -> None:
        request, *rest = words
        if request == "-":
            self._allow(sum(map(len, words)) + len(words))
            if rest[0] == "hello":
                self.is_up = True
            elif not self.is_up:
                raise ProtocolError("a notification before the greeting")
            self.on_notification(rest)
        elif request in self._requests:
            self._on_reply(request, rest)
        elif number(request) > self._last:
            raise ProtocolError(f"an answer to request {request}, which was never sent")
        else:  # a reply that no caller waits for
            self._allow(sum(map(len, words)) + len(words))

    def _on_reply(self, request: str, words: list[str]) -> None:
        if request != next(iter(self._requests)):
            raise ProtocolError(f"an answer to request {request} out of order")
        pending = self._requests[request]
        if words[0] == "done" or pending.is_single:
            del self._requests[request]
        elif pending.max_lines <= 1:
            raise ProtocolError(f"an overlong answer to request {request}")
        pending.max_lines -= 1
        self._last_line = time.monotonic()
        pending.on_reply(words)

    def _take_bulk(self, chunk: bytes) -> None:
        noise, received = self._in_bulk.noise, self._in_bulk.received
        answers = self._in_bulk.feed(chunk)
        self._allow(self._in_bulk.noise - noise)
        if answers or self._in_bulk.received // PROGRESS > received // PROGRESS:
            # The agent does one thing at a time: it sends no lines meanwhile.
            self._last_line = self._last_bulk = time.monotonic()
        for request, data in answers:
            if self._closed:
                return
            self._bulks.pop(request)(data)

    # -- the end ------------------------------------------------------------------------

    def _await_exit(self, seconds: float) -> None:
        """Close after the end of the output, when the exit of the process explains it."""
        if self._closed:
            return
        code = self.process.poll()
        if code is None and seconds > 0:
            left = seconds - EXIT_POLL_SECONDS
            self.reactor.call_later(EXIT_POLL_SECONDS, lambda: self._await_exit(left))
            return
        stderr = self._early_stderr.decode(errors="replace")
        self.close(self.transport.describe_failure(code, stderr))

    def close(self, why: str) -> None:
        """Close the connection; attempts on the node continue."""
        process = self.process
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None and not stream.closed:
                self.reactor.remove_reader(stream.fileno())
                with contextlib.suppress(OSError):
                    stream.close()
        process.kill()
        process.wait()
        on_closed, self.on_closed = self.on_closed, lambda _: None
        self.is_up, self._closed = False, True
        self.transport.disconnected()
        on_closed(printable(why, MAX_REASON_LENGTH))
