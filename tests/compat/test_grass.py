"""grass, row by row: what its guide promises, through the command itself."""

import itertools
import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.grass_env import Gate, GrassEnv, open_grass_env
from e2e.daemon_fixture import alive, kill, until

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def shared() -> Iterator[GrassEnv]:
    """One daemon for all: each test has queues and devices of its own."""
    with open_grass_env() as env:
        started = env.stoker("daemon", "start", "--gpus", "none")
        assert started.returncode == 0, started.stderr
        yield env


@pytest.fixture
def alone() -> Iterator[GrassEnv]:
    """A home in which no daemon runs yet."""
    with open_grass_env() as env:
        yield env


@pytest.fixture
def gate(shared: GrassEnv) -> Iterator[Gate]:
    found = Gate(shared.base, str(next(NUMBERS)))
    yield found
    found.open()


def gpus(count: int) -> str:
    """So many GPUs that no other test has."""
    return f"{{gpu:{json.dumps({f'g{next(NUMBERS)}': 1 for _ in range(count)})}}}"


def queue(env: GrassEnv, has: str, *more: str) -> str:
    """A new queue."""
    name = f"q{next(NUMBERS)}"
    env.done("create-queue", name, "--json", has, *more)
    return name


def statuses(env: GrassEnv, name: str) -> list[str]:
    return [job["status"] for _, job in sorted(env.jobs(name).items())]


# ------------------------------------------------------------------------------ the daemon


def test_grs_01_start_says_what_it_started_and_where(alone: GrassEnv):
    done = alone.grass("start", "--db", "SQLite")
    assert done.returncode == 0, done.stderr
    about = json.loads(alone.stoker("daemon", "status", "--json").stdout)
    assert f"pid {about['pid']}" in done.stderr
    socket = Path(about["socket"])
    assert str(socket) in done.stderr
    assert about["log"] in done.stderr
    assert stat.S_ISSOCK(socket.stat().st_mode)
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    assert alone.base in socket.parents
    for text in ("mysql", ""):
        assert "sqlite, postgres" in alone.refused("start", "--db", text)


def test_grs_02_stop_leaves_what_runs_to_the_next_daemon(alone: GrassEnv):
    assert "no daemon" in alone.grass("stop").stderr
    alone.stoker("daemon", "start", "--gpus", "none")
    name, gate = queue(alone, "{slot:1}"), Gate(alone.base, "stop")
    job = int(alone.done("enqueue", name, "--json", "{slot:1}", "--", *gate.command))
    alone.done("enqueue", name, "--json", "{slot:1}", "--", "true")
    alone.allocation(name, job)
    pid = json.loads(alone.stoker("show", job, "--json").stdout)["pid"]
    done = alone.grass("stop")
    assert done.returncode == 0
    assert "1 job continues" in done.stderr
    assert "1 pending job stays queued" in done.stderr
    assert alone.stoker("daemon", "status").returncode == 4
    assert alive(pid)
    alone.done("start")
    gate.open()
    alone.end("all")
    assert statuses(alone, name) == ["Finished", "Finished"]


def test_grs_02_stop_needs_a_word_more_when_other_work_is_in_the_daemon(alone: GrassEnv):
    alone.stoker("daemon", "start", "--gpus", "none")
    other = alone.stoker("submit", "--", "sleep", "60").stdout.strip()
    name = queue(alone, "{}")
    alone.done("enqueue", name, "--", "sleep", "60")
    message = alone.refused("stop", code=1)
    assert "1 unfinished job not submitted with grass" in message
    assert "grass stop --confirmed" in message
    assert alone.stoker("daemon", "status").returncode == 0
    alone.stoker("cancel", other)
    alone.end(other)
    assert alone.grass("stop").returncode == 0
    alone.stoker("submit", "--hold", "--", "true")
    assert alone.grass("stop", "--confirmed").returncode == 0
    assert alone.stoker("daemon", "status").returncode == 4


def test_grs_03_a_second_start_is_refused(shared: GrassEnv):
    pid = json.loads(shared.stoker("daemon", "status", "--json").stdout)["pid"]
    assert f"is already running (pid {pid})" in shared.refused("start", code=1)


# -------------------------------------------------------------------------------- queues


