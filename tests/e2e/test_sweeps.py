"""Sweeps as users see them: defined in many ways, shown, stopped, resumed."""

import csv
import io
import re
import sys
from pathlib import Path
from typing import Any

from e2e.daemon_fixture import DaemonFixture, as_json, until

REPORTS = """
import sys, time
from stoker.training import report
given = dict(word.lstrip("-").split("=") for word in sys.argv[1:])
for step in range(1, int(given.get("steps", 3)) + 1):
    report(loss=float(given["x"]) + 1 / step, step=step)
print(sorted(given.items()))
if float(given["x"]) > 0 and "stays" in given:
    time.sleep(600)
"""
COUNTED = re.compile(r"stoker: sweep \d+ \(.*?\): (.*)")


def sweep(box: DaemonFixture, *words: object, **more: Any) -> tuple[str, str]:
    """Start or resume a sweep; return its id and the printed summary."""
    done = box.stoker("sweep", *words, **more)
    assert done.returncode == 0, done.stderr
    summary = COUNTED.search(done.stderr)
    assert summary is not None, done.stderr
    return done.stdout.strip(), summary[1]


def sweep_view(box: DaemonFixture, id: str) -> Any:
    return box.client.get_sweep(id)


def counts(box: DaemonFixture, id: str) -> dict[str, int]:
    view = sweep_view(box, id)["sweep"]["counts"]
    return {word: count for word, count in view.items() if count}


def wait_for_end(box: DaemonFixture, id: str) -> Any:
    """Wait for the end of a sweep; return its view."""
    assert box.client.wait([id], timeout=30)["finished"]
    return until(lambda: (view := sweep_view(box, id))["sweep"]["ended_at"] and view)


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


# ------------------------------------------------------------------------------ definitions


def test_a_wandb_file_is_used_unchanged(box: DaemonFixture) -> None:
    box.script("train.py", REPORTS)
    box.script(
        "sweep.yaml",
        "program: train.py\nmethod: grid\nname: mine\nmetric:\n  goal: minimize\n  name: loss\n"
        "parameters:\n  x:\n    values: [1e-4, 2]\n  steps:\n    value: 2\n"
        f"command:\n  - ${{env}}\n  - {sys.executable}\n  - ${{program}}\n  - ${{args}}\n",
    )
    id, summary = sweep(box, "sweep.yaml", "--gpus", "1")
    assert (id, summary) == ("1", "2 new of 2")
    view = wait_for_end(box, id)
    assert [trial["value"] for trial in view["trials"]] == [0.5001, 2.5]
    assert view["sweep"]["best"]["label"] == "1_0"
    assert box.job("1_0")["command"].endswith("train.py --x=0.0001 --steps=2")
    assert box.stoker("wait", "mine").returncode == 0

    # The same data as a table, as CSV, as JSON and as HTML.
    shown = box.stoker("sweep", "show").stdout
    assert "2 of 2 done" in shown
    rows = list(csv.DictReader(io.StringIO(box.stoker("sweep", "show", "1", "--csv").stdout)))
    assert [row["x"] for row in rows] == ["0.0001", "2"]
    assert as_json(box.stoker("show", "1", "--json"))["sweep"]["total"] == 2
    assert box.stoker("sweep", "show", "1", "--html").stdout == "sweep-1.html\n"
    assert '"1_0":[[1.0,1.0001],[2.0,0.5001]]' in (box.user / "sweep-1.html").read_text()


def test_hydra_overrides_define_a_sweep(box: DaemonFixture) -> None:
    program = box.script("train.py", "import sys; print(*sys.argv[1:])")
    where = "hydra.run.dir=out/${oc.env:STOKER_TRIAL}"
    words = (sys.executable, program, "-m", "x=0.1,1e-2", "db=mysql", "+seed=range(0,2)", where)
    id, summary = sweep(box, "--cpus", "1", *words)
    assert summary == "4 new of 4"
    wait_for_end(box, id)
    outputs = [box.output(f"{id}_{number}").strip() for number in range(4)]
    assert outputs == [
        f"x=0.1 db=mysql +seed=0 {where}", f"x=0.1 db=mysql +seed=1 {where}",
        f"x=0.01 db=mysql +seed=0 {where}", f"x=0.01 db=mysql +seed=1 {where}",
    ]  # fmt: skip


