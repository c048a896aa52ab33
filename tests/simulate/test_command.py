"""`stoker simulate` as it is typed: tables, pages, JSON that repeats, and what is a mistake."""

import json
import os
import subprocess
import sys
from collections import Counter
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.cluster.simulate import OPTIONS
from stoker.cli.options import parse
from stoker.core.policies.policy import POLICIES
from stoker.simulate import arguments, command
from stoker.simulate.compare import Comparison, heading, prepare
from stoker.simulate.progress import ProgressLine
from stoker.simulate.replay.results import JobResult, RunResult
from stoker.simulate.replay.time_limits import TYPICAL_LIMITS, round_up_limit, with_time_limits
from stoker.simulate.report.statistics import run_statistics
from stoker.simulate.summary import summarize
from stoker.simulate.traces.cluster_size import parse_cluster
from stoker.simulate.workload import TraceJob, Workload

SAMPLES = Path(__file__).parent / "traces"
SWF, MURI = SAMPLES / "swf/example.swf", SAMPLES / "muri/trace.csv"
Captured = pytest.CaptureFixture[str]


def simulate(*args: object) -> int:
    """Run the simulator as `stoker simulate` does."""
    parsed = parse(OPTIONS, list(map(str, args)), verb="simulate")
    return command.main(["simulate", json.dumps(parsed.values), *parsed.words])


def simulated(capsys: Captured, *args: object) -> str:
    assert simulate(*args) == 0
    return capsys.readouterr().out


def refused(capsys: Captured, *args: object) -> str:
    assert simulate(*args) == 2
    said = capsys.readouterr()
    assert not said.out
    assert said.err.startswith("stoker: ")
    assert said.err.count("\n") == 1
    return said.err.removeprefix("stoker: ").rstrip("\n")


def without_cost(value: Any) -> Any:
    """The same without what deciding took, which no two runs have in common."""
    if isinstance(value, dict):
        return {key: without_cost(each) for key, each in value.items() if key != "cost"}
    return [without_cost(each) for each in value] if isinstance(value, list) else value


def test_policies_are_compared_in_a_table(capsys: Captured) -> None:
    lines = simulated(capsys, SWF, "--policy", "fifo,planner").splitlines()
    assert lines[0].startswith("example: 27 jobs on 16 nodes with 128 GPUs, ")
    assert lines[2].split()[:3] == ["policy", "mean", "JCT"]
    assert [line.split()[0] for line in lines[3:5]] == ["fifo", "planner"]
    assert "note: One processor is replayed as one GPU." in lines


def test_the_same_seed_repeats_exactly_and_another_one_does_not(capsys: Captured) -> None:
    args = (MURI, "--cluster", "2x8", "--limits", "guessed", "--policy", "backfill,planner",
            "--json", "--seed")  # fmt: skip
    first, again, other = (
        without_cost(json.loads(simulated(capsys, *args, seed))) for seed in (7, 7, 8)
    )
    assert first == again
    assert first["workloads"] != other["workloads"]


def test_json_has_every_figure_of_every_run(capsys: Captured) -> None:
    found = json.loads(simulated(capsys, SWF, "--json", "--base", "srsf"))
    (workload,) = found["workloads"]
    assert [run["policy"] for run in workload["runs"]] == ["backfill", "planner", "srsf"]
    assert workload["base"] == "srsf"
    assert workload["runs"][2]["ratios"]["jct_mean"] == 1.0
    assert all(run["jobs"] == 27 for run in workload["runs"])


def test_a_page_is_written_and_its_path_printed(capsys: Captured, tmp_path: Path) -> None:
    page = tmp_path / "it.html"
    assert simulate(SWF, "--html", page, "--policy", "fifo") == 0
    said = capsys.readouterr()
    assert said.err == f"stoker: wrote {page}\n"
    assert "example" in page.read_text()


