import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli import output
from stoker.cli.output import colour
from stoker.cli.output.table import Cell, Column, display_width, render, shorten
from stoker.cli.session.live import Screen, fit_lines
from stoker.terminal import COLOURS

COLUMNS = (Column("ID", right=True), Column("NAME", cut=True), Column("ST"))


def test_columns_are_aligned_and_nothing_trails() -> None:
    rows = [["1", "a", "R"], ["411", "long name", ""]]
    assert render(COLUMNS, rows) == [" ID  NAME       ST", "  1  a          R", "411  long name"]


def test_without_a_width_nothing_is_cut() -> None:
    line = render(COLUMNS, [["1", "x" * 500, "R"]], header=False)[0]
    assert "x" * 500 in line


def test_a_terminal_cuts_only_what_may_be_cut() -> None:
    line = render(COLUMNS, [["123456789012", "x" * 500, "R"]], header=False, width=40)[0]
    assert display_width(line) == 40
    assert line.startswith("123456789012  xxx")
    assert line.endswith("…  R")


def test_colour_does_not_change_the_layout() -> None:
    rows = [["1", "a", Cell("R", "green")], ["2", "bb", Cell("PD", "yellow")]]
    plain = render(COLUMNS, rows)
    painted = render(COLUMNS, rows, coloured=True)
    assert "\x1b[32mR\x1b[0m" in painted[1]
    for code in COLOURS.values():
        painted = [line.replace(f"\x1b[{code}m", "").replace("\x1b[0m", "") for line in painted]
    assert painted == plain


def test_names_cannot_steer_the_terminal() -> None:
    assert render(COLUMNS, [["1", "\x1b[2Jx\n", "R"]], header=False) == ["1  ?[2Jx?  R"]


def test_wide_letters_take_two_cells() -> None:
    assert display_width("日本") == 4
    assert shorten("日本語", 5) == "日本…"


@given(st.text(), st.integers(min_value=1, max_value=30))
def test_what_is_shortened_fits(text: str, width: int) -> None:
    assert display_width(shorten(text, width)) <= max(width, 1)


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"CLICOLOR_FORCE": "1", "TERM": "dumb"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"CLICOLOR_FORCE": "0"}, False),
    ],
)
def test_colour_follows_the_usual_variables(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], wanted: bool
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(output, "is_terminal", lambda _: False)
    assert colour.is_enabled() is wanted


@pytest.mark.parametrize(("term", "wanted"), [("xterm", True), ("dumb", False)])
def test_a_dumb_terminal_has_no_colour(
    monkeypatch: pytest.MonkeyPatch, term: str, wanted: bool
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(output, "is_terminal", lambda _: True)
    assert colour.is_enabled() is wanted


def test_a_screen_counts_what_did_not_fit() -> None:
    lines = fit_lines([str(i) for i in range(50)], height=10, width=80)
    assert (len(lines), lines[-1]) == (10, "… 41 more lines")
    assert fit_lines(["x" * 100], height=10, width=80) == ["x" * 79 + "…"]


def test_only_lines_that_changed_are_written_again() -> None:
    screen, size = Screen(), (10, 80)
    assert "\x1b[2J" in screen.changes(["a", "b", "c"], size)
    assert screen.changes(["a", "b", "c"], size) == ""
    again = screen.changes(["a", "B"], size)
    assert "\x1b[2;1H\x1b[2KB" in again
    assert "\x1b[3;1H\x1b[J" in again  # what is below is erased
    assert "a" not in again
    assert "\x1b[2J" in screen.changes(["a", "B"], (10, 70))  # another size: all of it
