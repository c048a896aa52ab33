"""The daemon of all users beside a daemon of one user: throughput and latency, rounds interleaved.

Gate, users and installation are real (tests/multiuser), so it needs root and useradd.
"""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.lab import REPOSITORY
from benchmarks.report import median, table, verdict
from benchmarks.settings import Settings
from benchmarks.throughput import say

MAX_RATIO = 1.15
LATENCY_JOBS = 20
ONE, ALL, THREE = "daemon of one user", "daemon of all users", "three of its users at once"


def measure(settings: Settings) -> dict[str, Any]:
    """Median seconds of each kind of daemon, and their ratios."""
    sys.path.insert(0, str(REPOSITORY / "tests"))
    if os.geteuid() != 0 or shutil.which("useradd") is None:
        return {"missing": {ALL: "needs root and useradd"}}
    samples: dict[str, dict[str, list[float]]] = {
        what: {ONE: [], ALL: []} for what in ("throughput", "submit", "latency")
    }
    samples["throughput"][THREE] = []
    samples["throughput, CPU"] = {ONE: [], ALL: []}
    with _daemons() as (own, clients, uids):
        measures: dict[str, Callable[[Any], float]] = {
            "throughput": lambda client: _throughput([client], settings.jobs),
            "submit": lambda client: _submissions(client, max(settings.jobs // 5, 50)),
            "latency": _latency,
        }
        for client in (own, *clients):
            client.run("true")  # starts the process of the user
        for number in range(settings.rounds):
            pairs = [(ONE, own), (ALL, clients[0])]
            for what, run in measures.items():
                for name, client in pairs if number % 2 else reversed(pairs):
                    before = _cpu_seconds(uids)
                    samples[what][name].append(run(client))
                    if what == "throughput":
                        used = _cpu_seconds(uids) - before
                        samples["throughput, CPU"][name].append(used)
                    say(f"round {number + 1}: {what}, {name} {samples[what][name][-1]:.3f} s")
            samples["throughput"][THREE].append(_throughput(clients, settings.jobs))
    _report(samples, settings)
    return {"jobs": settings.jobs, "seconds": samples}


def _cpu_seconds(uids: set[int]) -> float:
    """Return the CPU time of all programs of both kinds of daemon, without the jobs."""
    ticks = 0
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        path = Path("/proc", entry)
        with contextlib.suppress(OSError):
            status = (path / "status").read_text()
            uid = int(status.partition("\nUid:\t")[2].split()[0])
            if uid in uids or b"stoker.gate" in (path / "cmdline").read_bytes():
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _throughput(clients: list[Any], jobs: int) -> float:
    """Return the seconds from one submission of many commands per user to the last end."""
    count = jobs // len(clients)
    begin = time.perf_counter()
    firsts = [client.submit("", what={"lines": ["true"] * count}) for client in clients]
    for client, first in zip(clients, firsts, strict=True):
        body = {"select": [f"{first}-{first + count - 1}"], "timeout": 600}
        assert client.ask("POST", "/wait", body)["finished"]
    return time.perf_counter() - begin


def _submissions(client: Any, count: int) -> float:
    """Return the seconds of many submissions of held jobs, one request each."""
    begin = time.perf_counter()
    first = client.submit("true", options={"hold": True})
    for _ in range(count - 1):
        last = client.submit("true", options={"hold": True})
    seconds = time.perf_counter() - begin
    client.ask("POST", "/cancel", {"select": [f"{first}-{last}"]})
    return seconds


def _latency(client: Any) -> float:
    """Return the seconds from a submission to its end, of a command on an idle machine."""
    samples = []
    for _ in range(LATENCY_JOBS):
        begin = time.perf_counter()
        client.run("true")
        samples.append(time.perf_counter() - begin)
    return median(samples)


@contextlib.contextmanager
def _daemons() -> Iterator[tuple[Any, list[Any], set[int]]]:
    """Yield a client of a daemon of one user, those of three users of a system daemon, and uids."""
    from multiuser import users  # type: ignore[import-not-found]
    from multiuser.gate_process import GateProcess  # type: ignore[import-not-found]
    from multiuser.installation import Installation  # type: ignore[import-not-found]
    from multiuser.system_daemon import OwnClient, SystemDaemon  # type: ignore[import-not-found]

    with contextlib.ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="sk-bench-", dir="/var/tmp"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        directory.chmod(0o755)
        homes = directory / "home"
        homes.mkdir(mode=0o755)

        def add(word: str, *options: str) -> Any:
            stack.callback(users.remove_user, users.name_of(word))
            return users.add_user(word, homes, *options)

        people = [add(word) for word in ("ana", "ben", "cleo")]
        daemon = add("stoker", "--system", "--shell", "/usr/sbin/nologin")
        installation = Installation(directory / "venv")
        gate = GateProcess(directory, installation, daemon)
        stack.callback(gate.close)
        gate.start()
        system = SystemDaemon(gate)
        stack.callback(system.close)
        system.start()
        own = OwnClient(people[0])
        command = [installation.python, "-m", "stoker", "daemon", "start", "--gpus", "none"]
        people[0].run(*command, env={"STOKER_HOME": str(own.home)}, check=True)
        pid = own.ask("GET", "/daemon")["pid"]
        stack.callback(_end, pid)
        uids = {user.uid for user in (*people, daemon)}
        yield own, [system.client(user) for user in people], uids


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def _report(samples: dict[str, dict[str, list[float]]], settings: Settings) -> None:
    rows = []
    for what, by_name in samples.items():
        unit = median(by_name[ONE])
        for name, values in by_name.items():
            ratio = median(values) / unit
            rows.append(
                [what, name, f"{median(values):.4f}", f"{ratio:.2f}",
                 verdict(ratio, MAX_RATIO) if name == ALL else ""]
            )  # fmt: skip
    print(f"\nmultiuser: {settings.jobs} jobs, {settings.rounds} rounds, limit {MAX_RATIO}")
    print(table(["measure", "daemon", "median s", "ratio", ""], rows))
