"""Metric series of any length and of several attempts: what is stored."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.daemon.metrics.downsample import Downsampler
from stoker.daemon.metrics.store import JobSeries, MetricsStore
from stoker.daemon.training.cleanup import remove


def write(path: Path, *points: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for given_point in points:
            step, value = given_point if isinstance(given_point, tuple) else (None, given_point)
            line = {"k": "metrics", "e": 0, "t": 5.0, "s": step, "v": {"loss": value}}
            file.write(json.dumps(line).encode() + b"\n")


def curve(home: Path, last: int = 0, points: int = 100) -> list[list[Any]]:
    series = JobSeries(str(home), 1, points)
    series.read(last)
    rows: list[list[Any]] = series.view([])["series"].get("loss", [])
    return [[step, value] for step, value, _ in rows]


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=400),
    st.integers(8, 60),
)
def test_a_downsampled_series_keeps_its_ends_and_extremes_in_order(
    values: list[float], most: int
) -> None:
    downsampler = Downsampler(most)
    for step, value in enumerate(values):
        downsampler.add(step, value, None)
    points = [(step, value) for step, value, _ in downsampler.points()]
    assert len(points) <= most
    assert points == sorted(points)
    assert set(points) <= set(enumerate(values))
    if len(values) <= most:
        assert points == list(enumerate(values))
    assert (points[0], points[-1]) == ((0, values[0]), (len(values) - 1, values[-1]))
    kept = [value for _, value in points]
    assert (min(kept), max(kept)) == (min(values), max(values))
    summary = downsampler.summary()
    assert summary["count"] == len(values)
    ends = (summary["last"][1], summary["min"][1], summary["max"][1])
    assert ends == (values[-1], min(values), max(values))


def test_nan_is_a_gap_and_not_an_extreme() -> None:
    downsampler = Downsampler(8)
    for step in range(100):
        downsampler.add(step, math.nan if step % 10 == 0 else float(step), 1.0)
    assert (downsampler.summary()["min"][1], downsampler.summary()["max"][1]) == (1.0, 99.0)
    assert downsampler.points()[0] == [0, None, 1.0]


def test_steps_repeated_by_a_later_attempt_count_once(tmp_path: Path) -> None:
    write(tmp_path / "series" / "1.0", (0, 9.0), (1, 8.0), (2, 7.0), (3, 6.0))
    write(tmp_path / "series" / "1.1", (2, 5.0), (3, 4.0))
    write(tmp_path / "training" / "1.2" / "report", (3, 3.0), (4, 2.0))
    assert curve(tmp_path, last=2) == [[0, 9.0], [1, 8.0], [2, 5.0], [3, 3.0], [4, 2.0]]
    assert curve(tmp_path, last=0) == [[0, 9.0], [1, 8.0], [2, 7.0], [3, 6.0]]


def test_without_steps_points_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "series" / "1.0", 3.0, 2.0)
    assert curve(tmp_path) == [[0, 3.0], [1, 2.0]]


def test_invalid_lines_and_a_hole_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "series" / "1.0"
    write(path, (0, 1.0))
    with path.open("ab") as file:
        file.write(b"\0" * 100 + b'{"k":"metrics","s":1,"v":{"loss":NaN}}\ngarbage\n{"k":"metr')
    write(path, (2, 3.0))  # lost in the incomplete line
    write(path, (3, 4.0))
    assert curve(tmp_path) == [[0, 1.0], [1, None], [3, 4.0]]


def test_a_growing_series_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MetricsStore(str(tmp_path))
    path = tmp_path / "training" / "1.0" / "report"
    write(path, *((step, 1.0) for step in range(1000)))
    assert store.read(1, 0, [], 100)["count"] == 1000
    write(path, (1000, 2.0))
    reply = store.read(1, 0, ["loss"], 100)
    assert (reply["count"], reply["summary"]["loss"]["last"]) == (1001, [1000, 2.0, 5.0])
    assert store.read(1, 0, ["other"], 100)["series"] == {}
    remove([str(path.parent)])  # its job has ended
    assert not path.exists()
    assert store.read(1, 0, [], 100)["count"] == 1001


def test_metrics_of_a_removed_report_directory_are_archived(tmp_path: Path) -> None:
    write(tmp_path / "training" / "1.0" / "report", (0, 1.0))
    (tmp_path / "training" / "2.0").mkdir()
    (tmp_path / "training" / "2.0" / "report").write_text('{"k":"hello"}\n')
    (tmp_path / "training" / "3.0").mkdir()
    (tmp_path / "training" / "3.0" / "report").symlink_to("/etc/passwd")
    for _ in range(2):  # also after an interruption
        remove([str(tmp_path / "training" / name) for name in ("1.0", "2.0", "3.0")])
    assert list((tmp_path / "training").iterdir()) == []
    assert [path.name for path in (tmp_path / "series").iterdir()] == ["1.0"]
