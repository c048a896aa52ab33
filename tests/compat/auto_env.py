"""AutoEnv: a home with an `auto` server in it, and its client."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compat.home_env import Done, HomeEnv, temporary_base
from e2e.daemon_fixture import until
from stoker.client.client import Client

EXAMPLES = Path(__file__).parents[2] / "examples" / "auto"
UNFINISHED = "PENDING,CONFIGURING,RUNNING,SUSPENDED,COMPLETING"
UNTIL_GO = "until [ -e go ]; do sleep 0.05; done"


class AutoEnv(HomeEnv):
    """One home."""

    def __init__(self, base: Path, **env: str) -> None:
        super().__init__(base, **env)
        (base / "home" / "config.toml").write_text("grace = 1\n[foreign]\nleave_seconds = 0\n")
        self.client = Client(str(base / "home" / "run" / "daemon.sock"))
        self.out = base / "server.out"
        self.server: subprocess.Popen[bytes] | None = None

    # -- the server ---------------------------------------------------------------------

    def serve(self, *words: object, cwd: Path | None = None) -> "AutoEnv":
        """Start a server; return when it serves."""
        before = self.out.read_text().count("serving GPU") if self.out.exists() else 0
        with self.out.open("ab") as out:
            self.server = subprocess.Popen(
                [sys.executable, "-m", "stoker.compat.auto", "server", *map(str, words)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd or self.user,
                env=self.env, start_new_session=True,
            )  # fmt: skip
        until(lambda: self._count_starts() > before or self.server.poll() is not None)
        assert self.server.poll() is None, self.out.read_text()
        return self

    def _count_starts(self) -> int:
        return self.out.read_text().count("serving GPU")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the server; return its exit code."""
        assert self.server is not None
        self.server.send_signal(number)
        code, self.server = self.server.wait(20), None
        return code

    @property
    def record(self) -> dict[str, Any]:
        """The file that the server wrote for its clients."""
        record: dict[str, Any] = json.loads((self.base / "home" / "run" / "auto.json").read_text())
        return record

    @property
    def port(self) -> int:
        """The port for clients."""
        return int(self.record["port"])

    @property
    def token(self) -> str:
        """The token of the clients."""
        return Path(self.record["token_file"]).read_text().strip()

    # -- commands -----------------------------------------------------------------------

    def auto(self, *words: object, **more: Any) -> Done:
        """Run the client."""
        return self.run(sys.executable, "-m", "stoker.compat.auto", *words, **more)

    def ok(self, *words: object, **more: Any) -> str:
        """Run the client, which must succeed; return what it printed."""
        done = self.auto(*words, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *words: object, code: int, **more: Any) -> str:
        """Run the client, which must fail; return its one-line message."""
        done = self.auto(*words, **more)
        assert (done.returncode, done.stdout) == (code, ""), done
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    def task(self, command: str, *words: object, **more: Any) -> int:
        """Queue a task; return its id."""
        printed = self.ok("run", "-c", command, *words, **more)
        assert printed.startswith("Task id: "), printed
        return int(printed.removeprefix("Task id: "))

    def ended(self, id: int) -> dict[str, Any]:
        """Wait for the end of a task; return its view."""
        reply = self.client.wait([str(id)], timeout=30)
        assert reply["finished"], reply
        view: dict[str, Any] = reply["jobs"][0]
        return view

    def result(self, command: str, *words: object, **more: Any) -> str:
        """Queue a task and wait; return its output."""
        view = self.ended(self.task(command, *words, **more))
        assert view["state"] == "COMPLETED", view
        return Path(view["log"]).read_text()

    def running(self, id: int) -> dict[str, Any]:
        """Wait until a task runs."""

        def running_view() -> dict[str, Any] | None:
            view: dict[str, Any] = self.client.jobs([str(id)])["jobs"][0]
            return view if view["state"] == "RUNNING" and view["pid"] else None

        running: dict[str, Any] = until(running_view)
        return running

    def state(self, id: int) -> str:
        """Return the state of a task."""
        return str(self.client.jobs([str(id)])["jobs"][0]["state"])

    def ids(self, *words: object) -> list[int]:
        """Return the ids in the history."""
        return [task["id"] for task in json.loads(self.ok("history", "--json", *words))]

    def tidy(self) -> None:
        """End all tasks and remove all files, before the next test."""
        live = self.client.jobs(state=UNFINISHED, limit=1000)["jobs"]
        ids = [str(view["id"]) for view in live]
        if ids:
            self.client.cancel(ids)
            assert self.client.wait(ids, timeout=30)["finished"]
        self.client.hide_history("auto")
        shutil.rmtree(self.user)
        self.user.mkdir(mode=0o700)


@contextlib.contextmanager
def open_auto_env(**env: str) -> Iterator[AutoEnv]:
    """Yield a fresh home; end its server and remove it afterwards."""
    with temporary_base() as base:
        auto_env = AutoEnv(base, **env)
        try:
            yield auto_env
        finally:
            if auto_env.server is not None:
                auto_env.server.kill()
                auto_env.server.wait(20)
