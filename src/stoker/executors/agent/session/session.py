"""One connection to one machine: requests out, answers and news in, nothing that waits.

The OpenSSH client does the talking. On the other side runs agent.sh, whose head explains the
framing: every line of ours begins with a nonce that no job has ever seen.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import re
import secrets
import shlex
import subprocess
import time
from collections.abc import Callable

from msgspec import Struct

from stoker.core.text import printable
from stoker.executors.agent.session.framing import Allowance, Bulks, Lines, ProtocolError, number
from stoker.executors.reactor import Reactor
from stoker.executors.ssh.address import Address

log = logging.getLogger(__name__)

CHUNK = 1 << 16
UNASKED_BURST, UNASKED_RATE = 4 << 20, 256 << 10
"""Bytes that a node may send without a request, at once and per second: news and noise."""
PROGRESS = 16 << 10
"""Bytes of bulk data that show that a node is still answering."""
LONGEST_REASON = 300
"""Characters of a reason for which a connection ended."""
LONGEST_COMPLAINT = 8 << 10
"""Bytes of what ssh writes about a failure; the last ones count."""
SACRIFICE = "\n" * 8
"""Lines for login scripts that read what is not theirs; the agent's text comes after them."""

STARTER = (
    "exec sh -c 'while read -r line; do "
    'if [ "$line" = stoker ]; then eval "$(dd bs=1 count=%d 2>/dev/null)"; fi; '
    "done'"
)
"""Any login shell can pass this on. It starts sh on exactly so many bytes of its input."""

Answer = Callable[[list[str]], None]
"""Called with the words of each line that answers a request."""
Bulk = Callable[[bytes], None]
"""Called once, with all of it."""


class Request(Struct):
    """A request whose answer has not arrived completely."""

    answer: Answer
    lines: int
    """How many more lines the answer may have."""
    single: bool
    """Whether one line is all of it; otherwise `done` ends it."""


def quoted(word: str) -> str:
    """One word of shell, on one line whatever is in it."""
    inner = word.replace("'", "'\\''").replace("\n", "'\"$NL\"'")
    return f"'{inner}'"


