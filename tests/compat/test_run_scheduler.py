"""run-scheduler and its friends, row by row, by real daemons with stand-in GPUs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client.fake_daemon import FakeDaemon, view
from compat.grass_env import Gate
from compat.run_scheduler_env import RunSchedulerEnv, open_run_scheduler_env
from e2e.daemon_fixture import alive, until
from stoker import places
from stoker.client.errors import UsageError
from stoker.compat.run_scheduler import arguments as typed
from stoker.compat.run_scheduler import table
from stoker.compat.run_scheduler.jobs import full_id
from stoker.core.model.spec import Container, Mount
from stoker.core.options.submit import ParseContext, parse_options
from stoker.main import main

FLAGS = (
    "--image_name", "--script_path", "--custom_dir", "--snapshots_dir", "--batch_size",
    "--training_set_size", "--max_epochs", "--is_single_gpu", "--disable_gpu_sharing",
    "--estimated_memory", "--port_mapping", "--est_nhours",
)  # fmt: skip


HEADING = ["ID", "NAME", "STATE", "EPOCHS", "GPUS", "MEMORY", "SENT", "TIME", "LEFT"]


@pytest.fixture(scope="module")
def large() -> Iterator[RunSchedulerEnv]:
    """A machine with four GPUs."""
    with open_run_scheduler_env(4) as env:
        yield env


@pytest.fixture(scope="module")
def small_one() -> Iterator[RunSchedulerEnv]:
    with open_run_scheduler_env(1) as env:
        yield env


@pytest.fixture
def small(small_one: RunSchedulerEnv) -> Iterator[RunSchedulerEnv]:
    """A machine with one GPU, on which nothing runs."""
    yield small_one
    small_one.end_all()


class Dumped:
    """What one job was told, and what was said of it."""

    def __init__(self, env: RunSchedulerEnv) -> None:
        self.snapshots = env.user / "snaps"
        self.snapshots.mkdir()
        self.id = env.submit(
            "--script_path", "/custom/dump.py", "--custom_dir", env.user,
            "--snapshots_dir", self.snapshots, "--batch_size", 32, "--training_set_size", 6400,
            "--max_epochs", 7, "--estimated_memory", 3000, "--est_nhours", 2.5, "told",
        )  # fmt: skip
        env.end(self.id.rpartition("-")[2])
        told: dict[str, Any] = json.loads(env.logs(self.id))
        self.argv: list[str] = told["argv"]
        self.env: dict[str, str] = told["env"]
        self.api: dict[str, Any] = told["api"]
        self.view = env.view(self.id)


@pytest.fixture(scope="module")
def dumped(large: RunSchedulerEnv) -> Dumped:
    return Dumped(large)


@pytest.fixture
def sent(home: Path) -> Iterator[FakeDaemon]:
    """What the command sends, without anybody to run it."""
    daemon = FakeDaemon(Path(places.socket_path()))
    reply = {"first": 4, "last": 4, "count": 1, "label": "4", "warnings": []}
    daemon.answers["POST /v1/jobs"] = (200, reply)
    training = {"uuid": "0123abcd-4"}
    jobs = {"jobs": [view(4, training=training, client="run-scheduler")], "more": 0, "counts": {}}
    daemon.answers["GET /v1/jobs"] = (200, jobs)
    yield daemon
    daemon.close()


def options(sent: FakeDaemon, *words: object) -> dict[str, Any]:
    """The options of a submission."""
    assert main(["compat", "run-scheduler", *map(str, words)]) == 0
    found: dict[str, Any] = [body for body in sent.bodies("/v1/jobs") if body][-1]
    return {**found["options"], **found["what"], "directory": found["directory"]}


def container(sent: FakeDaemon, *words: object) -> Container:
    """The container that a submission asks for, as the daemon understands it."""
    found = options(sent, *words)
    del found["argv"], found["directory"]
    fields = parse_options(found, ParseContext(0.0, lambda _: [], lambda _: [])).fields
    assert isinstance(fields["container"], Container)
    return fields["container"]


# ------------------------------------------------------------------------ run-scheduler


def test_kub_01_the_name_comes_last_and_the_rest_is_optional(
    sent: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compat", "run-scheduler", "-h"]) == 0
    told = capsys.readouterr().out
    assert all(flag in told for flag in FLAGS)
    assert options(sent, "--image_name", "i", "--script_path", "/x.py", "exp")["name"] == "exp"
    assert capsys.readouterr() == ("0123abcd-4\n", "")
    assert options(sent, "--image-name=i", "--script_path=/x.py", "exp")["image"] == "i"


@pytest.mark.parametrize(
    ("word", "meant"),
    [("true", True), ("TRUE", True), ("1", True), ("Yes", True),
     ("false", False), ("False", False), ("0", False), ("NO", False)],
)  # fmt: skip
def test_kub_01_booleans_take_a_value(word: str, meant: bool) -> None:
    given = ["--is_single_gpu", word, "--disable_gpu_sharing", word, "--script_path", "x", "j"]
    found = typed.read_run_arguments(given)
    assert (found.single, found.alone) == (meant, meant)


def test_kub_01_what_is_not_given() -> None:
    found = typed.read_run_arguments(["--script_path", "x", "j"])
    assert (found.single, found.alone, found.memory) == (True, False, None)
    assert found.sizes() == {}


@pytest.mark.parametrize(
    "words",
    [
        (), ("j",), ("--script_path", "x"), ("--script_path", "x", "j", "k"),
        ("--script_path", "", "j"), ("--script_path", "x", " "), ("--script_path", "x", "j", "--k"),
        *(
            (flag, value, "--script_path", "x", "j")
            for flag, values in {
                "--is_single_gpu": ("maybe", ""), "--disable_gpu_sharing": ("2",),
                "--batch_size": ("0", "-1", "many", "1.5"), "--training_set_size": ("x",),
                "--max_epochs": ("0", "9" * 12), "--estimated_memory": ("4G", "-1"),
                "--est_nhours": ("1", "0.5", "-3", "nan", "inf", "long", "100000"),
                "--port_mapping": ("80", "80:x", "0:80", "80:65536", "80:81,", "80:81:82"),
                "--custom_dir": ("/no/such", "", "/dev/null"), "--snapshots_dir": ("/no/such",),
                "--image_name": ("", "a b", "-v"),
            }.items()
            for value in values
        ),
        ("--port_mapping", "80:81", "--script_path", "x", "j"),
        ("--port_mapping", "80:81,080:82", "--image_name", "i", "--script_path", "x", "j"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_kub_01_invalid_arguments_are_refused_with_one_line(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as error:
        typed.read_run_arguments(list(words))
    assert error.value.exit_code == 2
    assert "\n" not in error.value.message


def test_kub_02_the_image_is_shown(small: RunSchedulerEnv) -> None:
    first = small.train("--max_epochs", 1, "--estimated_memory", 8000, "first")
    small.becomes(first, "RUNNING")
    wants = ("--image_name", "img:1", "--script_path", "/x.py", "--estimated_memory", 8000)
    small.submit(*wants, "j1")
    told = small.compat("scheduler-state", "--extended").stdout
    assert "image_name           img:1\n" in told
    assert "script_path          /x.py\n" in told


def test_kub_03_the_script_is_run_by_python(
    sent: FakeDaemon, dumped: Dumped, large: RunSchedulerEnv
) -> None:
    found = options(sent, "--image_name", "i", "--script_path", "/home/works/x.py", "j")
    assert found["argv"] == ["python", "/home/works/x.py"]
    assert dumped.argv == ["dump.py"]
    assert "no such file" in large.refused("--script_path", "missing.py", "j")
    assert "--custom_dir" in large.refused("--script_path", "/custom/x.py", "j")


def test_kub_04_the_custom_directory(sent: FakeDaemon, dumped: Dumped, home: Path) -> None:
    code = home.parent / "user" / "code"
    code.mkdir()
    words = ("--image_name", "i", "--script_path", "/custom/x.py", "--custom_dir", code, "j")
    found = container(sent, *words)
    assert Mount(str(code), "/custom") in found.mounts
    assert (found.image, found.in_job_directory) == ("i", False)
    assert dumped.view["state"] == "COMPLETED"


def test_kub_04_a_script_named_by_where_it_is_here_gets_a_hint(
    sent: FakeDaemon, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = home.parent / "user" / "code"
    code.mkdir()
    (code / "x.py").touch()
    words = ("--image_name", "i", "--custom_dir", code, "--script_path")
    assert options(sent, *words, code / "x.py", "j")["argv"] == ["python", f"{code}/x.py"]
    assert (
        f"In the container, {code}/x.py is /custom/x.py: use that path" in capsys.readouterr().err
    )
    options(sent, *words, "/custom/x.py", "j")
    options(sent, *words, "/home/works/x.py", "j")
    assert capsys.readouterr().err == ""


def test_kub_05_a_colon_in_a_directory_is_refused_only_where_it_matters(tmp_path: Path) -> None:
    odd = tmp_path / "a:b"
    odd.mkdir()
    words = ["--script_path", "/x.py", "--custom_dir", str(odd), "j"]
    assert typed.read_run_arguments(words).custom == str(odd)
    with pytest.raises(UsageError, match="has a colon in its name"):
        typed.read_run_arguments(["--image_name", "i", *words])
    words[2] = "--snapshots_dir"
    assert typed.read_run_arguments(["--image_name", "i", *words]).snapshots == str(odd)


def test_kub_05_the_snapshots_directory(sent: FakeDaemon, dumped: Dumped, home: Path) -> None:
    assert dumped.api["root_dir"] == f"{dumped.snapshots}/{dumped.id}"
    assert os.path.isdir(dumped.api["root_dir"])
    words = ("--image_name", "i", "--script_path", "/x.py", "--snapshots_dir", home.parent, "j")
    assert options(sent, *words)["snapshots_dir"] == str(home.parent)


def test_kub_05_without_one_snapshots_lie_beside_our_state(large: RunSchedulerEnv) -> None:
    id = large.submit("--script_path", "dump.py", "j")
    large.end(id.rpartition("-")[2])
    root = json.loads(large.logs(id))["api"]["root_dir"]
    assert root.startswith(str(large.base / "home"))
    assert root.endswith(f"/checkpoints/{id}")


def test_kub_06_datasets_are_data(sent: FakeDaemon, home: Path) -> None:
    found = container(sent, "--image_name", "i", "--script_path", "/x.py", "j")
    assert found.mounts == (Mount(f"{home.parent}/user/datasets", "/data", optional=True),)


def test_kub_07_the_batch_size_is_passed_to_the_job(dumped: Dumped) -> None:
    assert dumped.env["BATCH_SIZE"] == "32"


def test_kub_08_the_training_set_size_is_passed_to_the_job(dumped: Dumped) -> None:
    assert dumped.env["TRAINING_SET_SIZE"] == "6400"


def test_kub_09_the_epochs_are_passed_to_the_job(dumped: Dumped) -> None:
    assert dumped.env["EPOCHS_TO_BE_DONE"] == "7"


def test_kub_10_a_single_gpu_is_one_of_four(large: RunSchedulerEnv, dumped: Dumped) -> None:
    assert dumped.view["training"]["elastic"] is None
    assert dumped.env["NUM_GPUS"] == "1"
    words = ("--script_path", "dump.py", "--is_single_gpu", "false", "--max_epochs", 3, "many")
    several = large.submit(*words)
    assert large.view(several)["training"]["elastic"] == [1, None]


@pytest.mark.parametrize(("disabled", "state"), [("false", "RUNNING"), ("true", "PENDING")])
def test_kub_11_two_small_jobs_share_a_gpu_unless_one_says_no(
    small: RunSchedulerEnv, disabled: str, state: str
) -> None:
    words = ("--max_epochs", 1, "--estimated_memory", 1024)
    first = small.train(*words, "first")
    small.becomes(first, "RUNNING")
    second = small.train(*words, "--disable_gpu_sharing", disabled, "second")
    small.becomes(second, state)
    small.go(first, 0)
    small.becomes(first, "COMPLETED")
    small.becomes(second, "RUNNING")


def test_kub_12_jobs_that_do_not_fit_together_wait(small: RunSchedulerEnv) -> None:
    first = small.train("--max_epochs", 1, "--estimated_memory", 5000, "first")
    small.becomes(first, "RUNNING")
    second = small.train("--max_epochs", 1, "--estimated_memory", 4000, "second")
    small.becomes(second, "PENDING")
    assert "3192 MiB of its memory left, not 4000" in small.stoker("why", "last").stdout
    assert "cannot be satisfied" in small.refused(
        "--script_path", "train.py", "--estimated_memory", 9000, "j", code=6
    ).lower()  # fmt: skip


def test_kub_13_ports(sent: FakeDaemon) -> None:
    words = ("--image_name", "i", "--script_path", "/x.py")
    found = container(sent, *words, "--port_mapping", "31346:6006,31347:8888", "j")
    assert found.ports == ((31346, 6006), (31347, 8888))


def test_kub_14_the_estimate_must_be_above_an_hour(large: RunSchedulerEnv, dumped: Dumped) -> None:
    told = large.refused("--script_path", "dump.py", "--est_nhours", "0.5", "j")
    assert "above 1" in told
    assert dumped.view["training"]["expected_seconds"] == 9000
    assert dumped.view["training"]["estimate_seconds"] is not None


# --------------------------------------------------------------------------- the others


def ids(env: RunSchedulerEnv, *words: object) -> list[str]:
    """The ids that scheduler-state shows."""
    done = env.compat("scheduler-state", *words)
    assert done.returncode == 0, done.stderr
    heading, *lines = done.stdout.splitlines()
    assert heading.split() == HEADING
    return [line.split()[0] for line in lines]


def test_kub_15_the_last_n_jobs_are_shown(large: RunSchedulerEnv, dumped: Dumped) -> None:
    mine = [large.submit("--script_path", "dump.py", f"j{number}") for number in range(3)]
    other = large.stoker("submit", "--epochs", "1", "true").stdout.strip()
    assert ids(large, "--nlast", 2) == mine[1:]
    assert ids(large, "--nlast")[-3:] == mine
    assert ids(large)[-3:] == mine
    large.end(other)
    shown = json.loads(large.compat("scheduler-state", "--json", "--nlast=1").stdout)["jobs"]
    assert [full_id(job) for job in shown] == mine[2:]
    for bad in (("--nlast", "0"), ("--nlast", "x"), ("--nlast", "1", "2"), ("x",), ("--what",)):
        large.refused(*bad, command="scheduler-state")


def test_kub_15_all_users_are_those_of_this_daemon(large: RunSchedulerEnv, dumped: Dumped) -> None:
    done = large.compat("scheduler-state", "--all_users")
    assert "told" in done.stdout
    assert done.stderr.startswith("scheduler-state: each user has a daemon of their own")


def test_kub_15_extended_shows_all_options(large: RunSchedulerEnv, dumped: Dumped) -> None:
    done = large.compat("scheduler-state", "--extended").stdout
    told = done.partition(f"{dumped.id} told\n")[2].partition("\n\n")[0]
    found = dict(line.split(None, 1) for line in told.splitlines())
    assert found["script_path"] == "/custom/dump.py"
    assert found["custom_dir"] == str(large.user)
    assert found["snapshots_dir"] == str(dumped.snapshots)
    assert (found["batch_size"], found["training_set_size"]) == ("32", "6400")
    assert (found["max_epochs"], found["est_nhours"]) == ("7", "2.5")
    assert (found["is_single_gpu"], found["disable_gpu_sharing"]) == ("true", "false")
    assert found["estimated_memory"] == "3000"


def test_kub_15_a_very_long_name_does_not_make_the_table_wide(
    capsys: pytest.CaptureFixture[str],
) -> None:
    training = {"uuid": "0123abcd-1", "stopping": None, "preemptions": 0, "epochs_done": 0,
                "epochs": 3, "memory_reserved": None, "memory_peak": None,
                "remaining_seconds": None, "ran_seconds": 0.0}  # fmt: skip
    table.write([view(1, name="n" * 200, training=training)])
    heading, line = capsys.readouterr().out.splitlines()
    assert line.split()[1] == "n" * 39 + "…"
    assert len(heading) < 130


def test_kub_15_nothing_was_ever_submitted(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compat", "scheduler-state"]) == 0
    assert "there are no jobs" in capsys.readouterr().err
    assert main(["compat", "scheduler-get-logs", "1"]) == 3
    assert not list(home.iterdir())


def test_kub_16_a_job_is_ended(large: RunSchedulerEnv) -> None:
    id = large.train("--max_epochs", 1, "j")
    large.says(id, "epoch 0")
    pid = large.view(id)["pid"]
    assert large.compat("scheduler-cancel-job", id).returncode == 0
    large.becomes(id, "CANCELLED")
    until(lambda: not alive(pid))
    assert "cancelled" in large.compat("scheduler-state", "--nlast", 1).stdout
    again = large.compat("scheduler-cancel-job", id)
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)


def test_kub_16_several_are_ended_or_none(large: RunSchedulerEnv) -> None:
    mine = [large.train("--max_epochs", 1, name) for name in ("a", "b")]
    assert "There is no job 99999" in large.refused(
        mine[0], 99999, command="scheduler-cancel-job", code=3
    )
    done = large.compat("scheduler-cancel-job", *mine, mine[0].rpartition("-")[2])
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines() == [
        f"scheduler-cancel-job: {id} ({name}) is cancelled"
        for id, name in zip(mine, ("a", "b"), strict=True)
    ]
    for id in mine:
        large.becomes(id, "CANCELLED")


def test_kub_16_only_jobs_of_run_scheduler_are_touched(
    large: RunSchedulerEnv, dumped: Dumped
) -> None:
    other = large.stoker("submit", "--epochs", "1", "sleep 300").stdout.strip()
    prefix = dumped.id.partition("-")[0]
    wrong = f"00000000-{dumped.id.rpartition('-')[2]}"
    for word in (other, f"{prefix}-{other}", wrong, "12345", "nonsense", "all", "last"):
        for command in ("scheduler-cancel-job", "scheduler-get-logs"):
            assert "There is no job" in large.refused(word, command=command, code=3)
    assert large.view(other)["state"] in {"PENDING", "CONFIGURING", "RUNNING"}
    for command in ("scheduler-cancel-job", "scheduler-get-logs"):
        assert "No job given" in large.refused(command=command)
    assert "Only one job can be given" in large.refused("1", "2", command="scheduler-get-logs")
    large.stoker("cancel", other)


def test_kub_17_logs_are_what_the_script_printed(large: RunSchedulerEnv, dumped: Dumped) -> None:
    (large.user / "says.py").write_text("import sys; print('one'); sys.exit('two')")
    id = large.submit("--script_path", "says.py", "j")
    large.end(id.rpartition("-")[2])
    assert large.logs(id) == large.logs(id.rpartition("-")[2]) == "one\ntwo\n"
    followed = large.compat("scheduler-get-logs", "-f", id)
    assert (followed.returncode, followed.stdout) == (1, "one\ntwo\n")


def test_kub_17_without_output_the_reason_of_a_failure_is_said(large: RunSchedulerEnv) -> None:
    (large.user / "silent.py").write_text("import os; os._exit(3)")
    id = large.submit("--script_path", "silent.py", "j")
    large.end(id.rpartition("-")[2])
    done = large.compat("scheduler-get-logs", id)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(f"scheduler-get-logs: {id} has no output: ")


def test_kub_18_37_43_it_is_preempted_between_epochs_and_resumes(small: RunSchedulerEnv) -> None:
    low = small.train("--max_epochs", 3, "low")
    number = low.rpartition("-")[2]
    small.go(low, 0)
    small.says(low, "epoch 1")
    gate = Gate(small.user, "high")
    urgent = ("--gpus", 1, "--priority", 10, "--", *gate.command)
    high = small.stoker("submit", *urgent).stdout.strip()
    assert until(lambda: small.view(low)["training"]["stopping"])["by"] == high
    assert "stopping" in small.compat("scheduler-state").stdout
    assert f"at the end of its epoch for job {high}" in small.stoker("show", number).stdout
    assert (
        f"Job {number} stops for this job at the end of its "
        "epoch" in small.stoker("why", high).stdout
    )
    assert small.view(high)["state"] == "PENDING"
    small.go(low, 1)
    small.becomes(high, "RUNNING")
    assert "preempted" in small.compat("scheduler-state").stdout
    fewer = small.stoker("edit", number, "--epochs", 1)
    assert (fewer.returncode, fewer.stdout) == (2, "")
    assert "--epochs 1 is less than the 2 that have ended." in fewer.stderr
    gate.open()
    small.go(low, 2)
    view = small.becomes(low, "COMPLETED")
    assert (view["training"]["epochs_done"], view["training"]["preemptions"]) == (3, 1)
    assert [line for line in small.logs(low).splitlines() if line[:1] not in "[s"] == [
        "began False 0 3", "epoch 0", "epoch 1", "began True 2 3", "epoch 2", "over",
    ]  # fmt: skip


def test_kub_19_measured_memory_lets_other_jobs_share_the_gpu(small: RunSchedulerEnv) -> None:
    words = ("--max_epochs", 2, "--estimated_memory")
    first = small.train(*words, 6000, "first", env={"MIB": "3000"})
    small.says(first, "epoch 0")
    second = small.train(*words, 4000, "second")
    small.becomes(second, "PENDING")
    until(lambda: small.view(first)["training"]["memory_peak"] == 3000)
    small.go(first, 0)
    small.becomes(second, "RUNNING")
    told = small.view(first)["training"]
    assert (told["memory_reserved"], told["memory_now"]) == (3300, 3000)
    assert "6000 MiB asked for, 3300 MiB set aside" in small.stoker(
        "show", first.rpartition("-")[2]
    ).stdout  # fmt: skip


def test_kub_20_no_cores_are_set_aside(dumped: Dumped) -> None:
    assert dumped.view["request"]["cpus"] is None
    assert "OMP_NUM_THREADS" not in dumped.env


def test_kub_21_a_job_without_a_gpu_trains_as_well(large: RunSchedulerEnv) -> None:
    id = large.train("--max_epochs", 2, "--estimated_memory", 0, "cpu")
    large.go(id, 0, 1)
    view = large.becomes(id, "COMPLETED")
    assert view["training"]["epochs_done"] == 2
    assert view["request"]["gpus"] is None


def test_kub_21_where_there_is_no_gpu_it_runs_without_one(stoker: Any, home: Path) -> None:
    stoker("daemon", "start", "--resources", "{cpu:2}", check=True)
    script = home.parent / "user" / "x.py"
    script.write_text("import os; print('GPUs:', os.environ['NUM_GPUS'])")
    done = stoker("compat", "run-scheduler", "--script_path", "x.py", "--max_epochs", 1, "j")
    assert "no GPU is available" in done.stderr
    stoker("wait", "last", check=True)
    assert stoker("compat", "scheduler-get-logs", done.stdout.strip()).stdout == "GPUs: 0\n"
    done = stoker("submit", "--epochs", 1, "true")
    assert "no GPU is available" in done.stderr
    for asks in (("--single-gpu",), ("--gpus", 1, "--epochs", 1)):
        assert stoker("submit", *asks, "true").returncode == 6


# ------------------------------------------------------------------ what the script sees


def test_kub_34_the_id_is_the_shown_id(large: RunSchedulerEnv, dumped: Dumped) -> None:
    assert dumped.api["JOBID"] == dumped.env["JOB_UUID"] == dumped.id
    assert dumped.id in large.compat("scheduler-state", "--nlast", 1000).stdout


def test_kub_35_it_has_not_been_restarted(dumped: Dumped) -> None:
    assert dumped.env["JOB_RESTARTED"] == "FALSE"
    assert dumped.api["RESTARTED"] is False


def test_kub_36_the_reserved_memory(dumped: Dumped) -> None:
    assert dumped.env["RESERVED_MEM"] == "3000"


def test_kub_37_no_epochs_are_done(dumped: Dumped) -> None:
    assert (dumped.env["EPOCHS_DONE"], dumped.api["EPOCHS_DONE"]) == ("0", 0)


def test_kub_38_how_often_it_reports(dumped: Dumped) -> None:
    assert dumped.api["PROFILE_EACH"] == int(dumped.env["HEARTBEAT_FREQ"]) > 0


def test_kub_39_where_it_runs(dumped: Dumped) -> None:
    assert dumped.api["NODE_LIST"] == dumped.env["NODELIST"] == dumped.view["node"]


def test_kub_40_how_many_gpus_and_machines(dumped: Dumped) -> None:
    assert dumped.api["NUM_GPUS"] == len(dumped.env["CUDA_VISIBLE_DEVICES"].split(","))
    assert dumped.api["NUM_NODES"] == int(dumped.env["WORLD_SIZE"]) == 1


def test_kub_41_the_backend_is_nccl_unless_the_user_says_otherwise(
    large: RunSchedulerEnv, dumped: Dumped
) -> None:
    assert dumped.env["PL_TORCH_DISTRIBUTED_BACKEND"] == "nccl"
    own = {"PL_TORCH_DISTRIBUTED_BACKEND": "gloo", "OMP_NUM_THREADS": "3"}
    id = large.submit("--script_path", "dump.py", "j", env=own)
    large.end(id.rpartition("-")[2])
    told = json.loads(large.logs(id))["env"]
    assert {name: told[name] for name in own} == own


def test_kub_42_the_script_can_read_the_options_of_the_user(dumped: Dumped) -> None:
    found = (dumped.api["BATCH_SIZE"], dumped.api["EPOCHS"], dumped.api["TRAINING_SET_SIZE"])
    assert found == (32, 7, 6400)


# ------------------------------------------------------------------------------ the rest


def test_the_commands_are_on_path(large: RunSchedulerEnv) -> None:
    for name in ("run-scheduler", "scheduler-state", "scheduler-cancel-job", "scheduler-get-logs"):
        done = large.run(name, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert name in done.stdout


def test_a_command_imports_nothing_heavy(sent: FakeDaemon) -> None:
    code = (
        "import sys; bare = set(sys.modules)\n"
        "from stoker.compat.registry import run_compat_command\n"
        "code = run_compat_command(sys.argv[1], sys.argv[2:])\n"
        "sys.stderr.write(' '.join(set(sys.modules) - bare)); sys.exit(code)"
    )
    heavy = {"argparse", "asyncio", "dataclasses", "datetime", "json", "msgspec", "subprocess"}
    for words in (("run-scheduler", "--image_name", "i", "--script_path", "x", "j"),
                  ("scheduler-cancel-job", "4")):  # fmt: skip
        sent.answers["POST /v1/cancel"] = (200, {"done": [{"id": 4}], "skipped": []})
        command = [sys.executable, "-c", code, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert not set(done.stderr.split()) & heavy


def test_the_interpreter_is_looked_for_where_the_script_runs(
    sent: FakeDaemon, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.py").touch()
    line = options(sent, "--script_path", "a b.py", "j")["line"]
    for name in ("python3", "python"):
        (home / name).write_text(f"#!/bin/sh\necho {name} $1\n")
        (home / name).chmod(0o755)
        done = subprocess.run(
            ["/bin/sh", "-c", line], env={"PATH": str(home)}, capture_output=True, check=True
        )
        assert done.stdout == f"{name} a b.py\n".encode()


def test_kub_04_the_directory_that_goes_along_to_other_nodes(
    sent: FakeDaemon, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "project" / "code"
    code.mkdir(parents=True)
    (code / "x.py").touch()
    custom = ("--custom_dir", code, "--script_path", "/custom/x.py", "j")
    monkeypatch.chdir(home)
    found = options(sent, *custom)
    assert (found["directory"], found["line"][-5:]) == (str(code), " x.py")
    assert options(sent, "--image_name", "i", *custom)["directory"] == str(code)
    monkeypatch.chdir(code.parent)
    found = options(sent, *custom)
    assert (found["directory"], found["line"][-10:]) == (str(code.parent), " code/x.py")
    # Nothing of this directory is in the container.
    found = options(sent, "--image_name", "i", "--script_path", "/x.py", "j")
    assert (found["no_send"], found["no_bring"]) == (True, True)


def test_several_nodes_are_asked_for(sent: FakeDaemon) -> None:
    words = ("--image_name", "i", "--script_path", "/x.py", "--nodes", "2")
    for more, gpus in (((), 1000), (("--gpus_per_node", "4"), 4000)):
        found = options(sent, *words, *more, "--max_epochs", "3", "j")
        del found["argv"], found["directory"]
        asked = parse_options(found, ParseContext(0.0, lambda _: [], lambda _: [])).request
        assert (asked.node_count, asked.gpus and asked.gpus.amount) == (2, gpus)
    found = options(sent, *words, "--estimated_memory", "0", "j")
    assert (found["nodes"], found["gpus"]) == ("2", "0")
