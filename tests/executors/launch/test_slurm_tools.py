"""`srun` and `scontrol` as jobs have them, in every shell that a node may have."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from stoker.executors.launch import training_library as library
from stoker.executors.launch.paths import SLURM_TOOLS

TOOLS = Path(library.__file__).parents[3] / SLURM_TOOLS
SHELLS = (["dash"], ["bash"], ["busybox", "sh"])


@pytest.fixture(params=SHELLS, ids=lambda words: words[0])
def shell(request: pytest.FixtureRequest) -> list[str]:
    words: list[str] = request.param
    return words


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {
        "PATH": f"{TOOLS}:{os.environ['PATH']}", "STOKER_REPORTS": str(tmp_path / "reports"),
        "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train", "SLURMD_NODENAME": "n1",
        "SLURM_JOB_NODELIST": "n1", "SLURM_CPUS_ON_NODE": "2", **more,
    }  # fmt: skip


def run(shell: list[str], tmp_path: Path, *words: str, **more: str) -> tuple[int, list[str], str]:
    """Run a tool; return its code, its lines of output in order, and its errors."""
    tool, *rest = words
    done = subprocess.run(
        [*shell, str(TOOLS / tool), *rest], env=environment(tmp_path, **more), cwd=tmp_path,
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    return done.returncode, sorted(done.stdout.splitlines()), done.stderr


SHOW = "echo $SLURM_PROCID $SLURM_LOCALID $SLURM_NTASKS $SLURM_STEP_ID ${CUDA_VISIBLE_DEVICES-}"


def test_a_step_has_one_task_unless_more_are_requested(shell: list[str], tmp_path: Path) -> None:
    assert run(shell, tmp_path, "srun", "sh", "-c", SHOW)[:2] == (0, ["0 0 1 0"])
    result = run(shell, tmp_path, "srun", "sh", "-c", SHOW, SLURM_NTASKS="2")
    assert result[:2] == (0, ["0 0 2 1", "1 1 2 1"])
    result = run(shell, tmp_path, "srun", "-n3", "sh", "-c", SHOW)
    assert result[:2] == (0, ["0 0 3 2", "1 1 3 2", "2 2 3 2"])


@pytest.mark.parametrize(("rank", "tasks"), [("0", ["0 0", "1 1"]), ("1", ["2 0"])])
def test_each_node_runs_its_own_tasks(
    rank: str, tasks: list[str], shell: list[str], tmp_path: Path
) -> None:
    command = ("srun", "-n", "3", "sh", "-c", "echo $SLURM_PROCID $SLURM_LOCALID")
    result = run(shell, tmp_path, *command, SLURM_NNODES="2", SLURM_NODEID=rank)
    assert result[:2] == (0, tasks)


def test_the_code_is_the_highest_of_all_tasks(shell: list[str], tmp_path: Path) -> None:
    code, _, errors = run(shell, tmp_path, "srun", "-n", "3", "sh", "-c", "exit $SLURM_PROCID")
    assert code == 2
    assert "code 2" in errors
    assert run(shell, tmp_path, "srun", "-n", "2", "sh", "-c", "kill -9 $$")[0] == 137
    assert run(shell, tmp_path, "srun", "sh", "-c", "exit 9")[0] == 9


def test_kill_on_bad_exit_ends_the_other_tasks(shell: list[str], tmp_path: Path) -> None:
    command = "[ $SLURM_PROCID = 1 ] && exit 5; exec sleep 60"
    assert run(shell, tmp_path, "srun", "-K", "-n2", "sh", "-c", command)[0] != 0


def test_output_patterns_and_labels(shell: list[str], tmp_path: Path) -> None:
    say = "echo out $SLURM_PROCID; echo err >&2"
    run(shell, tmp_path, "srun", "-n2", "--output=%x.%j.%s.%t.txt", "sh", "-c", say)
    assert (tmp_path / "train.7.0.1.txt").read_text() == "out 1\nerr\n"
    run(shell, tmp_path, "srun", "-n2", "-o", "both", "-e", "err%t", "sh", "-c", say)
    assert sorted((tmp_path / "both").read_text().split("\n")) == ["", "out 0", "out 1"]
    assert (tmp_path / "err0").read_text() == "err\n"
    assert run(shell, tmp_path, "srun", "-l", "-n2", "sh", "-c", "echo $SLURM_PROCID")[1] == [
        "0: 0",
        "1: 1",
    ]


def test_each_task_may_have_a_gpu_of_its_own(shell: list[str], tmp_path: Path) -> None:
    command = ("srun", "-n2", "--gpus-per-task=1", "sh", "-c", SHOW)
    result = run(shell, tmp_path, *command, CUDA_VISIBLE_DEVICES="3,5")
    assert result[:2] == (0, ["0 0 2 0 3", "1 1 2 0 5"])


def test_steps_at_once_do_not_share_the_gpus_they_request(shell: list[str], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    step = f"'{' '.join([*shell, str(TOOLS / 'srun')])}'"
    script = f"""
        srun={step}
        $srun -n1 --gpus=1 sh -c 'echo $CUDA_VISIBLE_DEVICES; cat {gate}' >a & first=$!
        until [ -s a ]; do sleep 0.05; done
        $srun -n1 --gres=gpu:1 sh -c 'echo $CUDA_VISIBLE_DEVICES' >b
        $srun -n1 --gpus=2 sh -c 'echo $CUDA_VISIBLE_DEVICES' >c 2>waiting & last=$!
        until [ -s waiting ]; do sleep 0.05; done
        echo >{gate}
        wait $first $last
        cat a b c
    """
    done = subprocess.run(
        ["bash", "-c", script],
        env=environment(tmp_path, CUDA_VISIBLE_DEVICES="0,1"), cwd=tmp_path,
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["0", "1", "0,1"]


def test_the_claims_of_a_killed_step_are_void(shell: list[str], tmp_path: Path) -> None:
    first = subprocess.Popen(
        [*shell, str(TOOLS / "srun"), "--gpus=1", "sh", "-c", "echo ready; exec sleep 60"],
        env=environment(tmp_path, CUDA_VISIBLE_DEVICES="0"), stdout=subprocess.PIPE, cwd=tmp_path,
    )  # fmt: skip
    assert first.stdout is not None
    first.stdout.readline()
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    first.kill()
    first.wait()
    first.stdout.close()
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    result = run(shell, tmp_path, "srun", "--gpus=1", "echo", "mine", CUDA_VISIBLE_DEVICES="0")
    assert result[:2] == (0, ["mine"])


def test_signals_reach_every_task(shell: list[str], tmp_path: Path) -> None:
    command = "trap 'exit 3' USR1; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(
        [*shell, str(TOOLS / "srun"), "-n2", "sh", "-c", command],
        env=environment(tmp_path), stdout=subprocess.PIPE, cwd=tmp_path,
    ) as step:  # fmt: skip
        assert step.stdout is not None
        assert [step.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
        step.send_signal(signal.SIGUSR1)
        assert step.wait(20) == 3


@pytest.mark.parametrize(
    "words",
    [
        ["--tiem=3", "true"], ["-n", "x", "true"], ["-n0", "true"], ["-N2", "true"], [],
        ["--gpus=3", "true"], ["--jobid=8", "true"], ["--multi-prog", "conf"], ["-n"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_wrong_requests_are_refused(words: list[str], shell: list[str], tmp_path: Path) -> None:
    code, lines, errors = run(shell, tmp_path, "srun", *words, CUDA_VISIBLE_DEVICES="0,1")
    assert (code, lines) == (1, [])
    assert errors.startswith("srun: error: ")


def test_host_lists_are_expanded(shell: list[str], tmp_path: Path) -> None:
    def hostnames(*words: str) -> list[str]:
        return run(shell, tmp_path, "scontrol", "show", "hostnames", *words)[1]

    assert hostnames() == ["n1"]
    assert hostnames("n[1-3,7],x5") == ["n1", "n2", "n3", "n7", "x5"]
    assert hostnames("n[08-10]-ib") == ["n08-ib", "n09-ib", "n10-ib"]
    assert hostnames("a[1-2]b[3-4]") == ["a1b3", "a1b4", "a2b3", "a2b4"]
    assert run(shell, tmp_path, "scontrol", "show", "hostlist", "a1,b2")[1] == ["a1,b2"]
    assert run(shell, tmp_path, "scontrol", "show", "hostnames", "n[1-x]")[2] != ""


def test_other_requests_of_scontrol_are_for_the_daemon(shell: list[str], tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "dash", "busybox", "sh"):
        if program := shutil.which(name):
            (tools / name).symlink_to(program)
    code, _, error = run(shell, tmp_path, "scontrol", "show", "job", "7", PATH=str(tools))
    assert code == 1
    assert "without the stoker command" in error
    stub = tools / "stoker"
    stub.write_text('#!/bin/sh\necho "$@"\n')
    stub.chmod(0o755)
    code, lines, _ = run(shell, tmp_path, "scontrol", "requeue", "7", PATH=str(tools))
    assert (code, lines) == (0, ["compat slurm scontrol requeue 7"])
