"""A browser at the page of a daemon, which notes everything that must not happen."""

import contextlib
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Error, Locator, Request, expect

TIMEOUT_MILLISECONDS = 20_000
NETWORK_CHANGED = "Failed to load resource: net::ERR_NETWORK_CHANGED"
"""Other suites create networks at the same time. The page tries again."""
expect.set_options(timeout=TIMEOUT_MILLISECONDS)


class Visitor:
    """One page in a fresh profile."""

    def __init__(
        self, browser: Browser, link: str, scheme: str = "light", width: int = 1440
    ) -> None:
        self.link = link
        self.origin = "{0.scheme}://{0.netloc}".format(urlsplit(link))
        self.problems: list[str] = []
        self.expected: tuple[str, ...] = ()
        """Beginnings of messages that a test provokes."""
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )  # type: ignore[arg-type]
        self.context.set_default_timeout(TIMEOUT_MILLISECONDS)
        self.page = self.context.new_page()
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        self.page.on("request", self._on_request)
        self._start()

    def _start(self) -> None:
        """Open the page; Chromium ends all requests when a network appears or goes."""
        for _ in range(3):
            with contextlib.suppress(Error):
                self.page.goto("about:blank")
                self.page.goto(self.link)
                self.page.locator(".link.live").wait_for()
                return

    def _on_console(self, message: ConsoleMessage) -> None:
        expected = (*self.expected, NETWORK_CHANGED)
        if message.type in {"error", "warning"} and not message.text.startswith(expected):
            self.problems.append(f"{message.type}: {message.text}")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((self.origin, "data:", "blob:")):
            self.problems.append(f"request to {request.url}")

    def open(self, path: str) -> None:
        """Go to a page, as a link in it does."""
        self.page.evaluate("path => { location.hash = `#/${path}` }", path)

    def row(self, label: object) -> Locator:
        """The row of a job in the queue."""
        return self.page.locator(f"#row-j{label}")

    def shows(self, text: str) -> None:
        """Wait until a text is visible."""
        expect(self.page.get_by_text(text).first).to_be_visible()

    def close(self) -> None:
        """Close the page and forget its profile."""
        self.context.close()
