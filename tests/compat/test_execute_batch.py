"""execute_batch, row by row: what its guide promises, through the command, over real sshds."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat.batch_env import SMALL, BatchEnv, Terminal, appears, shared_env
from e2e.daemon_fixture import until
from stoker.client.events import EventStream
from stoker.compat.execute_batch.node_lease import _is_at, _lease_name
from stoker.compat.registry import ON_PATH

__all__ = ["shared_env"]

EXAMPLE = Path(__file__).parents[2] / "examples" / "ssh-batch"
NO_GPU = (*SMALL, "--no-gpu-required")
UNTIL_GO = "until [ -e $HOME/go ]; do sleep 0.05; done"


@pytest.fixture
def env(shared_env: BatchEnv) -> Iterator[BatchEnv]:
    yield shared_env
    shared_env.tidy()


def lines(text: str, begin: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(begin)]


# --------------------------------------------------------------------- words and machines


def run(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """The command where it is not to come to a daemon."""
    return subprocess.run(
        [sys.executable, "-m", "stoker", "compat", "execute_batch", *words],
        capture_output=True, text=True, cwd=cwd, check=False, timeout=30,
    )  # fmt: skip


def test_mls_01_02_both_commands_are_installed_and_have_help(tmp_path: Path) -> None:
    for name in ("execute_batch", "execute_remote"):
        assert name in ON_PATH
        installed = Path(sys.executable).parent / name
        done = subprocess.run([installed, "-h"], capture_output=True, text=True, check=False)
        assert done.returncode == 0
        assert f"  {name} " in done.stdout
        assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        ((), 2, "No batch file given"),
        (("--machines", "m.yaml", "b.sh"), 2, "No batch file given"),
        (("b.sh", "c.sh", "--machines", "m"), 2, "Only one batch file"),
        (("b.sh",), 2, "No machines given"),
        (("b.sh", "--machines"), 2, "No machines given"),
        (("nope.sh", "--machines", "m.yaml"), 2, "nope.sh cannot be read: No such file"),
        (("b.sh", "--machines", "nope"), 1, "Machine config not found at ~/.local/var/nope.yaml"),
        (("b.sh", "--machines", "bad.yaml"), 2, "bad.yaml has no 'port'"),
        (("b.sh", "--machines", "m.yaml", "m.yaml"), 2, "are the same machine"),
        (("b.sh", "--machines", "m", "--num-cpus", "many"), 2, "--num-cpus takes a whole number"),
        (("b.sh", "--machines", "m", "--memory-required=-1"), 2, "--memory-required takes"),
        (("b.sh", "--machines", "m", "--gpu-utilization", "x"), 2, "--gpu-utilization takes"),
        (("b.sh", "--machines", "m", "--gpu-utilization"), 2, "--gpu-utilization needs a value"),
        (("b.sh", "--machines", "m", "--no-gpu"), 1, "Machine config not found"),
        (("b.sh", "--machines", "m", "--no"), 2, "--no is ambiguous: --no-gpu-required or"),
        (("b.sh", "--machines", "m", "--reserved"), 2, "no option --reserved. Did you mean"),
        (("b.sh", "--machines", "m", "--dry-run=yes"), 2, "--dry-run takes no value"),
        (("b.sh", "--machines", "m", "--copy-forward", "nope"), 2, "no such file or directory"),
        (("b.sh", "--machines", "m", "--copy-forward", "/etc"), 2, "not below this directory"),
        (("b.sh", "--machines", "m", "--copy-backwards", "../x"), 2, "not below this directory"),
        (("empty.sh", "--machines", "m"), 2, "empty.sh has no line to run"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_refused_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, why: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    four = "username: u\nip: 127.0.0.1\nport: 1\nssh_key_path: k\n"
    (tmp_path / "m.yaml").write_text(four)
    (tmp_path / "bad.yaml").write_text(four.replace("port: 1\n", ""))
    (tmp_path / "b.sh").write_text("true\n")
    (tmp_path / "empty.sh").write_text("# nothing\n\n")
    if "m" in words and why == "Machine config not found":
        (tmp_path / "m.yaml").unlink()
    done = run(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, ""), done
    assert done.stderr.startswith("execute_batch: ")
    assert why in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "job_results").exists()
    assert not (tmp_path / "home").exists(), "a daemon was started for nothing"


def test_mls_06_a_key_below_the_home_directory(env: BatchEnv) -> None:
    (env.home / ".ssh").mkdir(mode=0o700)
    key = shutil.copy(env.one.key, env.home / ".ssh" / "id with a blank")
    assert Path(key).stat().st_mode & 0o077 == 0
    machine = env.file(env.one, ssh_key_path='"~/.ssh/id with a blank"')
    done = env.batch(env.script("hostname"), "--machines", machine, *SMALL)
    assert done.returncode == 0, done
    assert env.result("b.sh.1.out") == "one\n"


def test_mls_07_a_changed_host_key_is_refused(env: BatchEnv) -> None:
    assert env.execute("true").returncode == 0
    env.one.new_host_key()
    env.one.kill_connections()
    done = env.execute("true")
    assert done.returncode == 1
    assert "could not connect to machines: [" in done.stderr
    assert done.stdout == ""


def test_mls_10_any_machine_that_is_not_reached_stops_it_all(env: BatchEnv) -> None:
    bad = env.file(env.other, "bad.yaml", port=9)
    script = env.script("true")
    done = env.batch(script, "--machines", env.file(env.one), bad, *SMALL)
    assert (done.returncode, done.stdout) == (1, "")
    said = {"username": env.other.user, "ip": env.other.address, "port": 9,
            "ssh_key_path": str(env.other.key)}  # fmt: skip
    message = f"execute_batch: could not connect to machines: {json.dumps([said])}: "
    assert done.stderr.startswith(message)
    assert "refused" in done.stderr.removeprefix(message)
    assert done.stderr.count("\n") == 1
    assert not (env.user / "job_results").exists()
    assert env.nodes() == []


def test_mls_10_a_key_that_is_not_there(env: BatchEnv) -> None:
    bad = env.file(env.one, "bad.yaml", ssh_key_path="/nowhere")
    done = env.batch(env.script("true"), "--machines", bad, *SMALL)
    assert (done.returncode, done.stdout) == (1, "")
    assert "could not connect to machines: [" in done.stderr
    assert "no key at /nowhere" in done.stderr


def test_mls_09_11_29_a_machine_with_next_to_nothing(env: BatchEnv) -> None:
    bare = env.cluster.machine("bare", bare=True)
    machine = env.file(bare)
    script = env.script("echo $0; echo x > made.txt", "true")
    done = env.batch(script, "--machines", machine, *NO_GPU)
    assert done.returncode == 0, done
    assert done.stderr == (
        "execute_batch: bare.yaml has no bash: command lines run in sh, without ~/.bashrc\n"
    )
    assert env.result("b.sh.1/made.txt") == "x\n"
    # and where GPUs are needed, it is a machine without any
    script = env.script("true", name="c.sh")
    done = env.batch(script, "--machines", machine, *SMALL)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "machine limits:  {'bare.yaml': 0}", "machine gpu choices: [[]]",
    ]  # fmt: skip
    assert "No machine has enough free resources for a job. bare.yaml: it has no GPU" in done.stderr


# ------------------------------------------------------------------------------- a batch


def test_mls_20_70_71_73_74_75_80_a_batch_as_the_guide_shows_it(env: BatchEnv) -> None:
    (env.user / "example").mkdir()
    script = env.script(
        'echo "one job"', "", "   # a comment", "  echo o; echo e >&2; exit 1  ",
        name="example/batch_script.sh",
    )  # fmt: skip
    machine = env.file(env.one, "my_machine.yaml")
    done = env.batch(script, "--machines", machine, *SMALL)
    assert done.returncode == 1
    assert done.stderr == ""
    first, second, *rest = done.stdout.splitlines()
    assert first == "machine limits:  {'my_machine.yaml': 2}"
    assert second == "machine gpu choices: [[0, 1]]"
    name = "example_batch_script.sh"
    assert sorted(rest) == [
        f"failed: {name}.4; echo o; echo e >&2; exit 1",
        f'finished: {name}.1; echo "one job"',
        f'started: {name}.1;  export CUDA_VISIBLE_DEVICES=0 && echo "one job"',
        f"started: {name}.4;  export CUDA_VISIBLE_DEVICES=1 && echo o; echo e >&2; exit 1",
    ]
    assert env.results() == sorted(
        f"{name}.{n}{end}" for n in (1, 4) for end in ("", ".out", ".err")
    )
    assert env.result(f"{name}.1.out") == "one job\n"
    assert env.result(f"{name}.4.out") == "o\n"
    assert env.result(f"{name}.4.err") == "e\n"


def test_mls_76_one_slot_and_file_order(env: BatchEnv) -> None:
    env.one.gpus([{}])
    done = env.execute(*(f"echo {n}" for n in range(3)))
    names = [line.split(";")[0] for line in done.stdout.splitlines()[2:]]
    expected = [f"{what}: b.sh.{n}" for n in (1, 2, 3) for what in ("started", "finished")]
    assert names == expected


def test_mls_77_each_job_sees_its_gpu_and_a_cpu_job_none(env: BatchEnv) -> None:
    (env.one.home / ".bashrc").write_text("export CUDA_VISIBLE_DEVICES=7\n")
    see = "echo ${CUDA_VISIBLE_DEVICES-unset}"
    done = env.execute(see, see)
    assert done.returncode == 0, done
    assert [env.result(f"b.sh.{n}.out") for n in (1, 2)] == ["0\n", "1\n"]
    for number, more in enumerate(((), ("--reserve",))):
        script = env.script(see, name=f"cpu{number}.sh")
        done = env.batch(script, "--machines", env.file(env.one), *NO_GPU, *more)
        assert done.returncode == 0, done
        assert lines(done.stdout, "started") == [f"started: cpu{number}.sh.1;  {see}"]
        assert env.result(f"cpu{number}.sh.1.out") == "\n"


def test_mls_78_a_directory_of_its_own_and_nothing_left(env: BatchEnv) -> None:
    here = "pwd; [ ! -e mine ] && touch mine"
    done = env.execute(here, here, here, here)
    assert done.returncode == 0, done
    assert len({env.result(f"b.sh.{n}.out") for n in range(1, 5)}) == 4
    assert env.nodes() == []
    work = env.one.home / ".stoker" / "work"
    until(lambda: not list(work.iterdir()))


def test_mls_79_bashrc_is_read_and_its_noise_is_not_kept(env: BatchEnv) -> None:
    (env.one.home / ".bashrc").write_text("echo welcome; greet() { echo hello $1; }; oops\n")
    done = env.execute("greet you")
    assert done.returncode == 0, done
    assert env.result("b.sh.1.out") == "hello you\n"
    assert env.result("b.sh.1.err") == ""


def test_mls_80_output_is_there_while_the_job_runs(env: BatchEnv) -> None:
    script = env.script(f"echo begun; {UNTIL_GO}; echo over")
    batch = env.start("execute_batch", script, "--machines", env.file(env.one), *SMALL)
    appears(env.user / "job_results/b.sh.1.out", "begun\n")
    assert batch.poll() is None
    (env.one.home / "go").touch()
    _, err = batch.communicate(timeout=40)
    assert (batch.returncode, err) == (0, "")
    assert env.result("b.sh.1.out") == "begun\nover\n"


def test_mls_22_23_what_goes_along_and_what_comes_back(env: BatchEnv) -> None:
    for name in ("a", "b", "c"):
        (env.user / name).mkdir()
        (env.user / name / "file").write_text(name)
    script = env.script("cat a/file b/file; ls; mkdir out; echo r > out/res.txt; echo s > other")
    machine = env.file(env.one)
    words = ("--copy-forward", "a", "./b/", "--copy-backwards", "out")
    done = env.batch(script, "--machines", machine, *SMALL, *words)
    assert done.returncode == 0, done
    assert env.result("b.sh.1.out") == "aba\nb\n"
    found = [str(path.relative_to(env.user / "job_results/b.sh.1"))
             for path in (env.user / "job_results/b.sh.1").rglob("*")]  # fmt: skip
    assert sorted(found) == ["out", "out/res.txt"]


def test_mls_22_23_nothing_goes_and_nothing_comes(env: BatchEnv) -> None:
    script = env.script("ls | wc -l; echo x > made")
    words = ("--machines", env.file(env.one), *SMALL, "--copy-forward", "--copy-backwards")
    assert env.batch(script, *words).returncode == 0
    assert env.result("b.sh.1.out") == "0\n"
    assert list((env.user / "job_results/b.sh.1").iterdir()) == []


def test_mls_24_results_do_not_nest(env: BatchEnv) -> None:
    (env.user / "data").write_text("data")
    assert env.execute("ls").returncode == 0
    script = env.script("ls", name="second.sh")
    assert env.batch(script, "--machines", env.file(env.one), *SMALL).returncode == 0
    for name in ("b.sh.1", "second.sh.1"):
        assert env.result(f"{name}/data") == "data"
    assert list((env.user / "job_results").rglob("job_results")) == []


def test_files_that_changed_a_moment_ago_go_along_as_they_are_now(env: BatchEnv) -> None:
    for number in range(3):
        (env.user / "data").write_text(f"{number}\n")
        script = env.script("cat data", name=f"b{number}.sh")
        words = ("--machines", env.file(env.one), *SMALL, "--copy-forward", "data")
        assert env.batch(script, *words).returncode == 0
        assert env.result(f"b{number}.sh.1.out") == f"{number}\n"


def test_mls_81_files_of_a_failed_job_come_back_however_large(env: BatchEnv) -> None:
    done = env.execute("head -c 600000 /dev/zero > big; echo r > res.txt; exit 1", "exit 2")
    assert done.returncode == 1
    assert env.result("b.sh.1/res.txt") == "r\n"
    assert (env.user / "job_results/b.sh.1/big").stat().st_size == 600_000
    assert (env.user / "job_results/b.sh.2/b.sh").exists()


def test_mls_72_82_what_exists_is_not_run_again(env: BatchEnv) -> None:
    assert env.execute("echo 1", "exit 1").returncode == 1
    stamps = {path: path.stat().st_mtime_ns for path in (env.user / "job_results").rglob("*")}
    done = env.execute("echo 1", "exit 1", "echo new")
    assert done.returncode == 0
    warning = "skipping evaluation: delete if you wish to rerun"
    assert done.stdout.splitlines()[2:6] == [
        f"WARNING: job results already exists for line 1, {warning}",
        f"WARNING: job results already exists for line 2, {warning}",
        "skipping echo 1",
        "skipping exit 1",
    ]
    assert len(lines(done.stdout, "started")) == 1
    after = {path: path.stat().st_mtime_ns for path in stamps}
    del stamps[env.user / "job_results/b.sh.1"], after[env.user / "job_results/b.sh.1"]
    assert after == stamps


def test_mls_83_without_its_directory_a_job_runs_again_and_appends(env: BatchEnv) -> None:
    for _ in range(2):
        assert env.execute("echo 100%").returncode == 0
        shutil.rmtree(env.user / "job_results/b.sh.1")
    assert env.result("b.sh.1.out") == "100%\n100%\n"


def test_mls_84_one_failure_is_a_failure(env: BatchEnv) -> None:
    assert env.execute("true", "false", "true").returncode == 1


def test_mls_86_output_never_meets_control(env: BatchEnv) -> None:
    texts = [f"printf 'no end {n}'; printf '%s done' - >&2" for n in range(8)]
    done = env.execute(*texts)
    assert done.returncode == 0, done
    assert [env.result(f"b.sh.{n + 1}.out") for n in range(8)] == [f"no end {n}" for n in range(8)]
    assert env.result("b.sh.1.err") == "- done"


def test_braces_and_quotes_are_the_shells(env: BatchEnv) -> None:
    done = env.execute("""echo '{gpu}' "it's" a{1,2} && for i in 1 2; do echo $i; done""")
    assert done.returncode == 0, done
    assert env.result("b.sh.1.out") == "{gpu} it's a1 a2\n1\n2\n"


def test_mls_32_verbose_prints_the_command_lines(env: BatchEnv) -> None:
    done = env.execute("echo 'a b'", options=(*SMALL, "--verbose"))
    where = env.one.url.removeprefix("ssh://")
    printed = re.findall(rf"^{re.escape(where)} \(job \d+\): (.*)$", done.stdout, re.MULTILINE)
    assert len(printed) == 1
    assert printed[0].startswith("bash -ic 'export CUDA_VISIBLE_DEVICES=0; echo ")
    quiet = env.batch(env.script("true", name="q.sh"), "--machines", env.file(env.one), *SMALL)
    assert "bash" not in quiet.stdout


def test_mls_33_a_dry_run_prints_all_and_leaves_nothing(env: BatchEnv) -> None:
    before = env.client.daemon()["seq"]
    done = env.execute("echo a", "", "echo b", "echo c", options=(*SMALL, "--dry-run"))
    assert done.returncode == 0, done
    assert done.stdout.splitlines()[2:] == [
        f"one.yaml: b.sh.{number};  export CUDA_VISIBLE_DEVICES={gpu} && echo {letter}"
        for number, gpu, letter in ((1, 0, "a"), (3, 1, "b"), (4, 0, "c"))
    ]
    assert not (env.user / "job_results").exists()
    assert env.nodes() == []
    kinds: list[str] = []
    events = EventStream(env.client)
    events.close()
    events.last = before
    events.reopen()
    while "NodeRemoved" not in kinds:
        kinds += [kind for kind, _ in events.take()]
        assert "NodeRemoved" in kinds or events.receive()
    events.close()
    assert "NodeAdded" in kinds
    assert "JobsSubmitted" not in kinds


# --------------------------------------------------------- the guide's table, cell by cell


def limits(env: BatchEnv, *options: object) -> tuple[int, list[int]]:
    """How many jobs at once, and on which GPUs."""
    words = (env.script("true"), "--machines", env.file(env.one), *options, "--dry-run")
    first, second = env.batch(*words).stdout.splitlines()[:2]
    count = re.fullmatch(r"machine limits:  \{'one.yaml': (\d+)\}", first)
    gpus = re.fullmatch(r"machine gpu choices: \[\[(.*)\]\]", second)
    assert count
    assert gpus
    return int(count[1]), [int(gpu) for gpu in gpus[1].split(", ") if gpu]


def test_cell_a_reserved_machine_has_one_job(env: BatchEnv) -> None:
    line = "echo begun; sleep 0.3; ls $HOME/busy 2>/dev/null; touch $HOME/busy; sleep 0.2; "
    line += "echo $CUDA_VISIBLE_DEVICES; rm $HOME/busy"
    done = env.execute(line, line, options=(*SMALL, "--reserve"))
    assert done.returncode == 0, done
    assert done.stdout.splitlines()[:2] == [
        "machine limits:  {'one.yaml': 1}", "machine gpu choices: [[0, 1]]",
    ]  # fmt: skip
    assert [env.result(f"b.sh.{n}.out") for n in (1, 2)] == ["begun\n0,1\n"] * 2
    assert lines(done.stdout, "started")[0] == f"started: b.sh.1;  {line}"


def test_cell_a_reserved_gpu_has_one_job(env: BatchEnv) -> None:
    env.one.gpus([{}])
    line = "mkdir $HOME/busy && sleep 0.3 && rmdir $HOME/busy"
    done = env.execute(line, line, line)
    assert done.returncode == 0, done
    assert done.stdout.splitlines()[1] == "machine gpu choices: [[0]]"


def test_cell_memory_of_the_machine(env: BatchEnv) -> None:
    free = int(re.findall(r"MemAvailable: *(\d+)", Path("/proc/meminfo").read_text())[0]) // 1024
    most = free // 3
    count, gpus = limits(env, "--no-gpu-required", "--num-cpus", 0, "--memory-required", most)
    assert gpus == []
    assert count in (2, 3)  # what is free changes all the time
    assert limits(env, "--no-gpu-required", "--num-cpus", 0, "--memory-required", free * 2)[0] == 0


def test_cell_memory_of_a_gpu(env: BatchEnv) -> None:
    env.one.gpus([{"memory.used": 16384 - 500}, {"memory.used": 16384 - 7000}])
    shared = (*SMALL, "--no-reserve-gpu", "--gpu-utilization", 0)
    assert limits(env, *shared, "--gpu-memory-required", 3000) == (2, [1, 1])
    assert limits(env, *shared, "--gpu-memory-required", 7001) == (0, [])
    assert limits(env, *SMALL) == (1, [1])


def test_cell_compute_of_the_machine(env: BatchEnv) -> None:
    """However busy it is, two jobs of one core fit; on an idle one, two more than cores."""
    cores = os.cpu_count() or 1
    options = ("--no-gpu-required", "--memory-required", 1)
    assert 2 <= limits(env, *options)[0] <= cores + 2
    assert limits(env, *options, "--num-cpus", cores + 3)[0] == 0


def test_cell_compute_of_a_gpu(env: BatchEnv) -> None:
    env.one.gpus([{"utilization.gpu": 90}, {"utilization.gpu": 20}])
    assert limits(env, *SMALL) == (1, [1])
    assert limits(env, *SMALL, "--gpu-utilization", 0.3) == (2, [1, 0])
    shared = (*SMALL, "--no-reserve-gpu", "--gpu-utilization", 0.5)
    assert limits(env, *shared) == (2, [1, 1])


def test_mls_53_a_driver_that_does_not_say(env: BatchEnv) -> None:
    env.one.gpus([{"utilization.gpu": "[N/A]", "memory.used": "[N/A]", "memory.total": "[N/A]"}])
    done = env.execute("echo $CUDA_VISIBLE_DEVICES")
    assert done.returncode == 0, done
    assert env.result("b.sh.1.out") == "0\n"


def test_a_gpu_that_others_used_from_the_start_is_used_with_them(env: BatchEnv) -> None:
    env.one.gpus([{"utilization.gpu": 30, "memory.used": 3000}], [{"gpu": 0, "used_memory": 3000}])
    done = env.execute("echo $CUDA_VISIBLE_DEVICES")
    assert done.returncode == 0, done
    assert env.result("b.sh.1.out") == "0\n"


def test_mls_60_later_use_adds_no_slots_and_may_delay(env: BatchEnv) -> None:
    env.one.gpus([{}, {"utilization.gpu": 100}])
    gate = f"echo begun; {UNTIL_GO}; nvidia-smi --query-gpu=index --format=csv,noheader | wc -l"
    script = env.script(gate, "true", "true")
    batch = env.start("execute_batch", script, "--machines", env.file(env.one), *SMALL)
    appears(env.user / "job_results/b.sh.1.out", "begun\n")
    env.one.gpus([{}] * 4)
    (env.one.home / "go").touch()
    out, _ = batch.communicate(timeout=40)
    assert batch.returncode == 0
    assert out.splitlines()[1] == "machine gpu choices: [[0]]"
    assert len(re.findall("CUDA_VISIBLE_DEVICES=0", out)) == 3


def test_mls_60_a_gpu_that_others_begin_to_use_is_waited_for(env: BatchEnv) -> None:
    env.one.gpus([{}])

    def stranger(gpu: dict[str, Any]) -> bool:
        return gpu["node"].startswith("batch-") and gpu["foreign_process"] is not None

    def found(name: str) -> dict[str, Any] | None:
        jobs = env.client.jobs(limit=1000)["jobs"]
        return next((job for job in jobs if job["name"] == name), None)

    script = env.script(f"echo begun; {UNTIL_GO}", "true", name="late.sh")
    batch = env.start("execute_batch", script, "--machines", env.file(env.one), *SMALL)
    appears(env.user / "job_results/late.sh.1.out", "begun\n")
    busy = {"utilization.gpu": 80, "memory.used": 9000}
    env.one.gpus([busy], [{"gpu": 0, "used_memory": 9000}])
    until(lambda: env.client.refresh_nodes() and any(map(stranger, env.client.gpus()["gpus"])))
    (env.one.home / "go").touch()
    until((env.user / "job_results/late.sh.1").exists)
    waiting = until(lambda: found("late.sh.2"))
    assert waiting["state"] == "PENDING"
    env.one.gpus([{}])
    out, _ = batch.communicate(timeout=40)
    assert batch.returncode == 0, out
    assert [line.split(";")[0] for line in out.splitlines()[2:]] == [
        "started: late.sh.1", "finished: late.sh.1", "started: late.sh.2", "finished: late.sh.2",
    ]  # fmt: skip


def test_mls_61_no_room_anywhere_says_why(env: BatchEnv) -> None:
    env.other.gpus([{"utilization.gpu": 100}] * 2)
    machines = (env.file(env.one), env.file(env.other))
    words = ("--memory-required", 99999999, "--num-cpus", 0)
    done = env.batch(env.script("true"), "--machines", *machines, *words)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "machine limits:  {'one.yaml': 0, 'other.yaml': 0}"
    assert re.fullmatch(
        r"execute_batch: No machine has enough free resources for a job. one.yaml: \d+ MB of memory"
        r" are free, a job needs 99999999; other.yaml: \d+ MB of memory are free, a job"
        r" needs 99999999.\n",
        done.stderr,
    )
    assert not (env.user / "job_results").exists()


# ----------------------------------------------------------------- several machines, the end


def test_mls_88_machines_of_different_sizes(env: BatchEnv) -> None:
    env.other.gpus([{}] * 3)
    machines = (env.file(env.one), env.file(env.other))
    wait = f"hostname; touch $HOME/here.$STOKER_JOB_ID; {UNTIL_GO}"
    script = env.script(*[wait] * 5)
    batch = env.start("execute_batch", script, "--machines", *machines, *SMALL)
    until(lambda: len(list(env.one.home.glob("here.*"))) == 2)
    until(lambda: len(list(env.other.home.glob("here.*"))) == 3)
    for machine in (env.one, env.other):
        (machine.home / "go").touch()
    out, err = batch.communicate(timeout=40)
    assert (batch.returncode, err) == (0, "")
    assert out.splitlines()[:2] == [
        "machine limits:  {'one.yaml': 2, 'other.yaml': 3}",
        "machine gpu choices: [[0, 1], [0, 1, 2]]",
    ]
    told = [env.result(f"b.sh.{n}.out").strip() for n in range(1, 6)]
    assert told == ["one", "one", "other", "other", "other"]


def test_two_batches_share_one_set_of_books(env: BatchEnv) -> None:
    script = env.script(*[f"echo begun; {UNTIL_GO}"] * 2)
    machine = env.file(env.one)
    first = env.start("execute_batch", script, "--machines", machine, *SMALL)
    for number in (1, 2):
        appears(env.user / f"job_results/b.sh.{number}.out", "begun\n")
    second = env.batch(env.script("true", name="c.sh"), "--machines", machine, *SMALL)
    assert second.returncode == 1
    assert "one.yaml: your jobs use its GPUs" in second.stderr
    third = env.batch(env.script("true", name="d.sh"), "--machines", machine, *NO_GPU)
    assert third.returncode == 0, third
    (env.one.home / "go").touch()
    first.communicate(timeout=40)
    assert first.returncode == 0
    assert env.nodes() == []


def test_a_machine_of_the_users_own_stays(env: BatchEnv) -> None:
    added = env.run("stoker", "nodes", "add", "mine", env.one.url, "--key", env.one.key)
    assert added.returncode == 0, added
    done = env.execute("echo $STOKER_NODES")
    assert done.returncode == 0, done
    assert env.result("b.sh.1.out") == "mine\n"
    assert env.nodes() == ["mine"]


@pytest.mark.parametrize(
    ("known", "same"),
    [
        ("ssh://me@host:22", True),
        ("me@host", True),
        ("host", True),  # under the name that ssh is configured with
        ("ssh://host:22/", True),
        ("ssh://you@host:22", False),
        ("ssh://me@host:2222", False),
        ("me@other", False),
        (None, False),
    ],
)
def test_a_machine_is_known_by_its_address(known: str | None, same: bool) -> None:
    assert _is_at({"address": known}, "ssh://me@host:22") == same
    if known is not None and "host" in known:
        assert _is_at({"address": known.replace("host", "[::1]")}, "ssh://me@[::1]:22") == same


def test_a_daemon_is_started_when_there_is_none(env: BatchEnv) -> None:
    assert env.run("stoker", "daemon", "stop").returncode == 0
    done = env.execute("echo $CUDA_VISIBLE_DEVICES")
    assert done.returncode == 0, done
    assert env.result("b.sh.1.out") == "0\n"


def test_a_job_that_is_cancelled_from_elsewhere_has_failed(env: BatchEnv) -> None:
    script = env.script("echo begun; sleep 7777; true", "echo next")
    batch = env.start("execute_batch", script, "--machines", env.file(env.one), *SMALL)
    appears(env.user / "job_results/b.sh.1.out", "begun\n")
    assert env.run("stoker", "cancel", "all").returncode == 0
    out, err = batch.communicate(timeout=40)
    assert batch.returncode == 1
    assert "failed: b.sh.1; echo begun; sleep 7777; true" in out.splitlines()
    assert "b.sh.1: cancelled" in err


def test_a_machine_that_falls_silent_is_waited_for(env: BatchEnv) -> None:
    script = env.script(f"echo begun; {UNTIL_GO}; echo over; echo x > made")
    batch = env.start("execute_batch", script, "--machines", env.file(env.one), *SMALL)
    appears(env.user / "job_results/b.sh.1.out", "begun\n")
    env.one.kill_connections()
    assert batch.stderr is not None
    first, second = (batch.stderr.readline().rstrip("\n") for _ in range(2))
    (env.one.home / "go").touch()
    batch.communicate(timeout=40)
    assert batch.returncode == 0
    assert re.fullmatch(
        r"execute_batch: one.yaml does not answer \(.+\); jobs running there continue", first
    )
    assert second == "execute_batch: one.yaml answers again"
    assert env.result("b.sh.1.out") == "begun\nover\n"
    assert env.result("b.sh.1/made") == "x\n"


def test_mls_85_ctrl_c_ends_what_runs_there_and_fetches_its_files(env: BatchEnv) -> None:
    script = env.script("echo kept > kept.txt; echo begun; sleep 3333; true", "sleep 4444; true")
    words = ("execute_batch", script, "--machines", env.file(env.one), *SMALL)
    terminal = Terminal(env, *words)
    try:
        appears(env.user / "job_results/b.sh.1.out", "begun\n")
        until(lambda: env.one.pids("sleep 3333") and env.one.pids("sleep 4444"))
        terminal.press("\x03")
        assert terminal.end() == 130
    finally:
        terminal.close()
    told = terminal.said.replace("\r\n", "\n")
    assert "interrupting tasks\nwaiting for tasks to terminate\n" in told
    assert "Traceback" not in told
    assert env.one.pids("sleep 3333") == env.one.pids("sleep 4444") == []
    assert env.result("b.sh.1/kept.txt") == "kept\n"
    assert env.nodes() == []


def test_sigterm_ends_it_too(env: BatchEnv) -> None:
    script = env.script("echo begun; sleep 5555; true")
    batch = env.start("execute_batch", script, "--machines", env.file(env.one), *SMALL)
    appears(env.user / "job_results/b.sh.1.out", "begun\n")
    batch.send_signal(signal.SIGTERM)
    batch.communicate(timeout=40)
    assert batch.returncode == 143
    assert env.one.pids("sleep 5555") == []


def test_a_terminal_that_is_gone_is_no_reason_to_stop(env: BatchEnv) -> None:
    env.one.gpus([{}])
    script = env.script(f"echo begun; {UNTIL_GO}", "echo next")
    terminal = Terminal(env, "execute_batch", script, "--machines", env.file(env.one), *SMALL)
    try:
        appears(env.user / "job_results/b.sh.1.out", "begun\n")
        terminal.until("started")
        os.close(terminal.fd)
        (env.one.home / "go").touch()
        appears(env.user / "job_results/b.sh.2.out", "next\n")
        assert os.waitstatus_to_exitcode(os.waitpid(terminal.pid, 0)[1]) == 0
    finally:
        terminal.close()


def test_a_batch_runs_without_a_reader_of_its_output(env: BatchEnv) -> None:
    script, machine = env.script("echo a", "echo b"), env.file(env.one)
    small = " ".join(map(str, SMALL))
    batch = f"execute_batch {script} --machines {machine} {small}"
    done = env.run("sh", "-c", f"{{ {batch}; echo $? > code; }} | head -n 1")
    assert done.stdout == "machine limits:  {'one.yaml': 2}\n"
    assert (env.user / "code").read_text() == "0\n"
    assert [env.result(f"b.sh.{n}.out") for n in (1, 2)] == ["a\n", "b\n"]


def test_a_daemon_that_is_restarted_meanwhile(env: BatchEnv) -> None:
    script = env.script(f"echo begun; {UNTIL_GO}; echo over", "echo next")
    env.one.gpus([{}])
    batch = env.start("execute_batch", script, "--machines", env.file(env.one), *SMALL)
    appears(env.user / "job_results/b.sh.1.out", "begun\n")
    assert env.run("stoker", "daemon", "restart").returncode == 0
    (env.one.home / "go").touch()
    out, _ = batch.communicate(timeout=40)
    assert batch.returncode == 0, out
    assert env.result("b.sh.1.out") == "begun\nover\n"
    assert len(lines(out, "finished")) == 2


def test_many_lines_and_one_directory(env: BatchEnv) -> None:
    (env.user / "data").write_bytes(os.urandom(100_000))
    count = 60
    words = ("--no-reserve-gpu", "--gpu-utilization", 0.05, "--copy-backwards")
    done = env.execute(*["test -s data"] * count, options=(*SMALL, *words))
    assert done.returncode == 0, done
    assert len(lines(done.stdout, "finished")) == count
    trees = [path for path in (env.one.home / ".stoker/trees").iterdir() if path.is_dir()]
    assert len(trees) == 1


# ---------------------------------------------------------- users, nodes and permissions


def test_each_account_of_a_machine_is_a_machine_of_its_own(env: BatchEnv) -> None:
    script = env.script(f"echo begun; {UNTIL_GO}")
    first = env.start("execute_batch", script, "--machines", env.file(env.one), *SMALL)
    appears(env.user / "job_results/b.sh.1.out", "begun\n")
    stranger = env.file(env.one, "stranger.yaml", username="nobody-of-that-name")
    done = env.batch(env.script("id", name="c.sh"), "--machines", stranger, *NO_GPU)
    assert (done.returncode, done.stdout) == (1, ""), "it ran as another user"
    assert 'could not connect to machines: [{"username": "nobody-of-that-name"' in done.stderr
    assert "--force" not in done.stderr
    assert "another name" not in done.stderr
    (env.one.home / "go").touch()
    first.communicate(timeout=40)
    assert first.returncode == 0
    assert env.nodes() == []


def test_names_of_accounts_are_never_mistaken() -> None:
    addresses = [
        "ssh://a@host:22", "ssh://b@host:22", "ssh://a@host:23", "ssh://a-b@c:22", "ssh://a@b-c:22",
        "ssh://a@[::1]:22", "ssh://a.b@c:22", f"ssh://{'u' * 60}@c:22",
    ]  # fmt: skip
    names = [_lease_name(address) for address in addresses]
    assert len(set(names)) == len(names)
    assert names[0] == "batch-a-host-22"
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name) for name in names)


def test_a_line_that_another_run_has_is_skipped(env: BatchEnv) -> None:
    count = "echo x >> $HOME/ran"
    script = env.script(f"{count}; echo begun; {UNTIL_GO}", count)
    env.one.gpus([{}])
    machines = ("--machines", env.file(env.one), env.file(env.other))
    first = env.start("execute_batch", script, *machines[:2], *SMALL)
    appears(env.user / "job_results/b.sh.1.out", "begun\n")
    assert (env.user / "job_results/.b.sh.1.running").exists()
    second = env.batch(script, "--machines", machines[2], *SMALL)
    assert second.returncode == 0, second
    told = second.stdout.splitlines()[2:]
    assert told[:2] == [
        "WARNING: line 1 is being run by another execute_batch, skipping evaluation",
        f"skipping {count}; echo begun; {UNTIL_GO}",
    ]
    assert [line.split(";")[0] for line in told[2:]] == ["started: b.sh.2", "finished: b.sh.2"]
    (env.one.home / "go").touch()
    out, _ = first.communicate(timeout=40)
    assert first.returncode == 0
    assert f"skipping {count}" in out.splitlines()
    ran = [(machine.home / "ran").read_text() for machine in (env.one, env.other)]
    assert ran == ["x\n", "x\n"]
    assert [name for name in env.results() if name.startswith(".")] == []


def test_a_run_that_was_killed_keeps_its_lines_while_they_run(env: BatchEnv) -> None:
    line = f"echo x >> $HOME/ran; echo begun; {UNTIL_GO}; exit $(cat $HOME/go)"
    script, machine = env.script(line), env.file(env.one)
    first = env.start("execute_batch", script, "--machines", machine, *SMALL)
    appears(env.user / "job_results/b.sh.1.out", "begun\n")
    first.kill()
    first.communicate(timeout=40)
    (job,) = env.client.jobs(client="execute_batch", state="RUNNING")["jobs"]
    whose = f"execute_batch (job {job['id']})"
    second = env.batch(script, "--machines", machine, *SMALL)
    assert second.returncode == 0, second
    assert second.stdout.splitlines()[2:] == [
        f"WARNING: line 1 is being run by another {whose}, skipping evaluation",
        f"skipping {line}",
    ]
    (env.one.home / "go").write_text("3")
    env.client.wait([str(job["id"])], timeout=40)
    shutil.rmtree(env.user / "job_results/b.sh.1", ignore_errors=True)
    third = env.batch(script, "--machines", machine, *SMALL)
    assert lines(third.stdout, "failed: b.sh.1"), third
    assert (env.one.home / "ran").read_text() == "x\nx\n"
    assert [name for name in env.results() if name.startswith(".")] == []


def test_a_machine_of_a_run_that_was_killed_goes_with_the_next_command(env: BatchEnv) -> None:
    script = env.script(f"echo begun; {UNTIL_GO}")
    first = env.start("execute_batch", script, "--machines", env.file(env.one), *SMALL)
    appears(env.user / "job_results/b.sh.1.out", "begun\n")
    first.kill()
    first.communicate(timeout=40)
    (left,) = env.nodes()
    (env.one.home / "go").touch()
    until(lambda: not env.client.jobs(state="RUNNING")["jobs"])
    assert env.nodes() == [left]
    other = env.file(env.other)
    done = env.batch(env.script("true", name="c.sh"), "--machines", other, *SMALL)
    assert done.returncode == 0, done
    assert env.nodes() == []


def test_a_line_moves_to_a_free_gpu_if_a_foreign_process_takes_its_own(env: BatchEnv) -> None:
    wait = f"echo begun; until [ -e $HOME/go.$N ]; do sleep 0.05; done; {UNTIL_GO}"
    script = env.script(*(f"N={n}; {wait}" for n in (1, 2)), "echo $CUDA_VISIBLE_DEVICES")
    batch = env.start("execute_batch", script, "--machines", env.file(env.one), *SMALL)
    for number in (1, 2):
        appears(env.user / f"job_results/b.sh.{number}.out", "begun\n")
    busy = {"utilization.gpu": 80, "memory.used": 9000}
    env.one.gpus([busy, {}], [{"gpu": 0, "used_memory": 9000}])
    until(
        lambda: (
            env.client.refresh_nodes()
            and any(gpu["foreign_process"] is not None for gpu in env.client.gpus()["gpus"])
        )
    )
    for name in ("go.1", "go"):
        (env.one.home / name).touch()
    assert batch.stderr is not None
    assert batch.stderr.readline().startswith("execute_batch: b.sh.3 waits: ")
    (env.one.home / "go.2").touch()
    out, err = batch.communicate(timeout=40)
    assert (batch.returncode, err) == (0, "")
    assert lines(out, "started: b.sh.3;") == [
        "started: b.sh.3;  export CUDA_VISIBLE_DEVICES=1 && echo $CUDA_VISIBLE_DEVICES"
    ]
    assert env.result("b.sh.3.out") == "1\n"


def test_a_line_that_cannot_start_is_not_reported_as_started(env: BatchEnv) -> None:
    small = env.cluster.machine("small", small_disk="3m")
    (env.user / "data").write_bytes(os.urandom(4_000_000))
    script = env.script("true")
    batch = env.start("execute_batch", script, "--machines", env.file(small), *NO_GPU)
    assert batch.stderr is not None
    said = batch.stderr.readline()
    batch.send_signal(signal.SIGINT)
    out, _ = batch.communicate(timeout=40)
    assert said.startswith("execute_batch: b.sh.1 waits: ")
    assert "is full" in said
    assert out.splitlines()[2:3] == ["interrupting tasks"]
    assert not (env.user / "job_results/b.sh.1").exists()


def test_missing_results_are_reported(env: BatchEnv) -> None:
    words = ("--copy-backwards", "reslts", "made/it")
    done = env.execute("mkdir made; echo x > made/it", options=(*SMALL, *words))
    assert done.returncode == 0, done
    assert done.stderr == (
        "execute_batch: b.sh.1: --copy-backwards reslts: the job wrote nothing there\n"
    )


def test_threads_are_the_jobs_own_affair(env: BatchEnv) -> None:
    see = "echo ${OMP_NUM_THREADS-unset}"
    options = ("--memory-required", 1, "--num-cpus", 1)
    assert env.execute(see, f"export OMP_NUM_THREADS=3; {see}", options=options).returncode == 0
    assert [env.result(f"b.sh.{n}.out") for n in (1, 2)] == ["unset\n", "3\n"]


def test_a_mark_at_the_beginning_of_the_file_is_no_part_of_the_first_line(env: BatchEnv) -> None:
    (env.user / "b.sh").write_bytes(b"\xef\xbb\xbfecho one\n")
    assert env.batch("b.sh", "--machines", env.file(env.one), *SMALL).returncode == 0
    assert env.result("b.sh.1.out") == "one\n"


# ---------------------------------------------------------------------------- the example


def test_mls_87_the_example_of_the_guide(env: BatchEnv) -> None:
    shutil.copytree(EXAMPLE, env.user / "ssh-batch")
    for machine, name in ((env.one, "machine.yaml"), (env.other, "machine2.yaml")):
        env.file(machine, f"ssh-batch/{name}")
    done = env.run("./ssh-batch/run.sh", *SMALL)
    assert done.returncode == 0, done
    told = done.stdout.splitlines()
    assert told[0] == (
        "machine limits:  {'ssh-batch/machine.yaml': 2, 'ssh-batch/machine2.yaml': 2}"
    )
    assert told[1] == "machine gpu choices: [[0, 1], [0, 1]]"
    name = "ssh-batch_batch_script.sh"
    assert sorted(line.split(";")[0] for line in told[2:]) == sorted(
        f"{what}: {name}.{number}" for what in ("started", "finished") for number in range(1, 5)
    )
    assert env.result(f"{name}.3.out") == "another job\na combined job (bash syntax applies)\n"
    assert "local.sh runs on other, with GPU 1\n" in env.result(f"{name}.4.out")
    assert env.result(f"{name}.4/written.txt") == "and whatever it writes comes back\n"
