"""A home with an `auto` server in it, its client, and short words for what tests ask."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import end_processes_of, stop_daemon
from e2e.daemon_fixture import until
from stoker import places
from stoker.client.client import Client

Done = subprocess.CompletedProcess[str]
FOREIGN = ("STOKER_", "XDG_", "SLURM_", "SBATCH_", "CUDA_")
EXAMPLES = Path(__file__).parents[2] / "examples" / "auto"
UNFINISHED = "PENDING,CONFIGURING,RUNNING,SUSPENDED,COMPLETING"
UNTIL_GO = "until [ -e go ]; do sleep 0.05; done"


class AutoEnv:
    """One home."""

    def __init__(self, base: Path, **env: str) -> None:
        self.base, self.user = base, base / "user"
        for name in ("home", "user", "runtime"):
            (base / name).mkdir(mode=0o700)
        self.env = {
            **{name: text for name, text in os.environ.items() if not name.startswith(FOREIGN)},
            "STOKER_HOME": str(base / "home"),
            "HOME": str(self.user),
            "XDG_RUNTIME_DIR": str(base / "runtime"),
            "SHELL": "/bin/sh",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            **env,
        }
        (base / "home" / "config.toml").write_text("grace = 1\n[foreign]\nleave_seconds = 0\n")
        self.client = Client(str(base / "home" / "run" / "daemon.sock"))
        self.out = base / "server.out"
        self.server: subprocess.Popen[bytes] | None = None

    # -- the server ---------------------------------------------------------------------

    def serve(self, *words: object, cwd: Path | None = None) -> "AutoEnv":
        """Start a server; return when it says that it serves."""
        before = self.out.read_text().count("serving GPU") if self.out.exists() else 0
        with self.out.open("ab") as out:
            self.server = subprocess.Popen(
                [sys.executable, "-m", "stoker.compat.auto", "server", *map(str, words)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd or self.user,
                env=self.env, start_new_session=True,
            )  # fmt: skip
        until(lambda: self._said() > before or self.server.poll() is not None)
        assert self.server.poll() is None, self.out.read_text()
        return self

    def _said(self) -> int:
        return self.out.read_text().count("serving GPU")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the server; return its exit code."""
        assert self.server is not None
        self.server.send_signal(number)
        code, self.server = self.server.wait(20), None
        return code

    @property
    def record(self) -> dict[str, Any]:
        """What the server wrote for its clients."""
        found: dict[str, Any] = json.loads((self.base / "home" / "run" / "auto.json").read_text())
        return found

    @property
    def port(self) -> int:
        """Where clients come in."""
        return int(self.record["port"])

    @property
    def token(self) -> str:
        """What they show there."""
        return Path(self.record["token_file"]).read_text().strip()

    # -- commands -----------------------------------------------------------------------

    def run(self, *words: object, cwd: Path | None = None, input: str | None = None) -> Done:
        """Any command in this home."""
        return subprocess.run(
            [str(word) for word in words],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            cwd=cwd or self.user,
            env=self.env,
            timeout=40,
            check=False,
        )

    def auto(self, *words: object, **more: Any) -> Done:
        """The client."""
        return self.run(sys.executable, "-m", "stoker.compat.auto", *words, **more)

    def ok(self, *words: object, **more: Any) -> str:
        """What the client prints when all is well."""
        done = self.auto(*words, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *words: object, code: int, **more: Any) -> str:
        """The one sentence that the client says instead."""
        done = self.auto(*words, **more)
        assert (done.returncode, done.stdout) == (code, ""), done
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    def task(self, command: str, *words: object, **more: Any) -> int:
        """Queue a task; return its id."""
        said = self.ok("run", "-c", command, *words, **more)
        assert said.startswith("Task id: "), said
        return int(said.removeprefix("Task id: "))

    def ended(self, id: int) -> dict[str, Any]:
        """Wait for a task's end; return it as the API shows it."""
        reply = self.client.wait([str(id)], timeout=30)
        assert reply["finished"], reply
        found: dict[str, Any] = reply["jobs"][0]
        return found

    def result(self, command: str, *words: object, **more: Any) -> str:
        """Queue a task and wait; return what it wrote."""
        view = self.ended(self.task(command, *words, **more))
        assert view["state"] == "COMPLETED", view
        return Path(view["log"]).read_text()

    def running(self, id: int) -> dict[str, Any]:
        """Wait until a task runs."""

        def there() -> dict[str, Any] | None:
            view: dict[str, Any] = self.client.jobs([str(id)])["jobs"][0]
            return view if view["state"] == "RUNNING" and view["pid"] else None

        found: dict[str, Any] = until(there)
        return found

    def state(self, id: int) -> str:
        """How a task stands."""
        return str(self.client.jobs([str(id)])["jobs"][0]["state"])

    def ids(self, *words: object) -> list[int]:
        """The ids in a listing of ended tasks."""
        return [task["id"] for task in json.loads(self.ok("history", "--json", *words))]

    def tidy(self) -> None:
        """Leave nothing to the next test."""
        live = self.client.jobs(state=UNFINISHED, limit=1000)["jobs"]
        ids = [str(view["id"]) for view in live]
        if ids:
            self.client.cancel(ids)
            assert self.client.wait(ids, timeout=30)["finished"]
        self.client.hide_history("auto")
        shutil.rmtree(self.user)
        self.user.mkdir(mode=0o700)


@contextlib.contextmanager
def lab(**env: str) -> Iterator[AutoEnv]:
    """A home that is gone afterwards, with everything that ran in it."""
    base = Path(tempfile.mkdtemp(prefix="sk-", dir="/tmp"))
    here = AutoEnv(base, **env)
    try:
        yield here
    finally:
        if here.server is not None:
            here.server.kill()
            here.server.wait(20)
        stop_daemon(base)
        end_processes_of(base)
        shutil.rmtree(run_dir(base), ignore_errors=True)
        shutil.rmtree(base, ignore_errors=True)


def run_dir(base: Path) -> str:
    """Where the claims of this home lie, which is outside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOKER_HOME", str(base / "home"))
        patch.setenv("XDG_RUNTIME_DIR", str(base / "runtime"))
        return places.run_dir()
