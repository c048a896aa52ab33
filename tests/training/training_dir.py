"""stoker's side of the conversation with a training script, played by a test."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from stoker.training import Job

SOURCES = Path(__file__).parents[2] / "src"


class TrainingDir:
    """The reports directory of one attempt, the variables that go with it, and who reads it."""

    def __init__(self, root: Path, attempt: int = 1, **variables: object) -> None:
        self.root = root
        self.reports = root / f"1.{attempt}"
        self.checkpoints = root / "checkpoints"
        self.variables = {
            "STOKER_REPORTS": str(self.reports),
            "STOKER_CHECKPOINT_DIR": str(self.checkpoints),
            "JOB_UUID": "a-1",
            **{name: str(value) for name, value in variables.items()},
        }

    def job(self, **variables: object) -> Job:
        """A process of the job, in this process."""
        return Job({**self.variables, **{name: str(value) for name, value in variables.items()}})

    def lines(self, *kinds: str) -> list[dict[str, Any]]:
        """What the job has said, of these kinds."""
        path = self.reports / "report"
        said = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        found = [json.loads(line) for line in said if line]
        return [line for line in found if not kinds or line["k"] in kinds]

    def epochs(self, kind: str) -> list[int]:
        """The epochs of the lines of a kind."""
        return [line["e"] for line in self.lines(kind)]

    def steps(self) -> dict[str, Any]:
        """The last word about steps."""
        found: dict[str, Any] = json.loads((self.reports / "steps").read_text(encoding="utf-8"))
        return found

    def ask_to_stop(self) -> None:
        """As the daemon does: never half a file."""
        self.reports.mkdir(parents=True, exist_ok=True)
        (self.reports / "stop.new").write_text("a more urgent job needs its GPU\n")
        (self.reports / "stop.new").rename(self.reports / "stop")

    def run(
        self,
        script: str,
        *options: str,
        python: str = sys.executable,
        path: Path = SOURCES,
        **variables: object,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a script as this job, with nothing of the caller's environment."""
        given = {name: str(value) for name, value in variables.items()}
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONPATH": str(path),
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.variables,
            **given,
        }
        self.root.mkdir(exist_ok=True, parents=True)
        return subprocess.run(
            [python, *options, "-c", script],
            env=environment,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
