"""Open web pages beside a measurement: real pages in Chromium, or readers of their stream."""

import contextlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.home import Home
from benchmarks.lab import Broken

CHROMIUM = Path("/usr/bin/chromium")


def missing_browser() -> str | None:
    """Return why no pages can be opened in a browser; None if they can."""
    if not CHROMIUM.exists():
        return f"there is no {CHROMIUM} (Debian's package chromium)"
    if importlib.util.find_spec("playwright") is None:
        return "Python's package playwright is not installed"
    return None


@contextlib.contextmanager
def open_readers(home: Home, count: int) -> Iterator[None]:
    """Keep live streams with all topics open; one process reads them."""
    with _child(READER, [str(home.socket()), str(count)]):
        yield


@contextlib.contextmanager
def open_browser(home: Home, count: int) -> Iterator[None]:
    """Keep pages open in Chromium, each in a profile of its own: a profile has six connections."""
    link = home.stoker("ui", "--print", "--share", "1h").output.split()[-1]
    with _child(BROWSER, [str(CHROMIUM), link, str(count)]):
        yield


@contextlib.contextmanager
def _child(script: str, arguments: Sequence[str]) -> Iterator[None]:
    """Run a script that says "open", and "live" if all its pages are still current at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            if child.stdout.readline() != "open\n":
                raise Broken("the pages cannot be opened")
            yield
            child.stdin.close()
            if child.stdout.readline() != "live\n":
                raise Broken("the pages were disconnected")
            child.wait(60)
        finally:
            child.kill()


READER = """
import selectors, socket, sys
path, count = sys.argv[1], int(sys.argv[2])
topics = "gpus,counts,jobs,sweeps,nodes,alarms"
request = f"GET /v1/live?topics={topics} HTTP/1.1\\r\\nHost: stoker\\r\\n\\r\\n".encode()
ready = selectors.DefaultSelector()
ready.register(sys.stdin, selectors.EVENT_READ)
for _ in range(count):
    page = socket.socket(socket.AF_UNIX)
    page.connect(path)
    page.sendall(request)
    head = b""
    while b"event: counts" not in head:
        head += page.recv(65536) or sys.exit("closed")
    ready.register(page, selectors.EVENT_READ)
print("open", flush=True)
while True:
    for key, _ in ready.select():
        if key.fileobj is sys.stdin:
            print("live", flush=True)
            sys.exit()
        key.fileobj.recv(1 << 20) or sys.exit("closed")
"""
"""What a page does after it was loaded: it reads all topics of the stream."""

BROWSER = """
import os, sys
from playwright.sync_api import sync_playwright
chromium, link, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=chromium, args=flags)
    pages = [browser.new_context().new_page() for _ in range(count)]
    for page in pages:
        page.goto(link)
        page.locator(".link.live").wait_for(timeout=120_000)
    print("open", flush=True)
    sys.stdin.read()
    if all(page.locator(".link.live").count() for page in pages):
        print("live", flush=True)
    browser.close()
"""
"""The browser runs when nothing else does (SCHED_IDLE): usually it is on another machine."""
