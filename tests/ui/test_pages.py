"""Every page in a real browser, at a real daemon with jobs that run, wait and have failed."""

import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from e2e.daemon_fixture import DaemonFixture, until
from ui.visitor import Visitor

ROOT = Path(__file__).parents[2]
AXE = "ui/node_modules/axe-core/axe.min.js"
HOSTILE = '<img src=x onerror="document.title=1">\u202egnp.exe'
pytestmark = [pytest.mark.needs("chromium"), pytest.mark.timeout(180)]


@pytest.fixture
def busy(box: DaemonFixture) -> DaemonFixture:
    """Jobs on all GPUs, one that waits, an array, and failures with hostile names and output."""
    holds = "echo ready; exec sleep 300"
    for at in range(3):
        box.submit("--gpus", "1", "--cpus", "0", "--name", f"train-{at}", "--time", "1h", holds)
    box.submit("--gpus", "1", "--cpus", "0", "--name", HOSTILE, f"echo '{HOSTILE}'; {holds}")
    fails = "echo '\x1b[31mTraceback (most recent call last):\x1b[0m'; exit 3"
    box.submit("--name", "fails", "--label", "a<b>", fails)
    box.becomes("5", "FAILED")
    box.submit("--gpus", "4", "--name", "waits", "--hold", "true")
    box.submit("--gpus", "2", "--name", "many", "--array", "1-30", "true")
    return box


SWEPT = """
import sys
from stoker.training import report
lr, wd = (float(word.partition("=")[2]) for word in sys.argv[1:])
for step in range(3):
    report(loss=lr + wd + 2 - step)
"""
PAGES = {"": "train-0", "q": "train-0", "j/1": "ready", "j/4": "ready", "j/5": "Traceback",
         "j/6": "Details", "m": "train-0", "h": "Ended jobs", "p": "Outlook",
         "settings": "Colours by"}  # fmt: skip


RULES = "{runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa', 'best-practice']}"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.mark.needs(AXE)
def test_every_page_is_accessible_and_quiet(browser: Browser, busy: DaemonFixture) -> None:
    """No violation of WCAG 2.2 AA, no error, no request to another server, nothing cut off."""
    axe = (ROOT / AXE).read_text()
    for scheme, width in (("light", 1440), ("dark", 1440), ("dark", 390)):
        visitor = Visitor(browser, busy.stoker("ui", "--print").stdout.strip(), scheme, width)
        visitor.page.evaluate(axe)
        for path, text in PAGES.items():
            visitor.open(path)
            visitor.shows(text)
            violations = visitor.page.evaluate(f"axe.run({RULES}).then(r => r.violations)")
            short = [(one["id"], [node["html"] for node in one["nodes"]]) for one in violations]
            assert short == [], path
            assert visitor.page.evaluate(OVERFLOW) <= 0, f"{path} is wider than the screen"
        assert visitor.page.title().startswith("● 4 running · 1 failed")
        visitor.close()
        assert visitor.problems == []


def test_a_job_shows_its_dependents_and_names_of_variables_but_no_values(
    box: DaemonFixture, visitor: Visitor
) -> None:
    first = box.submit("--hold", "--export", "ALL,TOKEN=hunter2", "true")
    second = box.submit("--dependency", f"afterok:{first}", "true")
    visitor.open(f"j/{first}")
    visitor.page.get_by_text("(names only)").click()
    visitor.shows("TOKEN")
    assert "hunter2" not in visitor.page.content()
    facts = visitor.page.locator(".facts").last
    facts.get_by_role("link", name=second, exact=True).click()
    expect(facts).to_contain_text(f"afterok:{first}")


def test_a_job_that_can_never_start_is_listed_until_it_is_cancelled(
    box: DaemonFixture, visitor: Visitor
) -> None:
    first = box.submit("false")
    box.submit("--dependency", f"afterok:{first}", "--name", "follows", "true")
    entry = visitor.page.locator(".failures li").filter(has_text="can never start")
    expect(entry).to_contain_text("follows")
    entry.get_by_role("button", name="Cancel").click()
    visitor.page.get_by_role("button", name="Cancel 1 job").click()
    expect(entry).to_have_count(0)


