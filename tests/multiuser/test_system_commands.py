"""Users and `stoker system run`: routing, listing, the end, and the move of a user's own queue."""

import contextlib
import fcntl
import http.client
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import require
from multiuser.conftest import Machine
from multiuser.machine_copy import MachineCopy, machine_copy
from multiuser.users import User, end_processes

OWN = {"STOKER_MODE": "own"}


class SystemCopy:
    """An installation with gate and daemon under `stoker system run`."""

    def __init__(self, copy: MachineCopy) -> None:
        self.copy = copy
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start both programs, and return when the gate listens: it lets users wait."""
        self.process = subprocess.Popen(
            self.copy.command(self.copy.program, "system", "run"), stderr=subprocess.PIPE,
            text=True, cwd="/", env={"PATH": os.environ["PATH"]}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self.read_until("listening on")

    def read_until(self, words: str) -> str:
        """Return the first line of the output with these words."""
        assert self.process is not None
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if words in line:
                return line
        raise AssertionError(f"it ended without {words!r}")

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stderr is not None
        self.process.stderr.read()
        self.process.stderr.close()
        return self.process.wait(60)

    def __call__(
        self, *words: object, user: User, env: dict[str, str] | None = None, code: int = 0
    ) -> str:
        """Run a command of a user; return its output."""
        done = self.copy.stoker(*words, user=user, env=env)
        assert done.returncode == code, done.stderr
        return done.stdout

    def json(self, *words: object, user: User, env: dict[str, str] | None = None) -> Any:
        return json.loads(self(*words, "--json", user=user, env=env))


@pytest.fixture
def stopped(machine: Machine, gate_dir: Path) -> Iterator[SystemCopy]:
    """An installation that is not started; processes of users end with the test."""
    require("unshare", "nsenter", "setpriv")
    with machine_copy(gate_dir, machine.installation.command) as copy:
        assert copy.stoker("system", "install", "--yes").returncode == 0
        system = SystemCopy(copy)
        try:
            yield system
        finally:
            if system.process is not None and system.process.poll() is None:
                system.stop()
            daemon = copy.run("id", "-u", "stoker").stdout.strip()
            for user in (*machine.people, *([daemon] if daemon else ())):
                end_processes(user.uid if isinstance(user, User) else int(user))
            for user in machine.people:
                for path in user.home.iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture
def system(stopped: SystemCopy) -> SystemCopy:
    stopped.start()
    return stopped


def test_jobs_of_users_run_as_them_and_that_is_said_once(
    machine: Machine, system: SystemCopy
) -> None:
    for user in (machine.ana, machine.ben):
        done = system.copy.stoker("run", "--", "id", "-un", user=user)
        assert done.stdout.strip() == user.name
        assert done.stderr.count("system daemon of this machine") == 1
        done = system.copy.stoker("run", "--", "id", "-un", user=user)
        assert (done.stdout.strip(), "system daemon" in done.stderr) == (user.name, False)


def test_each_user_lists_own_jobs_and_on_request_those_of_others(
    machine: Machine, system: SystemCopy
) -> None:
    ana, ben = machine.ana, machine.ben
    for user in (ana, ben):
        system("submit", "--hold", "--", "true", user=user)

    def users(*options: str) -> set[str]:
        return {job["user"] for job in system.json("queue", *options, user=ana)["jobs"]}

    assert users() == {ana.name}
    assert users("--all-users") == {ana.name, ben.name}
    assert users("--user", ben.name) == {ben.name}

    for user in (ana, ben):
        system("cancel", "last", user=user)
    ended = system.json("history", user=ana)["jobs"]
    assert {job["user"] for job in ended} == {ana.name}
    ended = system.json("history", "--all-users", user=ana)["jobs"]
    assert {job["user"] for job in ended} == {ana.name, ben.name}


def test_squeue_lists_the_jobs_of_all_users(machine: Machine, system: SystemCopy) -> None:
    ana, ben = machine.ana, machine.ben
    for user in (ana, ben):
        system("submit", "--hold", "--", "true", user=user)

    def squeue(*options: str) -> set[str]:
        command = (machine.installation.python, "-P", "-m", "stoker.compat.slurm", "squeue")
        return set(system.copy.run(*command, "-h", "-o", "%u", *options, user=ana).stdout.split())

    assert squeue() == {ana.name, ben.name}
    assert squeue("-u", ben.name) == {ben.name}
    assert squeue("--me") == {ana.name}


def test_programs_that_are_killed_are_started_again(machine: Machine, system: SystemCopy) -> None:
    ready = machine.ana.home / "ready"
    os.mkfifo(ready)
    os.chown(ready, machine.ana.uid, -1)
    job = system("submit", "--", "echo yes > ready; exec sleep 600", user=machine.ana).strip()
    assert ready.read_text() == "yes\n"
    view = json.loads(system.copy.stoker("system", "status", "--json").stdout)
    assert machine.ana.uid in [each["uid"] for each in view["users"]]
    os.kill(view["daemon"]["pid"], signal.SIGKILL)
    system.read_until("started the daemon")
    os.kill(view["gate"]["pid"], signal.SIGKILL)
    system.read_until("listening on")
    assert system.json("show", job, user=machine.ana)["state"] == "RUNNING"
    system("cancel", job, user=machine.ana)
    assert system.stop() == 0


def test_the_terminal_of_a_job_is_that_of_its_user(machine: Machine, system: SystemCopy) -> None:
    words = ("run", "--pty", "--", "sh", "-c", "echo go; read word; echo got $word; exit 3")
    terminal, end = os.openpty()
    with os.fdopen(terminal, "rb", buffering=0) as reader:
        process = subprocess.Popen(
            system.copy.command(system.copy.program, *words, user=machine.ana), cwd="/",
            stdin=end, stdout=end, stderr=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], **machine.ana.environment()},
        )  # fmt: skip
        os.close(end)
        output = b""
        while b"go\r\n" not in output:
            output += reader.read(1000)
        os.write(terminal, b"yes\n")
        with contextlib.suppress(OSError):  # the end of the other side
            while piece := reader.read(1000):
                output += piece
        assert (process.wait(60), b"got yes" in output) == (3, True), output


def open_port(system: SystemCopy) -> None:
    """Let the daemon listen on a free loopback port."""
    config = "printf '[api]\\nlisten = \"127.0.0.1:0\"\\n' >> /etc/stoker/config.toml"
    assert system.copy.run("sh", "-c", config).returncode == 0


def test_a_user_gets_a_session_at_the_port_of_the_configuration(
    machine: Machine, stopped: SystemCopy
) -> None:
    ana, ben = machine.ana, machine.ben
    open_port(stopped)
    stopped.start()
    job = stopped("submit", "--", "echo private; exec sleep 600", user=ben).strip()
    url, _, code = stopped("ui", "--print", user=ana).strip().partition("/#c=")
    own = {"Stoker-Session": "1", "Sec-Fetch-Site": "same-origin"}

    def ask(method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {**own, "Content-Type": "application/json"})
        reply = connection.getresponse()
        if cookie := reply.headers["Set-Cookie"]:
            own["Cookie"] = cookie.partition(";")[0]
        text = reply.read()
        connection.close()
        return reply.status, json.loads(text)

    assert ask("POST", "/v1/sessions/open", {"code": code})[1]["user"] == ana.name
    (view,) = ask("GET", "/v1/jobs")[1]["jobs"]
    assert (view["user"], view["command"]) == (ben.name, "")
    assert ask("GET", f"/v1/jobs/{job}/log")[0] == 403
    assert ask("POST", "/v1/cancel", {"select": [job]})[0] == 403
    assert ask("POST", "/v1/limits", {"subject": "*", "max_gpus": "0"})[0] == 403
    stopped("cancel", job, user=ben)


def test_a_token_lists_the_jobs_of_its_user(machine: Machine, system: SystemCopy) -> None:
    ana, ben = machine.ana, machine.ben
    listen = "from stoker.client.client import connect; connect().listen('127.0.0.1:0', tls=True)"
    done = system.copy.run(machine.installation.python, "-P", "-c", listen)
    assert done.returncode == 0, done.stderr
    token = ana.home / "token"
    token.write_text(system("token", "create", "--name", "x", user=ana))
    token.chmod(0o600)
    os.chown(token, ana.uid, ana.gid)
    (port,) = system.json("daemon", "status", user=ana)["listeners"]
    remote = {
        "STOKER_SERVER": f"tls://{port['address']}", "STOKER_TOKEN_FILE": str(token),
        "STOKER_FINGERPRINT": port["fingerprint"],
    }  # fmt: skip
    for user in (ana, ben):
        system("submit", "--hold", "--", "true", user=user)
    for options, users in (((), {ana.name}), (("--all-users",), {ana.name, ben.name})):
        jobs = system.json("queue", *options, user=ana, env=remote)["jobs"]
        assert {job["user"] for job in jobs} == users


def test_without_a_port_ui_says_what_an_administrator_sets(
    machine: Machine, system: SystemCopy
) -> None:
    done = system.copy.stoker("ui", "--print", user=machine.ana)
    assert (done.returncode, "[api] listen" in done.stderr) == (5, True), done.stderr
    opened = system.copy.stoker("ui", "--print")
    assert opened.returncode == 0, opened.stderr
    (act,) = json.loads(system.copy.stoker("history", "--acts", "--json").stdout)["acts"]
    assert (act["verb"], act["uid"]) == ("POST /listen", 0)
    assert "null" not in act["what"]


def test_failures_of_others_are_not_counted_as_own(machine: Machine, system: SystemCopy) -> None:
    system("run", "--", "false", user=machine.ben, code=1)
    assert "FAILED" not in system.json("queue", user=machine.ana)["counts"]
    assert system.json("queue", user=machine.ben)["counts"]["FAILED"] == 1


def test_status_and_nodes_say_if_gpus_are_not_isolated(
    machine: Machine, stopped: SystemCopy
) -> None:
    stopped.copy.run("sed", "-i", '1i gpus = "0"', "/etc/stoker/config.toml")
    stopped.copy.run("sed", "-i", '1i device_groups = "/proc/none"', "/etc/stoker/gate.toml")
    stopped.start()
    stopped("run", "--", "true", user=machine.ana)
    for words in (("nodes",), ("system", "status")):
        assert "GPUs are not isolated" in stopped(*words, user=machine.ana)


def test_uninstall_waits_for_jobs_and_for_the_programs(
    machine: Machine, system: SystemCopy
) -> None:
    job = system("submit", "--", "sleep 600", user=machine.ana).strip()
    done = system.copy.stoker("system", "uninstall", "--yes")
    assert (done.returncode, "1 job" in done.stderr) == (1, True)
    system("cancel", job, user=machine.ana)
    system("wait", job, user=machine.ana, code=143)
    done = system.copy.stoker("system", "uninstall", "--yes")
    assert (done.returncode, "system run" in done.stderr) == (1, True)
    assert system.stop() == 0
    # Other tests have such processes, too, which count as those of this machine.
    assert system.copy.stoker("system", "uninstall", "--yes", "--force").returncode == 0
    # Without an installation, each user has a daemon again.
    system("submit", "--", "true", user=machine.ana)


def test_run_gives_up_a_program_that_cannot_start(stopped: SystemCopy) -> None:
    stopped.copy.run("sh", "-c", "echo 'nonsense = 1' > /etc/stoker/gate.toml")
    done = stopped.copy.stoker("system", "run")
    assert done.returncode == 1
    assert "nonsense" in done.stderr
    assert "times in a row" in done.stderr


def test_commands_about_a_daemon_say_that_it_is_the_one_of_all_users(
    machine: Machine, system: SystemCopy
) -> None:
    ana = machine.ana
    assert system.json("daemon", "status", user=ana)["mode"] == "system"
    refused = [("daemon", action) for action in ("start", "restart", "log", "stop")]
    for words in (*refused, ("db", "path")):
        done = system.copy.stoker(*words, user=ana)
        assert (done.returncode, "system daemon" in done.stderr) == (1, True), done.stderr
    assert "pid" in system.json("daemon", "start", user=ana, env=OWN)
    system("daemon", "stop", user=ana, env=OWN)


def test_lines_of_feed_are_jobs_of_the_system_daemon(machine: Machine, system: SystemCopy) -> None:
    lines = machine.ana.home / "lines"
    lines.write_text("id -un > one\nid -un > two\n")
    lines.chmod(0o644)
    done = system.copy.stoker("feed", "lines", user=machine.ana)
    assert (done.returncode, "stoker logs" in done.stderr) == (0, True), done.stderr
    assert {(machine.ana.home / name).read_text().strip() for name in ("one", "two")} == {
        machine.ana.name
    }
    assert len(system.json("history", user=machine.ana)["jobs"]) == 2


# -- the move of a user's own queue ---------------------------------------------------------------


@pytest.fixture
def own_queue(machine: Machine, stopped: SystemCopy) -> Iterator[Path]:
    """Jobs of ana in a daemon of her own: one runs until a file is there, the others wait."""
    ana = machine.ana
    marks = ana.home / "marks"
    marks.mkdir(mode=0o700)
    os.chown(marks, ana.uid, ana.gid)
    os.mkfifo(marks / "go")
    os.chown(marks / "go", ana.uid, ana.gid)

    def submit(*words: str) -> str:
        return stopped("submit", *words, user=ana, env=OWN).strip()

    submit("-J", "runs", "--", "cat marks/go")
    submit("-J", "after-run", "--dependency", "afterok:1", "--", "echo x >> marks/after-run")
    submit("-J", "held", "--hold", "--nice", "5", "--", "echo x >> marks/held")
    submit("-J", "first", "--begin", "now+1hours", "-t", "10m", "--", "echo x >> marks/first")
    submit("-J", "second", "--dependency", "afterok:4", "--env", "A=b c", "--",
           "echo $A >> marks/second")  # fmt: skip
    submit("-J", "array", "--array", "1-3%1", "--begin", "now+1hours", "--",
           "echo x >> marks/array-$STOKER_ARRAY_INDEX")  # fmt: skip
    sweep = ("sweep", "--hold", "-J", "sweep", "--param", "lr=7,8")
    stopped(*sweep, "sh", "-c", "echo x >> marks/sweep-{lr}", user=ana, env=OWN)
    try:
        yield marks
    finally:
        with contextlib.suppress(OSError):
            os.close(os.open(marks / "go", os.O_WRONLY | os.O_NONBLOCK))


def run_moved_jobs(system: SystemCopy, user: User) -> dict[str, Any]:
    """Let all moved jobs start and end; return them by name."""
    views = system.json("queue", "--expand", user=user)["jobs"]
    system("edit", "all", "--begin", "now", user=user)
    system("release", "all", user=user, code=0)
    for view in views:
        system("wait", f"{view['id']}-{view['id']}", user=user)
    return {f"{view['name']}-{view['label']}": view for view in views}


def assert_each_ran_once(marks: Path) -> None:
    expected = {"held": "x\n", "first": "x\n", "second": "b c\n"}
    expected |= {f"array-{index}": "x\n" for index in (1, 2, 3)}
    expected |= {f"sweep-{rate}": "x\n" for rate in (7, 8)}
    found = {path.name: path.read_text() for path in marks.iterdir() if path.name != "go"}
    assert found == {**expected, **({"after-run": "x\n"} if "after-run" in found else {})}


def test_a_queue_is_moved_and_what_runs_ends_where_it_is(
    machine: Machine, stopped: SystemCopy, own_queue: Path
) -> None:
    ana = machine.ana
    stopped.start()
    before = stopped.json("system", "adopt", "--dry-run", user=ana)
    done = stopped.json("system", "adopt", user=ana)
    assert list(done["moved"]) == before["move"] == ["4", "6", "3", "5", "9"]
    assert {job["label"] for job in done["kept"]} == {"1", "2"}
    assert done["problems"] == []
    views = {view["name"]: view for view in stopped.json("queue", user=ana)["jobs"]}
    assert views["held"]["reason"] == "JobHeldUser"
    assert views["held"]["priority"] == -5
    assert views["first"]["time_limit"] == 600
    assert views["second"]["reason"] == "Dependency"
    assert stopped.json("system", "adopt", user=ana)["moved"] == {}
    (lock,) = (ana.home / ".local/state/stoker").glob("*/adopt.lock")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = stopped.copy.stoker("system", "adopt", user=ana)
        assert (done.returncode, "Another" in done.stderr) == (1, True)
    run_moved_jobs(stopped, ana)
    with (own_queue / "go").open("w"):
        pass
    stopped("wait", "2", user=ana, env=OWN)
    assert_each_ran_once(own_queue)
    assert (own_queue / "after-run").exists()


KILLED_AT = """
import os, signal, sys
from stoker.client import client
from stoker.cli.system.move import Plan
left = [int(sys.argv.pop(1))]
def step(function):
    def wrapped(*args, **kwargs):
        for _ in range(2):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            if _ == 0:
                result = function(*args, **kwargs)
        return result
    return wrapped
