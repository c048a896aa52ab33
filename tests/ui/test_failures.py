"""What open pages do when the daemon dies, a session ends, clocks jump or no driver is there."""

import time
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Browser, expect

from e2e.daemon_fixture import LEFT, DaemonFixture, Run
from ui.visitor import Visitor

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.timeout(300)]

PAGES = 20
DISCONNECTED = ("Failed to load resource", "Error while trying")


@pytest.mark.slow
def test_twenty_pages_are_live_again_after_the_daemon_was_killed(
    browser: Browser, box: DaemonFixture
) -> None:
    """Each in a profile of its own, because a browser opens six connections per profile."""
    holds = box.submit("--gpus", "1", "--name", "holds", "echo ready; exec sleep 300")
    box.becomes(holds, "RUNNING")
    link = box.stoker("ui", "--print", "--share", "1h").stdout.split()[-1]
    visitors = [Visitor(browser, link) for _ in range(PAGES)]
    for at, visitor in enumerate(visitors):
        visitor.expected = DISCONNECTED
        visitor.open(("", "q", f"j/{holds}", "m")[at % 4])
        visitor.shows("holds")
        visitor.page.evaluate("window.kept = 1")
    box.crash()
    for visitor in visitors:
        visitor.shows("stale since")
    for at, path in enumerate(("j/1", "h", "p")):
        visitors[at].open(path)
        visitors[at].shows("The daemon does not answer.")
    box.up()
    for visitor, text in zip(visitors[:3], ("Details", "Ended jobs", "Outlook"), strict=True):
        visitor.shows(text)
    for visitor in visitors:
        expect(visitor.page.locator(".link.live")).to_be_visible()
    late = box.submit("--gpus", "1", "--name", "late", "echo ready; exec sleep 300")
    for visitor in visitors:
        visitor.open("q")
        expect(visitor.row(late)).to_contain_text("running")
        expect(visitor.row(holds)).to_contain_text("running")
        expect(visitor.page.locator(".grid .body [role=row]")).to_have_count(2)
        assert visitor.page.evaluate("window.kept") == 1, "the page was loaded again"
        visitor.close()
        assert visitor.problems == []


def test_an_open_page_says_that_its_session_has_ended(
    browser: Browser, box: DaemonFixture, visitor: Visitor
) -> None:
    """No reload: it notices at the next frame, and goes on once there is another session."""
    visitor.expected = DISCONNECTED
    visitor.page.evaluate("window.kept = 1")
    (session,) = box.client.sessions()["sessions"]
    box.client.end_session(session["id"])
    label = box.submit("--gpus", "1", "--name", "later", "echo ready; exec sleep 300")
    visitor.shows("Open a session")
    expect(visitor.page.get_by_text("later")).to_have_count(0)
    other = visitor.context.new_page()
    other.goto(box.stoker("ui", "--print").stdout.strip())
    other.locator(".link.live").wait_for()
    other.close()
    visitor.open("q")
    expect(visitor.row(label)).to_contain_text("running")
    assert visitor.page.evaluate("window.kept") == 1


@pytest.mark.parametrize("hours", [-3, 3, 24 * 365 * 40])
def test_a_jump_of_the_browsers_clock_changes_no_time(
    box: DaemonFixture, visitor: Visitor, hours: int
) -> None:
    label = box.submit("--gpus", "1", "--name", "one", "echo ready; exec sleep 300")
    box.becomes(label, "RUNNING")
    visitor.page.clock.install()
    visitor.page.reload()
    visitor.page.locator(".link.live").wait_for()
    visitor.open("q")
    expect(visitor.row(label).locator(".tm")).to_contain_text(" s")
    visitor.page.clock.set_system_time(datetime.fromtimestamp(time.time() + 3600 * hours, UTC))
    # Until the next frame of the stream the time is that of the browser.
    expect(visitor.row(label).locator(".tm")).to_contain_text(" s")
    second = box.submit("--gpus", "1", "--name", "two", "echo ready; exec sleep 300")
    expect(visitor.row(second).locator(".tm")).to_contain_text(" s")
    visitor.open("")
    expect(visitor.page.locator(".strip", has_text="two").locator(".who")).to_contain_text(" s")
    expect(visitor.page.locator(".link.live")).to_be_visible()


def test_a_machine_without_a_driver_has_a_page(
    browser: Browser,
    home: object,
    stoker: Run,
    request: pytest.FixtureRequest,
) -> None:
    """Jobs run on its cores; the page says why there are no GPUs."""
    box = DaemonFixture(home, stoker)  # type: ignore[arg-type]
    request.node.stash[LEFT] = box.run_dir
    box.up()
    visitor = Visitor(browser, box.stoker("ui", "--print").stdout.strip())
    visitor.shows("no GPUs")
    label = box.submit("--name", "on-cores", "echo ready; exec sleep 300")
    visitor.open("q")
    expect(visitor.row(label)).to_contain_text("running")
    visitor.open("m")
    visitor.shows("cores")
    visitor.open(f"j/{label}")
    visitor.shows("ready")
    assert "on-cores" in box.stoker("top", "--once").stdout
    visitor.close()
    assert visitor.problems == []


def test_a_list_whose_request_the_browser_ended_is_asked_for_once_more(visitor: Visitor) -> None:
    visitor.expected = ("Failed to load resource",)
    visitor.page.route("**/v1/sessions", lambda route: route.abort(), times=1)
    with visitor.page.expect_event("requestfailed"):
        visitor.open("settings")
    sessions = visitor.page.get_by_role("region", name="Sessions").locator("tbody tr")
    expect(sessions).to_have_count(1)
