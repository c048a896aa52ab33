"""What the processes of a hung attempt are doing: `python -m stoker.daemon.alarms.evidence PID`.

Prints the stacks of its Python processes if py-spy is installed and may read them, and what every
process waits for in the kernel. A process of its own: reading /proc of a process that is stuck in
a driver may hang, too.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Callable

from msgspec.json import decode, encode
from msgspec.structs import replace

from stoker.core.events import AlarmRaised
from stoker.core.model.units import printable
from stoker.executors.linux import process_tree, procfs
from stoker.executors.linux.line_subprocess import LineSubprocess
from stoker.executors.reactor import Reactor, Timer

MAX_PROCESSES, MAX_STACKS, MAX_FRAMES = 8, 2, 12
MAX_TEXT = 4000
"""Characters of the evidence; it is journalled and shown with the alarm."""
STACK_SECONDS = 4.0
TIMEOUT_SECONDS = 15.0
"""After this time the process that collects is killed, and the alarm is raised without it."""
MAX_COLLECTORS = 4
"""Further alarms at the same time are raised without evidence."""


class EvidenceCollector:
    """Holds alarms back while a process finds out what their attempts are doing."""

    def __init__(self, reactor: Reactor, wake: Callable[[], None]) -> None:
        """`wake` is called when alarms can be taken."""
        self._reactor, self._wake = reactor, wake
        self._running: dict[int, LineSubprocess] = {}
        """By the pid of the hung process."""
        self._ready: list[AlarmRaised] = []

    def collect(self, event: AlarmRaised, pid: int) -> bool:
        """Begin to collect; return False if the alarm is to be raised as it is."""
        if pid in self._running or len(self._running) >= MAX_COLLECTORS:
            return False

        def finish(text: str = "") -> None:
            self._running.pop(pid).stop()
            timeout.cancel()
            alarm = replace(event.alarm, evidence=text)
            self._ready.append(AlarmRaised(at=event.at, alarm=alarm))
            self._wake()

        process = LineSubprocess(
            self._reactor, lambda line: finish(decode(line, type=str)), lambda _: finish()
        )
        timeout = Timer(self._reactor, finish)
        self._running[pid] = process
        timeout.request(TIMEOUT_SECONDS)
        process.start(("-P", "-m", "stoker.daemon.alarms.evidence", str(pid)))
        return True

    def take(self) -> list[AlarmRaised]:
        """Return and remove the alarms whose evidence is complete."""
        ready, self._ready = self._ready, []
        return ready


def describe(pid: int) -> str:
    """Return what the processes of an attempt are doing, by the pid of its first one."""
    token = process_tree.token_of(pid) or f"unknown-{pid}"  # an empty one is that of all others
    members = process_tree.Snapshot().members(token, session=pid)
    lines: list[str] = []
    stacks = 0
    for member in members[:MAX_PROCESSES]:
        stat = procfs.read_stat(member)
        if stat is None:
            continue
        name = stat.name.decode(errors="replace")
        lines.append(f"{name} (pid {member}): {_kernel_state(member, stat.state)}")
        frames = _python_stack(member) if stacks < MAX_STACKS and _is_python(member) else []
        stacks += bool(frames)
        lines += [f"  {frame}" for frame in frames or _kernel_stack(member)]
    return "\n".join(printable(line, 200) for line in lines)[:MAX_TEXT]


def _kernel_state(pid: int, state: str) -> str:
    words = [{"R": "running", "S": "sleeping", "D": "blocked in the kernel"}.get(state, state)]
    with contextlib.suppress(OSError):
        waits = procfs.read_file(pid, "wchan", 100).decode(errors="replace").strip()
        words += [f"in {waits}"] if waits not in ("", "0") else []
    with contextlib.suppress(OSError, IndexError):
        status = procfs.read_file(pid, "status", 4096)
        words.append(f"{status.partition(b'Threads:')[2].split()[0].decode()} threads")
    return ", ".join(words)


def _is_python(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"python" in procfs.read_file(pid, "cmdline", 4096).split(b"\0")[0]
    return False


def _python_stack(pid: int) -> list[str]:
    """Return the frames of a Python process; [] without py-spy, or if it may not read them."""
    program = shutil.which("py-spy")
    if program is None:
        return []
    try:
        done = subprocess.run(
            [program, "dump", "--pid", str(pid)], capture_output=True, timeout=STACK_SECONDS,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [line.rstrip() for line in done.stdout.decode(errors="replace").splitlines()]
    head = next((at for at, line in enumerate(lines) if line.startswith("Thread")), len(lines))
    return lines[head : head + MAX_FRAMES] if not done.returncode else []


def _kernel_stack(pid: int) -> list[str]:
    """Return the stack in the kernel, which only root may read."""
    with contextlib.suppress(OSError):
        stack = procfs.read_file(pid, "stack", 4096).decode(errors="replace").splitlines()
        return [line.partition("] ")[2] or line for line in stack[:MAX_FRAMES]]
    return []


if __name__ == "__main__":
    sys.stdout.buffer.write(encode(describe(int(sys.argv[1]))) + b"\n")