client.Client._request = step(client.Client._request)
Plan.write = step(Plan.write)
sys.argv[0] = "stoker"
from stoker.main import main
sys.exit(main())
"""


def test_a_move_that_is_killed_at_any_step_is_completed_by_the_next(
    machine: Machine, stopped: SystemCopy, own_queue: Path
) -> None:
    ana = machine.ana
    stopped.start()
    python = machine.installation.python
    for step in range(1, 500):
        command = (python, "-P", "-c", KILLED_AT, step, "system", "adopt")
        done = stopped.copy.run(*command, user=ana)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert step > 20
    run_moved_jobs(stopped, ana)
    assert_each_ran_once(own_queue)


def test_jobs_that_the_system_daemon_rejects_stay_with_what_depends_on_them(
    machine: Machine, stopped: SystemCopy
) -> None:
    ana = machine.ana
    stopped("submit", "--", "cat /dev/zero > /dev/null", user=ana, env=OWN)
    for words in (("--hold",), ("--dependency", "afterok:2", "--on-end", "true"),
                  ("--hold", "-J", "alone")):  # fmt: skip
        stopped("submit", *words, "--", "true", user=ana, env=OWN)
    stopped.start()
    done = stopped.copy.stoker("system", "adopt", "--json", user=ana)
    assert done.returncode == 1
    reply = json.loads(done.stdout)
    assert list(reply["moved"]) == ["4"]
    assert {job["label"] for job in reply["kept"]} == {"1", "2", "3"}
    (view,) = stopped.json("queue", user=ana)["jobs"]
    assert view["name"] == "alone"
    own = {
        view["label"]: view["reason"] for view in stopped.json("queue", user=ana, env=OWN)["jobs"]
    }
    assert own == {"1": None, "2": "JobHeldUser", "3": "Dependency"}