def test_grs_05_a_queue_is_created_once_by_text_or_file(shared: GrassEnv):
    name = queue(shared, "{a05:2}")
    assert "already exists" in shared.refused("create-queue", name, "--json", "{a05:2}", code=1)
    path = shared.user / "queue.json5"
    path.write_text("// what we have\n{b05: [2], 'c05': {a: 1}}\n")
    shared.done("create-queue", f"{name}f", "--file", path)
    assert shared.show(f"{name}f")["resources"] == {"b05": {"0": 2}, "c05": {"a": 1}}
    shared.done("create-queue", f"{name}i", "--file", "-", input="{d05:[1]}")
    for words in ((), ("--json", "{}", "--file", str(path))):
        assert "either --json" in shared.refused("create-queue", f"{name}x", *words)
    assert "cannot be read" in shared.refused("create-queue", "x", "--file", "/nowhere")
    path.write_bytes(b"{a:\xff}")
    assert "UTF-8" in shared.refused("create-queue", "x", "--file", path)
    for bad in ("a b", "", "default", "a/b", "x" * 65):
        shared.refused("create-queue", bad, "--json", "{a05:1}")
    assert "twice" in shared.refused("create-queue", "x", "--json", "{}", "--json", "{}")
    assert "x" not in {view["name"] for view in json.loads(shared.done("show"))}


def test_grs_06_a_deleted_queue_s_running_jobs_go_on(shared: GrassEnv, gate: Gate):
    name = queue(shared, "{a06:1}")
    job = shared.done("enqueue", name, "--json", "{a06:1}", "--", *gate.command)
    waiting = shared.done("enqueue", name, "--json", "{a06:1}", "--", "true")
    shared.allocation(name, int(job))
    assert f"{name} has 1 pending job" in shared.refused("delete-queue", name, code=1)
    done = shared.grass("delete-queue", name, "--confirmed")
    assert "cancelled 1 pending job" in done.stderr
    assert f"deleted {name}; 1 running job continues" in done.stderr
    assert name not in {view["name"] for view in json.loads(shared.done("show"))}
    assert "the queue does not exist" in shared.refused("delete-queue", name)
    states = {
        view["id"]: view["state"]
        for view in json.loads(shared.stoker("show", job, waiting, "--json").stdout)
    }
    assert states == {int(job): "RUNNING", int(waiting): "CANCELLED"}
    # The device is still held, also for a new queue that names it.
    shared.done("create-queue", name, "--json", "{a06:1}")
    assert shared.show(name)["available"] == {"a06": {"0": 0}}
    gate.open()
    shared.end(job)
    assert shared.show(name)["available"] == {"a06": {"0": 1}}


def test_grs_07_enqueue_prints_the_id_and_needs_nothing_by_default(shared: GrassEnv, gate: Gate):
    name = queue(shared, "{slot07:1}")
    full = shared.done("enqueue", name, "--json", "{slot07:1}", "--", *gate.command)
    shared.allocation(name, int(full))
    id = shared.done("enqueue", name, "python", "-c", "1", "--json", "--cwd")
    assert id.isdecimal()
    shared.end(id)
    job = shared.jobs(name)[int(id)]
    assert job["cmd"] == ["python", "-c", "1", "--json", "--cwd"]
    assert (job["require"], job["status"]) == ({}, "Finished")
    assert "the queue does not exist" in shared.refused("enqueue", "nowhere", "--", "true")
    for words in (("enqueue",), ("enqueue", name), ("enqueue", name, "--", "A=1")):
        shared.refused(*words)
    assert "write --" in shared.refused("enqueue", name, "-x", "true")
    assert "is not an assignment" in shared.refused("enqueue", name, "-e", "1=2", "--", "true")
    assert "--json needs a value" in shared.refused("enqueue", name, "--json")
    assert "does not exist" in shared.refused("enqueue", name, "--cwd", "/nowhere", "--", "true")
    assert list(shared.jobs(name)) == [int(id), int(full)]


def test_grs_07_a_job_that_asks_for_no_core_is_not_bounded_by_the_cores(
    shared: GrassEnv, gate: Gate
):
    name = queue(shared, "{}")
    threads = ("sh", "-c", "echo ${OMP_NUM_THREADS-as many as there are}")
    assert shared.output(name, "--", *threads) == "as many as there are\n"
    more = (os.cpu_count() or 1) + 2
    for _ in range(more):
        shared.done("enqueue", name, "--", *gate.command)
    until(lambda: statuses(shared, name)[1:] == ["Running"] * more)


