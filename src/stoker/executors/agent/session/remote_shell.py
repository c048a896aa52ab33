"""The way files take to a machine: commands over a connection that is already open.

Whatever goes wrong becomes a CarryError with one sentence.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from typing import IO, Self

from msgspec import Struct

from stoker.core.text import printable
from stoker.executors.agent.session.timeout_pipe import TimeoutPipe, TransferStalled
from stoker.executors.ssh.address import Address

PATIENCE = 120
"""Seconds without a byte; a dead link is noticed by the connection itself, far sooner."""
MARK = b"\nstoker\n"
"""Comes before anything a script says: what is in front of it is a login script's talk."""
MAX_ERRORS, MAX_SAID, MAX_LISTING = 16 << 10, 64 << 10, 16 << 20
"""Bytes that are kept of complaints, and that a script may say, and a list of files may have."""
LONGEST_LINE, LONGEST_REASON = 500, 300
"""Characters of a complaint that are looked at, and that are passed on."""
LOST = {255, 10, 12, 30, 35}
"""How ssh, and rsync, end when the connection does."""


class CarryError(Exception):
    """Files did not arrive; the message is one sentence."""


class LinkLost(CarryError):
    """The connection broke: the same call may succeed over the next one."""


class DiskFull(CarryError):
    """There was no room: the same call may succeed when somebody has made some."""


class NoRsync(Exception):
    """The other side cannot speak it after all."""


class RemoteShell(Struct, frozen=True):
    """How files get to a machine."""

    address: Address
    control: str
    """The socket of the connection that is open."""
    root: str
    """The directory there that is ours, absolute."""
    rsync: bool
    """Whether the machine has it."""

    @property
    def by_rsync(self) -> bool:
        """Whether both ends have it."""
        return self.rsync and shutil.which("rsync") is not None

    def ssh(self) -> list[str]:
        """An ssh that takes the open connection or fails at once: it never makes one."""
        # -S takes a path as it is; in -o ControlPath= blanks and quotes would mean something.
        return self.address.command(
            "none", "-S", self.control, "-o", "ControlMaster=no", "-o", "ProxyCommand=exit 1"
        )

    def shell(self, script: str, *words: str) -> list[str]:
        """A command that runs this script there, whatever the login shell is."""
        said = "echo; echo stoker"
        text = f"{said}; ({said}) >&2; LC_ALL=C; export LC_ALL\n{script}"
        return [*self.ssh(), " ".join(("exec sh -c", *map(quoted, (text, "sh", *words))))]


def quoted(word: str) -> str:
    """One word, as sh, csh and fish read it."""
    inner = word.replace("'", "'\\''")
    return f"'{inner}'"


def listing(names: Iterable[str]) -> bytes:
    """Names as rsync and xargs read them; the dot keeps `-x` and `#x` from meaning something."""
    return b"".join(b"./" + os.fsencode(name.removeprefix("./")) + b"\0" for name in names)


class Errors:
    """What a command writes to its stderr: read as it comes, the end of it is kept."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        self._kept = b""
        # A descriptor of its own: that of the process is closed while the thread may still read.
        fd = os.dup(process.stderr.fileno())
        self._thread = threading.Thread(target=self._read, args=(fd,), daemon=True)
        self._thread.start()

    def _read(self, fd: int) -> None:
        with open(fd, "rb", buffering=0) as pipe:
            while piece := pipe.read(4096):
                self._kept = (self._kept + piece)[-MAX_ERRORS:]

    def text(self) -> bytes:
        """All there is, once the command has ended; others may still hold the other end."""
        self._thread.join(1.0)
        return self._kept


def ask(way: RemoteShell, script: str, *words: str, most: int = MAX_SAID) -> bytes:
    """Run a script there and return what it said, up to `most` bytes."""
    said = bytearray()
    until = time.monotonic() + PATIENCE
    with subprocess.Popen(
        way.shell(script, *words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        errors = Errors(process)
        try:
            out = TimeoutPipe(process.stdout, PATIENCE)
            while piece := out.read(1 << 16):
                said += piece
                if len(said) > most:
                    raise CarryError(f"{way.address.host} sent more than {most} bytes.")
                if time.monotonic() > until:
                    raise TransferStalled
            process.wait(PATIENCE)
        except (TransferStalled, subprocess.TimeoutExpired):
            raise LinkLost(_silent(way)) from None
        finally:
            process.kill()
            complaints = errors.text()
    judge(way, process.returncode, complaints, way.address.host)
    return bytes(said).partition(MARK)[2]


class RemoteCommand:
    """A script there that says how things are, and waits to be told how to end.

    One session for both: each costs what the user's login scripts cost.
    """

    def __init__(self, way: RemoteShell, script: str, *words: str) -> None:
        self._way = way
        self._process = subprocess.Popen(
            way.shell(script, *words), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self._errors = Errors(self._process)
        assert self._process.stdout is not None
        self._out = TimeoutPipe(self._process.stdout, PATIENCE)

    def hear(self, last: bytes) -> list[bytes]:
        """The lines it says, up to this one or its end."""
        said = b""
        try:
            while last not in (lines := said.partition(MARK)[2].split(b"\n")):
                piece = self._out.read(4096)
                if not piece:
                    self._finish()
                    break
                said += piece
                if len(said) > MAX_SAID:
                    raise CarryError(
                        f"{self._way.address.host} sent more than {MAX_SAID} bytes where a short"
                        " reply was expected."
                    )
        except TransferStalled:
            raise LinkLost(_silent(self._way)) from None
        return lines

    def end(self, word: str) -> None:
        """Tell it how to end, and wait until it has."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its end says why
            self._process.stdin.write(f"{word}\n".encode())
            self._process.stdin.close()
        self._finish()

    def _finish(self) -> None:
        try:
            code = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise LinkLost(_silent(self._way)) from None
        judge(self._way, code, self._errors.text(), self._way.address.host)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with contextlib.suppress(BrokenPipeError), self._process:
            self._errors.text()


