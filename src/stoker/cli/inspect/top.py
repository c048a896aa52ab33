"""Watch GPUs, queue and jobs live, and act on jobs.

Screens: 1 GPUs, 2 queue, 3 job, 4 sweeps, 5 machines; ? shows all keys. Without a terminal, or with
--once, GPUs and queue are printed once.
"""

from __future__ import annotations

import os
import time

from stoker.cli import output
from stoker.cli.options import Args, Option, parse
from stoker.cli.screens import model as m
from stoker.cli.screens.draw import draw, gpu_lines, queue_lines
from stoker.cli.screens.model import LiveStream, TopModel
from stoker.cli.session import connect_without_start
from stoker.client.client import Client
from stoker.client.errors import StokerError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.cli.screens.terminal import RawTerminal
    from stoker.cli.session.live import Screen

USAGE = ("top [--once] [--interval N] [--user USER] [--compact]",)
OPTIONS = (
    Option("--once", None, "print GPUs and queue once"),
    Option("--interval", "N", "seconds between two readings of the queue (1)"),
    Option("--user", "USER", "only the jobs of this user"),
    Option("--compact", None, "one line per GPU"),
)
TOPICS = "gpus,counts,jobs,alarms"
HISTORY_SECONDS = 10.0
RETRY_SECONDS = 1.0
NODE_SECONDS = 5.0
ONCE_ROWS = 20
MAX_NAMES = 6
"""Jobs that a question names."""
ACTIONS = {"c": "cancel", "h": "hold", "u": "release", "r": "retry"}
DONE = {"cancel": "cancelled", "hold": "held", "release": "released", "retry": "requeued"}


def main(argv: list[str]) -> int:
    """Run the screens until the user quits, or print them once."""
    args = parse(OPTIONS, argv, verb="top")
    if args.words:
        raise UsageError(f"stoker top takes no arguments, but {args.words[0]!r} was given.")
    if args.flag("json"):
        raise UsageError("stoker top has no --json; use stoker queue --json and gpus --json.")
    interval = args.number("interval", 1.0) or 0.0
    if not 0.05 <= interval < 1e6:
        raise UsageError("--interval takes a number of seconds, 0.1 or more.")
    client = connect_without_start()
    model = TopModel(client, args.text("user") or "")
    model.load()
    is_dumb = os.environ.get("TERM", "dumb") == "dumb"
    if args.flag("once") or is_dumb or not (output.is_terminal(0) and output.is_terminal(1)):
        return _print_once(model, args)
    from stoker.cli.screens.terminal import RawTerminal
    from stoker.cli.session.live import Screen

    with RawTerminal() as terminal:
        try:
            Top(client, model, terminal, Screen(), interval, compact=args.flag("compact")).run()
        except KeyboardInterrupt:
            return 0
    return 0


def _print_once(model: TopModel, args: Args) -> int:
    width = os.get_terminal_size(1).columns if output.is_terminal(1) else 120
    model.load_rows(ONCE_ROWS)
    model.cursor = -1
    now = time.time()
    lines = gpu_lines(model, width, 10_000, now, args.flag("compact"))
    model.top = 0
    lines += ["", *queue_lines(model, width, ONCE_ROWS + 2, now)]
    print("\n".join(line.rstrip() for line in lines))
    return 0


