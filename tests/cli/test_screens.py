"""Tables on terminals of 80 and 140 columns."""

import time
from typing import Any

import pytest

from client.fake_daemon import view
from stoker.cli.cluster import gpus
from stoker.cli.inspect import eta, history, queue_screen
from stoker.cli.options import Args
from stoker.cli.output import job_table as joblist
from stoker.cli.output import sizes, table, times
from stoker.cli.output.table import Column

REQUEST = {"gpus": "1", "cpus": None, "memory": None}
COMMAND = "python train.py --config configs/imagenet/resnet50.yaml --lr 0.01 --epochs 90"


def job(number: int, **changes: Any) -> dict[str, Any]:
    return view(number, request=REQUEST, name="resnet50-imagenet-baseline", command=COMMAND,
                **changes)  # fmt: skip


RUNS = {"state": "RUNNING", "state_code": "R", "node": "box", "elapsed": 4000.0,
        "time_limit": 86400, "time_left": 82400.0, "devices": {"gpu": ["0", "1"]}}  # fmt: skip
TRAINS = {"epochs_done": 3, "epochs": 90, "listening": True}
PLAIN = {"epochs_done": 0, "epochs": None, "listening": False}
"""What the daemon tells of a job whose GPU memory was measured and that counts no epochs."""


def screen(views: list[dict[str, Any]], width: int | None) -> list[str]:
    return table.render(*joblist.queue_table(views, [], verbose=False, width=None), width=width)


TWO = [job(1, **RUNS, training=TRAINS), job(2, reason="Priority", training=PLAIN)]
AT_80 = """\
JOBID  NAME               USER  ST     TIME      LEFT  EPOCHS  GPUS  NODE/REASON
    1  resnet50-imagene…  ana   R   1:06:40  22:53:20    3/90     1  box:0,1
    2  resnet50-imagene…  ana   PD     0:00         -       -     1  (Priority)
"""
AT_140 = """\
JOBID  NAME                        USER  ST     TIME      LEFT  EPOCHS  GPUS  NODE/REASON  COMMAND
    1  resnet50-imagenet-baseline  ana   R   1:06:40  22:53:20    3/90     1  box:0,1      \
python train.py --config configs/imagenet/resnet…
    2  resnet50-imagenet-baseline  ana   PD     0:00         -       -     1  (Priority)   \
python train.py --config configs/imagenet/resnet…
"""


@pytest.mark.parametrize(("width", "lines"), [(80, AT_80), (140, AT_140)])
def test_a_wide_queue_shows_the_command(width: int, lines: str) -> None:
    assert screen(TWO, width) == lines.splitlines()


def test_a_pipe_gets_whole_cells_and_the_columns_that_scripts_know() -> None:
    header, first, _ = screen(TWO, None)
    assert header.endswith("NODE/REASON")
    assert "resnet50-imagenet-baseline" in first


START = {"expected_start": "2100-01-01T00:00:00Z"}
FORESEEN = {"foreseen": {"at": None, "end": {
    "low": "2100-01-01T00:00:00Z", "likely": "2101-01-01T00:00:00Z", "high": None}}}  # fmt: skip


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140, 200])
def test_no_line_of_the_queue_wraps(width: int) -> None:
    several = [*TWO, job(3, user="bo", **START, **FORESEEN, params={"lr": 0.1, "width": 1024})]
    assert max(map(table.display_width, screen(several, width))) <= width


def test_a_narrow_queue_drops_the_user_unless_there_are_several() -> None:
    assert "USER" not in screen(TWO, 66)[0]
    several = [TWO[0], {**TWO[1], "user": "bo"}]
    header = screen(several, 66)[0]
    assert ("USER" in header, "LEFT" in header) == (True, False)


def test_a_queue_of_plain_jobs_has_no_epochs() -> None:
    assert "EPOCHS" not in screen([job(2, training=PLAIN)], 200)[0]
    (row,) = history._table([job(2, training=PLAIN)], verbose=False)[1]
    assert "0" not in row


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, "1..4"),
        (RUNS, "2 of 1..4"),
        ({**RUNS, "state": "COMPLETED", "result": 0}, "2 of 1..4"),
        ({"devices": {"gpu": ["0", "1"]}}, "1..4"),  # it held two before it was preempted
    ],
)
def test_an_elastic_job_shows_what_it_holds(changes: dict[str, Any], shown: str) -> None:
    elastic = view(1, **{**changes, "request": {**REQUEST, "most_gpus": "4"}})
    assert joblist.gpus_text(elastic) == shown


