"""The reports of sweeps and simulations in a real browser, opened as files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from stoker.simulate.replay.results import JobResult, RunCost, RunResult, Segment
from stoker.simulate.report.page import html as simulation_html
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


def simulation(policy: str, wait: float) -> RunResult:
    """Twelve jobs on two nodes: each of 1 to 4 GPUs for an hour, of three users and two queues."""
    results, segments = [], []
    for n in range(12):
        gpus, begin = float(n % 4 + 1), 600.0 * n + wait
        results.append(
            JobResult(job=n, submit_time=600.0 * n, gpus=gpus, start_time=begin, run_time=3600,
                      end_time=begin + 3600, gpu_seconds=3600 * gpus, preemptions=n % 2,
                      user=["ana", "bo", HOSTILE][n % 3], queue=["day", HOSTILE][n % 2])
        )  # fmt: skip
        segments.append(Segment(n, n % 2, 0, gpus, begin, begin + 3600))
    in_use = [(600.0 * n, float(n % 8)) for n in range(20)]
    return RunResult(
        policy=policy, workload="small", results=results, segments=segments, gpus=8,
        node_names=["gpu1", HOSTILE], gpus_in_use=in_use, notes=[HOSTILE],
        pending_jobs=[(at, int(value)) for at, value in in_use], parameters={"restart": 60.0},
        cost=RunCost(events=100, seconds=0.02, median=1e-4, p99=1e-3),
    )  # fmt: skip


def simulated() -> str:
    runs = [simulation("fifo", 1200), simulation(HOSTILE, 60)]
    return simulation_html(runs, f"Small lab {HOSTILE}", ["Half a day."])


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_policies_are_compared(reader: Reader, scheme: str, width: int) -> None:
    page = reader.open(simulated(), scheme, width)
    expect(page.locator(".jobhead")).to_contain_text("mean completion time: 1.02 h")
    rows = page.get_by_role("region", name="Policy comparison").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(1).locator("td.best").first).to_contain_text("0.76 ×")
    expect(page.locator(".u-wrap")).to_be_visible()
    for title in ("Wait by job size", "Pending jobs", "Scheduling time", "Notes"):
        expect(page.get_by_role("heading", name=title)).to_be_visible()
    assert page.locator("img").count() == 0
    users = page.get_by_role("region", name="By user")
    expect(users.locator("tbody tr")).to_have_count(3)
    expect(users.locator("tbody tr").first).to_contain_text("1.33 h")
    page.get_by_role("group", name="Figure").first.get_by_text("mean wait").click()
    expect(users.locator("tbody tr").first).to_contain_text("20.0 min")
    assert_accessible(page)


def test_curves_and_areas_follow_the_choices(reader: Reader) -> None:
    page = reader.open(simulated())
    expect(page.get_by_text("completion time: from submission to end")).to_be_visible()
    page.get_by_role("button", name="slowdown", exact=True).click()
    expect(page.get_by_text("slowdown: completion time divided by run time")).to_be_visible()
    areas = page.locator("section", has_text="GPUs in use").locator("svg[tabindex]")
    areas.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".tip")).to_contain_text("fifo")
    expect(page.locator(".tip")).to_contain_text("GPUs")
    page.keyboard.press("Escape")
    expect(page.locator(".tip")).to_be_hidden()


def test_the_cluster_is_walked_and_zoomed(reader: Reader) -> None:
    page = reader.open(simulated())
    tip = page.locator(".tip")
    canvas = page.locator(".gantt canvas")
    canvas.scroll_into_view_if_needed()
    canvas.focus()
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("job 0")
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("job 2")
    expect(tip).to_contain_text("held for60.0 min")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowDown")
    expect(tip).to_contain_text("job 1")
    expect(tip).to_contain_text("submitted00:10:00")
    labels = page.locator(".gantt > svg > text")
    before = labels.all_text_contents()
    page.keyboard.press("+")
    expect(tip).to_be_hidden()
    expect(labels.last).to_contain_text("minutes since the start")
    canvas.dblclick()
    expect(labels.last).to_contain_text("hours since the start")
    assert labels.all_text_contents() == before
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 120, box["y"] + 20, steps=3)
    page.mouse.up()
    expect(labels.last).to_contain_text("minutes since the start")
    page.get_by_role("button", name="by size").click()
    expect(page.locator(".legend", has_text="2–4 GPUs")).to_be_visible()


@pytest.mark.parametrize("runs", [[], [simulation("fifo", 0)]])
def test_a_small_simulation_has_a_report(reader: Reader, runs: list[RunResult]) -> None:
    page = reader.open(simulation_html(runs, "Little"))
    expect(page.get_by_role("heading", level=1)).to_contain_text("Little")
    expect(page.get_by_role("heading", name="Polic")).to_be_visible()