def rsync(
    way: RemoteShell,
    names: Iterable[str],
    full: str,
    *words: str,
    on_progress: Callable[[int], None] | None = None,
) -> None:
    """Run rsync on these names; `full` is whose disk it is when that is full."""
    counted = () if on_progress is None else COUNTING
    *options, _, _ = way.ssh()  # the host is rsync's to add
    # rsync's own rule: a quote inside quotes is written twice, a backslash means nothing.
    shell = " ".join("'" + option.replace("'", "''") + "'" for option in options)
    with tempfile.TemporaryFile() as list:
        list.write(listing(names))
        list.seek(0)
        with subprocess.Popen(
            ["rsync", "--secluded-args", f"--timeout={PATIENCE}", "-e", shell,
             "--files-from=-", "--from0", *counted, *words],
            stdin=list, stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL if on_progress is None else subprocess.PIPE,
            start_new_session=True, env={**os.environ, "LC_ALL": "C"},
            cwd="/",  # where a daemon was started may be gone, and rsync asks where it is
        ) as process:  # fmt: skip
            errors = Errors(process)
            if on_progress is not None:
                _count(process, on_progress)
            code = process.wait()
            complaints = errors.text()
    if code in (126, 127) or b"is your shell clean?" in complaints:
        raise NoRsync
    judge(way, code, complaints, full)


COUNTING = ("--info=progress2", "--no-human-readable", "--outbuf=N")
"""rsync then writes how many bytes it has sent, again and again, with a return in front."""


def _count(process: subprocess.Popen[bytes], on_progress: Callable[[int], None]) -> None:
    """Read what rsync says about its progress, until it ends."""
    assert process.stdout is not None
    fd, last = process.stdout.fileno(), b""
    while piece := os.read(fd, 4096):
        *reports, last = (last + piece)[-4096:].replace(b"\n", b"\r").split(b"\r")
        for words in map(bytes.split, reports):
            if len(words) > 1 and words[0].isdigit() and words[1].endswith(b"%"):
                on_progress(int(words[0]))


def pipe(way: RemoteShell, command: list[str], full: str, work: Callable[[TimeoutPipe], None],
         input: IO[bytes] | None = None) -> None:  # fmt: skip
    """Let `work` read what a command says, or write what it hears if there is no `input`."""
    broken = False
    process: subprocess.Popen[bytes]
    with subprocess.Popen(
        command, stdin=input or subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        stdout=subprocess.PIPE if input else subprocess.DEVNULL,
    ) as process:  # fmt: skip
        errors = Errors(process)
        stream = process.stdout or process.stdin
        assert stream is not None
        try:
            work(TimeoutPipe(stream, PATIENCE))
            stream.close()
            process.wait(PATIENCE)
        except (BrokenPipeError, EOFError):
            broken = True  # the command's end says why
            with contextlib.suppress(OSError):
                stream.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
        except (TransferStalled, subprocess.TimeoutExpired):
            raise LinkLost(_silent(way)) from None
        finally:
            process.kill()
            complaints = errors.text()
    judge(way, process.returncode, complaints, full)
    if broken:
        raise CarryError(f"{way.address.host} did not send a complete tar archive.")


def host_of(way: RemoteShell) -> str:
    """The host as rsync takes it in front of a path."""
    host = way.address.host
    return f"[{host}]" if ":" in host else host


BENIGN = re.compile(
    r"file changed as we read it|file removed before we read it|vanished"
    r"|empty archive|^tar: Exiting with failure"
)
"""Complaints of tar and rsync about files that are still being written, or gone."""
CAUSE = re.compile(r"^rsync: .* failed: .*\(\d+\)$")
"""A complaint about a file: rsync may then end as if the connection had been lost."""


def judge(way: RemoteShell, code: int, said: bytes, full: str) -> None:
    """Turn a command's failure into a sentence; `full` is whose disk is, if one is."""
    if code == 0:
        return
    host = way.address.host
    text = said.rpartition(MARK)[2].decode(errors="replace").strip()
    if re.search(r"No space left on device|Disk quota exceeded|\((28|122)\)", text):
        raise DiskFull(f"the disk of {full} is full; free some space and try again.")
    lines = [line[:LONGEST_LINE] for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("rsync error:")]
    if code in LOST and not any(CAUSE.search(line) for line in lines):
        raise LinkLost(f"the connection to {host} was lost during a file transfer.")
    if code == 127 or "not found" in text:
        raise CarryError(f"{host} has neither rsync nor tar; install one of them there.")
    if lines and all(BENIGN.search(line) for line in lines):
        return
    reason = next((line for line in lines if not BENIGN.search(line)), f"code {code}")
    reason = printable(reason, LONGEST_REASON)
    raise CarryError(f"files could not be transferred to or from {host}: {reason}")


def _silent(way: RemoteShell) -> str:
    return f"{way.address.host} has not answered for {PATIENCE} seconds; try again later."