def test_sizes_have_units() -> None:
    assert [sizes.exact(mib) for mib in (2048, 2047, 81920, 0)] == [
        "2 GiB", "2047 MiB", "80 GiB", "0 MiB"]  # fmt: skip
    assert [sizes.rounded(mib) for mib in (300, 1536, 39000, 81920)] == ["300M", "1.5G", "38G",
                                                                         "80G"]  # fmt: skip


# ---------------------------------------------------------------------------------- gpus

A100 = {
    "node": "box", "id": "0", "index": 0, "model": "NVIDIA A100-SXM4-80GB", "memory": 81920,
    "memory_used": 39936, "utilization": 97, "temperature": 61, "state": "busy", "free": "0",
    "jobs": [{"label": "7", "name": "resnet50-imagenet-baseline", "user": "ana", "share": "1"}],
    "foreign": [], "foreign_process": None,
}  # fmt: skip
CARDS = [
    A100,
    {**A100, "id": "1", "jobs": [], "state": "foreign", "foreign_process": "the stoker of bo"},
    {**A100, "id": "2", "jobs": [], "state": "foreign", "foreign_process": "eve's python (pid 8)",
     "foreign": [{"pid": 8, "user": "eve", "command": "/usr/bin/python x.py", "memory": 39000}]},
    {**A100, "id": "3", "jobs": [], "state": "foreign",
     "foreign_process": "other processes (49% of its memory)"},
    {**A100, "id": "4", "state": "shared",
     "jobs": [{**A100["jobs"][0], "share": "0.5"},  # type: ignore[index]
              {"label": "8", "name": "evaluate", "user": "bo", "share": "0.5"}]},
]  # fmt: skip
GPUS_AT_80 = """\
GPU  MODEL     TEMP  UTIL  MEMORY  STATE    FREE  USED BY
0    A100-80G  61°C   97%  39/80G  busy        0  ana: job 7 resnet50-imagenet-…
1    A100-80G  61°C   97%  39/80G  foreign     0  bo: stoker
2    A100-80G  61°C   97%  39/80G  foreign     0  eve: python (38G)
3    A100-80G  61°C   97%  39/80G  foreign     0  other processes (49% of its m…
4    A100-80G  61°C   97%  39/80G  shared      0  ana: job 7 (0.5), bo: job 8 (…
"""


def test_gpus_at_80_columns_keep_the_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "terminal_width", lambda: 80)
    assert gpus.gpu_lines({"gpus": CARDS}, Args({}, [])) == GPUS_AT_80.splitlines()
    monkeypatch.setattr(table, "terminal_width", lambda: 160)
    first = gpus.gpu_lines({"gpus": CARDS}, Args({}, []))[1]
    assert first == (
        "0    NVIDIA A100-SXM4-80GB  61°C  ████▉ 97%  39936/81920 MiB  busy        0  "
        "ana: job 7 resnet50-imagenet-baseline"
    )


