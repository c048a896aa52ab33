"""Jobs in containers of a real podman: what they find there, and how they end."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from conftest import mentions, processes
from containers.image import IMAGE, Podman
from e2e.daemon_fixture import DaemonFixture, alive, state_of, until

TELL = """\
import json, os, sys
from pathlib import Path
print(json.dumps({
    "argv": sys.argv, "here": os.getcwd(), "environment": dict(os.environ),
    "custom": sorted(os.listdir("/custom")) if os.path.isdir("/custom") else None,
    "data": sorted(os.listdir("/data")) if os.path.isdir("/data") else None,
    "snapshots": sorted(os.listdir("/snapshots")),
}))
"""
LISTEN = """\
import http.server
class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"from inside")
http.server.HTTPServer(("", 6006), Hello).serve_forever()
"""
COUNT = """\
import os, signal, sys, time
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append("TERM"))
signal.signal(signal.SIGUSR1, lambda *_: (heard.append("USR1"), print("USR1", flush=True)))
print("ready", flush=True)
while "TERM" not in heard:
    time.sleep(0.02)
time.sleep(0.5)
print("heard", *heard, flush=True)
"""


def told(box: DaemonFixture, job: str) -> dict[str, object]:
    end = box.end_of(job)
    assert end["state"] == "COMPLETED", (end, box.output(job))
    found: dict[str, object] = json.loads(box.output(job).splitlines()[-1])
    return found


def run_scheduler(box: DaemonFixture, *words: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [Path(sys.executable).parent / "run-scheduler", *map(str, words)],
        cwd=box.user, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_kub_02_to_06_a_script_finds_its_directories(ship: DaemonFixture, tmp_path: Path) -> None:
    custom, snapshots = tmp_path / "my, own", tmp_path / "snapshots"
    for each in (custom, snapshots):
        each.mkdir()
    (custom / "tell.py").write_text(TELL + "Path('/snapshots/x').write_text('from inside')\n")
    done = run_scheduler(
        ship, "--image_name", IMAGE, "--script_path", "/custom/tell.py", "--custom_dir", custom,
        "--snapshots_dir", snapshots, "--max_epochs", 3, "--batch_size", 8, "first",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = told(ship, "1")
    assert found["argv"] == ["/custom/tell.py"]
    assert found["custom"] == ["tell.py"]
    assert (snapshots / "x").read_text() == "from inside"
    environment = found["environment"]
    assert isinstance(environment, dict)
    assert environment["STOKER_CHECKPOINT_DIR"] == f"/snapshots/{environment['JOB_UUID']}"
    assert environment["JOB_UUID"] in os.listdir(snapshots)
    assert (environment["EPOCHS_TO_BE_DONE"], environment["BATCH_SIZE"]) == ("3", "8")


def test_kub_13_a_port_of_the_container_is_one_of_the_machine(
    podman: Podman, ship: DaemonFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in podman.networked.items():
        monkeypatch.setenv(name, value)
    port = free_port()
    ship.script("listen.py", LISTEN)
    job = ship.submit("--image", IMAGE, "--ports", f"{port}:6006", "--", "python3", "listen.py")

    def answer() -> bytes:
        try:
            with urlopen(f"http://127.0.0.1:{port}", timeout=5) as reply:
                found: bytes = reply.read()
                return found
        except OSError:
            return b""

    assert until(answer) == b"from inside"
    ship.client.cancel([job])
    assert ship.end_of(job)["state"] == "CANCELLED"


def test_its_directory_and_its_variables_are_there_and_no_others(
    ship: DaemonFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_HOST", "stays there")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    ship.script("tell.py", TELL)
    job = ship.submit(
        "--image", IMAGE, "--gpus", "2", "--env", "LR=0.1 'of' \"many\"", "--env", "name=mine",
        "--env", "TMPDIR=/scratch", "--env", "PATH=/usr/local/bin/.", "--env", "HOME=/scratch",
        "--mount", f"{ship.home}/gone:/data:optional", "--", "python3", "tell.py", "a b", "",
    )  # fmt: skip
    found = told(ship, job)
    assert found["argv"] == ["tell.py", "a b", ""]
    assert found["here"] == str(ship.user)
    assert found["data"] is None
    environment = found["environment"]
    assert isinstance(environment, dict)
    assert environment["LR"] == "0.1 'of' \"many\""
    assert environment["PYTHONPATH"] == "/stoker/lib:/srv/own"
    assert environment["STOKER_GPU_COUNT"] == "2"
    assert "OF_THE_HOST" not in environment
    assert (environment["name"], environment["PATH"]) == ("mine", "/usr/local/bin/.")
    assert (environment["HOME"], environment["TMPDIR"]) == ("/scratch", "/scratch")


def test_nothing_of_the_user_s_own_home_goes_in(ship: DaemonFixture) -> None:
    ship.script("tell.py", TELL)
    found = told(ship, ship.submit("--image", IMAGE, "--", "python3", "tell.py"))
    environment = found["environment"]
    assert isinstance(environment, dict)
    assert environment["HOME"] != os.environ["HOME"]


def test_the_library_and_what_the_image_brings_can_be_imported(ship: DaemonFixture) -> None:
    ship.script(
        "both.py",
        "from kubernetesdlprofile import kubeprofiler\nimport own, stoker.training\n"
        "api = kubeprofiler.KubeProfiler()\napi.start_epoch()\napi.measure()\napi.end_epoch()\n"
        "print(kubeprofiler.__file__, stoker.training.__file__, own.WHERE, api.EPOCHS)\n",
    )
    job = ship.submit("--image", IMAGE, "--epochs", "1", "--", "python3", "both.py")
    assert ship.end_of(job)["state"] == "COMPLETED", ship.output(job)
    assert ship.output(job).split() == [
        "/stoker/lib/kubernetesdlprofile/kubeprofiler.py",
        "/stoker/lib/stoker/training/__init__.py", "in", "the", "image", "1",
    ]  # fmt: skip
    assert ship.job(job)["training"]["epochs_done"] == 1


def test_whoever_the_image_runs_as_can_write_where_it_should(
    podman: Podman, ship: DaemonFixture
) -> None:
    podman.run("build", "--quiet", "--tag", "py:nobody", "-", input=f"FROM {IMAGE}\nUSER 65534\n")
    line = 'id -u; touch "$STOKER_REPORTS/r" "$STOKER_CHECKPOINT_DIR/c" && echo written'
    job = ship.submit("--image", "py:nobody", "--epochs", "1", line)
    assert ship.end_of(job)["state"] == "COMPLETED", ship.output(job)
    assert ship.output(job).split() == ["65534", "written"]
    script = ship.script("job.sh", "#!/bin/sh\necho $0 by $1\n")
    job = ship.submit("--image", "py:nobody", script, "nobody")
    assert ship.end_of(job)["state"] == "COMPLETED", ship.output(job)
    assert ship.output(job) == "/stoker/job by nobody\n"


def test_its_exit_code_is_the_containers_and_nothing_is_left(
    podman: Podman, ship: DaemonFixture
) -> None:
    failed = ship.result("--image", IMAGE, "echo out; echo err >&2; exit 7")
    assert (failed["state"], failed["exit_code"]) == ("FAILED", 7)
    assert failed["termination_note"] is None
    assert sorted(ship.output(failed["id"]).split()) == ["err", "out"]
    killed = ship.result("--image", IMAGE, "python3 -c 'import os; os.abort()'; exit $?")
    assert killed["exit_code"] == 134
    short = ship.result("--image", IMAGE, "echo 'CUDA out of memory' >&2; exit 1")
    assert short["state"] == "OUT_OF_MEMORY"
    assert podman.containers(ship) == []


def test_an_image_that_is_nowhere_is_said_in_a_sentence(ship: DaemonFixture) -> None:
    job = ship.result("--image", "nothing:1", "true")
    assert (job["state"], job["exit_code"]) == ("FAILED", 125)
    last = ship.output(job["id"]).splitlines()[-1]
    assert last == (
        "stoker: cannot run here: the image nothing:1 is not on this node and could not be "
        "fetched; build it on this node, or name another image"
    )


def test_without_an_engine_a_job_is_refused_at_submit(ship: DaemonFixture, tmp_path: Path) -> None:
    ship.stoker("daemon", "stop", check=True)
    (tmp_path / "python3").symlink_to(sys.executable)
    ship.start(env={"STOKER_CONTAINER_ENGINE": ""})
    refused = ship.stoker("submit", "--image", IMAGE, "true", env={"PATH": str(tmp_path)})
    assert refused.returncode == 2
    assert "this node has neither podman nor docker; leave --image out" in refused.stderr


def test_no_value_of_a_variable_is_on_a_command_line(ship: DaemonFixture) -> None:
    job = ship.submit(
        "--image", IMAGE, "--env", "PASSWORD=sesame4711", "--", "python3", "-c",
        "import os, time; print(os.environ['PASSWORD'], flush=True); time.sleep(60)",
    )  # fmt: skip
    ship.says(job, "sesame4711")
    lines = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                lines.append(Path(f"/proc/{entry}/cmdline").read_bytes())
            except OSError:
                continue
    assert any(b"stoker-container" in line for line in lines)
    seen = [line for line in lines if b"sesame4711" in line and b"submit" not in line]
    assert seen == []
    ship.client.cancel([job])
    ship.end_of(job)


def test_a_cancelled_container_ends_at_once_and_leaves_nothing(
    podman: Podman, ship: DaemonFixture
) -> None:
    """Its first process is one that the kernel shields from signals without a handler."""
    ship.script("child.py", COUNT)
    job = ship.submit("--image", IMAGE, "python3 child.py; echo next; sleep 60")
    ship.says(job, "ready")
    ship.client.cancel([job])
    end = ship.end_of(job, seconds=25)
    assert (end["state"], end["exit_code"]) == ("CANCELLED", 143)
    assert end["termination_note"] is None, "it needed no force"
    assert ship.output(job).split() == ["ready", "heard", "TERM"], "it ended; nothing came next"
    assert podman.containers(ship) == []


def test_it_can_be_paused_and_resumed(ship: DaemonFixture) -> None:
    line = "import time; print('on', flush=True); time.sleep(60)"
    job = ship.submit("--image", IMAGE, "--", "python3", "-c", line)
    ship.says(job, "on")
    token = f"STOKER_TOKEN={(ship.state / 'install').read_text()}.{job}.0".encode()
    inside = [
        pid
        for pid in processes()
        if mentions(pid, token) and b"python" in Path(f"/proc/{pid}/cmdline").read_bytes()[:9]
    ]
    assert len(inside) == 1
    ship.stoker("pause", job, check=True)
    until(lambda: state_of(inside[0]) == "T")
    ship.stoker("resume", job, check=True)
    until(lambda: state_of(inside[0]) == "S")
    ship.client.cancel([job])
    assert ship.end_of(job)["state"] == "CANCELLED"


def test_signals_come_through_once(ship: DaemonFixture) -> None:
    ship.script("child.py", COUNT)
    job = ship.submit("--image", IMAGE, "--", "python3", "child.py")
    ship.says(job, "ready")
    done = ship.stoker("kill", "--signal", "USR1", job)
    assert done.returncode == 0, done.stderr
    ship.says(job, "USR1")
    ship.client.cancel([job])
    assert ship.end_of(job)["state"] == "CANCELLED"
    assert ship.output(job).split() == ["ready", "USR1", "heard", "USR1", "TERM"]


def test_one_that_does_not_listen_is_killed_after_its_grace(
    podman: Podman, hasty: DaemonFixture
) -> None:
    deaf = "import signal, time; signal.signal(15, 1); print('on', flush=True); time.sleep(60)"
    job = hasty.submit("--image", IMAGE, "--", "python3", "-c", deaf)
    hasty.says(job, "on")
    hasty.client.cancel([job])
    assert hasty.end_of(job)["state"] == "CANCELLED"
    until(lambda: podman.containers(hasty) == [])


def test_one_that_is_killed_while_it_starts_leaves_nothing(
    podman: Podman, ship: DaemonFixture
) -> None:
    for _ in range(3):
        job = ship.submit("--image", IMAGE, "sleep 60")
        ship.pid_of(job)
        ship.stoker("kill", "--yes", job, check=True)
        assert ship.end_of(job)["state"] == "CANCELLED"
    until(lambda: podman.containers(ship) == [])


def test_a_killed_daemon_is_followed_by_one_that_takes_over(
    podman: Podman, ship: DaemonFixture
) -> None:
    ship.script("child.py", COUNT)
    ends = ship.submit("--image", IMAGE, "echo on; while [ ! -e go ]; do sleep 0.1; done; exit 5")
    stays = ship.submit("--image", IMAGE, "--", "python3", "child.py")
    ship.says(ends, "on")
    ship.says(stays, "ready")
    pid = ship.pid_of(stays)
    ship.crash()
    ship.up()
    assert ship.job(stays)["pid"] == pid
    assert alive(pid)
    (ship.user / "go").touch()
    assert ship.end_of(ends)["exit_code"] == 5
    ship.client.cancel([stays])
    assert ship.end_of(stays)["state"] == "CANCELLED"
    assert "heard TERM" in ship.output(stays)
    assert podman.containers(ship) == []


def test_a_container_is_removed_after_its_wrapper_was_killed(
    podman: Podman, hasty: DaemonFixture
) -> None:
    job = hasty.submit("--image", IMAGE, "--", "python3", "-c",
                      "import time; print('on', flush=True); time.sleep(60)")  # fmt: skip
    hasty.says(job, "on")
    os.kill(hasty.pid_of(job), signal.SIGKILL)
    assert hasty.end_of(job)["state"] == "FAILED"
    until(lambda: podman.containers(hasty) == [])


def test_a_slurm_script_finds_its_tools_in_the_image(ship: DaemonFixture) -> None:
    (ship.user / "tasks.sh").write_text(
        "#!/bin/sh\n#SBATCH -n 2\nsrun sh -c 'echo task $SLURM_PROCID'\n"
    )
    job = ship.submit("--image", IMAGE, "tasks.sh")
    assert ship.end_of(job)["state"] == "COMPLETED", ship.output(job)
    assert sorted(ship.output(job).splitlines()) == ["task 0", "task 1"]