class Top:
    """The loop: keys, frames of the live stream and a clock, then one redraw."""

    def __init__(
        self, client: Client, model: TopModel, terminal: RawTerminal, screen: Screen,
        interval: float, *, compact: bool,
    ) -> None:  # fmt: skip
        self.client, self.model, self.terminal, self.screen = client, model, terminal, screen
        self.interval, self.compact = interval, compact
        self._stream: LiveStream | None = None
        self._search: str | None = None
        """What is being typed after `/`."""
        self._question: tuple[str, list[str], str] | None = None
        """An action that waits for `y`, its selectors, and their name."""
        self._due = dict.fromkeys(("connect", "rows", "history", "slow"), 0.0)
        self._height = 24

    def run(self) -> None:
        """Run until the user quits."""
        while True:
            self._refresh()
            self._show()
            fd = self._stream.fileno() if self._stream is not None else None
            keys, is_readable = self.terminal.wait(fd, self.interval)
            if is_readable and self._stream is not None:
                self._receive(self._stream)
            for key in keys:
                if not self._on_key(key):
                    return
                self._refresh()  # the next key may act on what this one has found

    def _show(self) -> None:
        lines, columns = self.terminal.size()
        self._height = lines
        if self.terminal.take_suspended():
            self.screen.size = (0, 0)
        now = time.time()
        self.screen.show(draw(self.model, columns, lines, now, self.compact), lines, columns)

    # -- data ---------------------------------------------------------------------------

    def _receive(self, stream: LiveStream) -> None:
        is_open = stream.receive()
        try:
            for event, data in stream.take():
                self.model.take(event, data)
        except StokerError as error:
            self._lose(error.message)
            return
        if not is_open:
            self._lose("the daemon has ended")

    def _lose(self, why: str) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if not self.model.note:
            self.model.note = f"stale since {time.strftime('%H:%M:%S')}: {why}"
        self._due["connect"] = time.monotonic() + RETRY_SECONDS

    def _is_due(self, what: str, seconds: float) -> bool:
        now = time.monotonic()
        if now < self._due[what]:
            return False
        self._due[what] = now + seconds
        return True

    def _refresh(self) -> None:
        """Load what has changed and is shown; a daemon that is gone leaves the last figures."""
        model = self.model
        try:
            if self._stream is None:
                if not self._is_due("connect", RETRY_SECONDS):
                    return
                self._stream = LiveStream(self.client, TOPICS)
                model.note = ""
            if model.screen == m.GPUS and self._is_due("history", HISTORY_SECONDS):
                model.load_history()
            if model.screen == m.QUEUE:
                at = model.cursor - model.first
                is_outside = not 0 <= at < max(len(model.rows), 1)
                if is_outside or (model.is_outdated and self._is_due("rows", self.interval)):
                    model.load_rows(self._height)
            if model.screen == m.JOB and model.job and self._is_due("slow", self.interval * 2):
                model.load_job(int(model.job["id"]))
            if model.screen == m.SWEEPS and self._is_due("slow", self.interval * 2):
                model.load_sweeps()
            if model.screen == m.NODES and self._is_due("slow", NODE_SECONDS):
                model.load_nodes()
        except StokerError as error:
            self._lose(error.message)

    # -- keys ---------------------------------------------------------------------------

    def _on_key(self, key: str) -> bool:
        """Act on a key; return False to quit."""
        model = self.model
        if self._search is not None:
            self._on_search_key(key)
            return True
        if self._question is not None:
            question = self._question
            self._question, model.message = None, ""
            if key in {"y", "Y"}:
                self._act(*question)
            return True
        model.message = ""
        page = max(self._height - 4, 1)
        moves = {"j": 1, "down": 1, "k": -1, "up": -1, "pgdn": page, " ": page, "pgup": -page,
                 "g": -(10**9), "home": -(10**9), "G": 10**9, "end": 10**9}  # fmt: skip
        if key == "q":
            return False
        if key in moves:
            model.move(moves[key])
        elif key in {m.GPUS, m.QUEUE, m.JOB, m.SWEEPS, m.NODES, m.HELP}:
            model.sweep = None
            self._open_screen(key)
        elif key == "enter" and model.screen == m.SWEEPS:
            model.sweep = model.selected_sweep()
            model.text = ""
            self._open_screen(m.QUEUE)
        elif key in {"enter", "l"}:
            self._open_job()
        elif key == "x" and model.screen == m.QUEUE:
            model.choose()
        elif key == "esc":
            self._go_back()
        elif key == "/":
            self._open_screen(m.QUEUE)
            self._search, model.message = "", "/"
        elif key == "s" and model.screen == m.QUEUE:
            model.sort = m.SORTS[(m.SORTS.index(model.sort) + 1) % len(m.SORTS)]
            model.is_outdated, self._due["rows"] = True, 0.0
        elif key in ACTIONS:
            self._ask_action(ACTIONS[key])
        return True

    def _go_back(self) -> None:
        """Deselect, end the search, leave the sweep or the screen."""
        model = self.model
        if model.screen != m.QUEUE:
            self._open_screen(m.QUEUE if model.screen == m.JOB else m.GPUS)
        elif model.chosen:
            model.chosen.clear()
        elif model.text:
            self._set_text("")
        elif model.sweep:
            model.sweep = None
            self._open_screen(m.SWEEPS)
        else:
            self._open_screen(m.GPUS)

    def _on_search_key(self, key: str) -> None:
        assert self._search is not None
        if key in {"enter", "esc"}:
            text = self._search if key == "enter" else ""
            self._search, self.model.message = None, ""
            self._set_text(text)
            return
        if key == "backspace":
            self._search = self._search[:-1]
        elif len(key) == 1 and key.isprintable():
            self._search += key
        self.model.message = f"/{self._search}"

    def _set_text(self, text: str) -> None:
        self.model.text, self.model.cursor, self.model.top = text, 0, 0
        self.model.is_outdated, self._due["rows"] = True, 0.0

    def _open_screen(self, screen: str) -> None:
        if screen == m.JOB and self.model.screen != m.JOB:
            self._open_job()
            return
        if screen != self.model.screen:
            self.model.screen = screen
            self.model.cursor = self.model.top = 0
            self._due["slow"] = self._due["rows"] = 0.0
            self.model.is_outdated = True

    def _open_job(self) -> None:
        model = self.model
        job = model.selected_job()
        try:
            if job is not None:
                model.load_job(job[0])
            model.screen = m.JOB
        except StokerError as error:
            model.message = error.message

    def _ask_action(self, verb: str) -> None:
        jobs, sweep = self.model.chosen_jobs(), self.model.selected_sweep()
        if sweep is not None:
            selectors, what, names = [str(sweep["id"])], f"sweep {sweep['label']}", sweep["label"]
        elif jobs:
            selectors = [m.exact(id) for id, _ in jobs]
            names = ",".join(label for _, label in jobs[:MAX_NAMES])
            names += ",…" if len(jobs) > MAX_NAMES else ""
            what = f"job {names}" if len(jobs) == 1 else f"{len(jobs)} jobs"
        else:
            self.model.message = "nothing is selected"
            return
        if verb in {"cancel", "retry"}:
            self._question = (verb, selectors, what)
            self.model.message = f"{what}: " * (len(jobs) > 1) + f"stoker {verb} {names}?  y/n"
        else:
            self._act(verb, selectors, what)

    def _act(self, verb: str, selectors: list[str], what: str) -> None:
        try:
            reply = self.client.act(verb, selectors)
        except StokerError as error:
            self.model.message = error.message
            return
        done = reply.get("done") or reply.get("sweeps")
        skipped = reply.get("skipped") or ()
        if len(selectors) > 1 and done:
            what = f"{len(done)} of {what}" if skipped else what
        self.model.message = skipped[0]["why"] if skipped and not done else f"{what} {DONE[verb]}"
        self.model.chosen.clear()
        self.model.is_outdated = True