def test_metrics_are_extracted_from_the_log(box: DaemonFixture) -> None:
    pattern = r"step (?P<step>\d+): loss (?P<loss>\S+)"
    line = "for n in 1 2 3; do echo step $n: loss {x}; done"
    id, _ = sweep(box, "--maximize", "loss", "--metric-regex", pattern, "--param", "x=3,7,5", line)
    wait_for_end(box, id)
    view = until(lambda: _measured(box, id))  # the last lines are read after the end of the job
    assert [trial["value"] for trial in view["trials"]] == [3, 7, 5]
    assert {trial["step"] for trial in view["trials"]} == {3}
    assert view["sweep"]["best"]["params"] == {"x": 7}


def _measured(box: DaemonFixture, id: str) -> Any:
    view = sweep_view(box, id)
    return view if all(trial["value"] is not None for trial in view["trials"]) else None


# ------------------------------------------------------------------------ resuming


def test_the_same_sweep_again_runs_missing_and_failed_trials(box: DaemonFixture) -> None:
    line = "echo {x} >>ran; test {x} != 2 || test -e mended"
    words = ("--param", "x=1,2", line)
    id, summary = sweep(box, *words)
    assert summary == "2 new of 2"
    assert box.stoker("wait", id).returncode == 1
    assert counts(box, id) == {"done": 1, "failed": 1}
    (box.user / "mended").touch()
    assert sweep(box, *words) == (id, "1 again, 1 done already of 2")
    wait_for_end(box, id)
    assert sweep(box, *words) == (id, "2 done already of 2")
    more = ("--param", "x=0,1,2,3", line)
    assert sweep(box, *more) == (id, "2 new, 2 done already of 4")
    view = wait_for_end(box, id)
    assert view["sweep"]["counts"]["done"] == 4
    assert sorted(lines(box.user / "ran")) == ["0", "1", "2", "2", "3"]
    other, summary = sweep(box, "--new", *words)
    assert other != id
    assert summary == "2 new of 2"


def test_more_samples_do_not_repeat_the_first(box: DaemonFixture) -> None:
    words = ("--name", "r", "--param", "x=uniform(0,1)", "echo {x} >>ran")
    id, _ = sweep(box, "-n", "3", *words)
    wait_for_end(box, id)
    first = set(lines(box.user / "ran"))
    assert sweep(box, "-n", "6", *words) == (id, "3 new, 3 done already of 6")
    wait_for_end(box, id)
    assert len(lines(box.user / "ran")) == len(set(lines(box.user / "ran"))) == 6
    assert first < set(lines(box.user / "ran"))


def test_concurrent_submissions_of_one_sweep_create_one(box: DaemonFixture) -> None:
    words = ("sweep", "--param", "x=1,2,3", "echo {x} >>ran")
    both = [box.popen(*words), box.popen(*words)]
    ids = {process.communicate(timeout=30)[0] for process in both}
    assert len(ids) == 1
    wait_for_end(box, ids.pop().decode().strip())
    assert sorted(lines(box.user / "ran")) == ["1", "2", "3"]


def test_a_killed_daemon_loses_nothing_and_repeats_nothing(box: DaemonFixture) -> None:
    line = "echo {x} >>ran; until test -e go || test {x} -lt 4; do sleep 0.05; done"
    id, _ = sweep(box, "--gpus", "1", "--param", "x=range(0,10)", line)
    until(lambda: len(lines(box.user / "ran")) >= 6)
    box.crash()
    (box.user / "go").touch()
    box.up()
    view = wait_for_end(box, id)
    assert view["sweep"]["counts"]["done"] == 10
    assert sorted(map(int, lines(box.user / "ran"))) == list(range(10))
    assert {trial["attempt"] for trial in view["trials"]} == {0}


# ---------------------------------------------------------------------- actions on a whole sweep