class AgentSession:
    """A living connection, or the attempt at one. A new object for each try."""

    def __init__(
        self,
        address: Address,
        control: str,
        names: dict[str, str],
        poller: Reactor,
        news: Callable[[list[str]], None],
        over: Callable[[str], None],
    ) -> None:
        """`names` are set for the agent; `over` is told once, in words, when this is over."""
        self.address, self.poller, self.news, self.over = address, poller, news, over
        self.up = self._closed = False
        self.malformed = False
        """Whether it was closed because of what the node sent."""
        self.ended_at: float | None = None
        """When its output ended before the agent had answered."""
        self.nonce = secrets.token_hex(16)
        self._heard_lines = self._heard_bulk = time.monotonic()
        self._requests: dict[str, Request] = {}
        """By number, the oldest first: the agent answers them in this order."""
        self._bulks: dict[str, Bulk] = {}
        self._last = 0
        self._in_lines, self._in_bulk = Lines(self.nonce), Bulks(self.nonce)
        self._unasked = Allowance(UNASKED_BURST, UNASKED_RATE, time.monotonic())
        self._complaints = f"{control}~log"
        """What ssh itself has to say: kept apart from what comes over the connection."""
        self._said = b""
        """What came on stderr before the agent spoke."""
        self._unsent = b""
        self.process = self._spawn(address, control, names)
        out, err = self.process.stdout, self.process.stderr
        into = self.process.stdin
        assert out is not None
        assert err is not None
        assert into is not None
        for stream in (out, err, into):
            os.set_blocking(stream.fileno(), False)
        poller.add_reader(out.fileno(), self._hear)
        poller.add_reader(err.fileno(), self._take)
        self._write()

    def _spawn(
        self, address: Address, control: str, names: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        socket = self._name_socket(control)
        agent = ""
        for name in ("facts.sh", "agent.sh"):  # the agent, with its loop, comes last
            with open(os.path.join(os.path.dirname(__file__), name)) as file:
                agent += file.read()
        head = "".join(f"{name}={quoted(value)}\n" for name, value in names.items())
        # Unset first: were it exported by a login script, jobs would see it.
        text = os.fsencode(f"unset NONCE\nNONCE={self.nonce}\n{head}{agent}")
        starter = STARTER % len(text)
        options = ("-o", "ControlMaster=yes", "-o", "ControlPersist=no", "-E", self._complaints)
        process = subprocess.Popen(
            [*address.command(socket, *options), starter],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        self._unsent = SACRIFICE.encode() + b"stoker\n" + text
        return process

    def _name_socket(self, control: str) -> str:
        """A socket of its own for this connection; `control` leads to it.

        An ssh that outlives its daemon removes its socket when it ends, perhaps long after
        another has taken its place. What is left of connections before us is removed here.
        """
        for path in glob.glob(f"{glob.escape(control)}~*"):
            with contextlib.suppress(OSError):
                os.unlink(path)
        socket = f"{control}~{self.nonce[:6]}"
        os.symlink(os.path.basename(socket), f"{socket}.new")
        os.replace(f"{socket}.new", control)
        return socket

    # -- out ----------------------------------------------------------------------------

    def ask(self, answer: Answer | None, verb: str, *words: str, lines: int = 1) -> None:
        """Send a request; `answer` gets the line that comes back, or up to `lines` until `done`."""
        self._last += 1
        request = str(self._last)
        if answer is not None:
            self._requests[request] = Request(answer, lines, single=lines == 1)
        self._send(request, verb, words)

    def fetch(self, bulk: Bulk, verb: str, *words: str, most: int) -> None:
        """Send a request whose answer is at most `most` bytes."""
        self._last += 1
        request = str(self._last)
        self._bulks[request] = bulk
        self._in_bulk.expect(request, most)
        self._send(request, verb, words)

    def ping(self) -> None:
        """Have the agent answer in both ways, behind everything that it has not answered yet."""
        self.fetch(lambda _: None, "ping", most=0)
        self._requests[str(self._last)] = Request(lambda _: None, 1, single=True)

    @property
    def answered(self) -> float:
        """When the last part of an answer arrived, of lines and of bulk data; news do not count."""
        return min(self._heard_lines, self._heard_bulk)

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
            return  # the end of its output tells the rest
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self.poller.add_writer(pipe.fileno(), self._write)

    # -- in -----------------------------------------------------------------------------

    def _hear(self) -> None:
        """Read lines: answers and news."""
        assert self.process.stdout is not None
        try:
            chunk = os.read(self.process.stdout.fileno(), CHUNK)
        except BlockingIOError:
            return
        if chunk:
            self._guard(self._take_lines, chunk)
        elif self.up:
            self.close("the connection was lost")
        else:
            # How ssh ends says why; whether it has ended is looked at now and then.
            self.poller.remove_reader(self.process.stdout.fileno())
            self.ended_at = time.monotonic()

    def _take(self) -> None:
        """Read bulk data."""
        assert self.process.stderr is not None
        try:
            chunk = os.read(self.process.stderr.fileno(), CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            self.poller.remove_reader(self.process.stderr.fileno())
            return
        if not self.up:
            self._said = (self._said + chunk)[-2000:]
        self._guard(self._take_bulk, chunk)

    def _guard(self, take: Callable[[bytes], None], chunk: bytes) -> None:
        """Handle data from the node: whatever it causes ends this connection and nothing else."""
        try:
            take(chunk)
        except (ValueError, IndexError) as error:
            self.malformed = True
            self.close(
                f"protocol error: {error}; the connection was closed, check what answers"
                " at this address"
            )
        except Exception as error:
            log.exception("cannot handle data from %s", self.address.host)
            self.malformed = True
            self.close(f"internal error while handling its data: {error!r}; see: stoker daemon log")

    def _take_lines(self, chunk: bytes) -> None:
        noise = self._in_lines.noise
        lines = self._in_lines.feed(chunk)
        self._unasked.spend(self._in_lines.noise - noise, time.monotonic())
        for words in lines:
            if self._closed:  # because of the line before
                return
            self._heard(words)

    def _heard(self, words: list[str]) -> None:
        request, *rest = words
        if request == "-":
            self._unasked.spend(sum(map(len, words)) + len(words), time.monotonic())
            if rest[0] == "hello":
                self.up = True
            elif not self.up:
                raise ProtocolError("a notification before the greeting")
            self.news(rest)
        elif request in self._requests:
            self._answered(request, rest)
        elif number(request) > self._last:
            raise ProtocolError(f"an answer to request {request}, which was never sent")
        else:  # its answer does not matter
            self._unasked.spend(sum(map(len, words)) + len(words), time.monotonic())

    def _answered(self, request: str, words: list[str]) -> None:
        if request != next(iter(self._requests)):
            raise ProtocolError(f"an answer to request {request} out of order")
        pending = self._requests[request]
        if words[0] == "done" or pending.single:
            del self._requests[request]
        elif pending.lines <= 1:
            raise ProtocolError(f"an overlong answer to request {request}")
        pending.lines -= 1
        self._heard_lines = time.monotonic()
        pending.answer(words)

    def _take_bulk(self, chunk: bytes) -> None:
        noise, received = self._in_bulk.noise, self._in_bulk.received
        answers = self._in_bulk.feed(chunk)
        self._unasked.spend(self._in_bulk.noise - noise, time.monotonic())
        if answers or self._in_bulk.received // PROGRESS > received // PROGRESS:
            # The agent does one thing at a time: meanwhile there are no lines.
            self._heard_lines = self._heard_bulk = time.monotonic()
        for request, data in answers:
            if self._closed:
                return
            self._bulks.pop(request)(data)

    # -- the end ------------------------------------------------------------------------

    def give_up(self) -> None:
        """Its output ended before the agent answered: close it, with what ssh says about that."""
        code = self.process.poll()
        try:
            with open(self._complaints, "rb") as file:
                file.seek(max(os.fstat(file.fileno()).st_size - LONGEST_COMPLAINT, 0))
                said = file.read(LONGEST_COMPLAINT)
        except OSError:
            said = b""
        self.close(complaint((said or self._said).decode(errors="replace"), self.address, code))

    def close(self, why: str) -> None:
        """End the connection; jobs on the other side go on."""
        process = self.process
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None and not stream.closed:
                self.poller.remove_reader(stream.fileno())
                with contextlib.suppress(OSError):
                    stream.close()
        process.kill()
        process.wait()
        over, self.over = self.over, lambda _: None
        self.up, self._closed = False, True
        with contextlib.suppress(OSError):
            os.unlink(self._complaints)
        over(printable(why, LONGEST_REASON))


def complaint(said: str, address: Address, code: int | None) -> str:
    """What ssh said, in a sentence that also says what to do."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    key = f"-i {shlex.quote(address.key)} " if address.key else ""
    by_hand = f"try manually: ssh {key}{address.url}"
    if "HOST IDENTIFICATION HAS CHANGED" in said or "Host key verification failed" in said:
        name = f"[{address.host}]:{address.port}" if address.port else address.host
        return (
            "the host key differs from the one in known_hosts; if the change is expected, "
            f"remove the old key with: ssh-keygen -R '{name}'"
        )
    if "bad permissions" in said or "UNPROTECTED PRIVATE KEY" in said:
        return (
            f"ssh rejects the key {address.key} because other users can read it; "
            f"run: chmod 600 {address.key}"
        )
    denied = re.search(r"Permission denied \(.*", said)
    if denied:
        refused = f"the key {address.key}" if address.key else "all keys offered by ssh"
        told = denied[0].rstrip(".")
        hint = "a key with a passphrase must be in ssh-agent"
        return f"the server rejected {refused} ({told}; {hint}); {by_hand}"
    if lines:
        return lines[-1]
    if code is None:
        return f"the remote side closed the connection without a message; {by_hand}"
    return f"ssh exited with code {code} and no message; {by_hand}"
