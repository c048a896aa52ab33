"""Hydra's own sweeps with `hydra/launcher=stoker`: each of its jobs is a job in the queue."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import CompactHydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext

from conftest import ROOT
from e2e.daemon_fixture import DaemonFixture
from hydra_plugins.stoker_launcher.config import StokerConf
from stoker.api import Client, JobFailed
from stoker.api.calls.parameters import VALID

APP = """
import json, os, time
import hydra
from hydra.core.hydra_config import HydraConfig

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    job = HydraConfig.get().job
    seen = {"lr": cfg.lr, "num": job.num, "id": job.id, "cwd": os.getcwd()}
    for name in ("GREETING", "CUDA_VISIBLE_DEVICES", "STOKER_JOB_NAME"):
        seen[name] = os.environ[name]
    with open("seen.json", "w") as file:
        json.dump(seen, file)
    if cfg.lr < 0:
        raise ValueError("a negative rate")
    time.sleep(cfg.sleep)

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def app(box: DaemonFixture) -> Path:
    """A program of somebody who uses Hydra."""
    folder = box.user / "app"
    (folder / "conf").mkdir(parents=True)
    (folder / "conf/config.yaml").write_text("lr: 1\nsleep: 0\n")
    (folder / "train.py").write_text(APP)
    return folder