def test_the_menu_has_the_actions_that_apply(box: DaemonFixture, visitor: Visitor) -> None:
    label = box.submit("--hold", "true")
    menu = visitor.page.get_by_role("dialog", name="Actions")
    keys = visitor.page.keyboard
    visitor.open("q")
    visitor.row(label).click()
    for path in ("q", f"j/{label}"):
        visitor.open(path)
        visitor.page.locator("button", has_text="Release").or_(visitor.row(label)).first.wait_for()
        keys.press(".")
        expect(menu.get_by_role("button")).to_have_text(["Cancel 1 job", "Release 1 job", "Close"])
        keys.press("Escape")
        expect(menu).to_have_count(0)
    keys.press(".")
    keys.press("ArrowDown")
    keys.press("Enter")
    box.becomes(label, "COMPLETED")


def test_a_new_job_appears_and_a_daemon_that_dies_is_shown(
    box: DaemonFixture, visitor: Visitor
) -> None:
    visitor.open("q")
    visitor.shows("No jobs.")
    label = box.submit("--gpus", "1", "--name", "first", "echo ready; exec sleep 300")
    expect(visitor.row(label)).to_contain_text("running", timeout=5000)
    visitor.page.evaluate("window.kept = 1")

    visitor.expected = ("Failed to load resource", "Error while trying")
    box.crash()
    visitor.shows("stale since")
    assert "stale" in visitor.page.title()
    box.up()
    visitor.shows("live")
    second = box.submit("--gpus", "1", "--name", "second", "true")
    expect(visitor.page.locator("[role=row] .nm", has_text="first")).to_have_count(1)
    box.end_of(second)
    expect(visitor.row(second)).to_have_count(0)
    expect(visitor.row(label)).to_contain_text("running")
    assert visitor.page.evaluate("window.kept") == 1, "the page was loaded again"


def test_a_job_is_cancelled_and_retried_with_the_keyboard_alone(
    box: DaemonFixture, visitor: Visitor
) -> None:
    label = box.submit("--gpus", "1", "--name", "one", "echo ready; exec sleep 300")
    failed = box.submit("--name", "two", "exit 3")
    box.becomes(failed, "FAILED")
    keys = visitor.page.keyboard
    visitor.shows("two")
    keys.press("g")
    keys.press("q")
    expect(visitor.row(label)).to_be_visible()
    keys.press("j")
    keys.press("c")
    visitor.shows(f"stoker cancel {label}")
    keys.press("Escape")
    assert box.job(label)["state"] == "RUNNING"
    keys.press("c")
    expect(visitor.page.get_by_role("button", name="Cancel 1 job")).to_be_focused()
    keys.press("Enter")
    box.becomes(label, "CANCELLED")
    visitor.shows("cancelled")
    expect(visitor.row(label)).to_have_count(0)
    keys.press("j")
    keys.press("Enter")
    expect(visitor.page.get_by_role("heading", level=1)).to_have_text(f"{failed} two")
    keys.press("r")
    visitor.shows("requeued")
    box.becomes(failed, "FAILED")
    keys.press("g")
    keys.press("o")
    visitor.page.get_by_role("button", name="All seen").click()
    visitor.shows("No failures.")
    held = box.submit("--hold", "--name", "three", "true")
    visitor.page.get_by_role("button", name="Release").click()
    visitor.shows(f"job {held} released")
    keys.press("?")
    visitor.shows("this help")


def test_a_key_pressed_right_after_a_dialog_was_left_is_obeyed(
    box: DaemonFixture, visitor: Visitor
) -> None:
    """The browser reports the end of a dialog with the next frame, which may come late."""
    label = box.submit("--gpus", "1", "exec sleep 300")
    visitor.open("q")
    expect(visitor.row(label)).to_be_visible()
    keys = visitor.page.keyboard
    keys.press("j")
    keys.press("c")
    visitor.shows(f"stoker cancel {label}")
    visitor.page.evaluate(
        """() => {
            const options = { bubbles: true, cancelable: true };
            const press = (target, key) =>
                target.dispatchEvent(new KeyboardEvent("keydown", { key, ...options }));
            press(document.activeElement, "Escape");
            press(document.body, "c");
        }"""
    )
    visitor.page.wait_for_timeout(200)
    expect(visitor.page.get_by_role("button", name="Cancel 1 job")).to_be_focused()
    keys.press("Escape")
    expect(visitor.page.get_by_role("dialog")).to_have_count(0)


