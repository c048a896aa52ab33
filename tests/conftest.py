"""What all suites share: a home of its own for each test, the command, and honest skips."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.internal.constants_ast import Constants

from e2e.daemon_fixture import LEFT
from stoker import places, wire
from stoker.client.client import Client
from stoker.client.errors import StokerError

ROOT = Path(__file__).parents[1]
ON_CI = os.environ.get("CI", "").lower() in {"1", "true"}

# A shared, slow machine is no bug: hypothesis judges results, pytest-timeout judges time.
settings.register_profile("stoker", deadline=None, print_blob=True, derandomize=ON_CI)
settings.load_profile("stoker")

# Hypothesis also draws constants that it finds in imported modules, so that what a derandomised
# test does would depend on the tests that were collected with it.
HypothesisProvider._local_constants = Constants()

Run = Callable[..., "subprocess.CompletedProcess[str]"]

# A shell starts background jobs with SIGINT ignored, and every command that a test interrupts
# would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# ------------------------------------------------------------------------ honest skips


def require(*tools: str) -> None:
    """Skip the running test when a program, or a file of this tree, is missing; on CI fail it."""
    missing = [tool for tool in tools if not _there(tool)]
    if missing:
        reason = f"needs {', '.join(missing)}"
        (pytest.fail if ON_CI else pytest.skip)(reason)


def _there(tool: str) -> bool:
    return (ROOT / tool).exists() if "/" in tool else shutil.which(tool) is not None


@pytest.fixture
def needs() -> Callable[..., None]:
    """`needs("gcc")` inside a test or fixture; `@pytest.mark.needs("gcc")` for a whole one."""
    return require


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        require(*mark.args)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """The run directory lies outside the home; it goes when the last process has gone."""
    try:
        return (yield)
    finally:
        if LEFT in item.stash:
            shutil.rmtree(item.stash[LEFT], ignore_errors=True)


def skipped_suites(config: pytest.Config) -> Counter[tuple[str, str]]:
    """How many tests of which file were skipped, and why."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    found: Counter[tuple[str, str]] = Counter()
    for report in reporter.stats.get("skipped", []) if reporter else []:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "no reason given"
        found[report.nodeid.split("::")[0], reason.removeprefix("Skipped: ")] += 1
    return found


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Under CI=true a run that skipped anything, however it did so, has not passed."""
    if ON_CI and session.exitstatus == pytest.ExitCode.OK and skipped_suites(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = skipped_suites(terminalreporter.config)
    if not skipped:
        return
    terminalreporter.section("skipped suites" + (" (a failure under CI=true)" if ON_CI else ""))
    for (suite, reason), count in sorted(skipped.items()):
        terminalreporter.line(f"{suite}: {count} skipped: {reason}")


# ------------------------------------------------------------------ a home for each test


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh STOKER_HOME and an environment that nothing of the developer's leaks into.

    Its path is short, since the path of a Unix socket may have 107 bytes only. Whatever
    runs in it at the end of the test is stopped.
    """
    base = Path(tempfile.mkdtemp(prefix="sk-", dir="/tmp"))
    for name in list(os.environ):
        if name.startswith(("STOKER_", "XDG_", "SLURM_", "SBATCH_", "CUDA_")):
            monkeypatch.delenv(name)
    for name in ("home", "user", "runtime"):
        (base / name).mkdir(mode=0o700)
    monkeypatch.setenv("STOKER_HOME", str(base / "home"))
    monkeypatch.setenv("HOME", str(base / "user"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base / "runtime"))
    monkeypatch.setenv("SHELL", "/bin/sh")
    try:
        yield base / "home"
    finally:
        if any((base / "home").iterdir()):
            stop_daemon(base)
        end_processes_of(base)
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def stoker(home: Path) -> Run:
    """The command, run in `home`: `stoker("submit", "true").stdout`."""

    def run(
        *args: object,
        input: str | None = None,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        timeout: float = 30,
        check: bool = False,
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "stoker", *map(str, args)],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            cwd=cwd or home.parent / "user",
            env={**os.environ, **(env or {})},
            timeout=timeout,
            check=check,
        )

    return run


def stop_daemon(base: Path) -> None:
    """Ask the daemon of this home to cancel everything and go; then insist, by pid.

    In process, without two more commands for each test that has a daemon.
    """

    def ask(method: str, path: str, body: bytes | None = None) -> bytes:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STOKER_HOME", str(base / "home"))
            client = Client(places.socket_path())
        client.check_version = False
        return client.open(method, f"{wire.PREFIX}{path}", body, 20.0, retry=False).read()

    try:
        pid = json.loads(ask("GET", "/daemon"))["pid"]
        daemon = os.pidfd_open(pid)  # from here on, the pid cannot come to mean another process
    except (StokerError, places.UnsafeDirectory, OSError, ValueError, KeyError, TypeError):
        return  # there is none
    try:
        with contextlib.suppress(StokerError, OSError):
            ask("POST", "/daemon/stop", b'{"mode":"cancel"}')
        for seconds, insist in ((20, signal.SIGTERM), (5, signal.SIGKILL), (5, None)):
            if ended(daemon, seconds) or insist is None:
                break
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(daemon, insist)
    finally:
        os.close(daemon)


def ended(pidfd: int, seconds: float) -> bool:
    return bool(select.select([pidfd], [], [], seconds)[0])


def end_processes_of(base: Path) -> None:
    """Kill what still runs with this test's directory in its environment or arguments.

    A test that kills the daemon leaves its jobs running: that is the point of them.
    """
    token = os.fsencode(base)
    for _ in range(10):  # a process may fork while it is being looked for
        found = [pid for pid in processes() if pid != os.getpid() and mentions(pid, token)]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                process = os.pidfd_open(pid)
                try:
                    if mentions(pid, token):
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                        ended(process, seconds=2)
                finally:
                    os.close(process)


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def mentions(pid: int, token: bytes) -> bool:
    for name in ("environ", "cmdline"):
        with contextlib.suppress(OSError):
            if token in Path(f"/proc/{pid}/{name}").read_bytes():
                return True
    return False