def test_grs_08_show_takes_a_queue_as_a_word_or_an_option(shared: GrassEnv):
    name = queue(shared, "{hdd08:[32,0.5],cpu:2}")
    id = int(shared.done("enqueue", name, "-e", "A=secret", "--json", "{hdd08:0.25}", "--", "true"))
    shared.end(id)
    view = shared.show(name)
    assert json.loads(shared.done("show", "--queue", name)) == view
    assert next(v for v in json.loads(shared.done("show")) if v["name"] == name) == view
    assert {"name", "id", "future_jobs", "running_jobs"} <= set(view)
    assert view["resources"] == {"hdd08": {"0": 32, "1": 0.5}, "cpu": {"0": 1, "1": 1}}
    assert view["available"] == view["resources"]
    job = view["past_jobs"][0]
    assert job["id"] == id
    assert job["cwd"] == str(shared.user)
    assert (job["cmd"], job["require"]) == (["true"], {"hdd08": 0.25})
    assert (job["status"], job["exit_code"]) == ("Finished", 0)
    assert job["envs"] == ["A"]
    assert "secret" not in json.dumps(view)
    assert "the queue does not exist" in shared.refused("show", "nowhere")
    shared.refused("show", name, "--queue", name)
    shared.refused("show", "--limit", "many")


def test_grs_08_a_person_sees_a_table(shared: GrassEnv, gate: Gate):
    name = queue(shared, "{gpu:{x08:1,y08:1}}", "--backfill")
    run = shared.done("enqueue", name, "--json", "{gpu:1.5}", "--", *gate.command)
    shared.allocation(name, int(run))
    shared.done("enqueue", name, "--json", "{gpu:1}", "--", "echo", "a b")
    text = shared.done("show", name, "--table").splitlines()
    assert text[:2] == [f"{name} (backfill)", "  gpu: 0.5 of 2 free (x08: 0, y08: 0.5)"]
    assert text[2].split() == ["ID", "STATUS", "TIME", "NEEDS", "HAS", "NODE", "COMMAND"]
    assert text[3].split()[:2] == [run, "Running"]
    node = shared.jobs(name)[int(run)]["node"]
    assert f"gpu:1.5  gpu:x08,y08  {node}  " in text[3]
    assert text[4].split()[1:] == ["Created", "-", "gpu:1", "-", "-", "echo", "'a", "b'"]
    shared.done("enqueue", name, "--json", "{gpu:1}", "--", "true")
    assert "and 1 pending job more" in shared.done("show", name, "--table", "--limit", "1")


@pytest.mark.parametrize(
    ("has", "shown"),
    [
        ("{a:4,b:2}", {"a": {str(n): 1 for n in range(4)}, "b": {"0": 1, "1": 1}}),
        ("{a:[32,64,0.125]}", {"a": {"0": 32, "1": 64, "2": 0.125}}),
        ("{a:{'2':1,'4':0.5}}", {"a": {"2": 1, "4": 0.5}}),
        ("{\"a\":0,'b':[1],}", {"b": {"0": 1}}),
    ],
)
def test_grs_09_json5_and_all_three_forms(
    shared: GrassEnv, has: str, shown: dict[str, dict[str, float]]
):
    own = f"z{next(NUMBERS)}"
    text = has.replace("a", f"{own}a").replace("b", f"{own}b")
    found = shared.show(queue(shared, text))["resources"]
    assert found == {own + kind: devices for kind, devices in shown.items()}


def test_grs_11_a_job_lands_on_a_device_that_is_large_enough(shared: GrassEnv, gate: Gate):
    name = queue(shared, "{hdd11:[32,64]}")
    job = int(shared.done("enqueue", name, "--json", "{hdd11:50}", "--", *gate.command))
    assert shared.allocation(name, job) == {"hdd11": ["1"]}
    assert shared.show(name)["available"] == {"hdd11": {"0": 32, "1": 14}}


def test_grs_12_devices_keep_their_names(shared: GrassEnv):
    name = queue(shared, "{gpu:{'212':1,'412':1}}")
    assert shared.output(name, "--json", "{gpu:1}", "--", "echo", "on", "{gpu}") == "on 212\n"


def test_grs_13_nonsense_is_refused_and_the_daemon_lives(shared: GrassEnv):
    message = shared.refused("create-queue", "x13", "--json", '{gpu:"x"}')
    assert "Unsupported resource capacity. It should be int, list, or dictionary" in message
    assert shared.stoker("daemon", "status").returncode == 0
    assert "the queue does not exist" in shared.refused("show", "x13")


