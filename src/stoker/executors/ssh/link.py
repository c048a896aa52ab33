"""One connection to one machine: requests out, answers and news in, nothing that waits.

The OpenSSH client does the talking. On the other side runs agent.sh, whose head explains the
framing: every line of ours begins with a nonce that no job has ever seen.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import secrets
import shlex
import subprocess
import time
from collections.abc import Callable
from typing import Any, Protocol

from stoker.executors.ssh.address import Address
from stoker.executors.ssh.framing import Bulks, Lines

CHUNK = 1 << 16
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
        self.address, self.poller, self.news, self.over = address, poller, news, over
        self.up = self._closed = False
        self.nonce = secrets.token_hex(16)
        self.heard = time.monotonic()
        """When anything came last."""
        self._answers: dict[str, Answer] = {}
        self._bulks: dict[str, Bulk] = {}
        self._last = 0
        self._in_lines, self._in_bulk = Lines(self.nonce), Bulks(self.nonce)
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
        poller.watch(out.fileno(), self._hear)
        poller.watch(err.fileno(), self._take)
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
        self._bulks[str(self._last)] = bulk
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
        self.heard = time.monotonic()
        for words in self._in_lines.feed(chunk):
            self._hand_on(self._heard, words)

    def _hand_on(self, to: Callable[[Any], None], what: Any) -> None:
        """A machine that says what nobody understands is not to bring down all others."""
        if self._closed:  # by what was heard just before
            return
        try:
            to(what)
        except (ValueError, IndexError) as error:
            self.close(f"it said something that makes no sense: {error!r}")

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
        self.heard = time.monotonic()
        for number, data in self._in_bulk.feed(chunk):
            bulk = self._bulks.pop(number, None)
            if bulk is not None:
                self._hand_on(bulk, data)

    # -- the end ------------------------------------------------------------------------

    def _complaint(self) -> str:
        """Why ssh ended."""
        if self.up:
            return "the connection was lost"
        try:
            code = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            code = None
        try:
            with open(self._complaints, errors="replace") as file:
                said = file.read()
        except OSError:
            said = ""
        said = said or self._said.decode(errors="replace")
        return complaint(said, self.address, code)

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
        self.up, self._closed = False, True
        with contextlib.suppress(OSError):
            os.unlink(self._complaints)
        over(why)


def complaint(said: str, address: Address, code: int | None) -> str:
    """What ssh said, in a sentence that also says what to do."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    key = f"-i {shlex.quote(address.key)} " if address.key else ""
    by_hand = f"try it by hand: ssh {key}{address.url}"
    if "HOST IDENTIFICATION HAS CHANGED" in said or "Host key verification failed" in said:
        name = f"[{address.host}]:{address.port}" if address.port else address.host
        return (
            "its host key is not the one that ssh knows: if that is as it should be, forget the"
            f" old one with: ssh-keygen -R '{name}'"
        )
    if "bad permissions" in said or "UNPROTECTED PRIVATE KEY" in said:
        return f"ssh does not use the key {address.key}, which others can read: chmod 600 it"
    denied = re.search(r"Permission denied \(.*", said)
    if denied:
        refused = f"the key {address.key}" if address.key else "every key that ssh offered"
        told = denied[0].rstrip(".")
        hint = "one with a passphrase must be in ssh-agent"
        return f"it refused {refused} ({told}; {hint}); {by_hand}"
    if lines:
        return lines[-1]
    return f"ssh ended with code {code} and no word; {by_hand}"
