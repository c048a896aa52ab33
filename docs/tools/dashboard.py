#!/usr/bin/env python3
"""Create docs/images/dashboard.png: the web page with generated data, in Chromium.

Run it from the top of the repository, in the development environment, after `make ui`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
SERVER = ["node", str(ROOT / "ui" / "test" / "server.mjs"), "--port", "0", "--jobs", "48"]
TARGET = ROOT / "docs" / "images" / "dashboard.png"
SIZE = {"width": 1280, "height": 700}


def main() -> None:
    """Start the server of generated data, open the page, and save a picture of it."""
    server = subprocess.Popen(SERVER, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_page(viewport=SIZE, color_scheme="dark")
            page.goto(address)
            page.locator(".failures pre").first.wait_for()
            page.locator(".figure", has_text="wasted").locator(".note", has_text="idle").wait_for()
            page.wait_for_timeout(2500)  # the next sample of each GPU
            page.screenshot(path=TARGET)
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
