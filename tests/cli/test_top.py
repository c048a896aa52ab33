"""`stoker top`: screens of fixed data line by line, keys, and one real terminal."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.pty_screen import PtyScreen
from conftest import Run
from e2e.daemon_fixture import DaemonFixture, state_of
from fakes.nvml import FakeNvml, Gpu, nvml
from stoker.cli.output.table import display_width
from stoker.cli.screens import model as m
from stoker.cli.screens.draw import draw
from stoker.cli.screens.lines import bars, fit, pad, window
from stoker.cli.screens.model import NEEDED, TopModel, rows_of
from stoker.cli.screens.terminal import parse_keys
from stoker.client.errors import DaemonUnreachable

__all__ = ["nvml"]

NOW = 10_000.0


def row(id: int, state: str = "PENDING", **more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": id, "label": str(id), "name": "train", "user": "ana", "queue": "default",
        "state": state, "node": None, "cause": None, "gpus": 1, "devices": None, "priority": 0,
        "held": False, "submitted": 9000, "started": None, "ended": None, "begin": None,
        "limit": None, "expected": None, "sweep": None, "epochs": None, "total_epochs": None,
        "attempt": 0,
    }  # fmt: skip
    return {**fields, **more}


@pytest.fixture
def model() -> TopModel:
    client: Any = None
    model = TopModel(client)
    running = row(42, "RUNNING", started=9400, node="box", expected=10_900, epochs=3,
                  total_epochs=10)  # fmt: skip
    model.gpus = [
        {"node": "box", "id": str(n), "memory": 24576, "foreign_process": None} for n in range(3)
    ]
    model.gpus[2]["foreign_process"] = "eve's python (pid 7)"
    model.readings = {
        "box/0": ["box/0", 97, 20480, 61, 290.4, "busy", [[42, "1", None]]],
        "box/1": ["box/1", 0, 300, 35, 20.0, "free", []],
        "box/2": ["box/2", None, None, None, None, "foreign", []],
    }
    model.history = {"box/0": [0, 50.0, 100.0, None], "box/1": [0.0] * 4}
    model.running = {42: running}
    model.counts = {"RUNNING": 1, "PENDING": 2}
    model.rows = [
        running, row(43, name="名前がとても長い実験の名前です"), row(44, held=True, gpus=0.5),
        row(45, "FAILED", cause="CUDA out of memory"),
    ]  # fmt: skip
    model.total = 4
    return model


def screen(model: TopModel, width: int = 76, height: int = 10, **more: Any) -> list[str]:
    lines = draw(model, width, height, NOW, **more)
    assert len(lines) == height
    assert all(display_width(line) <= width for line in lines)
    return [line.rstrip() for line in lines]


def test_the_gpu_screen_has_figures_jobs_and_bars(model: TopModel) -> None:
    lines = screen(model)
    assert [line.strip() for line in (lines[2], lines[4])] == ["▁▅█", "▁▁▁▁"]
    assert len(lines[2]) == 74, "the newest value, which is unknown, is at the right"
    assert [*lines[:2], lines[3], *lines[5:]] == [
        "  stoker  GPUs  1 of 3 GPUs free  1 running, 2 pending",
        "> box/0   97%   20.0/24G  61°C  290W  42 train ana 10:00 ~15:00 left",
        "  box/1    0%    0.3/24G  35°C   20W  free",
        "  box/2     -          -     -     -  foreign  eve's python (pid 7)",
        "", "", "",
        "  1 GPUs  2 queue  3 job  4 sweeps  5 machines  / search  ? help  q quit",
    ]  # fmt: skip


def test_many_gpus_are_one_line_each(model: TopModel) -> None:
    lines = screen(model, width=120, compact=True)
    assert lines[1].startswith("> box/0 " + " " * 16 + "▁▅█")
    model.cursor = 2
    assert "box/2" in screen(model, height=3)[1], "the cursor is always visible"


def test_the_queue_screen_has_a_window_of_the_jobs(model: TopModel) -> None:
    model.screen, model.cursor = m.QUEUE, 1
    lines = screen(model, width=90)
    assert lines[1:3] == [
        "  4 jobs by start",
        "  JOB NAME                    USER STATE   GPUS  TIME",
    ]
    assert lines[3].startswith("  42  train                   ana  RUNNING    1  10:00 ~15:00 left")
    assert lines[4].startswith("> 43  名前がとても長い実験の")
    assert lines[4].endswith("PENDING    1  waits 16:40")
    assert lines[5].split()[3:5] == ["HELD", "0.5"]
    assert lines[6].endswith("FAILED     1  CUDA out of memory")
    assert model.selected_job() == (43, "43")


def test_jobs_of_the_queue_are_selected_and_those_of_a_gpu_named(model: TopModel) -> None:
    assert model.selected_job() == (42, "42"), "not its share of the GPU"
    model.screen, model.cursor = m.QUEUE, 1
    model.choose()
    assert (model.cursor, model.chosen_jobs()) == (2, [(43, "43")])
    model.choose()
    model.move(-2)
    lines = screen(model, width=90)
    assert lines[1] == "  4 jobs by start, 2 selected"
    assert [line[:4] for line in lines[3:7]] == ["  42", ">*43", " *44", "  45"]
    model.choose()
    assert model.chosen_jobs() == [(44, "44")]
    model.chosen.clear()
    assert model.chosen_jobs() == [(44, "44")], "at the cursor"


def test_the_job_screen_has_the_reason_the_curve_and_the_output(model: TopModel) -> None:
    model.screen = m.JOB
    assert "no job is selected" in screen(model)[1]
    model.job = {
        "id": 43, "label": "43", "name": "train", "user": "ana", "state": "PENDING", "cause": None,
        "request": {"gpus": "2"}, "queue": "default", "node": None, "submitted_at": None,
        "command": "python train.py", "reason_text": "behind job 42",
    }  # fmt: skip
    model.log = ["epoch 1", "\x1b[31mred\x1b[0m\x1b[K \u202e\x1b]0;x"]
    model.curve = "loss", [[0, 1.0, 0], [1, 0.5, 1]]
    text = "\n".join(screen(model, height=24))
    for word in ("43 train", "2 GPUs", "python train.py", "behind job 42", "loss 0.5", "epoch 1"):
        assert word in text
    assert "\n  red ??]0;x\n" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_the_machine_screen_has_resources(model: TopModel) -> None:
    amount = {"total": "8", "held": "3"}
    model.screen = m.NODES
    model.nodes = [
        {"name": "gpu1", "state": "unreachable", "jobs": 2, "why": "timed out", "notes": [],
         "resources": {"gpu": amount, "cpu": amount, "mem": {"total": "65536", "held": "1024"}}},
    ]  # fmt: skip
    assert screen(model, width=100)[2].split() == [
        ">", "gpu1", "unreachable", "3/8", "3/8", "1/64G", "2", "timed", "out"
    ]  # fmt: skip


@pytest.mark.parametrize("width", [20, 60, 100, 400])
@pytest.mark.parametrize("height", [3, 10, 60])
@pytest.mark.parametrize("name", [m.GPUS, m.QUEUE, m.JOB, m.NODES, m.HELP])
def test_every_screen_fits_every_size(model: TopModel, name: str, width: int, height: int) -> None:
    model.screen, model.note = name, "stale since 12:03:00: the daemon has ended " * 3
    screen(model, width, height)


def test_lines_fit_their_width() -> None:
    assert display_width(fit([("名前" * 10, ""), ("x", "")], 11)) <= 11
    assert pad("ab", 4) == "ab  "
    assert pad("ab", 4, right=True) == "  ab"
    assert bars([0.0, 100.0, None], 4) == " ▁█ "
    assert [window(5, 0, 3), window(1, 4, 3), window(5, 4, 3), window(-1, 0, 3)] == [3, 1, 4, 0]


def test_columns_of_an_older_daemon_are_one_sentence() -> None:
    columns = {name: [1] for name in NEEDED if name not in {"array", "first"}}
    with pytest.raises(DaemonUnreachable, match=r"older.*array, first.*stoker daemon restart"):
        rows_of({"columns": {**columns, "label": ["1"]}, "dictionary": {}})


def test_columns_become_rows() -> None:
    reply = {
        "columns": {**{name: [0, 0] for name in NEEDED}, "id": [1, 3],
                    "array": [None, 2], "first": [None, 4], "labels": [None, 0],
                    "name": [0, 0], "user": [0, 0],
                    "queue": [0, 0], "state": [1, 0], "node": [None, 0], "cause": [None, None]},
        "dictionary": {"name": ["t"], "user": ["ana"], "queue": ["q"], "node": ["box"],
                       "state": ["RUNNING", "PENDING"], "cause": [], "labels": ["lr"]},
    }  # fmt: skip
    first, second = rows_of(reply)
    assert (first["label"], first["state"], first["node"]) == ("1", "PENDING", None)
    assert (second["label"], second["state"], second["node"]) == ("2_5", "RUNNING", "box")


def test_the_sweep_screen_has_progress_and_the_best_value(model: TopModel) -> None:
    sweep = {"id": 7, "label": "7", "name": "lr\x1b[31m", "user": "ana", "state": "RUNNING",
             "metric": "loss", "counts": {"done": 3, "running": 2, "failed": 0}, "total": 12,
             "issued": 5, "best": {"value": 0.12345}, "eta": None, "note": None}  # fmt: skip
    model.screen, model.cursor = m.SWEEPS, 1
    assert "no sweeps" in screen(model)[2]
    held = {**sweep, "id": 8, "label": "8", "state": "HELD", "total": None, "best": None,
            "counts": {}, "issued": 0, "note": "tpe needs optuna"}  # fmt: skip
    model.sweeps = [held, sweep]
    lines = screen(model, 110)
    start = "lr?[31m             ana       "
    assert lines[2:4] == [
        f"  8       {start}HELD       ········  0%{' ' * 25}tpe needs optuna",
        f"> 7       {start}RUNNING    ██······ 25% loss 0.1235           3 done, 2 running",
    ]
    assert model.selected_sweep() is sweep
    assert model.length() == 2
    model.screen, model.sweep = m.QUEUE, sweep
    assert screen(model, 110)[1].startswith("  sweep 7 lr?[31m  4 jobs by start")


def test_frames_change_what_runs(model: TopModel) -> None:
    model.is_outdated = False
    changed = [row(43, "RUNNING"), row(42, "COMPLETED")]
    model.take("jobs", {"seq": 2, "changed": changed, "gone": [42], "reorder": False})
    assert (list(model.running), model.is_outdated) == ([43], True)
    model.take("counts", {"seq": 2, "counts": {"RUNNING": 1}})
    assert model.counts == {"RUNNING": 1}


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"j", ["j"]), (b"\x1b[A\x1b[B", ["up", "down"]), (b"\x1b", ["esc"]), (b"\r", ["enter"]),
        (b"\x1b[6~x", ["pgdn", "x"]), ("é/".encode(), ["é", "/"]), (b"", ["q"]),
        (b"\x1b[99;5u1", ["1"]), (b"\xff", ["\ufffd"]), (b"\x1b\x1b", ["esc", "esc"]),
    ],
)  # fmt: skip
def test_keys(data: bytes, keys: list[str]) -> None:
    assert parse_keys(data) == keys


@pytest.fixture
def box(home: Path, stoker: Run, nvml: FakeNvml) -> DaemonFixture:
    """A daemon with a busy and a free GPU, a running and a pending job."""
    nvml.set([Gpu(uuid=f"GPU-{n}", name="A100", memory_total=24576, pci=f"0000:0{n}:00.0")
              for n in (1, 2)])  # fmt: skip
    assert stoker("daemon", "start", env=nvml.env()).returncode == 0
    box = DaemonFixture(home, stoker)
    box.submit("--gpus", "1", "--name", "first", "echo hello; exec sleep 300")
    box.says(1, "hello")
    box.submit("--gpus", "2", "--name", "second", "sleep", "300")
    return box


@pytest.fixture
def top(box: DaemonFixture) -> Iterator[PtyScreen]:
    screen = PtyScreen("top", "--interval", "0.1")
    screen.shows("GPUs free")
    yield screen
    screen.close()


@pytest.mark.e2e
def test_a_user_looks_around_acts_and_quits(top: PtyScreen, box: DaemonFixture) -> None:
    top.shows("1 first", "free")
    top.press("2")
    top.shows("jobs by start", "first", "second", "RUNNING", "PENDING")
    top.press("/seco\r")
    top.until(lambda text: "/seco" in text and "first" not in text)
    top.press("\r")
    top.shows("sleep 300", "needs 2 GPUs")
    top.press("c")
    top.shows("stoker cancel 2?  y/n")
    top.press("y")
    top.shows("job 2 cancelled")
    assert box.job(2)["state"] == "CANCELLED"
    top.press("1\r")
    top.shows("1 first", "hello")
    top.press("5")
    top.shows("MACHINE", "up")
    box.submit("--name", "third", "--hold", "true")
    top.press("2")
    top.shows("no job matches")
    top.press("\x1b")
    top.shows("third", "HELD")
    for rows, columns in ((10, 60), (40, 200), (24, 100)):
        top.resize(rows, columns)
        top.signal(signal.SIGWINCH)
        top.shows("third")
    box.submit("--name", "many", "--hold", "--array", "0-1", "true")
    top.press("/many\r\r")  # the second Enter opens what the search has found
    top.shows("4_0 many")
    top.press("c")
    top.shows("stoker cancel 4_0?  y/n")
    top.press("y")
    top.shows("job 4_0 cancelled")
    states = {job["label"]: job["state"] for job in box.client.jobs(["4"])["jobs"]}
    assert states == {"4_0": "CANCELLED", "4_1": "PENDING"}
    top.press("2\x1b")
    top.shows("third", "4_1")
    top.press("g")
    top.press("jxx")  # below the one that runs
    top.shows("2 selected")
    top.press("c")
    top.shows("2 jobs: stoker cancel 3,4_1?  y/n")
    top.press("y")
    top.shows("2 jobs cancelled")
    swept = box.stoker("sweep", "--hold", "--name", "tuned", "true", "a=1,2", check=True)
    sweep = swept.stdout.strip()
    top.press("4")
    top.shows("SWEEP", "tuned", "2 waiting")
    top.press("\r")
    top.shows(f"sweep {sweep} tuned  2 jobs", f"{sweep}_1")
    top.press("\x1b")
    top.shows("PROGRESS")
    top.press("c")
    top.shows(f"stoker cancel {sweep}?  y/n")
    top.press("y")
    top.shows(f"sweep {sweep} cancelled", "CANCELLED")
    top.press("q")
    assert (top.end(), top.is_restored) == (0, True)


@pytest.mark.e2e
def test_a_daemon_that_dies_leaves_old_figures_and_may_return(
    top: PtyScreen, box: DaemonFixture, nvml: FakeNvml
) -> None:
    box.crash()
    top.shows("stale since", "1 first")
    assert box.stoker("daemon", "start", env=nvml.env()).returncode == 0
    top.until(lambda text: "stale" not in text)
    box.client.cancel(["1", "2"])
    top.shows("2 of 2 GPUs free")


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_every_end_restores_the_terminal(top: PtyScreen, number: int) -> None:
    top.signal(number)
    code = top.end()
    assert code == (0 if number == signal.SIGINT else 128 + number)
    assert top.is_restored


@pytest.mark.e2e
def test_a_suspended_screen_gives_the_terminal_back_and_is_drawn_again(top: PtyScreen) -> None:
    top.signal(signal.SIGTSTP)
    top.until(lambda _: state_of(top.pid) == "T" and top.is_restored)
    top.screen.reset()
    top.signal(signal.SIGCONT)
    top.shows("GPUs free", "1 first")
    top.press("q")
    assert (top.end(), top.is_restored) == (0, True)


@pytest.mark.e2e
def test_without_a_terminal_everything_is_printed_once(box: DaemonFixture) -> None:
    done = box.stoker("top")
    assert done.returncode == 0, done.stderr
    assert "first" in done.stdout
    assert "second" in done.stdout
    assert "\x1b" not in done.stdout
    assert box.stoker("top", "--json").returncode == 2


def test_the_screens_import_little() -> None:
    code = (
        "import sys; bare = set(sys.modules); import stoker.cli.inspect.top, "
        "stoker.cli.screens.terminal, stoker.cli.session.live; print(*(set(sys.modules) - bare))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"asyncio", "curses", "dataclasses", "inspect", "json", "logging", "msgspec", "re",
             "selectors", "socket", "subprocess", "typing"}  # fmt: skip
    assert not set(done.stdout.split()) & heavy