def test_grs_14_one_device_with_a_capacity_is_shared(shared: GrassEnv, gate: Gate):
    name = queue(shared, "{RAM14:[512]}")
    for _ in range(3):
        shared.done("enqueue", name, "--json", "{RAM14:256}", "--", *gate.command)
    until(lambda: statuses(shared, name) == ["Running", "Running", "Created"])
    assert shared.show(name)["available"] == {"RAM14": {"0": 0}}


# -------------------------------------------------------------------------- allocation


def test_grs_15_ten_tenths_fill_a_device_exactly(shared: GrassEnv, gate: Gate):
    name = queue(shared, gpus(1))
    for _ in range(11):
        shared.done("enqueue", name, "--json", "{gpu:0.1}", "--", *gate.command)
    until(lambda: statuses(shared, name) == ["Running"] * 10 + ["Created"])
    assert set(shared.show(name)["available"]["gpu"].values()) == {0}
    gate.open()
    shared.end("all")
    assert statuses(shared, name) == ["Finished"] * 11


def test_grs_16_and_29_several_devices(shared: GrassEnv):
    name = queue(shared, "{gpu:{a16:1,b16:1,c16:1,d16:1}}")
    words = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert shared.output(name, "--json", "{gpu:2}", "--", *words) == "a16,b16\n"


def test_grs_16_nothing_is_spread_over_devices_of_other_capacities(shared: GrassEnv):
    name = queue(shared, "{hdd16:[32,64,128]}")
    message = shared.refused("enqueue", name, "--json", "{hdd16:150}", "--", "true")
    assert "can never allocate 150 hdd16" in message
    assert "128" in message
    assert shared.jobs(name) == {}


def test_grs_17_devices_are_given_out_in_order(shared: GrassEnv, gate: Gate):
    name = queue(shared, "{gpu:{a17:1,b17:1,c17:1,d17:1}}")
    ids = [
        int(shared.done("enqueue", name, "--json", "{gpu:1}", "--", *gate.command))
        for _ in range(4)
    ]
    found = [shared.allocation(name, id)["gpu"] for id in ids]
    assert found == [["a17"], ["b17"], ["c17"], ["d17"]]


def test_grs_18_devices_are_filled_in_everywhere_but_the_directory(shared: GrassEnv):
    name = queue(shared, "{gpu:{'echo':1},hdd18:[8],cpu:{core18:1}}")
    needs = ("--json", "{gpu:1,hdd18:2,cpu:1}")
    assert shared.output(name, *needs, "--", "{gpu}", "gpu={gpu}", "{hdd18}{cpu}") == (
        "gpu=echo 0core18\n"
    )
    shared.refused("enqueue", name, *needs, "--cwd", "{gpu}", "--", "true")


def test_grs_19_variables_reach_the_job(shared: GrassEnv):
    name = queue(shared, "{gpu:{a19:1,b19:1}}")
    words = ("-e", "CUDA_VISIBLE_DEVICES={gpu}", "-eB=1=2", "--env=C={gpu}-{x}", "--env", "D=")
    script = 'echo "$CUDA_VISIBLE_DEVICES|$B|$C|$D"'
    found = shared.output(name, *words, "--json", "{gpu:2}", "--", "sh", "-c", script)
    assert found == "a19,b19|1=2|a19,b19-{x}|\n"


def test_grs_20_other_braces_stay(shared: GrassEnv):
    name = queue(shared, gpus(1))
    words = ('{"a":1}', "{}", "{ gpu }", "${HOME}", "{gpus}", "{cpu}", "{0}", "{")
    assert shared.output(name, "--json", "{gpu:1}", "--", "echo", *words) == f"{' '.join(words)}\n"


def test_grs_21_assignments_before_the_command_are_variables(shared: GrassEnv):
    name = queue(shared, "{gpu:{a21:1}}")
    script = 'echo "$A $CUDA_VISIBLE_DEVICES $1"'
    words = ("A=x y", "CUDA_VISIBLE_DEVICES={gpu}", "sh", "-c", script, "-", "B={gpu}")
    found = shared.output(name, "-e", "A=0", "--json", "{gpu:0.5}", "--", *words)
    assert found == "x y a21 B=a21\n"
    found = shared.output(name, "--json", "{gpu:1}", "--", "sh", "-c", "X={gpu} env | grep ^X=")
    assert found == "X=a21\n"


def test_grs_22_a_job_runs_where_it_was_enqueued(shared: GrassEnv):
    name, there = queue(shared, "{}"), shared.user / "data"
    there.mkdir()
    assert shared.output(name, "--", "pwd", cwd=there) == f"{there}\n"
    assert shared.output(name, "--cwd=data", "--", "pwd") == f"{there}\n"