def test_several_workloads_are_summed_up_in_geometric_means(
    capsys: Captured, tmp_path: Path
) -> None:
    args = ("--policy", "fifo,srsf", "--cluster", "2x8", "--html", tmp_path / "p.html")
    out = simulated(capsys, SWF, MURI, *args)
    assert "2 workloads: times fifo, geometric means" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "p-1-example.html", "p-2-trace.html",
    ]  # fmt: skip


def test_each_queue_by_itself(capsys: Captured) -> None:
    out = simulated(capsys, SAMPLES / "csv/philly.csv", "--by-queue", "--policy", "fifo")
    titles = [line for line in out.splitlines() if line.startswith("philly ")]
    assert len(titles) == 6
    assert "6 workloads: times fifo, geometric means" in out


def test_geometric_means_by_hand() -> None:
    def workload(jct: dict[str, float]) -> Comparison:
        runs = [
            RunResult(
                policy=name,
                workload="",
                gpus=1,
                results=[
                    JobResult(
                        job=0,
                        submit_time=0.0,
                        gpus=1,
                        start_time=0.0,
                        end_time=end,
                        run_time=end,
                        gpu_seconds=end,
                    )
                ],
            )
            for name, end in jct.items()
        ]
        figures = [run_statistics(run) for run in runs]
        return Comparison(workload="", heading="", runs=runs, statistics=figures, notes=[])

    found = [workload({"a": 100.0, "b": 200.0}), workload({"a": 100.0, "b": 50.0})]
    means = {each.policy: each.means["jct_mean"] for each in summarize(found, None)}
    assert means == {"a": 1.0, "b": pytest.approx(1.0)}
    assert summarize(found, None)[1].worst["jct_mean"] == 2.0


def test_a_parameter_with_two_values_makes_two_contenders() -> None:
    chosen = arguments.policy_variants(
        "fifo,planner", ["planner.quantum=600,1200", "planner.fair=0"]
    )
    assert [(each.policy, each.parameters) for each in chosen] == [
        ("fifo", {}),
        ("planner", {"quantum": 600.0, "fair": 0.0}),
        ("planner", {"quantum": 1200.0, "fair": 0.0}),
    ]


def test_only_the_first_jobs_on_as_many_machines_as_they_keep_busy() -> None:
    jobs = [TraceJob(submit_time=100.0 * n, duration=800.0, gpus=8) for n in range(101)]
    workload = Workload(title="even", jobs=jobs)
    asked = arguments.read_simulate_args(arguments.Options({"first": "51", "load": "50%"}), ["x"])
    found = prepare(workload, asked)
    assert len(found.jobs) == 51
    assert len(found.nodes) == 17  # 51 × 800 s ÷ 5,000 s ÷ 0.5


def test_the_heading_counts_as_people_do() -> None:
    one = Workload(
        title="one", jobs=[TraceJob(submit_time=0.0, duration=60.0)], nodes=parse_cluster("1x1")
    )
    assert heading(one) == "one: 1 job on 1 node with 1 GPU"
    two = Workload(title="two", jobs=[*one.jobs] * 2, nodes=parse_cluster("2x1"))
    assert heading(two) == "two: 2 jobs on 2 nodes with 2 GPUs"


def test_guessed_limits_are_such_as_people_type() -> None:
    jobs = [TraceJob(submit_time=float(n), duration=60.0 * (n + 1)) for n in range(2000)]
    workload = Workload(title="many", jobs=jobs)
    found = with_time_limits(workload, "guessed", 1).jobs
    limits = [job.time_limit or 0 for job in found]
    assert set(limits) <= set(TYPICAL_LIMITS) | {TYPICAL_LIMITS[-1] * n for n in range(2, 1000)}
    assert all(limit >= job.duration for limit, job in zip(limits, found, strict=True))
    assert len(Counter(limits)) > 5
    assert [job.time_limit for job in with_time_limits(workload, "exact", 1).jobs[:2]] == [60, 120]
    assert not any(job.time_limit for job in with_time_limits(workload, "none", 1).jobs)
    assert round_up_limit(31 * 86400) == 60 * 86400


