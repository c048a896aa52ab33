"""The examples of grass's guide, as written there, through an installed `grass`."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.grass_env import GrassEnv, open_grass_env

DATA = Path("/data")
TRAIN = """\
import os, sys
with open(f"result-{'-'.join(sys.argv[1:])}", "w") as file:
    print(os.getcwd(), os.environ["CUDA_VISIBLE_DEVICES"], file=file)
"""
GENERATOR = """\
import os

for lr in [0.01, 0.1]:
    for batch_size in [8, 16, 32]:
        os.system("grass enqueue q1 --json '{gpu:0.5}' --cwd=/data/ --env='CUDA_VISIBLE_DEVICES={gpu}' -- CUDA_VISIBLE_DEVICES={gpu} python train.py lr=%s batch_size=%s" % (lr,batch_size))
"""  # noqa: E501


@pytest.fixture
def guide() -> Iterator[GrassEnv]:
    """A home with `grass` on its PATH, and a train.py in the user's directory."""
    with open_grass_env() as env:
        bin = env.base / "bin"
        bin.mkdir()
        env.env["PATH"] = f"{bin}:{env.env['PATH']}"
        done = env.stoker("compat", "install", "grass", "--dir", bin, "--force")
        assert done.returncode == 0, done.stderr
        (env.user / "train.py").write_text(TRAIN)
        # The guide's machine: its queues have GPUs, whatever this machine has.
        assert env.stoker("daemon", "start", "--gpus", "none").returncode == 0
        yield env


@pytest.fixture
def data() -> Iterator[Path | None]:
    """The guide's /data/, where it can be made; gone afterwards."""
    try:
        DATA.mkdir()
    except OSError:  # somebody's own, another test's just now, or not for us to make
        yield None
        return
    try:
        yield DATA
    finally:
        shutil.rmtree(DATA)


def shell(guide: GrassEnv, line: str) -> str:
    """Type a line of the guide."""
    done = guide.run("sh", "-c", line)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def results(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text().split()[-1] for path in directory.glob("result-*")}


def test_the_examples(guide: GrassEnv):
    shell(guide, 'grass create-queue q1 --json "{gpu:4,cpu:16}"')
    job = shell(
        guide,
        'grass enqueue q1 --env "CUDA_VISIBLE_DEVICES={gpu}" --json "{gpu:0.5}"'
        " -- python train.py lr=0.01",
    )
    guide.end(job)
    assert results(guide.user) == {"result-lr=0.01": "0"}
    assert guide.show("q1")["past_jobs"][0]["status"] == "Finished"


def test_the_script_that_generates_jobs(guide: GrassEnv, data: Path | None):
    there = data or guide.user / "data"
    there.mkdir(exist_ok=True)
    (there / "train.py").write_text(TRAIN)
    script = GENERATOR if data else GENERATOR.replace("/data/", f"{there}/")
    shell(guide, 'grass create-queue q1 --json "{gpu:4,cpu:16}"')
    done = guide.run(sys.executable, "-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["1", "2", "3", "4", "5", "6"]
    guide.end("all")
    found = results(there)
    assert set(found) == {
        f"result-lr={lr}-batch_size={size}" for lr in (0.01, 0.1) for size in (8, 16, 32)
    }
    assert set(found.values()) <= {"0", "1", "2", "3"}
    assert {job["status"] for job in guide.show("q1")["past_jobs"]} == {"Finished"}


def test_the_section_on_usage(guide: GrassEnv, data: Path | None):
    there = data or guide.user / "data"
    there.mkdir(exist_ok=True)
    (there / "train.py").write_text(TRAIN)
    assert guide.run("grass", "stop").returncode == 0
    shell(guide, "grass start")
    shell(guide, "grass create-queue q1 --json '{gpu:2,cpu:16}'")
    plain = shell(guide, "grass enqueue q1 --json '{gpu:0.5}' python train.py")
    line = (
        "grass enqueue q1 --env PYTHONPATH=.. --env TERM=.. --cwd /data"
        " --json '{gpu:0.5}' python train.py"
    )
    more = shell(guide, line if data else line.replace("/data", str(there)))
    guide.end(f"{plain},{more}")
    assert results(guide.user) == results(there) == {"result-": "0"}
    everything = shell(guide, "grass show")
    assert everything.startswith("[")
    one = guide.show("q1")
    assert shell(guide, "grass show q1").startswith("{")
    assert [job["envs"] for job in one["past_jobs"]] == [[], ["PYTHONPATH", "TERM"]]
    assert [job["cwd"] for job in one["past_jobs"]] == [str(guide.user), str(there)]


def test_the_section_on_syntax(guide: GrassEnv):
    shell(guide, "grass create-queue q1 --json '{gpu:4}'")
    shell(guide, "grass create-queue q2 --json \"{gpu:{'0':1,'1':1,'2':1,'3':1}}\"")
    assert guide.show("q1")["resources"] == guide.show("q2")["resources"]
    shell(guide, "grass create-queue q3 --json '{hdd:[32,64,128]}'")
    assert guide.show("q3")["resources"] == {"hdd": {"0": 32, "1": 64, "2": 128}}
    shell(guide, "grass create-queue q4 --json \"{gpu:{'2':1,'4':1}}\"")
    names = shell(guide, "grass enqueue q4 --json '{gpu:2}' -- echo {gpu}")
    guide.end(names)
    assert Path(guide.show("q4")["past_jobs"][0]["log"]).read_text() == "2,4\n"
    shell(guide, "grass create-queue q5 --json '{RAM:512}'")
    assert len(guide.show("q5")["resources"]["RAM"]) == 512
    done = guide.run("sh", "-c", "grass create-queue q6 --json '{RAM:[512]}'")
    assert "has a capacity of 1, not 512" in done.stderr  # q5 said otherwise of the same RAM 0
    shell(guide, "grass delete-queue q5")
    shell(guide, "grass create-queue q6 --json '{RAM:[512]}'")
    assert guide.show("q6")["resources"] == {"RAM": {"0": 512}}