def program(app: Path, *words: str) -> "subprocess.Popen[str]":
    """The program, sweeping."""
    return subprocess.Popen(
        [sys.executable, "train.py", "--multirun", "hydra/launcher=stoker", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=app,
    )


# ------------------------------------------------------------------- from the command line


def test_each_job_of_a_sweep_is_a_job_with_gpus_of_its_own(box: DaemonFixture, app: Path) -> None:
    process = program(
        app, "lr=0.1,0.01,-1", "hydra.launcher.gpus=1", "hydra.launcher.max_running=2",
        "hydra.job.chdir=true", "+hydra.job.env_set.GREETING=hello",
    )  # fmt: skip
    said, _ = process.communicate(timeout=50)

    # What a job raised ends the sweep, as with Hydra's own launchers, and says where that was.
    assert process.returncode == 1, said
    assert "Error executing job with overrides: ['lr=-1']" in said
    assert 'train.py", line 15, in main' in said
    assert said.rstrip().endswith("ValueError: a negative rate")

    sweep = next(app.glob("multirun/*/*"))  # ${now:} is the same for all
    seen = [json.loads((sweep / str(number) / "seen.json").read_text()) for number in range(3)]
    array = str(seen[0]["id"]).partition("_")[0]
    jobs = box.jobs(array)
    assert [each["lr"] for each in seen] == [0.1, 0.01, -1]
    assert [each["num"] for each in seen] == [0, 1, 2]
    assert [each["id"] for each in seen] == [job["label"] for job in jobs]
    assert [each["cwd"] for each in seen] == [str(sweep / str(number)) for number in range(3)]
    assert {each["GREETING"] for each in seen} == {"hello"}
    assert {each["STOKER_JOB_NAME"] for each in seen} == {"train"}
    assert [[each["CUDA_VISIBLE_DEVICES"]] for each in seen] == [
        job["devices"]["gpu"] for job in jobs
    ]
    assert [job["state"] for job in jobs] == ["COMPLETED", "COMPLETED", "FAILED"]
    assert box.output(f"{array}_2").endswith("ValueError: a negative rate\n")
    assert (sweep / "multirun.yaml").exists()


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_leaves_the_jobs_and_once_more_cancels_them(
    box: DaemonFixture, app: Path, presses: int
) -> None:
    said = label = ""
    with program(app, "sleep=60", f"lr={presses}", "+hydra.job.env_set.GREETING=x") as process:
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if f"lr={presses}" in line:
                label = line.split()[4]
                process.send_signal(signal.SIGINT)
            if "The jobs continue" in line and presses == 2:
                process.send_signal(signal.SIGINT)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "The jobs continue. Ctrl-C again" in said
    if presses == 1:
        box.becomes(label, "RUNNING")
        box.client.act("cancel", [label])
    else:
        assert "The jobs are cancelled." in said
    assert box.end_of(label)["state"] == "CANCELLED"


# ---------------------------------------------------------------------- the launcher itself


@pytest.fixture
def launcher(
    box: DaemonFixture, app: Path, tmp_path: Path, hydra_restore_singletons: None
) -> Iterator[Callable[..., Launcher]]:
    """`launcher(task, "hydra.launcher.gpus=1")`, as a sweeper makes it."""

    def make(task: Callable[..., Any], *overrides: str) -> Launcher:
        config = compose(
            "config",
            ["hydra/launcher=stoker", f"hydra.sweep.dir={tmp_path}", *overrides],
            return_hydra_config=True,
        )
        loader = GlobalHydra.instance().config_loader()
        return Plugins.instance().instantiate_launcher(
            HydraContext(loader, Callbacks()), task, config
        )

    with initialize_config_dir(str(app / "conf"), job_name="app", version_base=None):
        yield make


def status(returns: Sequence[JobReturn]) -> list[str]:
    return [each.status.name for each in returns]


def test_outcomes_keep_their_order_and_those_of_lost_jobs_say_why(
    launcher: Callable[..., Launcher], tmp_path: Path
) -> None:
    flag = tmp_path / "flag"

    def task(cfg: Any) -> float:
        import os
        import time

        while cfg.lr == 5 and not flag.exists():
            time.sleep(0.01)
        if cfg.lr == 6:
            flag.touch()  # so the second ends before the first
        if cfg.lr == 7:
            os.kill(os.getpid(), 9)
        return cfg.lr * 2

    returns = launcher(task).launch([["lr=5"], ["lr=6"], ["lr=7"]], initial_job_idx=40)

    assert status(returns) == ["COMPLETED", "COMPLETED", "FAILED"]
    assert [each.return_value for each in returns[:2]] == [10, 12]
    assert [each.overrides for each in returns] == [["lr=5"], ["lr=6"], ["lr=7"]]
    assert [each.cfg.lr for each in returns if each.cfg is not None] == [5, 6, 7]
    assert [each.hydra_cfg.hydra.job.num for each in returns if each.hydra_cfg] == [40, 41, 42]
    assert returns[1].hydra_cfg is not None
    assert returns[1].hydra_cfg.hydra.runtime.output_dir == str(tmp_path / "41")
    assert (tmp_path / "41/.hydra/overrides.yaml").read_text() == "- lr=6\n"
    with pytest.raises(JobFailed, match=r"Job \d+_2 \(app\) FAILED: killed by SIGKILL"):
        returns[2].return_value  # noqa: B018


def test_a_sweeper_may_launch_again_and_again(launcher: Callable[..., Launcher]) -> None:
    def task(cfg: Any) -> float:
        if cfg.lr == 2:
            raise ZeroDivisionError("no")
        return float(cfg.lr)

    made = launcher(task)
    [first] = made.launch([["lr=1"]], initial_job_idx=0)
    [second] = made.launch([["lr=2"]], initial_job_idx=1)

    assert first.return_value == 1.0
    assert second.status is JobStatus.FAILED
    with pytest.raises(ZeroDivisionError, match="no") as caught:
        second.return_value  # noqa: B018
    assert "in task" in str(caught.value.__cause__)


def test_with_max_num_timeout_a_job_that_has_to_stop_is_run_again(
    launcher: Callable[..., Launcher], box: DaemonFixture, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"

    def task(cfg: Any) -> str:
        import os
        import signal
        import time

        if not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGUSR2)  # as the queue does when it needs the place
            time.sleep(60)
        return os.environ["STOKER_ATTEMPT"]

    made = launcher(task, "hydra.launcher.max_num_timeout=1")
    [outcome] = made.launch([["lr=3"]], initial_job_idx=0)

    assert outcome.return_value == "1"
    assert outcome.overrides == ["lr=3"]


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("+hydra.launcher.gpuss=1", "There is no parameter 'gpuss'. Did you mean gpus?"),
        ("hydra.launcher.gpus=99", "Cannot be satisfied: 99 GPUs requested"),
        ("hydra.launcher.max_running=0", "max_running must be a whole number"),
        ("hydra.launcher.folder=/proc/x", "Calls cannot be written to /proc/x"),
        ("+hydra.launcher.slurm_partion=x", "There is no parameter 'slurm_partion'. Did you mean"),
    ],
)
def test_an_impossible_request_is_reported_in_one_line(
    launcher: Callable[..., Launcher], override: str, sentence: str
) -> None:
    made = launcher(str, override)
    with pytest.raises(CompactHydraException) as caught:  # Hydra shows it without a traceback
        made.launch([["lr=1"], ["lr=2"]], initial_job_idx=0)
    assert str(caught.value).startswith(f"hydra.launcher: {sentence}")
    assert Client().jobs(state="PENDING,RUNNING") == []


# -------------------------------------------------------------------------------- packaging


def test_what_the_configuration_offers_the_executor_takes() -> None:
    ours = {"_target_", "folder", "max_running"}
    assert {field.name for field in dataclasses.fields(StokerConf)} - ours <= VALID


def test_the_wheel_brings_the_plugin_into_the_namespace_of_hydra(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignore)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    with zipfile.ZipFile(next((tmp_path / "dist").glob("*.whl"))) as archive:
        names = archive.namelist()
    assert "hydra_plugins/stoker_launcher/config.py" in names
    assert "hydra_plugins/stoker_launcher/stoker_launcher.py" in names
    assert "hydra_plugins/stoker_launcher/_job.py" in names
    assert "hydra_plugins/__init__.py" not in names  # it would hide the plugins of others
    assert "stoker/plugins/joblib.py" in names