def test_grs_23_each_job_has_a_log(shared: GrassEnv):
    name = queue(shared, "{}")
    texts = {
        shared.output(name, "--", "sh", "-c", f"echo out{n}; echo err{n} >&2") for n in range(2)
    }
    assert texts == {"out0\nerr0\n", "out1\nerr1\n"}


def test_grs_24_and_33_a_failed_job_is_shown_with_its_code_and_log(shared: GrassEnv):
    name = queue(shared, "{}")
    said = shared.output(name, "--", "sh", "-c", "echo why; exit 1")
    assert said == "why\n"
    shared.output(name, "--", "sh", "-c", "kill -9 $$")
    failed, killed = shared.show(name)["past_jobs"]
    assert (failed["status"], failed["exit_code"]) == ("Failed(1)", 1)
    assert Path(failed["log"]).read_text() == "why\n"
    assert killed["status"] == "Failed(137)"
    assert f"log: {failed['log']}" in shared.done("show", name, "--table")


# ------------------------------------------------------------------------------- order


def test_grs_25_an_impossible_job_is_rejected_and_blocks_no_other(shared: GrassEnv):
    name = queue(shared, "{gpu:{a25:1},cpu:4}")
    assert "has no tpu: it has gpu, cpu" in shared.refused(
        "enqueue", name, "--json", "{tpu:1}", "--", "true"
    )
    assert "it has 4 in total" in shared.refused(
        "enqueue", name, "--json", "{cpu:4.001}", "--", "true"
    )
    for bad in (
        "{gpu:-1}",
        "{gpu:NaN}",
        "{gpu:[1]}",
        "{gpu:1,gpu:2}",
        "gpu",
        "[1]",
        "{gpu:0.0001}",
    ):
        shared.refused("enqueue", name, "--json", bad, "--", "true")
    assert shared.jobs(name) == {}
    shared.end(shared.done("enqueue", name, "--json", "{gpu:1}", "--", "true"))
    assert statuses(shared, name) == ["Finished"]


@pytest.mark.parametrize("backfill", [False, True])
def test_grs_25_only_with_backfill_does_a_job_pass_another(
    shared: GrassEnv, gate: Gate, backfill: bool
):
    name = queue(shared, gpus(2), *(["--backfill"] if backfill else []))
    for needs in ("{gpu:1}", "{gpu:1.5}", "{gpu:0.5}"):
        shared.done("enqueue", name, "--json", needs, "--", *gate.command)
    small = "Running" if backfill else "Created"
    until(lambda: statuses(shared, name) == ["Running", "Created", small])


def test_grs_26_all_that_fits_starts_at_once(shared: GrassEnv, gate: Gate):
    name, first = queue(shared, gpus(1)), Gate(shared.base, "26")
    shared.done("enqueue", name, "--json", "{gpu:1}", "--", *first.command)
    for _ in range(2):
        shared.done("enqueue", name, "--json", "{gpu:0.5}", "--", *gate.command)
    until(lambda: statuses(shared, name) == ["Running", "Created", "Created"])
    first.open()
    until(lambda: statuses(shared, name) == ["Finished", "Running", "Running"])


def test_grs_27_two_queues_never_over_commit_a_device(shared: GrassEnv, gate: Gate):
    a, b = queue(shared, "{gpu:{a27:1}}"), queue(shared, "{gpu:{a27:1,b27:1}}")
    one = int(shared.done("enqueue", a, "--json", "{gpu:0.5}", "--", *gate.command))
    assert shared.allocation(a, one) == {"gpu": ["a27"]}
    two = int(shared.done("enqueue", b, "--json", "{gpu:1.5}", "--", *gate.command))
    assert shared.allocation(b, two) == {"gpu": ["b27", "a27"]}  # the whole one first
    shared.done("enqueue", a, "--json", "{gpu:0.1}", "--", "true")
    assert shared.show(a)["available"] == {"gpu": {"a27": 0}}
    until(lambda: statuses(shared, a) == ["Running", "Created"])
    message = shared.refused("create-queue", "x27", "--json", "{gpu:{a27:2}}")
    assert "capacity of 1, not 2" in message
    queue(shared, "{cpu:{c27:1}}")
    message = shared.refused("create-queue", "x27", "--json", "{cpu:{c27:2}}")
    assert "cpu 'c27' has a capacity of 1" in message
    assert "queue-cpu" not in message


