"""The GPU memory of what runs in containers, where processes have other numbers than outside."""

import contextlib
from pathlib import Path

import pytest

from conftest import processes
from containers.image import IMAGE, Podman
from e2e.daemon_fixture import DaemonFixture, until
from e2e.journal import journal
from fakes.nvml import FakeNvml, Gpu, Process, nvml

__all__ = ["nvml"]

LINE = """\
env -i {python} {script} {mark}-cleared &
{python} {script} {mark}-plain
"""
"""A process without the job's environment is as much the job's."""


def numbers(*words: str) -> list[int]:
    """The processes with these last words, as this machine numbers them, when all are there."""
    found: dict[str, int] = {}
    for pid in processes():
        with contextlib.suppress(OSError):
            last = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").rpartition("\0")[2]
            found[last] = pid
    return [found[word] for word in words] if set(words) <= set(found) else []


def test_kub_63_the_memory_of_a_container_is_measured_outside(
    podman: Podman, idle: DaemonFixture, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in podman.environment.items():
        monkeypatch.setenv(name, value)
    nvml.set([Gpu(uuid="GPU-a")])
    started = idle.stoker("daemon", "start", env=nvml.env())
    assert started.returncode == 0, started.stderr
    mark = idle.home.parent.name
    script = idle.script("sleep.py", "import time; time.sleep(60)")
    line = LINE.format(python="/usr/local/bin/python3", script=script, mark=mark)
    job = idle.submit("--image", IMAGE, "--gpus", "1", line)
    plain, cleared = until(lambda: numbers(f"{mark}-plain", f"{mark}-cleared"))
    used = (Process(pid=plain, memory=1000), Process(pid=cleared, memory=300))
    nvml.set([Gpu(uuid="GPU-a", memory_used=1300, processes=used)])
    until(lambda: [event["memory"] for event in journal(idle, "MemoryMeasured")][-1:] == [1300])
    assert idle.gpus()["0"]["foreign"] == []
    idle.client.cancel([job])
    assert idle.end_of(job)["state"] == "CANCELLED"
