"""`stoker system run`: gate and daemon in the foreground, where there is no systemd."""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import subprocess
import sys
import time

from stoker.cli import output
from stoker.cli.system import files
from stoker.client.errors import StokerError

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
               "LANG": "C.UTF-8"}  # fmt: skip
STABLE_SECONDS = 10.0
MAX_FAILURES = 5
"""How often in a row a program may end within STABLE_SECONDS, before this one gives up."""
STOP_SECONDS = 60.0
SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}
_PR_SET_NO_NEW_PRIVS = 38


class Program:
    """The gate or the daemon: started again whenever it ends."""

    def __init__(self, name: str, words: tuple[str, ...], user: str | None) -> None:
        self.name, self.words, self.user = name, words, user
        self.pid: int | None = None
        self.started_at = self.due_at = 0.0
        self.failures = 0

    def start(self) -> None:
        """Start it with a fixed environment and no descriptors of ours."""
        account = pwd.getpwnam(self.user) if self.user else None
        process = subprocess.Popen(
            (sys.executable, "-I", "-m", *self.words),
            stdin=subprocess.DEVNULL, cwd="/", start_new_session=True, umask=0o022,
            env={**ENVIRONMENT, **({"HOME": account.pw_dir} if account else {})},
            user=account.pw_uid if account else None, group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
            preexec_fn=_forbid_gain if account else _unblock_signals,  # noqa: PLW1509 - no threads
        )  # fmt: skip
        process.returncode = 0  # it is reaped by `reap`, with all other children
        self.pid, self.started_at = process.pid, time.monotonic()
        output.say(f"stoker: started {self.name} (pid {self.pid})")

    def on_end(self, status: int) -> None:
        """Plan the next start; raise if it keeps failing."""
        code = os.waitstatus_to_exitcode(status)
        output.say(f"stoker: {self.name} has ended (pid {self.pid}, status {code})")
        self.pid = None
        now = time.monotonic()
        self.failures = self.failures + 1 if now - self.started_at < STABLE_SECONDS else 0
        self.due_at = now + self.failures
        if self.failures >= MAX_FAILURES:
            raise StokerError(f"{self.name} ends at once, {MAX_FAILURES} times in a row.")


def _unblock_signals() -> None:
    """Undo what `supervise` has blocked; this process has one thread, so it is safe here."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _forbid_gain() -> None:
    """As NoNewPrivileges=yes of its unit."""
    _unblock_signals()
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def supervise() -> int:
    """Run both programs until SIGTERM or SIGINT; return the exit code."""
    programs = (
        Program("the gate", ("stoker.gate",), None),
        Program("the daemon", ("stoker.daemon", "--system"), files.DAEMON_USER),
    )
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        while True:
            now = time.monotonic()
            for program in programs:
                if program.pid is None and program.due_at <= now:
                    program.start()
            due = [program.due_at for program in programs if program.pid is None]
            pause = max(min(due) - time.monotonic(), 0.0) if due else STOP_SECONDS
            received = signal.sigtimedwait(SIGNALS, pause)
            if received is not None and received.si_signo != signal.SIGCHLD:
                return 0
            _reap(programs)
    finally:
        _stop(programs)


def _reap(programs: tuple[Program, ...]) -> None:
    """Collect all children that have ended; as pid 1 of a container, also those of others."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        for program in programs:
            if program.pid == pid:
                program.on_end(status)


def _stop(programs: tuple[Program, ...]) -> None:
    """End the daemon first, so that it can still speak to the gate; jobs continue."""
    for program in reversed(programs):
        if program.pid is None:
            continue
        os.kill(program.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while os.waitpid(program.pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(program.pid, signal.SIGKILL)
            signal.sigtimedwait({signal.SIGCHLD}, 1.0)