def test_members_of_an_array_are_held_and_moved_alone(box: DaemonFixture, visitor: Visitor) -> None:
    """The id of an array is also that of its first member."""
    box.submit("--gpus", "4", "--name", "holds", "exec sleep 300")
    box.submit("--gpus", "1", "--name", "many", "--array", "1-3", "true")
    visitor.open("q")
    visitor.page.get_by_role("button", name="Unfold 2").click()
    visitor.row(2).locator(".nm").click()
    visitor.page.keyboard.press("h")
    visitor.shows("job 2_1 held")
    held = [row["reason"] == "JobHeldUser" for row in box.jobs("2")]
    assert held == [True, False, False]
    visitor.page.get_by_role("button", name="Undo").click()
    visitor.shows("job 2_1 released")
    visitor.row(2).locator(".nm").click()
    visitor.page.keyboard.press("Shift+J")
    names = visitor.page.locator(".grid .body [role=row]:not(.fold) .id")
    expect(names).to_have_text(["1", "2_2", "2_1", "2_3"])
    visitor.open("j/2")
    expect(visitor.page.get_by_role("heading", level=1)).to_have_text("2_1 many")


def test_trials_of_a_sweep_are_selected_on_its_axes(box: DaemonFixture, visitor: Visitor) -> None:
    script = box.script("train.py", SWEPT)
    parameters = ("lr=0.1,0.01,0.001", "wd=1,2")
    done = box.stoker(
        "sweep", "--cpus", "0", "--minimize", "loss", sys.executable, script, *parameters
    )
    assert done.returncode == 0, done.stderr
    sweep = box.client.sweeps(all=True)["sweeps"][0]["id"]
    visitor.open("s")
    visitor.page.get_by_role("link", name=str(sweep)).click()
    rows = visitor.page.get_by_role("region", name="Trials").locator("tbody tr")
    expect(rows).to_have_count(6)
    until(lambda: box.client.sweeps(all=True)["sweeps"][0]["state"] == "DONE")
    expect(rows.first).to_contain_text("1.001")
    shares = visitor.page.locator(".panel", has_text="Parameter importance").locator("tr")
    expect(shares).to_have_count(2)
    rows.first.hover()
    expect(rows.first).to_have_class("over")
    plot = visitor.page.locator("canvas.parallel")
    plot.scroll_into_view_if_needed()
    shown = plot.bounding_box()
    assert shown is not None
    mouse = visitor.page.mouse
    mouse.move(shown["x"] + 56, shown["y"] + 20)
    mouse.down()
    mouse.move(shown["x"] + 56, shown["y"] + 110, steps=4)
    mouse.up()
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("1.1")
    visitor.page.get_by_role("button", name="Select all").click()
    expect(rows).to_have_count(6)
    visitor.page.get_by_label("compared by").select_option("max loss")
    expect(rows.first).to_contain_text("3.001")
    expect(visitor.page.get_by_label("max loss over lr of 6 trials")).to_be_visible()
    plot.scroll_into_view_if_needed()
    shown = plot.bounding_box()
    assert shown is not None
    mouse.move(shown["x"] + 56, shown["y"] + 8)
    mouse.down()
    mouse.move(shown["x"] + shown["width"], shown["y"] + 8, steps=4)
    mouse.up()
    expect(visitor.page.get_by_label("over wd, max loss, lr")).to_be_visible()
    assert visitor.page.url.endswith(f"#/s/{sweep}"), "a drag is no click on a trial"
    visitor.page.evaluate((ROOT / AXE).read_text())
    violations = visitor.page.evaluate(f"axe.run({RULES}).then(r => r.violations)")
    assert [(one["id"], one["nodes"][0]["html"]) for one in violations] == []


