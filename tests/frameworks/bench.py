"""What the framework suites do: start a script, look at its attempts, and get in its way."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from e2e.daemon_fixture import FINISHED, DaemonFixture

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
EXAMPLES = ROOT / "examples" / "training"
BIN = ROOT / ".venv-frameworks" / "bin"
PATIENCE = 120.0
"""Seconds that one step may take: an import of TensorFlow on a machine that does much else."""


def until(what: Callable[[], Any]) -> Any:
    """Look until there is something; not too often, for the scripts need the processors."""
    deadline = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < deadline, f"not within {PATIENCE} s: {what}"
        time.sleep(0.1)
    return found


class Bench:
    """A box whose jobs find real frameworks on their PATH."""

    def __init__(self, box: DaemonFixture) -> None:
        self.box = box
        self.user = box.user
        self.snapshots = box.user / "snapshots"
        self.snapshots.mkdir()
        self.environment = {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",  # several tests share few cores
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_USE_LEGACY_KERAS": "1",  # the guide's TensorFlow example speaks Keras 2
            "KERAS_BACKEND": "torch",  # the quickest to import; read by Keras 3 alone
            "HF_HUB_OFFLINE": "1",
            "GLOO_SOCKET_IFNAME": "lo",  # the processes of a job meet on this machine alone
        }

    # -- starting -----------------------------------------------------------------------

    def run_scheduler(self, script: Path, epochs: int, batch: int, size: int) -> "Job":
        """Submit a script by the command of the guide, without an image."""
        command = [
            Path(sys.executable).parent / "run-scheduler", "--script_path", script,
            "--snapshots_dir", self.snapshots, "--max_epochs", epochs, "--batch_size", batch,
            "--training_set_size", size, script.stem,
        ]  # fmt: skip
        done = subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            env={**os.environ, **self.environment},
            cwd=self.user,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return Job(self.box, done.stdout.strip().rpartition("-")[2])

    def submit(self, *words: object, epochs: int, gpus: int = 1) -> "Job":
        """Submit a command by `stoker submit`."""
        options = ("--gpus", gpus, "--epochs", epochs, "--snapshots-dir", self.snapshots)
        return Job(self.box, self.box.submit(*options, "--", *words, env=self.environment))

    def alone(self, script: Path, epochs: int) -> str:
        """What a script prints when there is no stoker and nobody gets in its way."""
        here = self.user / "alone"
        here.mkdir()
        done = subprocess.run(
            [BIN / "python", script],
            capture_output=True,
            text=True,
            env={**os.environ, **self.environment, "EPOCHS_TO_BE_DONE": str(epochs)},
            cwd=here,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    # -- getting in the way ---------------------------------------------------------------

    def preempt(self, job: "Job", gpus: int = 1) -> None:
        """Something more urgent comes by; then the job goes on."""
        before = job.view["attempt"]
        urgent = self.box.submit("--gpus", gpus, "--priority", "100", "true")
        assert self.box.end_of(urgent, PATIENCE)["state"] == "COMPLETED"
        view = until(lambda: job.attempt_after(before))
        assert view["state"] not in FINISHED, f"over before it was asked to stop: {view}"


class Job:
    """One training job."""

    def __init__(self, box: DaemonFixture, label: str) -> None:
        self.box, self.label = box, label

    @property
    def view(self) -> dict[str, Any]:
        """As the API shows it."""
        return self.box.job(self.label)

    @property
    def checkpoints(self) -> Path:
        """The directory that all its attempts share."""
        return Path(self.view["training"]["checkpoints"])

    def attempt_after(self, before: int) -> dict[str, Any] | None:
        """The view once a later attempt runs, or it is over."""
        view = self.view
        later = view["attempt"] > before and view["state"] == "RUNNING" and view["pid"]
        return view if later or view["state"] in FINISHED else None

    def began(self) -> dict[str, str]:
        """The environment of the attempt that runs, once there is one."""
        until(lambda: self.view["pid"])
        found: dict[str, str] = until(self._environment)
        return found

    def _environment(self) -> dict[str, str]:
        """Nothing while the process is not the script's yet."""
        with contextlib.suppress(OSError):
            data = Path(f"/proc/{self.view['pid']}/environ").read_bytes()
            found = dict(re.findall(r"([^=\0]+)=([^\0]*)", os.fsdecode(data)))
            return found if "EPOCHS_DONE" in found else {}
        return {}

    def listens(self) -> None:
        """Wait until the library in this attempt has said hello."""
        until(lambda: self.view["training"]["listening"])

    def counted(self) -> int:
        """How many epochs count."""
        return int(self.view["training"]["epochs_done"])

    def reaches(self, epochs: int) -> None:
        """Wait until that many count."""
        until(lambda: self.counted() >= epochs or self.view["state"] in FINISHED)

    def completed(self) -> dict[str, Any]:
        """Wait for its good end."""
        view = self.box.end_of(self.label, PATIENCE)
        assert view["state"] == "COMPLETED", self.outputs()[-1]
        return view

    def outputs(self) -> list[str]:
        """What each attempt has printed, the first one first."""
        client, attempts = self.box.client, range(self.view["attempt"] + 1)
        pieces = [b"".join(client.log(self.label, attempt=attempt)) for attempt in attempts]
        return [piece.decode(errors="replace") for piece in pieces]

    def weights(self) -> str:
        """The digest of its weights that a script prints at its end."""
        return digest("\n".join(self.outputs()))


def digest(output: str) -> str:
    """The one line about weights in an output."""
    (found,) = re.findall(r"^weights ([0-9a-f]{64})$", output, re.MULTILINE)
    return str(found)
