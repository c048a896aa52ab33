"""Curves of `stoker metrics` on a terminal, and its other formats."""

import pytest

from stoker.cli.inspect import metrics
from stoker.cli.inspect.metrics import number_text
from stoker.cli.options import parse
from stoker.cli.output import table
from stoker.cli.output.plot import plot


def test_a_line_goes_from_corner_to_corner() -> None:
    assert plot([[0, 0, None], [7, 7, None]], 4, 2) == ["⠀⠀⡠⠊", "⡠⠊⠀⠀"]


def test_a_missing_value_leaves_a_gap_and_one_value_is_a_dot() -> None:
    (row,) = plot([[0, 0.0, None], [1, None, None], [7, 0.0, None]], 4, 1)
    assert sum(cell != "⠀" for cell in row) == 2
    assert plot([[0, None, None]], 3, 2) == ["   ", "   "]


@pytest.mark.parametrize("values", [(-1.7e308, 1.7e308), (5e-324, 1e-323), (3.0, 3.0), (0, -1e9)])
def test_any_values_fit(values: tuple[float, float]) -> None:
    rows = plot([[0, values[0], None], [1, values[1], None]], 10, 4)
    assert [len(row) for row in rows] == [10] * 4
    assert any(cell != "⠀" for row in rows for cell in row)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "nan"), (3.0, "3"), (0.123456, "0.1235"), (-2e-9, "-2e-09"), (1e300, "1e+300")],
)
def test_figures_are_short(value: float | None, text: str) -> None:
    assert number_text(value) == text


POINTS = [[0, 1.0, None], [10, 0.5, None], [20, 0.25, None]]
REPLY = {
    "label": "3",
    "names": ["loss"],
    "series": {"loss": POINTS},
    "summary": {
        "loss": {"count": 3, "last": POINTS[2], "min": POINTS[2], "max": POINTS[0]},
    },
}


def test_a_terminal_gets_a_curve_as_wide_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "terminal_width", lambda: 60)
    lines = metrics.metric_lines(REPLY, [], parse(metrics.OPTIONS, []))
    assert lines[0].strip() == "loss"
    assert lines[1].split()[0] == "1"
    assert lines[8].split()[0] == "0.25"
    assert lines[9].split() == ["0", "20"]
    assert max(len(line) for line in lines) <= 60


def test_a_pipe_gets_a_table_without_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "terminal_width", lambda: None)
    lines = metrics.metric_lines(REPLY, [], parse(metrics.OPTIONS, ["--no-header"]))
    assert [line.split() for line in lines] == [["loss", "3", "0.25", "20", "0.25", "20", "1", "0"]]


def test_of_no_figures_nothing_is_drawn() -> None:
    reply = {**REPLY, "names": [], "series": {}, "summary": {}}
    assert metrics.metric_lines(reply, [], parse(metrics.OPTIONS, [])) == []
    assert "stoker.training.report(loss=...)" in metrics.no_metrics_text(reply)