def test_history_is_narrowed_and_saved(box: DaemonFixture, visitor: Visitor) -> None:
    box.submit("--gpus", "1", "--name", "good", "--label", "=lr", "true")
    failed = box.submit("--gpus", "2", "--name", "bad", "exit 3")
    box.becomes(failed, "FAILED")
    until(lambda: len(box.client.history()["jobs"]) == 2)
    visitor.open("h?by=label")
    rows = visitor.page.get_by_role("region", name="Usage by label").locator("tbody tr")
    expect(rows).to_have_count(2)
    visitor.shows("exit 3")
    ended = visitor.page.get_by_role("region", name="Ended jobs").locator("tbody tr")
    expect(ended).to_have_count(2)
    visitor.page.get_by_label("State").select_option("FAILED")
    expect(ended).to_have_count(1)
    expect(ended).to_contain_text("bad")
    assert "state=FAILED" in visitor.page.url
    with visitor.page.expect_download() as download:
        visitor.page.get_by_role("button", name="CSV").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[0].startswith("key,jobs,failed,gpu_hours")
    assert any(line.startswith("'=lr,1,0,") for line in lines)
    visitor.page.get_by_label("Group by").select_option("user")
    visitor.page.get_by_role("region", name="Usage by user").get_by_role("button").click()
    assert "user=" in visitor.page.url


def test_the_plan_answers_what_if(busy: DaemonFixture, visitor: Visitor) -> None:
    visitor.page.keyboard.press("g")
    visitor.page.keyboard.press("p")
    visitor.shows("Outlook")
    expect(visitor.page.locator(".ganttbar.running")).to_have_count(4)
    visitor.shows("all others")
    visitor.page.get_by_label("more GPUs").fill("4")
    visitor.page.get_by_role("button", name="Compare").click()
    visitor.shows("4 → 8 GPUs")
    visitor.shows("stoker what-if --add gpus=4 --days 7")


def test_targets_of_notifications_are_listed_and_tried(
    box: DaemonFixture, visitor: Visitor
) -> None:
    out = box.home / "messages"
    rule = f"[notify.file]\nkind = 'command'\ncommand = 'cat >> {out}'\non = ['fail']\n"
    (box.home / "config.toml").write_text(rule)
    visitor.expected = ("Failed to load resource", "Error while trying")
    assert box.stoker("daemon", "restart").returncode == 0
    visitor.open("settings")
    rows = visitor.page.get_by_role("region", name="Notifications").locator("tbody tr")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("fail")
    visitor.page.get_by_role("button", name="Send a test message to file").click()
    visitor.shows("a test message was sent to file")
    assert out.exists()


def test_a_job_is_copied_and_its_priority_edited(box: DaemonFixture, visitor: Visitor) -> None:
    label = box.submit("--gpus", "1", "--hold", "--name", "one", "true")
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visitor.open(f"j/{label}")
    visitor.page.get_by_role("button", name="Copy as Python").click()
    visitor.shows("copied")
    copied = visitor.page.evaluate("navigator.clipboard.readText()")
    done = subprocess.run([sys.executable, "-c", copied], check=True, timeout=60)
    assert done.returncode == 0
    assert [job["name"] for job in box.jobs("one")] == ["one", "one"]
    visitor.page.keyboard.press("e")
    visitor.page.keyboard.type("7")
    visitor.page.keyboard.press("Enter")
    visitor.shows("1 job changed")
    assert box.job(label)["priority"] == 7


def test_the_log_stays_at_its_end_until_the_user_scrolls_up(
    box: DaemonFixture, visitor: Visitor
) -> None:
    """Also while lines come in pieces faster than the page is drawn."""
    start = box.home / "start"
    lines = "for n in $(seq 400); do echo line $n; sleep 0.005; done"
    waits = f"echo ready; until [ -e {start} ]; do sleep 0.1; done"
    label = box.submit("--name", "many", f"{waits}; {lines}; echo last; exec sleep 300")
    visitor.open(f"j/{label}")
    visitor.shows("ready")
    start.touch()
    log = visitor.page.get_by_role("log")
    follow = visitor.page.get_by_role("button", name="Follow")
    expect(log.get_by_text("last", exact=True)).to_be_in_viewport()
    expect(follow).to_have_attribute("aria-pressed", "true")
    log.hover()
    visitor.page.mouse.wheel(0, -1000)
    expect(follow).to_have_attribute("aria-pressed", "false")
    follow.click()
    expect(log.get_by_text("last", exact=True)).to_be_in_viewport()


def test_alarms_are_shown_and_announced(box: DaemonFixture, visitor: Visitor) -> None:
    label = box.submit("--gpus", "1", "--name", "one", "echo ready; exec sleep 300")
    box.becomes(label, "RUNNING")
    alarm = {"kind": "gpu_idle", "job": int(label), "node": None, "gpu": None, "action": "tell"}
    alarm |= {"since": "2026-01-01T00:00:00Z", "text": "idle <b>x</b>"}
    visitor.page.route("**/v1/alarms", lambda route: route.fulfill(json={"alarms": [alarm]}))
    visitor.page.reload()
    visitor.shows("idle <b>x</b>")
    expect(visitor.page.get_by_role("alert")).to_have_text("alarm: idle <b>x</b>")
    expect(visitor.page.locator(".strip.alarm")).to_have_count(1)


