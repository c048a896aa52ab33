"""The environment of a job at its start, and its output."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.daemon_fixture import DaemonFixture, as_json

LOOK = """
import json, os
me = os.getpid()
fds = {}
for fd in os.listdir("/proc/self/fd"):
    try:
        fds[fd] = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        pass
print(json.dumps({
    "environ": dict(os.environ), "cwd": os.getcwd(), "fds": fds, "umask": os.umask(0),
    "session": os.getsid(0) == me, "group": os.getpgid(0) == me,
    "stdin": os.read(0, 10).decode(),
}))
"""


@pytest.fixture
def inspect(box: DaemonFixture) -> Any:
    """Run a program that prints its environment, like python without its own signal handlers."""
    box.script("inspect_environment.py", LOOK)

    def run(*options: object, **more: Any) -> dict[str, Any]:
        job = box.submit(*options, sys.executable, "-I", "inspect_environment.py", **more)
        assert box.end_of(job)["result"] == 0, box.output(job)
        seen: dict[str, Any] = json.loads(box.output(job))
        return seen

    return run


def test_a_job_sees_exactly_its_gpus(inspect: Any) -> None:
    environ = inspect("--gpus", "2")["environ"]
    assert environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environ["STOKER_GPUS"] == "0,1"
    assert environ["STOKER_GPU_COUNT"] == "2"


def test_a_job_without_gpus_sees_none_even_if_the_submitter_saw_some(inspect: Any) -> None:
    environ = inspect(env={"CUDA_VISIBLE_DEVICES": "3", "TERM": "xterm"})["environ"]
    assert environ["CUDA_VISIBLE_DEVICES"] == ""
    assert environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environ["STOKER_GPUS"] == ""


def test_a_job_has_its_id_name_and_resources_in_its_environment(
    inspect: Any, box: DaemonFixture
) -> None:
    environ = inspect("-J", "train", "--cpus", "2", "--time", "5m")["environ"]
    assert environ["STOKER_JOB_ID"] == "1"
    assert environ["STOKER_JOB_NAME"] == "train"
    assert environ["STOKER_ATTEMPT"] == "0"
    assert environ["STOKER_NODES"] == box.client.nodes()["nodes"][0]["name"]
    assert environ["OMP_NUM_THREADS"] == "2"
    assert not any(name.startswith("SLURM_") for name in environ)


def test_the_environment_is_the_submitters_without_the_terminals(inspect: Any) -> None:
    odd = "a b\n\u00e9 $HOME 'x'"
    environ = inspect(
        "--env", "LR=0.1", env={"MY_OWN": odd, "TERM": "xterm", "COLUMNS": "80", "EMPTY": ""}
    )["environ"]
    assert environ["MY_OWN"] == odd
    assert environ["EMPTY"] == ""
    assert environ["LR"] == "0.1"
    assert not {"TERM", "COLUMNS", "LINES"} & set(environ)


def test_a_job_does_not_inherit_what_the_daemon_was_started_with(idle: DaemonFixture) -> None:
    idle.start(env={"ONLY_THE_DAEMON": "1"})
    job = idle.result('echo "[$ONLY_THE_DAEMON]"')
    assert idle.output(job["id"]) == "[]\n"


def test_a_job_has_a_session_of_its_own_no_stdin_and_no_descriptors_of_ours(
    inspect: Any, box: DaemonFixture
) -> None:
    seen = inspect()
    assert seen["session"]
    assert seen["group"]
    assert seen["stdin"] == ""
    assert seen["fds"]["0"] == "/dev/null"
    assert seen["fds"]["1"] == seen["fds"]["2"] == box.job("last")["log"]
    # Besides those three, python itself had the directory open.
    assert set(seen["fds"]) <= {"0", "1", "2", "3"}


def test_no_signal_is_ignored_or_blocked_even_if_the_daemons_parent_ignored_it(
    idle: DaemonFixture,
) -> None:
    ignoring = (
        "import os, signal, sys\n"
        "for n in (1, 2, 3, 10, 12, 13, 14, 15, 20, 21, 22): signal.signal(n, signal.SIG_IGN)\n"
        "command = [sys.executable, '-m', 'stoker', 'daemon', 'start', '--gpus', '0']\n"
        "os.execv(sys.executable, command)"
    )
    starter = idle.script("ignoring.py", ignoring)
    assert subprocess.run([sys.executable, str(starter)], check=False, timeout=30).returncode == 0
    job = idle.result("grep", "-E", "SigIgn|SigBlk", "/proc/self/status")
    glibc_signals = 1 << 31 | 1 << 32  # the two that posix_spawn of glibc ignores in every child
    for line in idle.output(job["id"]).splitlines():
        assert int(line.split()[1], 16) & ~glibc_signals == 0, line


def test_directory_and_umask_are_the_submitters(box: DaemonFixture) -> None:
    where = box.user / "some where"
    where.mkdir()
    old = os.umask(0o027)
    try:
        job = box.submit("pwd; umask; touch made", cwd=where)
    finally:
        os.umask(old)
    box.end_of(job)
    assert box.output(job) == f"{where}\n0027\n"
    assert (where / "made").stat().st_mode & 0o777 == 0o640
    other = box.result("--chdir", "some where", "pwd", cwd=box.user)
    assert box.output(other["id"]) == f"{where}\n"


def test_a_line_is_run_by_the_submitters_shell(box: DaemonFixture) -> None:
    job = box.result("echo $0 ${BASH_VERSION:+bash}", env={"SHELL": "/bin/bash"})
    assert box.output(job["id"]) == "/bin/bash bash\n"
    job = box.result("echo $0 ${BASH_VERSION:+bash}", env={"SHELL": "/bin/sh"})
    assert box.output(job["id"]).startswith("/bin/sh")


def test_several_arguments_are_run_without_a_shell(box: DaemonFixture) -> None:
    words = ["$HOME", "a  b", "*", "'", "{gpu}", "--gpus", "9"]
    job = box.result("--gpus", "2", "printf", "%s\\n", *words)
    assert box.output(job["id"]).splitlines() == ["$HOME", "a  b", "*", "'", "0,1", "--gpus", "9"]


def test_the_gpus_can_be_named_in_a_line(box: DaemonFixture) -> None:
    job = box.result("--gpus", "1", "--use-gpus", "2", "echo --device={gpu}")
    assert box.output(job["id"]) == "--device=2\n"


def test_a_program_is_searched_in_the_jobs_path(box: DaemonFixture) -> None:
    tools = box.user / "tools"
    tools.mkdir()
    tool = tools / "my-own-tool"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    job = box.result("my-own-tool", "x", env={"PATH": f"{tools}:{os.environ['PATH']}"})
    assert box.output(job["id"]) == "found\n"


def test_a_script_with_a_shebang_is_run_by_it(box: DaemonFixture) -> None:
    box.script("a.py", f"#!{sys.executable}\nimport sys\nprint('python', sys.argv[1:])\n")
    job = box.result("a.py")
    assert box.output(job["id"]) == "python []\n"


def test_a_script_without_a_shebang_is_run_by_the_shell_and_kept_as_it_was(
    box: DaemonFixture,
) -> None:
    script = box.script("b", "cat <<END\none\n  two $((1+1))\nEND\nexit 4\n")
    job = box.submit("--hold", "b", env={"SHELL": "/bin/sh"})
    script.write_text("echo changed\n")
    box.client.release([job])
    assert box.end_of(job)["result"] == 4
    assert box.output(job) == "one\n  two 2\n"


def test_a_line_may_have_many_lines(box: DaemonFixture) -> None:
    job = box.result("for i in 1 2\ndo\n  echo $i\ndone\n")
    assert box.output(job["id"]) == "1\n2\n"


def test_output_is_kept_byte_for_byte_and_both_streams_share_a_file(box: DaemonFixture) -> None:
    box.script(
        "bytes.py", "import os\nos.write(1, bytes(range(256)))\nos.write(2, b'\\r50%\\r100%\\n')\n"
    )
    job = box.result(sys.executable, "bytes.py")
    assert Path(job["log"]).read_bytes() == bytes(range(256)) + b"\r50%\r100%\n"


def test_stderr_goes_to_a_separate_file_on_request(box: DaemonFixture) -> None:
    job = box.result("-o", "out.txt", "-e", "err.txt", "echo out; echo err >&2")
    assert (box.user / "out.txt").read_text() == "out\n"
    assert (box.user / "err.txt").read_text() == "err\n"
    assert job["log"] == str(box.user / "out.txt")
    assert job["error_log"] == str(box.user / "err.txt")


def test_patterns_in_file_names_are_filled_in(box: DaemonFixture) -> None:
    label = box.submit(
        "-J", "a/b", "--array", "3-4", "-o", "%x-%A-%a-%j-%%.log", "echo $STOKER_ARRAY_INDEX"
    )
    box.end_of(label)
    first, second = box.jobs(label)
    assert (box.user / f"a_b-{label}-3-{first['id']}-%.log").read_text() == "3\n"
    assert (box.user / f"a_b-{label}-4-{second['id']}-%.log").read_text() == "4\n"


def test_each_attempt_has_a_separate_log(box: DaemonFixture) -> None:
    job = box.submit("--retries", "1", "echo attempt $STOKER_ATTEMPT; exit $((1 - STOKER_ATTEMPT))")
    assert box.end_of(job)["attempt"] == 1
    assert box.stoker("logs", job).stdout == "attempt 1\n"
    assert box.stoker("logs", "--attempt", "0", job).stdout == "attempt 0\n"


def test_slurm_variables_are_set_only_on_request(box: DaemonFixture) -> None:
    echo = "echo ${SLURM_ARRAY_TASK_ID-none} ${SLURM_NNODES-none}"
    assert box.output(box.result("--slurm-env", "--array", "7", echo)["label"]) == "7 1\n"
    assert box.output(box.result("--array", "7", echo)["label"]) == "none none\n"


def test_a_script_with_sbatch_lines_runs_as_under_slurm(box: DaemonFixture) -> None:
    (box.user / "array.sh").write_text(
        "#!/bin/bash\n#SBATCH -a 0-2 -n 2 -J lr -o out/%x-%a.txt\n"
        "LRS=(0.1 0.01 0.001)\n"
        'srun bash -c "echo ${LRS[$SLURM_ARRAY_TASK_ID]} \\$SLURM_PROCID"\n'
        "scontrol show hostnames | wc -l\n"
    )
    label = box.submit("array.sh")
    box.end_of(label)
    for index, rate in enumerate(("0.1", "0.01", "0.001")):
        lines = (box.user / f"out/lr-{index}.txt").read_text().splitlines()
        assert sorted(lines[:2]) == [f"{rate} 0", f"{rate} 1"], lines
        assert lines[2] == "1"
    assert box.output(box.result("--no-slurm-env", "-a", "0", "-o", "%j", "array.sh")["label"])


def test_named_resources_are_passed_to_the_job(idle: DaemonFixture) -> None:
    idle.start("{gpu:1,cpu:2,licence:[2]}")
    job = idle.result("--resource", "licence=1", "env")
    assert "STOKER_LICENCE=" in idle.output(job["id"])


def test_a_queued_job_holds_no_process_and_no_descriptor(idle: DaemonFixture) -> None:
    box = idle.start("{gpu:1,cpu:4}")
    blocker = box.submit("--gpus", "1", "echo ready; sleep 60")
    box.says(blocker, "ready")
    before = len(os.listdir(f"/proc/{box.pid}/fd"))
    box.submit("--gpus", "1", "--each-line", "-", input="true\n" * 500)
    assert as_json(box.stoker("queue", "--json"))["counts"]["PENDING"] == 500
    assert len(os.listdir(f"/proc/{box.pid}/fd")) - before < 20
