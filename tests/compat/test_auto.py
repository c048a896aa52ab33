"""`auto` row by row: what the old tool promised, did, and should have done."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from compat.auto_env import EXAMPLES, UNFINISHED, UNTIL_GO, AutoEnv, open_auto_env
from e2e.daemon_fixture import alive, until
from stoker.cli.output import times
from stoker.client.client import Client
from stoker.compat.auto.lookup import find_tasks

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def wide_home() -> Iterator[AutoEnv]:
    with open_auto_env() as env:
        yield env.serve("--gpus", 0, 1, 2, 3, "--port", 0)


@pytest.fixture
def wide(wide_home: AutoEnv) -> Iterator[AutoEnv]:
    """A server with four GPUs and the usual settings."""
    yield wide_home
    wide_home.tidy()


SMALL = ("--gpus", 0, 1, 2, "--max-run", 2, "--num-records", 2, "--limit", 2, "--port", 0)


@pytest.fixture(scope="module")
def small_home() -> Iterator[AutoEnv]:
    with open_auto_env() as env:
        yield env.serve(*SMALL, "--log-file", env.base / "log")


@pytest.fixture
def small(small_home: AutoEnv) -> Iterator[AutoEnv]:
    """A server with narrow limits and a log file."""
    yield small_home
    small_home.tidy()


@pytest.fixture
def idle() -> Iterator[AutoEnv]:
    """A home without a server."""
    with open_auto_env() as env:
        yield env


def say(port: int, data: bytes) -> bytes:
    """What comes back when this is said to a port."""
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        reply = b""
        while piece := sock.recv(65536):
            reply += piece
        return reply


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


# --------------------------------------------------------------------------------- server


def test_aut_01_the_server_wants_the_numbers_of_gpus(idle: AutoEnv) -> None:
    pipe = idle.base / "pipe"
    os.mkfifo(pipe)
    for text in (
        "", "--gpus", "--gpus a", "--gpus 0 0", "--gpus -1", "--gpus 0 --port 99999",
        "--gpus 0 --max-run 0", "--gpus 0 --limit none", "--gpus 0 --max-load 10",
        "--gpus 0 --max-memory x", "--gpus 0 --bind 0.0.0.0", "--gpus 0 --unknown",
        "--gpus 0 --log-file /nowhere/at/all", f"--gpus 0 --log-file {pipe}",
    ):  # fmt: skip
        idle.refused("server", *text.split(), code=2)
    assert not (idle.base / "home" / "run").exists(), "nothing is started"


def test_aut_02_the_queue_length_is_limited_and_ids_are_never_reused(small: AutoEnv) -> None:
    blocker = small.task("sleep 60", "-n", 2)
    small.running(blocker)
    waiting = [small.task("true", "-n", 2) for _ in range(2)]
    done = small.auto("run", "-c", "true", "-n", 2)
    assert done.returncode == 1
    assert done.stdout == "Reaching the maximum number (2) of pending tasks to run!\n"
    small.ok("cancel", "-i", *waiting)
    assert small.task("true", "-n", 2) > max(waiting) > blocker


def test_aut_03_the_records_shown_of_each_kind_are_limited(small: AutoEnv) -> None:
    good = [small.task("true") for _ in range(3)]
    bad = [small.task("exit 1") for _ in range(3)]
    for id in (*good, *bad):
        small.ended(id)
    shown, failed = small.ids(), small.ids("-f")
    assert (len(shown), len(failed)) == (2, 2)
    assert set(shown) < set(good)
    assert set(failed) < set(bad)


def test_aut_04_the_port_is_found_through_the_runtime_directory(idle: AutoEnv) -> None:
    port = free_port()
    idle.serve("--gpus", 0, "--port", port)
    assert idle.record["port"] == port
    assert "Runner Status:" in idle.ok("status", cwd=Path("/"))
    assert "Runner Status:" in idle.ok("--port", port, "status")
    assert "Runner Status:" in idle.ok("--ip", "127.0.0.1", f"--port={port}", "status")
    assert "Runner Status:" in idle.ok("--ip", "[::1]", "status")
    assert f"Use --port {port}" in idle.refused("--port", port - 1, "status", code=4)
    for odd in ("127.1", "", "127.0.0.999"):
        assert "takes an address" in idle.refused(f"--ip={odd}", "status", code=2)


def test_aut_05_no_task_gets_more_gpus_than_the_limit(small: AutoEnv) -> None:
    assert "at most 2 GPUs" in small.refused("run", "-c", "true", "-n", 3, code=2)
    assert small.result("echo $CUDA_VISIBLE_DEVICES", "-n", 2) == "0,1\n"
    assert small.client.jobs(state=UNFINISHED)["jobs"] == []


def test_aut_07_what_happens_is_appended_to_the_log_file(small: AutoEnv) -> None:
    id = small.task("exit 7", "-n", 2)
    small.ended(id)
    log = small.base / "log"
    lines = until(lambda: [ln for ln in log.read_text().splitlines() if f"task {id} ended" in ln])
    assert re.match(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \| task \d+ ended with return code 7", lines[0]
    )
    node = small.client.daemon()["node"]
    assert f"task {id} started on GPU 0,1 of {node}: exit 7" in log.read_text()
    assert f"task {id} ended" in small.out.read_text()


def test_aut_09_neither_gputil_nor_zmq_is_needed(idle: AutoEnv) -> None:
    text = (
        "import sys, stoker.compat.auto.server, stoker.compat.auto.verbs\n"
        "print({'GPUtil', 'zmq', 'distutils'} & set(sys.modules))"
    )
    assert idle.run(sys.executable, "-c", text).stdout == "set()\n"


def test_aut_10_priority_first_then_first_come_first_served(wide: AutoEnv) -> None:
    wide.running(wide.task(UNTIL_GO, "-n", 4))
    order = [
        wide.task(f"echo {name} >> order", "-n", 4, "-p", priority)
        for name, priority in (("a", 10), ("b", 10), ("c", 1), ("d", 10), ("e", -3), ("f", 11))
    ]
    (wide.user / "go").touch()
    for id in order:
        wide.ended(id)
    assert (wide.user / "order").read_text().split() == ["e", "c", "a", "b", "d", "f"]


def test_aut_10_the_usual_priority_is_that_of_other_jobs(wide: AutoEnv) -> None:
    assert wide.client.jobs([str(wide.task("true"))])["jobs"][0]["priority"] == 0


def test_aut_11_an_impossible_task_is_rejected_and_blocks_no_other(wide: AutoEnv) -> None:
    assert "9 GPUs" in wide.refused("run", "-c", "true", "-n", 9, code=2)
    assert wide.result("echo fine") == "fine\n"


def test_aut_13_a_task_that_leaves_its_gpu_idle_keeps_it(wide: AutoEnv) -> None:
    first = wide.running(wide.task("sleep 60"))
    second = wide.running(wide.task("sleep 60"))
    assert (first["devices"]["gpu"], second["devices"]["gpu"]) == (["0"], ["1"])


def test_aut_14_the_lowest_free_gpus_are_given_out(wide: AutoEnv) -> None:
    assert wide.result("echo $CUDA_VISIBLE_DEVICES", "-n", 2) == "0,1\n"
    wide.running(wide.task("sleep 60", "-n", 2))
    assert wide.result("echo $CUDA_VISIBLE_DEVICES") == "2\n"


def test_aut_15_a_task_has_the_directory_and_environment_of_its_submitter(wide: AutoEnv) -> None:
    place = wide.user / "a place"
    place.mkdir()
    wide.env["MY_SETTING"] = "x y"
    try:
        said = wide.result("pwd; echo $MY_SETTING; echo $0", cwd=place)
    finally:
        del wide.env["MY_SETTING"]
    assert said == f"{place}\nx y\n/bin/sh\n"
    assert wide.result("pwd", "--chdir", "a place") == f"{place}\n"


def test_aut_15_a_task_has_a_session_of_its_own(wide: AutoEnv) -> None:
    pid, session = wide.result("echo $$; cut -d' ' -f6 /proc/$$/stat").split()
    assert pid == session


def test_aut_16_cancelling_the_only_pending_task_blocks_no_other(wide: AutoEnv) -> None:
    blocker = wide.task(UNTIL_GO, "-n", 4)
    wide.running(blocker)
    only = wide.task("true")
    assert f"{only} " in wide.ok("cancel", "-i", only)
    assert "Pending Tasks:\nnone\n" in wide.ok("status")
    (wide.user / "go").touch()
    wide.ended(blocker)
    assert wide.result("echo on") == "on\n"


def test_aut_17_an_unknown_option_is_answered_and_the_server_lives(wide: AutoEnv) -> None:
    body = b'{"option": "nope"}'
    assert b"HTTP/1.1 400" in say(wide.port, body + b"\r\n\r\n")
    head = (
        b"POST /v1/nope HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n" % wide.token.encode()
    )
    reply = say(wide.port, head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert b"HTTP/1.1 404" in reply
    assert wide.result("echo alive") == "alive\n"


def test_aut_18_a_killed_server_loses_nothing(idle: AutoEnv) -> None:
    idle.serve("--gpus", 0, "--port", 0)
    task = idle.task(f"{UNTIL_GO}; exit 5")
    pid = idle.running(task)["pid"]
    waiting = idle.task("echo later")
    idle.stop(signal.SIGKILL)
    assert alive(pid)
    idle.refused("status", code=4)
    idle.serve("--gpus", 0, "--port", 0)
    until(lambda: "2 unfinished tasks from an earlier server" in idle.out.read_text())
    assert len(idle.client.daemon()["listeners"]) == 1, "the old port is closed"
    (idle.user / "go").touch()
    assert idle.auto("wait", task).returncode == 5
    assert idle.auto("wait", waiting).returncode == 0
    assert idle.ids("-f") == [task]


def test_aut_18_a_start_that_fails_leaves_a_killed_servers_port_to_the_next(idle: AutoEnv) -> None:
    usual = {"load": 0.1, "memory": 0.1, "processes": True}
    idle.serve("--gpus", 0, "--port", 0, "--max-load", 0.7, "--num-records", 0)
    idle.stop(signal.SIGKILL)
    idle.refused("server", "--gpus", 0, 7, "--port", 0, code=2)
    idle.serve("--gpus", 0, "--port", 0, "--max-load", 0.5)
    daemon = idle.client.daemon()
    assert [each["address"] for each in daemon["listeners"]] == idle.record["addresses"]
    assert daemon["thresholds"] == {"load": 0.5, "memory": 0.1, "processes": False}
    idle.ended(idle.task("true"))
    assert idle.ids() == [1], "the settings are the new ones"
    idle.stop()
    assert idle.client.daemon()["thresholds"] == usual, "as before the first server"


def test_aut_18_a_killed_daemon_is_replaced(idle: AutoEnv) -> None:
    idle.serve("--gpus", 0, "--port", 0)
    task = idle.task(f"{UNTIL_GO}; exit 5")
    idle.running(task)
    os.kill(int(idle.client.daemon()["pid"]), signal.SIGKILL)
    until(lambda: "connected to the new daemon" in idle.out.read_text())
    (idle.user / "go").touch()
    assert idle.auto("wait", task).returncode == 5
    until(lambda: f"task {task} ended with return code 5" in idle.out.read_text())


def test_aut_18_a_daemon_that_is_restarted_gets_its_port_back(idle: AutoEnv) -> None:
    idle.serve("--gpus", 0, "--port", 0)
    port = idle.port
    task = idle.task(f"echo before; {UNTIL_GO}; echo after")
    idle.running(task)
    command = [sys.executable, "-m", "stoker.compat.auto", "logs", "-f", str(task)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=idle.env, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "before\n"
        assert idle.run(sys.executable, "-m", "stoker", "daemon", "restart").returncode == 0
        (idle.user / "go").touch()
        assert reader.stdout.read() == "after\n"
    assert reader.returncode == 0
    until(lambda: "connected to the new daemon" in idle.out.read_text())
    assert idle.port == port
    assert idle.result("echo $CUDA_VISIBLE_DEVICES") == "0\n"


def test_aut_19_input_of_the_port_is_never_evaluated(wide: AutoEnv) -> None:
    text = b'__import__("os").system("touch %s/evil")' % os.fsencode(wide.user)
    say(wide.port, text)
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(text)
    assert b"HTTP/1.1 401" in say(wide.port, head + b"\r\n" + text)
    token = b"Authorization: Bearer %s\r\n\r\n" % wide.token.encode()
    assert b"HTTP/1.1 400" in say(wide.port, head + token + text)
    assert wide.result("echo alive") == "alive\n"
    assert not (wide.user / "evil").exists()


def test_one_server_at_a_time(wide: AutoEnv) -> None:
    text = wide.refused("server", "--gpus", 0, "--port", 0, code=1)
    assert f"pid {wide.record['pid']}" in text


def test_a_port_in_use_is_reported_and_no_server_starts(idle: AutoEnv) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        assert "in use" in idle.refused("server", "--gpus", 0, "--port", port, code=1)
    idle.refused("status", code=4)


def test_a_daemon_that_lacks_a_gpu_is_not_changed(idle: AutoEnv) -> None:
    assert (
        idle.run(sys.executable, "-m", "stoker", "daemon", "start", "--gpus", "0").returncode == 0
    )
    text = idle.refused("server", "--gpus", 0, 3, "--port", 0, code=2)
    assert "no GPU 3" in text
    assert "stoker daemon restart --gpus 0,3" in text


def test_a_stopped_server_reports_running_tasks_and_accepts_no_client(idle: AutoEnv) -> None:
    idle.serve("--gpus", 0, "--port", 0)
    port = idle.port
    idle.running(idle.task("sleep 60"))
    idle.task("true")
    assert idle.stop() == 0
    assert "1 running and 1 pending tasks continue" in idle.out.read_text()
    idle.refused("status", code=4)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
    assert idle.client.daemon()["listeners"] == []


# --------------------------------------------------------------------------------- client


def test_aut_30_twenty_clients_at_once(wide: AutoEnv) -> None:
    with ThreadPoolExecutor(20) as pool:
        asks = [pool.submit(wide.task, f"echo {n}") for n in range(10)]
        looks = [pool.submit(wide.ok, "status") for _ in range(10)]
        ids = sorted(ask.result() for ask in asks)
        assert all("Runner Status:" in look.result() for look in looks)
    assert len(set(ids)) == 10
    for id in ids:
        wide.ended(id)
    assert sorted(wide.ids()) == ids


def test_aut_30_a_missing_server_is_reported_at_once(idle: AutoEnv) -> None:
    for words in (("status",), ("run", "-c", "true"), ("--port", 25646, "history")):
        assert "auto server --gpus" in idle.refused(*words, code=4)
    assert not (idle.base / "home" / "state").exists(), "a client starts nothing"


def test_aut_30_a_port_where_something_else_listens_is_no_server(idle: AutoEnv) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        idle.refused("--port", port, "status", code=4)
        sock.settimeout(0)
        with pytest.raises(BlockingIOError):
            sock.accept()


def test_aut_31_run_prints_the_id_and_returns_at_once(wide: AutoEnv) -> None:
    first = wide.ok("run", "--cmd", "sleep 60", "--num-gpus", "1", "--priority", "10")
    second = wide.ok("run", "-c", "sleep 60", "-n", "2", "-p", "3")
    assert re.fullmatch(r"Task id: [1-9]\d*\n", first)
    assert int(second.split()[-1]) == int(first.split()[-1]) + 1
    view = wide.running(int(second.split()[-1]))
    assert (view["priority"], view["request"]["gpus"], view["client"]) == (7, "2", "auto")


def test_aut_31_what_makes_no_sense_is_refused_and_not_queued(wide: AutoEnv) -> None:
    before = wide.client.daemon()["seq"]
    for words in (
        (), ("-c", ""), ("-c", "  "), ("-c", "true", "-n", "x"), ("-c", "true", "-n", "-1"),
        ("-c", "true", "-p", "1.5"), ("-c", "true", "--cpus", "many"),
        ("-c", "true", "--memory", "lots"), ("-c", "true", "extra"), ("-c",), ("-x",),
    ):  # fmt: skip
        wide.refused("run", *words, code=2)
    assert wide.client.daemon()["seq"] == before


def test_aut_32_status_has_its_headings_and_then_tables(wide: AutoEnv) -> None:
    wide.running(wide.task("sleep 61", "-n", 4))
    wide.task("echo next", "-p", "2")
    lines = wide.ok("status").splitlines()
    assert lines[:2] == ["Runner Status:", "Running Tasks:"]
    middle = lines.index("Pending Tasks:")
    assert "0,1,2,3" in lines[middle - 1]
    assert lines[middle - 1].endswith("sleep 61")
    assert lines[-1].endswith("echo next")
    assert "needs 1 GPU" in lines[-1]


def test_aut_33_only_pending_tasks_are_cancelled_and_unknown_ids_reported(wide: AutoEnv) -> None:
    running = wide.task("sleep 60", "-n", 4)
    wide.running(running)
    waiting = wide.task("echo w")
    done = wide.auto("cancel", "--id", waiting, running, 99999)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "Canceled Tasks:"
    assert done.stdout.splitlines()[-1].endswith("echo w")
    assert "task 99999 unchanged: there is no such task" in done.stderr
    assert f"task {running} unchanged: it is running" in done.stderr
    assert "Runner Status:" in wide.ok("status")
    assert (wide.state(running), wide.state(waiting)) == ("RUNNING", "CANCELLED")
    assert wide.ids() == wide.ids("-f") == []


def test_aut_33_many_ids_are_asked_for_at_once(wide: AutoEnv) -> None:
    wide.running(wide.task("sleep 60", "-n", 4))
    waiting = wide.task("true")
    done = wide.auto("cancel", "--json", "-i", *range(100_000, 103_000), waiting)
    said = json.loads(done.stdout)
    assert [task["id"] for task in said["done"]] == [waiting]
    assert len(said["left"]) == 3000


def test_an_id_that_is_none_does_not_hide_the_others(wide: AutoEnv) -> None:
    asked = []

    class Counting(Client):
        def jobs(self, select: "Sequence[str]" = (), **filters: object) -> dict[str, Any]:
            asked.append(len(select))
            return super().jobs(select, **filters)

    ids = [wide.task("true"), wide.task("true")]
    found = find_tasks(Counting(wide.client.path), [0, ids[0], *range(100_000, 101_200), ids[1]])
    assert sorted(found) == ids
    assert len(asked) < 6, "not one request for each"


def test_aut_34_only_running_tasks_are_killed(wide: AutoEnv) -> None:
    task = wide.task("exec sleep 60", "-n", 4)
    wide.running(task)
    waiting = wide.task("sleep 60", "-n", 4)
    done = wide.auto("kill", "-i", task, waiting)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "Killed Tasks:"
    assert f"task {waiting} unchanged: it is not running" in done.stderr
    wide.ended(task)
    failed = json.loads(wide.ok("history", "-f", "--json"))
    assert [(each["id"], each["return_code"]) for each in failed] == [(task, -15)]
    wide.running(waiting)


def test_aut_34_a_task_that_ignores_term_dies_within_the_grace(wide: AutoEnv) -> None:
    task = wide.task("trap '' TERM; echo ready; while :; do sleep 0.1; done")
    view = wide.running(task)
    until(lambda: "ready" in Path(view["log"]).read_text())
    wide.ok("kill", "-i", task)
    assert wide.ended(task)["signal"] == 9
    assert not alive(view["pid"])


def test_aut_34_jobs_of_other_commands_are_left_alone(wide: AutoEnv) -> None:
    other = wide.run(sys.executable, "-m", "stoker", "submit", "sleep 60").stdout.strip()
    wide.running(int(other))
    held = wide.run(sys.executable, "-m", "stoker", "submit", "--hold", "true").stdout.strip()
    assert wide.auto("kill", "-i", other).returncode == 1
    assert wide.auto("cancel", "-i", held).returncode == 1
    assert (wide.state(int(other)), wide.state(int(held))) == ("RUNNING", "PENDING")
    assert wide.auto("wait", other).returncode == 3


def test_aut_35_history_shows_the_most_recent_the_oldest_first(wide: AutoEnv) -> None:
    good = [wide.task("true") for _ in range(3)]
    for id in good:
        wide.ended(id)
    bad = wide.task("exit 4", "-n", 2)
    wide.ended(bad)
    lines = wide.ok("history").splitlines()
    assert lines[0] == "Succeed Tasks:"
    assert sorted(int(line.split()[0]) for line in lines[2:]) == good
    assert wide.ids("-n", "-1") == wide.ids()
    assert wide.ids("--num-records", 1) == wide.ids()[-1:]
    assert wide.ids("-n", 0) == []
    lines = wide.ok("history", "--fail").splitlines()
    assert lines[0] == "Failed Tasks:"
    heading = "ID NUM GPUS GPUS NODE PRIORITY ENDED TIME CODE COMMAND"
    assert " ".join(lines[1].split()) == heading
    node, ended = wide.client.daemon()["node"], wide.client.history([str(bad)])["jobs"][0]
    shown = [str(bad), "2", "0,1", node, "10", *times.absolute(ended["ended_at"]).split()]
    assert lines[2].split()[:7] == shown
    assert max(map(len, lines)) <= 80
    (task,) = json.loads(wide.ok("history", "-f", "--json"))
    assert (task["id"], task["cmd"], task["num_gpus"], task["return_code"]) == (bad, "exit 4", 2, 4)
    assert (task["GPUs"], task["node"], task["priority"]) == ("0,1", node, 10)
    for name in ("submit_time", "start_time", "end_time"):
        time.strptime(task[name], "%Y-%m-%d-%H:%M:%S")


def test_aut_37_exit_codes_mean_something(wide: AutoEnv) -> None:
    assert wide.auto("cancel", "-i", 99999).returncode == 1
    assert wide.auto("wait", 99999).returncode == 3
    assert "No command given" in wide.refused(code=2)
    assert "auto has no command" in wide.refused("nope", code=2)
    assert "No task ids given" in wide.refused("kill", code=2)
    wide.refused("cancel", "-i", "one", code=2)
    wide.refused("--port", "x", "status", code=2)
    assert "-c COMMAND. See: auto run --help" in wide.refused("run", "-c", code=2)
    assert "--num-gpus" in wide.ok("run", "--help")
    assert "history" in wide.ok("--help")


def test_aut_39_the_alias_of_the_guide(wide: AutoEnv) -> None:
    script = wide.user / "s.sh"
    script.write_text(f"alias auto='python {EXAMPLES}/client.py'\nauto status\n")
    done = wide.run("sh", script)
    assert done.stdout.startswith("Runner Status:\n"), done.stderr


def test_aut_40_output_is_in_files_and_a_new_server_knows_the_past(idle: AutoEnv) -> None:
    idle.serve("--gpus", 0, "--port", 0)
    good, bad = idle.task("echo out; echo err >&2"), idle.task("exit 9")
    idle.ended(good)
    idle.ended(bad)
    idle.stop()
    idle.run(sys.executable, "-m", "stoker", "daemon", "stop")
    idle.serve("--gpus", 0, "--port", 0)
    assert (idle.ids(), idle.ids("-f")) == ([good], [bad])
    path = idle.ok("logs", "--path", good).strip()
    assert Path(path).read_text() == "out\nerr\n" == idle.ok("logs", good)
    assert path in idle.ok("history", "-v")


def test_aut_41_a_task_can_ask_for_cores_and_memory(wide: AutoEnv) -> None:
    id = wide.task("true", "--cpus", 1, "--memory", "64M", "-n", 0)
    asked = wide.ended(id)["request"]
    assert (asked["cpus"], asked["memory"], asked["gpus"]) == ("1", 64, None)
    assert "cpu" in wide.refused("run", "-c", "true", "--cpus", 100_000, code=2)


def test_aut_42_status_is_an_aligned_table(wide: AutoEnv) -> None:
    for command in ("sleep 60", "sleep 6000"):
        wide.running(wide.task(command, "-n", 2))
    wide.task("echo one")
    lines = wide.ok("status").splitlines()
    heading = lines[2]
    assert " ".join(heading.split()) == "ID NUM GPUS GPUS NODE PRIORITY STARTED TIME COMMAND"
    at = heading.index("COMMAND")
    assert [line[at:] for line in lines[3:5]] == ["sleep 60", "sleep 6000"]
    shown = json.loads(wide.ok("--json", "status"))
    assert [task["cmd"] for task in shown["running"]] == ["sleep 60", "sleep 6000"]
    assert shown["pending"][0]["log"].endswith(".out")


@pytest.mark.parametrize("words", [("history", "--clear"), ("clean",)])
def test_aut_43_the_history_can_be_emptied(wide: AutoEnv, words: "tuple[str, ...]") -> None:
    ids = [wide.task("true"), wide.task("exit 1")]
    for id in ids:
        wide.ended(id)
    wide.ok(*words)
    assert wide.ok("history") == "Succeed Tasks:\nnone\n"
    assert wide.ok("history", "-f") == "Failed Tasks:\nnone\n"
    wide.ended(later := wide.task("true"))
    assert wide.ids() == [later]
    assert wide.client.history([str(ids[1])])["jobs"], "nothing is lost"


def test_aut_45_wait_returns_the_code_of_the_task(wide: AutoEnv) -> None:
    ids = [wide.task(f"exit {code}") for code in (0, 3)]
    assert [wide.auto("wait", id).returncode for id in ids] == [0, 3]
    assert wide.auto("wait", *ids).returncode == 3
    endless = wide.task("sleep 60")
    assert wide.auto("wait", endless, "--timeout", "0.1").returncode == 101


@pytest.mark.needs("bash")
def test_aut_46_a_script_sees_its_gpus(wide: AutoEnv) -> None:
    (wide.user / "s.sh").write_text("echo gpus $CUDA_VISIBLE_DEVICES\n")
    assert wide.result("bash s.sh", "-n", 2) == "gpus 0,1\n"


# ---------------------------------------------------------------------------------- guide

GUIDE = """\
nohup python server.py \\
    --gpus 0 1 2 3 \\
    --max-run 10000 \\
    --num-records 10000 \\
    --port PORT \\
    --limit 8 \\
    --max-load 0.1 \\
    --max-memory 0.1 &