@pytest.mark.parametrize(
    ("model", "short"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80G"),
        ("NVIDIA H100 80GB HBM3", "H100-80G"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"),
        ("Tesla V100-SXM2-32GB", "V100-32G"),
        ("AMD Instinct MI250X", "MI250X"),
        ("NVIDIA", "NVIDIA"),
    ],
)
def test_models_are_shortened(model: str, short: str) -> None:
    assert gpus.short_model(model) == short


def test_expected_times_are_whole_at_80_columns() -> None:
    row = ["417", "resnet50", "ana", "PENDING", "in ~6 min (4 min - 9 min)",
           "in 14 min (10 min - 20 min)", "earlier runs of this command"]  # fmt: skip
    header, line = table.render(eta.COLUMNS, [row], width=80)
    assert header.split() == ["JOBID", "NAME", "STATE", "STARTS", "ENDS"]
    assert line.endswith("in ~6 min (4 min - 9 min)  in 14 min (10 min - 20 min)")


def test_a_narrow_queue_has_expected_times_without_ranges() -> None:
    end = {"low": "2100-01-01T00:00:00Z", "likely": "2100-06-01T00:00:00Z",
           "high": "2101-01-01T00:00:00Z"}  # fmt: skip
    views = [job(1, **RUNS, foreseen={"at": None, "start": None, "end": end})]

    def shown(width: int) -> str:
        return table.render(
            *joblist.queue_table(views, [], verbose=False, width=width), width=width
        )[1]

    assert "days" in shown(80)
    assert "(" not in shown(80)
    assert " days - " in shown(140)


@pytest.mark.parametrize(
    ("reason", "elapsed", "left"),
    [("Resources", 4.0, 355_996.0), ("Dependency", 4.0, 35_996.0), ("JobArrayTaskLimit", 4e3, 9.0)],
)
def test_at_80_columns_other_columns_go_before_the_reason_is_cut(
    reason: str, elapsed: float, left: float
) -> None:
    soon = times.iso(time.time() + 70 * 60 + 1)
    when = {"low": soon, "likely": soon, "high": soon, "kind": "limit"}
    runs = {**RUNS, "elapsed": elapsed, "time_left": left}
    views = [
        job(1, **runs, foreseen={"at": None, "start": None, "end": when}),
        job(2, reason=reason, foreseen={"at": None, "start": when, "end": when}),
    ]
    header, _, line = table.render(
        *joblist.queue_table(views, [], verbose=False, width=80), width=80
    )
    assert header.split()[-3:] == ["START", "ETA", "NODE/REASON"]
    assert line.startswith("    2  resnet50")
    assert line.endswith(f"in <70 min  in <70 min  ({reason})")


def test_a_long_list_of_nodes_does_not_take_the_place_of_the_name() -> None:
    nodes = ",".join(f"gpu{number:02}:0-7" for number in range(10))
    columns, row = (
        (Column("NAME", cut=True), Column("NODES", whole=1)),
        ["resnet50-imagenet", nodes],
    )
    (line,) = table.render(columns, [row], header=False, width=60)
    assert line.startswith("resnet50-imagenet  gpu00:0-7,")
    assert line.endswith("…")


# --------------------------------------------------------------------------------- watch

FAILED = view(9, state="FAILED", state_code="F", cause="exit 3", result=3, label="9_298",
              name="eval", tail=["loading", "FileNotFoundError: val.h5"],
              members={"label": "9_[0-299]", "count": 300, "causes": {"exit 3": 300}})  # fmt: skip
WAITS = view(72, label="70_2", name="grid", members={"label": "70_[2-9%2]", "count": 8})
REPLY = {"jobs": [*TWO, WAITS, FAILED], "more": 30,
         "counts": {"RUNNING": 1, "PENDING": 39, "FAILED": 300}}  # fmt: skip
BOARD = """\
14:32:07  1 running, 39 pending, 300 failed
GPUs: 0 of 5 free; ana: 0; bo: 1; eve: 2; other processes: 3; ana, bo: 4
9_[0-299] eval  300 FAILED: exit 3
    | FileNotFoundError: val.h5

JOBID  NAME               USER  ST     TIME      LEFT  EPOCHS  GPUS  NODE/REASON
    1  resnet50-imagene…  ana   R   1:06:40  22:53:20    3/90     1  box:0,1
    2  resnet50-imagene…  ana   PD     0:00         -       -     1  (Priority)
… 38 more jobs
"""


def watched(height: int, width: int = 80, **changes: Any) -> list[str]:
    return queue_screen.watch_screen(
        {**REPLY, **changes}, CARDS, clock="14:32:07", width=width, height=height
    )


def test_a_watched_queue_has_counts_gpus_and_failures_on_top() -> None:
    assert watched(9) == BOARD.splitlines()
    assert watched(10)[-2].split()[:2] == ["70_[2-9%2]", "grid"]
    assert watched(10)[-1] == "… 30 more jobs"
    assert watched(8)[2] == "… 300 failures"


@pytest.mark.parametrize("height", range(1, 30))
@pytest.mark.parametrize("width", [40, 80, 140])
def test_a_watched_queue_fits_the_screen(height: int, width: int) -> None:
    lines = watched(height, width)
    assert len(lines) <= height
    assert max(map(table.display_width, lines)) <= width
    many = watched(height, width, jobs=[*TWO * 40, *[FAILED] * 20])
    assert len(many) <= height


def test_failures_leave_room_for_jobs_and_are_counted() -> None:
    many = watched(12, jobs=[*TWO, *[FAILED] * 20])
    assert "… 5,400 more failures" in many
    assert many[-4].startswith("JOBID")


def test_the_gpus_of_several_nodes_are_counted_by_node() -> None:
    there = {**A100, "node": "gpu1", "state": "free", "jobs": []}
    assert queue_screen.gpu_line([A100, there, there]) == "GPUs: 2 of 3 free: box 0/1, gpu1 2/2"
    assert (
        queue_screen.gpu_line([{**there, "id": "3"}, A100])
        == "GPUs: 1 of 2 free: gpu1 1/1, box 0/1"
    )
    assert queue_screen.gpu_line([{**A100, "state": "free", "jobs": []}]) == "GPUs: 1 of 1 free (0)"
