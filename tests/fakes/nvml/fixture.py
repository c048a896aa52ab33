"""Build the library once, write its devices, and return the environment that selects it.

from fakes.nvml import Gpu, nvml     # in a conftest.py: the fixture becomes available


def test_something(nvml):
    nvml.set([Gpu(uuid="GPU-a", memory_used=100)])
    subprocess.run([...], env=nvml.env())
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("fake_nvml.c")


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process on a GPU; memory None is what NVML marks as not available."""

    pid: int
    memory: int | None = 100
    graphics: bool = False


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU (or, inside `mig`, an instance of one) as the file describes it; sizes in MiB."""

    uuid: str
    name: str = "NVIDIA Fake 4096"
    memory_total: int | None = 8192
    memory_used: int | None = 0
    utilization: int = 0
    temperature: int = 40
    power: int = 30_000
    pci: str = "0000:01:00.0"
    processes: tuple[Process, ...] = ()
    claims: Path | None = None
    """A directory in which processes write what they use; see claims.py."""
    mig: tuple[Gpu, ...] = ()
    not_supported: tuple[str, ...] = ()
    minor: int | None = None
    slowdown: int | None = None
    ecc: int | None = None
    xid: int | None = None
    lost: bool = False
    reset: bool = False

    def lines(self, kind: str = "device") -> list[str]:
        """Return the lines of the file that describe this GPU."""
        total, used = _size(self.memory_total), _size(self.memory_used)
        lines = [kind, f"uuid {self.uuid}", f"name {self.name}", f"pci {self.pci}"]
        lines += [f"memory_total {total}", f"memory_used {used}"]
        lines += [f"utilization {self.utilization}", f"temperature {self.temperature}"]
        lines += [f"power {self.power}"]
        for name in ("minor", "slowdown", "ecc", "xid"):
            value = getattr(self, name)
            lines += [f"{name} {value}"] if value is not None else []
        lines += [f"not_supported {name}" for name in self.not_supported]
        lines += [word for word in ("lost", "reset") if getattr(self, word)]
        for process in self.processes:
            kind = "graphics" if process.graphics else "compute"
            lines.append(f"process {process.pid} {kind} {_size(process.memory)}")
        lines += [f"claims {self.claims}"] if self.claims is not None else []
        for instance in self.mig:
            lines += instance.lines("mig")
        return lines


def _size(value: int | None) -> str:
    return "na" if value is None else str(value)


@dataclass
class FakeNvml:
    """The library's directory and the file that it reads at every call."""

    library: Path
    file: Path
    python_path: str = field(default=str(Path(__file__).parents[3] / "src"))

    def set(
        self,
        gpus: Iterable[Gpu] = (),
        *,
        init_error: int = 0,
        gone: bool = False,
        hang: str | None = None,
    ) -> None:
        """Set what the driver answers from the next call on."""
        lines = [f"init_error {init_error}"] if init_error else []
        lines += ["gone"] if gone else []
        lines += [f"hang {hang}"] if hang else []
        for gpu in gpus:
            lines += gpu.lines()
        new = self.file.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.replace(self.file)  # a call never reads an incomplete file

    def env(self) -> dict[str, str]:
        """Return an environment in which libnvidia-ml.so.1 is the stand-in."""
        env = dict(os.environ)
        for name, value in (
            ("LD_LIBRARY_PATH", str(self.library)),
            ("PYTHONPATH", self.python_path),
        ):
            env[name] = f"{value}:{env[name]}" if env.get(name) else value
        env["FAKE_NVML"] = str(self.file)
        return env


def build() -> Path:
    """Compile the library, unless this source was compiled before; return its directory."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        message = "the stand-in for the NVIDIA library needs a C compiler: apt-get install gcc"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    # One directory per user: in a shared /tmp another user's could hold anything.
    place = Path(tempfile.gettempdir()) / f"stoker-fake-nvml-{os.getuid()}-{digest}"
    target = place / "libnvidia-ml.so.1"
    place.mkdir(mode=0o700, exist_ok=True)
    if place.stat().st_uid != os.getuid():
        pytest.fail(f"{place} belongs to somebody else; remove it")
    if not target.exists():
        new = place / f"new-{os.getpid()}.so"
        flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
        flags += ["-Wno-format-truncation", "-Wl,-soname,libnvidia-ml.so.1"]
        subprocess.run([compiler, *flags, "-o", str(new), str(_SOURCE)], check=True, timeout=60)
        new.replace(target)  # several test processes may build at once
    return place


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    """Return a driver without GPUs; `nvml.set([Gpu(...)])` adds some."""
    fake = FakeNvml(library=build(), file=tmp_path / "fake_nvml.txt")
    fake.set()
    return fake
