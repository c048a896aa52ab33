"""GrassEnv: a home with a daemon, and the command `grass` in it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compat.home_env import Done, HomeEnv, temporary_base
from e2e.daemon_fixture import until


class GrassEnv(HomeEnv):
    """One home."""

    def grass(self, *words: object, **more: Any) -> Done:
        return self.stoker("compat", "grass", *words, **more)

    def done(self, *words: object, **more: Any) -> str:
        """Run a command that must succeed; return what it printed."""
        done = self.grass(*words, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def refused(self, *words: object, code: int = 2, **more: Any) -> str:
        """Run a command that must fail; return its one-line message."""
        done = self.grass(*words, **more)
        assert (done.returncode, done.stdout) == (code, ""), done
        assert done.stderr.startswith("grass: ")
        assert done.stderr.count("\n") == 1
        assert "Traceback" not in done.stderr
        return done.stderr

    def show(self, queue: str) -> dict[str, Any]:
        view: dict[str, Any] = json.loads(self.done("show", queue))
        return view

    def jobs(self, queue: str) -> dict[int, dict[str, Any]]:
        """Return the jobs of a queue by id."""
        view = self.show(queue)
        lists = (view["past_jobs"], view["running_jobs"], view["future_jobs"])
        return {job["id"]: job for jobs in lists for job in jobs}

    def allocation(self, queue: str, id: int) -> dict[str, list[str]]:
        """Return the devices of a job, as soon as it has them."""
        running: dict[str, list[str]] = until(lambda: self.jobs(queue)[id]["allocation"])
        return running

    def output(self, queue: str, *words: object, **more: Any) -> str:
        """Run a job to its end; return its output."""
        id = self.done("enqueue", queue, *words, **more)
        self.end(id)
        return Path(self.jobs(queue)[int(id)]["log"]).read_text()


class Gate:
    """A command that runs until it is released."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / f"gate-{name}"
        self.command = ("sh", "-c", f"while test ! -e {self.path}; do sleep 0.05; done")

    def open(self) -> None:
        self.path.touch()


@contextmanager
def open_grass_env() -> Iterator[GrassEnv]:
    """Yield a fresh home; remove it afterwards."""
    with temporary_base() as base:
        yield GrassEnv(base)
