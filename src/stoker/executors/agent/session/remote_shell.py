"""RemoteShell: scripts, rsync and pipes over a connection that is already open.

Everything here blocks, so it is called in a thread. Every failure is a CarryError; its
message is one sentence.
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

from stoker.core.model.units import printable
from stoker.executors.agent.session.timeout_pipe import TimeoutPipe, TransferStalled
from stoker.executors.agent.session.transport import Transport

IDLE_SECONDS = 120
"""Time without a byte; the connection itself notices a dead network far sooner."""
MARK = b"\nstoker\n"
"""Comes before the output of a script; login scripts may have written before it."""
MAX_STDERR_BYTES, MAX_OUTPUT_BYTES, MAX_LISTING_BYTES = 16 << 10, 64 << 10, 16 << 20
"""Bytes that are kept of stderr, that a script may print, and that a list of files may have."""
MAX_LINE_LENGTH, MAX_REASON_LENGTH = 500, 300
"""Characters of an error message that are examined, and that are passed on."""


class CarryError(Exception):
    """Files did not arrive; the message is one sentence."""


class LinkLost(CarryError):
    """The connection was lost: the same call may succeed over the next one."""


class DiskFull(CarryError):
    """The disk was full: the same call may succeed later."""


class NoRsync(Exception):
    """rsync does not work with the other side."""


class RemoteShell(Struct, frozen=True):
    """Runs commands on a node beside its agent."""

    transport: Transport
    root: str
    """The absolute path of stoker's directory on the node."""
    has_rsync: bool
    """Whether the node has rsync."""

    @property
    def host(self) -> str:
        """The host name, for messages."""
        return self.transport.host

    @property
    def uses_rsync(self) -> bool:
        """Whether both ends have rsync."""
        if not self.has_rsync or self.transport.rsync_shell() is None:
            return False
        return shutil.which("rsync") is not None

    def command(self, script: str, *words: str) -> list[str]:
        """Return the argv that runs a script on the node, whatever the login shell is."""
        mark = "echo; echo stoker"
        text = f"{mark}; ({mark}) >&2; LC_ALL=C; export LC_ALL\n{script}"
        return self.transport.command(" ".join(("exec sh -c", *map(quoted, (text, "sh", *words)))))

    def rsync_path(self, path: str) -> str:
        """Return a path on the node as rsync expects it."""
        return f"{self.transport.rsync_host}:{path}"


def quoted(word: str) -> str:
    """Return a word as sh, csh and fish read it."""
    inner = word.replace("'", "'\\''")
    return f"'{inner}'"


def listing(names: Iterable[str]) -> bytes:
    """Return names for rsync and xargs; the dot prevents a special meaning of `-x` and `#x`."""
    return b"".join(b"./" + os.fsencode(name.removeprefix("./")) + b"\0" for name in names)


class StderrReader:
    """Reads what a command writes to stderr; keeps the end of it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        self._stderr_tail = b""
        # Duplicated: the process closes its descriptor while the thread may still read.
        fd = os.dup(process.stderr.fileno())
        self._thread = threading.Thread(target=self._read, args=(fd,), daemon=True)
        self._thread.start()

    def _read(self, fd: int) -> None:
        with open(fd, "rb", buffering=0) as pipe:
            while piece := pipe.read(4096):
                self._stderr_tail = (self._stderr_tail + piece)[-MAX_STDERR_BYTES:]

    def text(self) -> bytes:
        """Return what was read, once the command has ended; other processes may hold the pipe."""
        self._thread.join(1.0)
        return self._stderr_tail


def run(shell: RemoteShell, script: str, *words: str, max_bytes: int = MAX_OUTPUT_BYTES) -> bytes:
    """Run a script on the node and return its output, up to `max_bytes`."""
    output = bytearray()
    until = time.monotonic() + IDLE_SECONDS
    with subprocess.Popen(
        shell.command(script, *words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        errors = StderrReader(process)
        try:
            out = TimeoutPipe(process.stdout, IDLE_SECONDS)
            while piece := out.read(1 << 16):
                output += piece
                if len(output) > max_bytes:
                    raise CarryError(f"{shell.host} sent more than {max_bytes} bytes.")
                if time.monotonic() > until:
                    raise TransferStalled
            process.wait(IDLE_SECONDS)
        except (TransferStalled, subprocess.TimeoutExpired):
            raise LinkLost(_timeout_message(shell)) from None
        finally:
            process.kill()
            stderr = errors.text()
    check_exit(shell, process.returncode, stderr, shell.host)
    return bytes(output).partition(MARK)[2]


class RemoteCommand:
    """A script on the node that prints its findings and waits for a word how to end.

    One session for both: each costs the run time of the user's login scripts.
    """

    def __init__(self, shell: RemoteShell, script: str, *words: str) -> None:
        self._shell = shell
        self._process = subprocess.Popen(
            shell.command(script, *words), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self._errors = StderrReader(self._process)
        assert self._process.stdout is not None
        self._out = TimeoutPipe(self._process.stdout, IDLE_SECONDS)

    def read_until(self, last: bytes) -> list[bytes]:
        """Return the lines that it prints, up to this one or its end."""
        output = b""
        try:
            while last not in (lines := output.partition(MARK)[2].split(b"\n")):
                piece = self._out.read(4096)
                if not piece:
                    self._finish()
                    break
                output += piece
                if len(output) > MAX_OUTPUT_BYTES:
                    raise CarryError(
                        f"{self._shell.host} sent more than {MAX_OUTPUT_BYTES} bytes where a short"
                        " reply was expected."
                    )
        except TransferStalled:
            raise LinkLost(_timeout_message(self._shell)) from None
        return lines

    def finish(self, word: str) -> None:
        """Send the word how to end, and wait for the end."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its exit explains it
            self._process.stdin.write(f"{word}\n".encode())
            self._process.stdin.close()
        self._finish()

    def _finish(self) -> None:
        try:
            code = self._process.wait(IDLE_SECONDS)
        except subprocess.TimeoutExpired:
            raise LinkLost(_timeout_message(self._shell)) from None
        check_exit(self._shell, code, self._errors.text(), self._shell.host)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with contextlib.suppress(BrokenPipeError), self._process:
            self._errors.text()