def test_a_job_that_ran_beyond_its_limit_is_not_cut_short() -> None:
    workload = Workload(
        title="late", jobs=[TraceJob(submit_time=0.0, duration=70.5, time_limit=60)]
    )
    found = with_time_limits(workload, None, 0)
    assert found.jobs[0].time_limit == 71
    assert found.notes == ["1 job ran beyond the time limit: the limit is raised to the run time."]


def test_the_policies_are_listed(capsys: Captured) -> None:
    out = simulated(capsys, "--list-policies")
    names = ["auto", *POLICIES]
    assert [line.split()[0] for line in out.splitlines()[: len(names)]] == names
    found = json.loads(simulated(capsys, "--list-policies", "--json"))
    assert [each["name"] for each in found["policies"]] == names


@pytest.mark.parametrize(
    ("typed", "keyword"),
    [
        ("", "No trace file given"),
        ("nothing.csv", "nothing.csv cannot be read"),
        ("SWF --policy best", "no policy 'best'"),
        ("SWF --policy ,", "--policy is empty"),
        ("SWF --base fifo", "--base fifo"),
        ("SWF --set planner.speed=1", "no parameter 'speed'"),
        ("SWF --set quantum=1", "is not POLICY.PARAMETER=VALUE"),
        ("SWF --set srsf.quantum=1 --policy fifo", "applies to srsf, which is not compared"),
        ("SWF --set fifo.quantum=1", "fifo has no parameter quantum"),
        ("SWF --set planner.quantum=-1", "quantum '-1' is not a duration"),
        ("SWF --set planner.grain=1", "grain must be between 1.01 and 16, not 1"),
        ("SWF --cluster 8by8", "is not NODESxGPUS"),
        ("SWF --cluster \uff18x8", "is not NODESxGPUS"),
        ("SWF --cluster 1000000x8", "100,000 nodes"),
        ("SWF --cluster 99999999x8", "100,000 nodes"),
        ("SWF --cluster 8x" + "9" * 5000, "1,000,000 GPUs"),
        ("SWF --cluster 1x0,cpus=2", "no job fits on 1 node with 0 GPUs"),
        ("SWF --cluster 8x8 --load 1", "--cluster cannot be combined with it"),
        ("SWF --load 0", "--load 0 is not a share"),
        ("SWF --epochs-known 200%", "200% is not a share"),
        ("SWF --epochs-known 200%%", "200%% is not a share"),
        ("SWF --load nan", "--load nan is not a share"),
        ("SWF --estimates 0.5", "--estimates takes a factor from 1 to 1000, not '0.5'"),
        ("SWF --estimates 2 --limits exact", "--estimates and --limits cannot be combined"),
        ("SWF --checkpoint soon", "--checkpoint 'soon' is not a duration"),
        ("SWF --first 0", "--first takes a whole number of at least 1"),
        ("SWF --seed x", "--seed takes a whole number of at least 0"),
        ("SWF --seed 99999999999999999999999", "at most 15 digits"),
        ("SWF --format fax", "--format fax"),
        ("SWF --limits some", "--limits some"),
        ("SWF --html /no/such/place.html", "there is no directory /no/such"),
        ("SWF --html=", "--html takes the name of a file"),
        ("SWF --time-unit weeks", "one of milliseconds, seconds, minutes, hours"),
        ("SWF --time-unit minutes", "omit --time-unit"),
    ],
)
def test_a_mistake_is_reported_in_one_line(capsys: Captured, typed: str, keyword: str) -> None:
    assert keyword in refused(capsys, *(SWF if word == "SWF" else word for word in typed.split()))


def test_a_mistake_is_json_where_json_is_asked_for(capsys: Captured) -> None:
    assert simulate("nothing.csv", "--json") == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["exit"]) == ("usage", 2)


