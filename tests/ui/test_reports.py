"""The reports of sweeps and simulations in a real browser, opened as files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from stoker.sweep.results.page import html as sweep_html
from ui.test_pages import AXE, OVERFLOW, ROOT, RULES

HOSTILE = '</script><img src=x onerror="document.title=1">\u202e'
pytestmark = pytest.mark.needs("chromium", AXE)


class Reader:
    """Opens reports, and notes errors and requests of their pages."""

    def __init__(self, browser: Browser, directory: Path) -> None:
        self.browser, self.directory = browser, directory
        self.problems: list[str] = []

    def open(self, text: str, scheme: str = "light", width: int = 1280) -> Page:
        path = self.directory / "report.html"
        path.write_text(text, encoding="utf-8")
        page = self.browser.new_page(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("request", lambda request: self._note("request", request.url))
        page.goto(path.as_uri())
        return page

    def _note(self, kind: str, text: str) -> None:
        if kind == "error" or (kind == "request" and not text.startswith(("file:", "data:"))):
            self.problems.append(text)


@pytest.fixture
def reader(browser: Browser, tmp_path: Path) -> Iterator[Reader]:
    made = Reader(browser, tmp_path)
    yield made
    for context in browser.contexts:
        context.close()
    assert made.problems == []


def assert_accessible(page: Page) -> None:
    page.evaluate((ROOT / AXE).read_text())
    violations = page.evaluate(f"axe.run({RULES}).then(r => r.violations)")
    short = [(one["id"], [node["html"] for node in one["nodes"]]) for one in violations]
    assert short == []
    assert page.evaluate(OVERFLOW) <= 0


def sweep(count: int) -> tuple[dict[str, Any], dict[str, Any]]:
    trials = [
        {"id": 100 + n, "label": f"7_{n}", "state": "FAILED" if n == 3 else "COMPLETED",
         "params": {"lr": 10.0 ** -(n % 4), "opt": ["adam", HOSTILE][n % 2], HOSTILE: n},
         "value": 0.1 + n / 10, "step": 9.0, "elapsed": 60.0, "stopped": False, "cause": HOSTILE}
        for n in range(count)
    ]  # fmt: skip
    view = {
        "sweep": {"label": "7", "name": HOSTILE, "user": "ana", "state": "DONE", "method": "random",
                  "metric": "loss", "goal": "minimize", "counts": {"done": count}, "total": count,
                  "note": None},
        "definition": {"line": "train {lr}", "parameters": {}}, "trials": trials,
    }  # fmt: skip
    return view, {f"7_{n}": [[s, 2.0 / (s + 1) + n] for s in range(9)] for n in range(count)}


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_trials_are_drawn_selected_and_sorted(reader: Reader, scheme: str, width: int) -> None:
    page = reader.open(sweep_html(*sweep(12)), scheme, width)
    rows = page.get_by_role("region", name="Trials").locator("tbody tr")
    expect(rows).to_have_count(12)
    expect(rows.first).to_contain_text("7_0")
    expect(page.locator(".u-wrap")).to_be_visible()
    assert page.locator("img").count() == 0
    assert HOSTILE[:5] in page.title()
    page.get_by_role("button", name="trial").click()
    page.get_by_role("button", name="trial").click()
    expect(rows.first).to_contain_text("7_11")
    assert_accessible(page)
    canvas = page.locator("canvas.parallel")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 56, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 56, box["y"] + 70, steps=3)
    page.mouse.up()
    expect(rows).to_have_count(3)
    page.get_by_role("button", name="Select all").click()
    expect(rows).to_have_count(12)


@pytest.mark.parametrize("count", [0, 1])
def test_a_sweep_with_few_trials_has_a_report(reader: Reader, count: int) -> None:
    page = reader.open(sweep_html(*sweep(count)))
    expect(page.get_by_role("heading", level=1)).to_contain_text("7")
    expect(page.get_by_text("Too few trials have finished.")).to_be_visible()