def rsync(
    shell: RemoteShell,
    names: Iterable[str],
    target: str,
    *words: str,
    on_progress: Callable[[int], None] | None = None,
) -> None:
    """Run rsync on these names; `target` is what a full disk is reported for."""
    counted = () if on_progress is None else PROGRESS_OPTIONS
    # rsync's own rule: a quote inside quotes is written twice, a backslash is literal.
    words_of_shell = shell.transport.rsync_shell() or ()
    remote_shell = " ".join("'" + word.replace("'", "''") + "'" for word in words_of_shell)
    with tempfile.TemporaryFile() as list:
        list.write(listing(names))
        list.seek(0)
        with subprocess.Popen(
            ["rsync", "--secluded-args", f"--timeout={IDLE_SECONDS}", "-e", remote_shell,
             "--files-from=-", "--from0", *counted, *words],
            stdin=list, stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL if on_progress is None else subprocess.PIPE,
            start_new_session=True, env={**os.environ, "LC_ALL": "C"},
            cwd="/",  # the working directory of the daemon may be deleted, which rsync rejects
        ) as process:  # fmt: skip
            errors = StderrReader(process)
            if on_progress is not None:
                _read_progress(process, on_progress)
            code = process.wait()
            stderr = errors.text()
    if code in (126, 127) or b"is your shell clean?" in stderr:
        raise NoRsync
    check_exit(shell, code, stderr, target)


PROGRESS_OPTIONS = ("--info=progress2", "--no-human-readable", "--outbuf=N")
"""rsync then prints the bytes sent so far, again and again, after a carriage return."""


def _read_progress(process: subprocess.Popen[bytes], on_progress: Callable[[int], None]) -> None:
    """Read the progress of rsync until it ends."""
    assert process.stdout is not None
    fd, last = process.stdout.fileno(), b""
    while piece := os.read(fd, 4096):
        *reports, last = (last + piece)[-4096:].replace(b"\n", b"\r").split(b"\r")
        for words in map(bytes.split, reports):
            if len(words) > 1 and words[0].isdigit() and words[1].endswith(b"%"):
                on_progress(int(words[0]))


def pipe(
    shell: RemoteShell,
    command: list[str],
    target: str,
    work: Callable[[TimeoutPipe], None],
    input: IO[bytes] | None = None,
) -> None:
    """Let `work` read the output of a command, or write its input if there is no `input`."""
    broken = False
    process: subprocess.Popen[bytes]
    with subprocess.Popen(
        command, stdin=input or subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        stdout=subprocess.PIPE if input else subprocess.DEVNULL,
    ) as process:  # fmt: skip
        errors = StderrReader(process)
        stream = process.stdout or process.stdin
        assert stream is not None
        try:
            work(TimeoutPipe(stream, IDLE_SECONDS))
            stream.close()
            process.wait(IDLE_SECONDS)
        except (BrokenPipeError, EOFError):
            broken = True  # the exit of the command explains it
            with contextlib.suppress(OSError):
                stream.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(IDLE_SECONDS)
        except (TransferStalled, subprocess.TimeoutExpired):
            raise LinkLost(_timeout_message(shell)) from None
        finally:
            process.kill()
            stderr = errors.text()
    check_exit(shell, process.returncode, stderr, target)
    if broken:
        raise CarryError(f"{shell.host} did not send a complete tar archive.")


BENIGN = re.compile(
    r"file changed as we read it|file removed before we read it|vanished"
    r"|empty archive|^tar: Exiting with failure"
)
"""Messages of tar and rsync about files that are still being written, or gone."""
CAUSE = re.compile(r"^rsync: .* failed: .*\(\d+\)$")
"""A message about a file: rsync may then exit as if the connection had been lost."""


def check_exit(shell: RemoteShell, code: int, stderr: bytes, target: str) -> None:
    """Raise a CarryError if a command failed; `target` is what a full disk is reported for."""
    if code == 0:
        return
    host = shell.host
    text = stderr.rpartition(MARK)[2].decode(errors="replace").strip()
    if re.search(r"No space left on device|Disk quota exceeded|\((28|122)\)", text):
        raise DiskFull(f"the disk of {target} is full; free some space and try again.")
    lines = [line[:MAX_LINE_LENGTH] for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("rsync error:")]
    if code in shell.transport.lost_codes and not any(CAUSE.search(line) for line in lines):
        raise LinkLost(f"the connection to {host} was lost during a file transfer.")
    if code == 127 or "not found" in text:
        raise CarryError(f"{host} has neither rsync nor tar; install one of them there.")
    if lines and all(BENIGN.search(line) for line in lines):
        return
    reason = next((line for line in lines if not BENIGN.search(line)), f"code {code}")
    reason = printable(reason, MAX_REASON_LENGTH)
    raise CarryError(f"files could not be transferred to or from {host}: {reason}")


def _timeout_message(shell: RemoteShell) -> str:
    return f"{shell.host} has not answered for {IDLE_SECONDS} seconds; try again later."