def test_what_fits_nowhere_is_left_out_with_a_count(capsys: Captured) -> None:
    lines = simulated(capsys, SWF, "--cluster", "1x16", "--policy", "fifo").splitlines()
    (note,) = [line for line in lines if line.endswith("skipped: this cluster cannot run them.")]
    left = int(note.split()[1])
    assert 0 < left < 27
    assert lines[0].startswith(f"example: {27 - left} jobs on ")


def test_of_several_workloads_those_that_fit_are_compared(capsys: Captured, tmp_path: Path) -> None:
    wide, narrow = tmp_path / "wide.csv", tmp_path / "narrow.csv"
    wide.write_text("submit_time,duration,num_gpus\n0,5,64\n1,5,32\n")
    narrow.write_text("submit_time,duration,num_gpus\n0,5,1\n")
    args = [wide, narrow, "--cluster", "1x8", "--policy", "fifo"]
    assert simulate(*args) == 0
    said = capsys.readouterr()
    assert said.out.startswith("narrow: 1 job on ")
    assert said.err == (
        "stoker: skipped: wide: no job fits on 1 node with 8 GPUs: the smallest of 2 jobs "
        "requests 32 GPUs; choose larger nodes, as in --cluster 8x8,cpus=64,ram=512G.\n"
    )
    assert simulate(*args, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["workload"] for each in found["workloads"]] == ["narrow"]
    assert found["left_out"][0].startswith("wide: no job fits on 1 node")


def test_auto_is_planner_where_jobs_report_and_backfill_where_they_do_not(capsys: Captured) -> None:
    args = (MURI, "--cluster", "1x8", "--policy", "auto,backfill,planner", "--json")
    for more, same in (((), "planner"), (("--limits", "guessed"), "backfill")):
        (found,) = json.loads(simulated(capsys, *args, *more))["workloads"]
        took = {run["policy"]: run["jct"]["mean"] for run in found["runs"]}
        assert took["backfill"] != took["planner"]
        assert took["auto"] == took[same]
    chosen = arguments.policy_variants("auto", ["auto.quantum=20m"])
    assert chosen[0].parameters == {"quantum": 1200.0}


class Terminal(StringIO):
    """Somebody looks."""

    def isatty(self) -> bool:
        return True


def test_progress_is_drawn_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for screen, drawn in ((Terminal(), True), (StringIO(), False)):
        monkeypatch.setattr("sys.stderr", screen)
        meter = ProgressLine(200)
        meter.show("reading trace.csv")
        assert ("reading trace.csv" in screen.getvalue()) is drawn
        meter.start_run("trace, fifo")
        meter.end_run(100)
        meter.start_run("trace, planner")
        meter.clear()
        assert ("trace, planner: 100 of 200 jobs, 50 %" in screen.getvalue()) is drawn
        assert bool(screen.getvalue()) is drawn


def test_typed_as_a_user_does(home: Path) -> None:
    """The command becomes the simulator: same output, same exit code, and no daemon."""

    def run(*args: object, stdin: Path | None = None) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "stoker", "simulate", *map(str, args)],
            input=stdin.read_text() if stdin is not None else "",
            capture_output=True, text=True, check=False, env=dict(os.environ), timeout=60,
        )  # fmt: skip

    done = run(SWF, "--policy", "fifo", "--first", "5")
    assert done.returncode == 0
    assert done.stdout.startswith("example: 5 jobs on ")
    assert not done.stderr  # progress is for terminals
    assert run("nothing.csv").returncode == 2
    piped = run("-", "--policy", "fifo", "--first", "5", stdin=SWF)
    assert piped.stdout.splitlines()[0] == done.stdout.splitlines()[0].replace("example", "stdin")
    nothing = run("-")
    assert nothing.stderr.startswith("stoker: standard input, line 1: the file is empty")
    misspelt = run(SWF, "--polcy", "fifo")
    assert misspelt.returncode == 2
    assert "Did you mean --policy?" in misspelt.stderr
    assert not any(home.iterdir())