def test_names_of_a_megabyte_and_marks_of_direction_disturb_nothing(
    box: DaemonFixture, visitor: Visitor
) -> None:
    name = "\u202e" + "<b>x</b>" * 100_000
    reply = box.client.submit({
        "key": "big", "options": {"name": name, "hold": True}, "what": {"line": "true"},
        "directory": "/tmp", "environment": {}, "shell": "/bin/sh", "umask": 18,
    })  # fmt: skip
    visitor.open("q")
    shown = visitor.row(reply["first"]).locator(".nm")
    expect(shown).to_contain_text("\ufffd<b>x</b>")
    assert len(shown.inner_text()) < 300
    visitor.open(f"j/{reply['first']}")
    expect(visitor.page.get_by_role("heading", level=1)).to_contain_text("<b>x</b>")
    assert visitor.page.locator("main b", has_text="x").count() == 0
    assert visitor.page.evaluate("document.documentElement.outerHTML.length") < 100_000


def test_a_session_that_may_only_look_has_no_buttons(browser: Browser, box: DaemonFixture) -> None:
    label = box.submit("--gpus", "1", "--name", "one", "echo ready; exec sleep 300")
    visitor = Visitor(browser, box.stoker("ui", "--print", "--read-only").stdout.strip())
    visitor.open(f"j/{label}")
    visitor.shows("ready")
    visitor.shows("view only")
    expect(visitor.page.get_by_role("button", name="Cancel")).to_have_count(0)
    answer = """() => fetch('/v1/cancel', {method: 'POST', body: '{"select": ["all"]}', headers:
        {'Stoker-Session': '1', 'Content-Type': 'application/json'}}).then(r => r.status)"""
    visitor.expected = ("Failed to load resource",)
    assert visitor.page.evaluate(answer) == 403
    assert box.job(label)["state"] == "RUNNING"

    # When the session ends, the page says how to open another, and its address has no code.
    assert "c=" not in visitor.page.url
    for session in box.client.sessions()["sessions"]:
        box.client.end_session(session["id"])
    visitor.page.reload()
    visitor.shows("Open a session")
    visitor.close()
    assert visitor.problems == []


JOBS = 100_000


@pytest.mark.slow
def test_a_hundred_thousand_jobs_are_listed_and_filtered(
    box: DaemonFixture, visitor: Visitor
) -> None:
    box.submit("--gpus", "4", "--name", "holds", "echo ready; exec sleep 300")
    box.submit("--gpus", "1", "--name", "many", "--array", f"1-{JOBS}", "true")
    visitor.open("q?flat=1")
    rows = visitor.page.locator(".grid .body [role=row]")
    expect(visitor.page.locator(".total")).to_have_text("100\u202f001 jobs")
    assert rows.count() <= 60
    visitor.page.locator(".grid").evaluate("grid => { grid.scrollTop = 1e9 }")
    visitor.shows(f"2_{JOBS}")
    assert rows.count() <= 60
    elements = visitor.page.evaluate("document.querySelectorAll('*').length")
    assert elements <= 1200
    visitor.page.fill("#search", "state:running")
    expect(visitor.page.locator(".total")).to_have_text("1 of 100\u202f001 jobs")
    visitor.page.fill("#search", "state:pending name:many 2_77")
    expect(visitor.page.locator(".total")).to_have_text("1\u202f111 of 100\u202f001 jobs")
    visitor.page.get_by_label("Select all").check()
    visitor.page.get_by_role("toolbar").get_by_role("button", name="Cancel").click()
    visitor.page.get_by_role("button", name="Cancel 1\u202f111 jobs").click()
    visitor.shows("1\u202f111 jobs cancelled")
    visitor.page.fill("#search", "")
    expect(visitor.page.locator(".total")).to_have_text("98\u202f890 jobs")
    heap = visitor.page.evaluate("performance.memory.usedJSHeapSize")
    assert heap <= 60_000_000
