"""Metrics of real jobs: reported, or extracted from output; stored, shown and scored."""

import csv
import io
import sys
from typing import Any

from e2e.daemon_fixture import DaemonFixture, as_json, until

REPORTS = """
from stoker.training import current, report
lr = current().params.get("lr", 1.0)
for step in range(50):
    report(loss=lr / (step + 1), step=step)
"""
PRINTS = """
import sys
for step in range(5):
    print(f"step {step} loss={float(sys.argv[1]) / (step + 1)}", flush=True)
"""
WRITES = """
import json, sys
trial, lr = sys.argv[1:]
with open(f"metrics-{trial}.jsonl", "w") as file:
    for step in range(5):
        file.write(json.dumps({"step": step, "loss": float(lr) / (step + 1)}) + "\\n")
"""


def values_of(box: DaemonFixture, sweep: object, count: int) -> dict[str, Any]:
    """Wait until all trials have a score; return the scores."""

    def scored_values() -> dict[str, Any] | None:
        trials = box.client.get_sweep(str(sweep))["trials"]
        scored = [trial for trial in trials if trial["value"] is not None]
        return (
            {str(t["params"]["lr"]): t["value"] for t in scored} if len(scored) == count else None
        )

    values: dict[str, Any] = until(scored_values)
    return values


def sweep(box: DaemonFixture, *args: object) -> Any:
    return as_json(box.stoker("sweep", "--json", "--gpus", "0", *args))["sweep"]


def test_reported_metrics_are_stored_and_shown(box: DaemonFixture) -> None:
    label = box.submit("--gpus", "0", sys.executable, box.script("train.py", REPORTS))
    assert box.end_of(label)["state"] == "COMPLETED"
    until((box.state / "series" / f"{label}.0").exists)
    shown = as_json(box.stoker("metrics", "--json", label))
    assert (shown["names"], shown["count"]) == (["loss"], 50)
    assert [point[:2] for point in shown["series"]["loss"]] == [
        [step, 1 / (step + 1)] for step in range(50)
    ]
    table = box.stoker("metrics", label).stdout.splitlines()
    assert table[1].split() == ["loss", "50", "0.02", "49", "0.02", "49", "1", "0"]
    rows = list(csv.DictReader(io.StringIO(box.stoker("metrics", "--csv", label, "loss").stdout)))
    assert (len(rows), rows[3]["step"], rows[3]["value"]) == (50, "3", "0.25")
    wrong = box.stoker("metrics", label, "accuracy")
    assert (wrong.returncode, wrong.stderr) == (
        3,
        f"stoker: Job {label} has no metrics named accuracy; it has loss.\n",
    )
    silent = box.submit("--gpus", "0", "true")
    box.end_of(silent)
    none = box.stoker("metrics", silent)
    assert (none.returncode, none.stdout) == (0, "")
    assert "call stoker.training.report(loss=...)" in none.stderr


def test_trials_are_scored_by_their_reports(box: DaemonFixture) -> None:
    script = box.script("train.py", REPORTS)
    id = sweep(box, "--metric", "loss", "--param", "lr=1.0,2.0", sys.executable, script)
    box.client.wait([str(id)])
    assert values_of(box, id, 2) == {"1.0": 0.02, "2.0": 0.04}


def test_metrics_are_extracted_from_the_output(box: DaemonFixture) -> None:
    script = box.script("train.py", PRINTS)
    pattern = r"step (?P<step>\d+) loss=(?P<loss>\S+)"
    args = ["--metric", "loss", "--metric-regex", pattern, "--param", "lr=1.0,2.0"]
    id = sweep(box, *args, sys.executable, script, "{lr}")
    assert values_of(box, id, 2) == {"1.0": 0.2, "2.0": 0.4}
    label = box.client.get_sweep(str(id))["trials"][0]["label"]
    series = as_json(box.stoker("metrics", "--json", label))["series"]["loss"]
    assert [step for step, _, _ in series] == [0, 1, 2, 3, 4]


def test_metrics_are_extracted_from_files_and_a_crash_loses_none(
    box: DaemonFixture,
) -> None:
    script = box.script("train.py", WRITES)
    gate = box.user / "gate"
    line = (
        f"until [ -e {gate} ]; do sleep 0.05; done; {sys.executable} {script} $STOKER_TRIAL {{lr}}"
    )
    args = ["--metric", "loss", "--metric-file", "metrics-%a.jsonl", "--param", "lr=1.0,2.0"]
    id = sweep(box, *args, line)
    until(lambda: box.states(id) == ["RUNNING", "RUNNING"])
    box.crash()
    gate.touch()
    until(lambda: len(list(box.user.glob("metrics-*.jsonl"))) == 2)
    box.up()
    assert values_of(box, id, 2) == {"1.0": 0.2, "2.0": 0.4}