def test_grs_27_gpus_are_the_machine_s_where_it_has_any(alone: GrassEnv):
    alone.stoker("daemon", "start", "--gpus", "0,1")
    assert "no gpu '2'" in alone.refused("create-queue", "q", "--json", "{gpu:3}")
    alone.done("create-queue", "q", "--json", "{gpu:{'1':1}}")
    gate = Gate(alone.base, "27")
    plain = alone.stoker("submit", "--gpus", "2", "--", *gate.command).stdout.strip()
    until(lambda: json.loads(alone.stoker("show", plain, "--json").stdout)["pid"])
    id = int(alone.done("enqueue", "q", "--json", "{gpu:1}", "--", "echo", "{gpu}"))
    assert alone.show("q")["available"] == {"gpu": {"1": 0}}
    assert alone.jobs("q")[id]["status"] == "Created"
    gate.open()
    alone.end(id)
    assert Path(alone.jobs("q")[id]["log"]).read_text() == "1\n"


def test_grs_28_any_resource_and_jobs_know_their_devices(shared: GrassEnv):
    name = queue(shared, "{licence:{matlab:1,r:1},slot28:1}")
    words = ("sh", "-c", "echo {licence} $STOKER_LICENCE")
    assert shared.output(name, "--json", "{licence:0.2}", "--", *words) == "matlab matlab\n"


def test_grs_29_whole_devices_come_first(shared: GrassEnv, gate: Gate):
    name = queue(shared, "{gpu:{a29:1,b29:1,c29:1}}")
    half = int(shared.done("enqueue", name, "--json", "{gpu:0.5}", "--", *gate.command))
    assert shared.allocation(name, half) == {"gpu": ["a29"]}
    more = int(shared.done("enqueue", name, "--json", "{gpu:2.5}", "--", *gate.command))
    assert shared.allocation(name, more) == {"gpu": ["b29", "c29", "a29"]}


def test_grs_30_nothing_is_lost_or_run_twice_after_a_crash(alone: GrassEnv):
    alone.stoker("daemon", "start", "--gpus", "none")
    name, gate = queue(alone, "{slot:3}"), Gate(alone.base, "30")
    script = f"echo run >> ran-$0; {gate.command[2]}"
    ids = [
        int(alone.done("enqueue", name, "--json", "{slot:1}", "--", "sh", "-c", script, str(n)))
        for n in range(10)
    ]
    until(lambda: len(list(alone.user.glob("ran-*"))) == 3)
    kill(json.loads(alone.stoker("daemon", "status", "--json").stdout)["pid"])
    alone.done("start")
    assert sorted(alone.jobs(name)) == ids
    assert alone.show(name)["resources"] == {"slot": {"0": 1, "1": 1, "2": 1}}
    assert sorted(statuses(alone, name)) == ["Created"] * 7 + ["Running"] * 3
    gate.open()
    alone.end("all")
    assert statuses(alone, name) == ["Finished"] * 10
    assert {path.read_text() for path in alone.user.glob("ran-*")} == {"run\n"}
    assert len(list(alone.user.glob("ran-*"))) == 10


# ---------------------------------------------------------------------------- the command


def test_help_and_slips_of_the_finger(shared: GrassEnv):
    assert "create-queue" in shared.done("--help")
    assert shared.done() == shared.done("help")
    for verb in ("start", "stop", "create-queue", "delete-queue", "enqueue", "show"):
        assert f"grass {verb}" in shared.done(verb, "--help")
    assert "Did you mean enqueue?" in shared.refused("enqeue", "q1", "true")
    assert "Did you mean --backfill?" in shared.refused("create-queue", "q", "--bakfill")
    assert "takes no value" in shared.refused("show", "--json=1")
    for verb in ("start", "stop"):
        shared.refused(verb, "now")
    for verb in ("create-queue", "delete-queue"):
        assert "one queue" in shared.refused(verb)


def test_an_enqueue_imports_nothing_heavy(shared: GrassEnv):
    name = queue(shared, "{gpu:{fast:1}}")
    code = (
        "import sys; bare = set(sys.modules)\n"
        "from stoker.compat.registry import run_compat_command\n"
        f"argv = ['enqueue', '{name}', '--json', '{{gpu:0.5}}', '--', 'true']\n"
        "code = run_compat_command('grass', argv)\n"
        "sys.stderr.write(' '.join(set(sys.modules) - bare)); sys.exit(code)"
    )
    done = shared.run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    heavy = {"pyjson5", "re", "json", "dataclasses", "msgspec", "argparse", "typing", "enum"}
    assert not heavy & set(done.stderr.split())