tries=0
until python client.py status; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || exit 1
    sleep 0.1
done
python client.py run \\
    --cmd "echo one > $HOME/said && echo two >> $HOME/said" \\
    --num-gpus 1 \\
    --priority 10
python client.py wait 1
python client.py status
python client.py run --cmd "sleep 60" --num-gpus 4
python client.py run --cmd "sleep 60" --num-gpus 4
python client.py cancel \\
    --id 3
python client.py kill \\
    --id 2
python client.py wait 2
python client.py history \\
    --num-records -1
python client.py history -f
python client.py --ip 127.0.0.1 --port PORT status
kill $!
wait $!
"""


def test_the_lines_of_the_guide_work_as_written(idle: AutoEnv) -> None:
    script = idle.user / "guide.sh"
    script.write_text(GUIDE.replace("PORT", str(free_port())))
    done = idle.run("sh", script, cwd=EXAMPLES)
    assert done.returncode == 0, done.stderr
    assert (idle.user / "said").read_text() == "one\ntwo\n"
    said = done.stdout
    # Server and clients share one stdout, so that lines may meet: no ends of lines here.
    for text in ("Task id: 1", "Task id: 3", "Canceled Tasks:", "Killed Tasks:",
                 "Succeed Tasks:", "Failed Tasks:", "task 1 started on GPU 0 of "):  # fmt: skip
        assert text in said, said
    failed = said.partition("Failed Tasks:\n")[2].splitlines()
    assert failed[1].split()[0] == "2"
    assert " -15 " in failed[1]
    assert not list(EXAMPLES.glob("nohup.out"))


def test_the_module_is_a_command_as_well(wide: AutoEnv) -> None:
    done = wide.run(sys.executable, "-m", "stoker", "compat", "auto", "status")
    assert done.stdout.startswith("Runner Status:\n")
    process = subprocess.run(
        [sys.executable, "-m", "stoker.compat.auto"], env=wide.env, capture_output=True,
        check=False, timeout=20,
    )  # fmt: skip
    assert process.returncode == 2
