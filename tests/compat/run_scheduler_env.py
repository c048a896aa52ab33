"""RunSchedulerEnv: a home with a daemon, fake GPUs, and scripts that train."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compat.home_env import Done, HomeEnv, temporary_base
from e2e.daemon_fixture import until
from fakes.nvml import FakeNvml, Gpu, build

DUMP = """\
import json, os, sys
from kubernetesdlprofile import kubeprofiler
api = kubeprofiler.KubeProfiler()
names = ("RANK JOBID RESTARTED EPOCHS_DONE PROFILE_EACH NODE_LIST NUM_GPUS NUM_NODES BATCH_SIZE"
         " EPOCHS TRAINING_SET_SIZE root_dir ckpt_path")
api_says = {name: getattr(api, name) for name in names.split()}
print(json.dumps({"argv": sys.argv, "env": dict(os.environ), "api": api_says}, default=str))
"""
TRAIN = """\
import os, pathlib, sys, time
from kubernetesdlprofile import kubeprofiler
api = kubeprofiler.KubeProfiler()
here = pathlib.Path(os.environ["LAB"])
if "MIB" in os.environ:
    (here / "memory" / str(os.getpid())).write_text(os.environ["MIB"])
print("began", api.RESTARTED, api.EPOCHS_DONE, api.EPOCHS, flush=True)
for epoch in range(api.EPOCHS_DONE, api.EPOCHS):
    api.start_epoch()
    print("epoch", epoch, flush=True)
    while not (here / f"{api.JOBID}.{epoch}").exists():
        time.sleep(0.02)
        api.measure()
    api.end_epoch()
    pathlib.Path(api.root_dir, "saved").write_text(str(epoch + 1))
print("over", flush=True)
"""


class RunSchedulerEnv(HomeEnv):
    """One home and its GPUs of 8192 MiB."""

    def __init__(self, base: Path, gpus: int) -> None:
        super().__init__(base)
        (self.user / "memory").mkdir()
        (self.user / "dump.py").write_text(DUMP)
        (self.user / "train.py").write_text(TRAIN)
        fake = FakeNvml(build(), base / "nvml")
        fake.set(
            Gpu(
                uuid=f"GPU-{number}",
                pci=f"0000:0{number + 1}:00.0",
                claims=self.user / "memory" if gpus == 1 else None,
            )
            for number in range(gpus)
        )
        self.env |= {"LAB": str(self.user), "FAKE_NVML": str(fake.file)}
        self.env |= {name: fake.env()[name] for name in ("LD_LIBRARY_PATH", "PYTHONPATH")}
        started = self.stoker("daemon", "start")
        assert started.returncode == 0, started.stderr

    def compat(self, name: str, *words: object, **more: Any) -> Done:
        return self.stoker("compat", name, *words, **more)

    def submit(self, *words: object, env: dict[str, str] | None = None) -> str:
        """Queue a job; return its id."""
        before, self.env = self.env, {**self.env, **(env or {})}
        try:
            done = self.compat("run-scheduler", *words)
        finally:
            self.env = before
        assert done.returncode == 0, done.stderr
        (id,) = done.stdout.splitlines()
        return id

    def train(self, *words: object, env: dict[str, str] | None = None) -> str:
        return self.submit("--script_path", "train.py", *words, env=env)

    def refused(self, *words: object, command: str = "run-scheduler", code: int = 2) -> str:
        """Run a command that must fail; return its one-line message."""
        done = self.compat(command, *words)
        assert (done.returncode, done.stdout) == (code, ""), done
        assert done.stderr.startswith(f"{command}: ")
        assert done.stderr.count("\n") == 1
        return done.stderr

    def view(self, id: str) -> dict[str, Any]:
        """Return the view of a job."""
        done = self.stoker("show", "--json", id.rpartition("-")[2])
        assert done.returncode == 0, done.stdout
        view: dict[str, Any] = json.loads(done.stdout)
        return view

    def becomes(self, id: str, *states: str) -> dict[str, Any]:
        """Wait until a job is in one of these states."""
        reached: dict[str, Any] = until(
            lambda: view if (view := self.view(id))["state"] in states else None
        )
        return reached

    def logs(self, id: str) -> str:
        done = self.compat("scheduler-get-logs", id)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def says(self, id: str, text: str) -> str:
        whole: str = until(lambda: (log := self.logs(id)) and text in log and log)
        return whole

    def go(self, id: str, *epochs: int) -> None:
        """Let a job end these epochs."""
        for epoch in epochs:
            (self.user / f"{id}.{epoch}").touch()

    def end_all(self) -> None:
        """End all jobs, before the next test."""
        self.stoker("cancel", "all")
        self.stoker("wait", "all")
        until(
            lambda: not json.loads(self.stoker("queue", "--json").stdout)["counts"].get("RUNNING")
        )


@contextmanager
def open_run_scheduler_env(gpus: int) -> Iterator[RunSchedulerEnv]:
    """Yield a fresh home with this many GPUs; remove it afterwards."""
    with temporary_base() as base:
        yield RunSchedulerEnv(base, gpus)
