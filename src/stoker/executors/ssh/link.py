"""One connection to one machine: requests out, answers and news in, nothing that waits.

The OpenSSH client does the talking. On the other side runs agent.sh, whose head explains the
framing: every line of ours begins with a nonce that no job has ever seen.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
from collections.abc import Callable
from typing import Protocol

from stoker.executors.ssh.address import Address

CHUNK = 1 << 16
LONGEST_LINE = 1 << 16
"""No line of the agent comes near; whatever does is a login script's noise."""

Answer = Callable[[list[str]], None]
"""Called with the words of each line that answers a request."""
Bulk = Callable[[bytes], None]
"""Called once, with all of it."""


class Poller(Protocol):
    """What a link needs of the loop."""

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Call back whenever this descriptor is readable."""

    def watch_room(self, fd: int, callback: Callable[[], None]) -> None:
        """Call back once, when this descriptor can be written to."""

    def unwatch(self, fd: int) -> None:
        """Stop watching."""


def quoted(word: str) -> str:
    """One word of shell, on one line whatever is in it."""
    inner = word.replace("'", "'\\''").replace("\n", "'\"$NL\"'")
    return f"'{inner}'"


class Link:
    """A living connection, or the attempt at one. A new object for each try."""

    def __init__(
        self,
        address: Address,
        control: str,
        names: dict[str, str],
        poller: Poller,
        news: Callable[[list[str]], None],
        over: Callable[[str], None],
    ) -> None:
        """`names` are set for the agent; `over` is told once, in words, when this is over."""
        self.poller, self.news, self.over = poller, news, over
        self.up = False
        self.nonce = secrets.token_hex(16)
        self._answers: dict[str, Answer] = {}
        self._bulks: list[tuple[str, Bulk]] = []
        self._last = 0
        self._lines, self._bulk = b"", b""
        self._said = b""
        """What came on stderr before the agent spoke: ssh's own complaint."""
        self._unsent = b""
        self.process = self._spawn(address, control, names)
        out, err = self.process.stdout, self.process.stderr
        into = self.process.stdin
        assert out is not None
        assert err is not None
        assert into is not None
        for stream in (out, err, into):
            os.set_blocking(stream.fileno(), False)
        poller.watch(out.fileno(), self._hear)
        poller.watch(err.fileno(), self._take)
        self._write()

    def _spawn(
        self, address: Address, control: str, names: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(control)  # of a connection that is over: ssh would try to use it
        agent = ""
        for name in ("facts.sh", "agent.sh"):  # the agent, with its loop, comes last
            with open(os.path.join(os.path.dirname(__file__), name)) as file:
                agent += file.read()
        head = "".join(f"{name}={quoted(value)}\n" for name, value in names.items())
        text = os.fsencode(f"NONCE={self.nonce}\n{head}{agent}")
        # Any login shell can read this: it starts sh on exactly so many bytes of its input.
        starter = f"""exec sh -c 'eval "$(dd bs=1 count={len(text)} 2>/dev/null)"'"""
        process = subprocess.Popen(
            [*address.command(control, "-o", "ControlMaster=yes", "-o", "ControlPersist=no"),
             starter],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        self._unsent = text
        return process

    # -- out ----------------------------------------------------------------------------

    def ask(self, answer: Answer | None, verb: str, *words: str) -> None:
        """Send a request; `answer` gets every line that comes back for it, until `done`."""
        self._last += 1
        number = str(self._last)
        if answer is not None:
            self._answers[number] = answer
        self._send(number, verb, words)

    def fetch(self, bulk: Bulk, verb: str, *words: str) -> None:
        """Send a request whose answer is bytes."""
        self._last += 1
        self._bulks.append((str(self._last), bulk))
        self._send(str(self._last), verb, words)

    def _send(self, number: str, verb: str, words: tuple[str, ...]) -> None:
        line = " ".join((number, verb, *map(quoted, words)))
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
            self.poller.watch_room(pipe.fileno(), self._write)

    # -- in -----------------------------------------------------------------------------

    def _hear(self) -> None:
        assert self.process.stdout is not None
        try:
            chunk = os.read(self.process.stdout.fileno(), CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            self.close(self._complaint())
            return
        *lines, self._lines = (self._lines + chunk).split(b"\n")
        if len(self._lines) > LONGEST_LINE:
            self._lines = b""
        mine = self.nonce.encode()
        for line in lines:
            nonce, _, rest = line.partition(b" ")
            if nonce == mine:
                self._heard(os.fsdecode(rest).split(" "))

    def _heard(self, words: list[str]) -> None:
        number, *rest = words
        if number == "-":
            if rest[0] == "hello":
                self.up = True
            self.news(rest)
        elif number in self._answers:
            answer = self._answers[number]
            if rest[0] in ("done", "failed"):
                del self._answers[number]
            answer(rest)

    def _take(self) -> None:
        assert self.process.stderr is not None
        try:
            chunk = os.read(self.process.stderr.fileno(), CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            self.poller.unwatch(self.process.stderr.fileno())
            return
        if not self.up:
            self._said = (self._said + chunk)[-2000:]
        self._bulk += chunk
        while self._bulks and self._piece():
            pass

    def _piece(self) -> bool:
        """Hand one whole answer on; False when it is not all here yet."""
        number, bulk = self._bulks[0]
        mark = f"{self.nonce} {number} ".encode()
        start = self._bulk.find(mark)
        if start < 0:
            return False
        head, newline, body = self._bulk[start + len(mark) :].partition(b"\n")
        if not newline or len(body) < int(head):
            return False
        self._bulks.pop(0)
        self._bulk = body[int(head) :]
        bulk(body[: int(head)])
        return True

    # -- the end ------------------------------------------------------------------------

    def _complaint(self) -> str:
        """Why ssh ended, in its own words."""
        code = self.process.wait()
        said = self._said.decode(errors="replace").strip().splitlines()
        if said and not self.up:
            return said[-1]
        if self.up:
            return "the connection was lost"
        return f"ssh ended with code {code} and no word; try it by hand"

    def close(self, why: str) -> None:
        """End the connection; jobs on the other side go on."""
        process = self.process
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None and not stream.closed:
                self.poller.unwatch(stream.fileno())
                with contextlib.suppress(OSError):
                    stream.close()
        process.kill()
        process.wait()
        over, self.over = self.over, lambda _: None
        self.up = False
        over(why)