def test_a_sweep_is_held_limited_and_cancelled_as_a_whole(box: DaemonFixture) -> None:
    line = "until test -e go{x} || test -e go; do sleep 0.05; done"
    id, _ = sweep(box, "--gpus", "1", "--max-running", "1", "--param", "x=range(0,6)", line)
    until(lambda: counts(box, id) == {"running": 1, "waiting": 5})
    row = next(line for line in box.stoker("queue").stdout.splitlines() if " 0/6 done" in line)
    assert row.split()[0] == id
    assert "0/6 done, 1 run" in row
    assert as_json(box.stoker("--json"))["jobs"] == []
    assert len(box.stoker("queue", "--no-header", "-e").stdout.splitlines()) == 6
    assert f"Job {id}_1 is PENDING" in box.stoker("why", id).stdout
    assert box.stoker("sweep", "edit", id, "--max-running", "3", "--priority", "7").returncode == 0
    until(lambda: counts(box, id) == {"running": 3, "waiting": 3})
    assert {job["priority"] for job in box.jobs(id)} == {7}
    assert box.stoker("hold", id).stderr == f"stoker: held sweep {id} (3 waiting)\n"
    for number in range(3):
        (box.user / f"go{number}").touch()
    until(lambda: counts(box, id) == {"done": 3, "waiting": 3})
    assert sweep_view(box, id)["sweep"]["state"] == "HELD"
    assert box.stoker("release", id).returncode == 0
    until(lambda: counts(box, id) == {"done": 3, "running": 3})
    done = box.stoker("cancel", id)
    assert done.returncode == 0
    assert done.stderr == f"stoker: cancelled sweep {id} (3 trials)\n"
    wait_for_end(box, id)
    assert counts(box, id) == {"done": 3, "cancelled": 3}
    assert box.stoker("queue").stdout == ""
    (box.user / "go").touch()
    assert box.stoker("retry", id, "--failed").returncode == 0
    until(lambda: counts(box, id) == {"done": 6})


def test_an_endless_sweep_ends_when_it_is_cancelled(box: DaemonFixture) -> None:
    id, summary = sweep(box, "--cpus", "2", "--param", "x=uniform(0,1)", "echo {x} >>ran")
    assert summary == "trials until it is cancelled"
    until(lambda: len(lines(box.user / "ran")) > 8)
    assert box.stoker("cancel", id).returncode == 0
    view = wait_for_end(box, id)
    assert view["sweep"]["total"] is None
    assert len({trial["params"]["x"] for trial in view["trials"]}) == len(view["trials"])


def test_bad_trials_are_stopped_early_and_release_their_gpus(idle: DaemonFixture) -> None:
    box = idle.start("{gpu:1,cpu:8}")
    program = box.script("train.py", REPORTS)
    words = (sys.executable, program, "stays=1", "x=0,1,2")
    rule = ("--minimize", "loss", "--stop", "asha", "--max-steps", "9")
    id, _ = sweep(box, "--gpus", "1", *rule, *words)
    view = wait_for_end(box, id)  # bad trials would run for ten minutes
    assert counts(box, id) == {"done": 1, "stopped": 2}
    assert [trial["stopped"] for trial in view["trials"]] == [False, True, True]
    assert all("stopped early" in trial["cause"] for trial in view["trials"][1:])
    assert box.gpus()["0"]["jobs"] == []
    assert "(2 stopped early)" in box.stoker("sweep", "show", id).stdout


def test_invalid_input_is_rejected_and_changes_nothing(box: DaemonFixture) -> None:
    box.script("bad.yaml", "program: t.py\nmethod: grid\nparameters: {lr: {values: 3}}\n")
    for words, named in (
        (["bad.yaml"], "bad.yaml: parameters.lr"),
        (["--param", "x=1,2", "--time", "soon", "echo {x}"], "soon"),
        (["--param", "x=1,2", "--max-running", "-1", "echo {x}"], "--max-running"),
    ):
        done = box.stoker("sweep", *words)
        assert done.returncode == 2, done.stderr
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert named in done.stderr
    assert as_json(box.stoker("sweep", "list", "--all", "--json")) == {"sweeps": []}
    assert box.stoker("sweep", "show", "9").returncode == 3
