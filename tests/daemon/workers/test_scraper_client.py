"""Metrics extracted from the output of jobs: each once, whatever process is killed."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from daemon.monitor_fixture import MonitorFixture
from stoker.core import events as e
from stoker.core.events import NodeAdded
from stoker.core.model.job import AttemptId, Job
from stoker.core.model.resources import Placement
from stoker.core.model.spec import MetricsSource
from stoker.daemon.reports.format import Point, metric_points, parse_lines
from stoker.daemon.runtime.reactor import EpollReactor
from stoker.daemon.training import monitor
from stoker.daemon.training.monitor import TrainingMonitor
from stoker.daemon.workers import scraper_client as scraper
from stoker.scraper import extractors
from stoker.scraper import process as scrape
from stoker.scraper.extractors import FileExtractor, LogExtractor

Points = list[tuple[dict[str, float], float | None]]


def in_log(pattern: str, text: str, path: Path, name: str = "loss") -> Points:
    path.write_text(text)
    points, more = LogExtractor(pattern, name, [str(path)], 0.0).extract(ended=True)
    assert not more
    return [(point.values, point.step) for point in points]


def in_file(path: Path, text: str, name: str = "loss") -> Points:
    path.write_text(text)
    points, _ = FileExtractor("", name, [str(path)], 0.0).extract(ended=True)
    return [(point.values, point.step) for point in points]


# -- patterns ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "line", "values", "step"),
    [
        (r"loss=(?P<loss>\S+)", "x loss=0.5, y", {"loss": 0.5}, None),
        (r"(?P<step>\d+) .*acc (?P<acc>\S+) loss (?P<loss>\S+)",
         "12 acc 97% loss inf", {"acc": 97.0, "loss": float("inf")}, 12),
        (r"val (?P<value>\S+)", "val 3", {"loss": 3.0}, None),
        (r"loss: ([\d.]+)", "loss: 1.5", {"loss": 1.5}, None),
        (r"^(?P<step>\d+) (\S+)$", "4 0.25", {"loss": 0.25}, 4),
        (r"[\d.]+$", "loss 0.75", {"loss": 0.75}, None),
    ],
)  # fmt: skip
def test_named_groups_select_metric_and_step(
    pattern: str, line: str, values: Any, step: float | None, tmp_path: Path
) -> None:
    assert in_log(pattern, line + "\n", tmp_path / "out") == [(values, step)]


def test_lines_that_do_not_match_or_have_no_number_are_skipped(tmp_path: Path) -> None:
    text = "hello\nloss=low\nloss=2\r\nbar loss=1\rbar loss=0.5\rloss=0.25"
    points = in_log(r"loss=(\S+)", text, tmp_path / "out")
    assert [values["loss"] for values, _ in points] == [2, 1, 0.5, 0.25]


def test_a_log_of_any_length_is_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extractors, "PIECE", 100)
    (tmp_path / "out").write_text(
        "".join(f"loss={n}\n" for n in range(50)) + "x" * 500 + "\nloss=50\nloss=51"
    )
    log = LogExtractor(r"loss=(\d+)", "loss", [str(tmp_path / "out")], 0.0)
    values = []
    for _ in range(20):
        points, more = log.extract(ended=False)
        values += [point.values["loss"] for point in points]
        if not more:
            break
    assert values == list(range(51))  # the last line is incomplete
    assert [point.values["loss"] for point in log.extract(ended=True)[0]] == [51]


# -- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("m.csv", "epoch,loss,note\n0,0.5,warm\n1,0.25,\n",
         [({"loss": 0.5}, 0), ({"loss": 0.25}, 1)]),
        ("m.tsv", "step\tloss\n3\t0.5\n", [({"loss": 0.5}, 3)]),
        ("m.csv", 'step;"a ""b"""\n3;0.5\n', [({'a "b"': 0.5}, 3)]),
        ("m.jsonl", '{"step":1,"loss":2}\n{"step":2,"val":{"loss":1}}\n',
         [({"loss": 2}, 1), ({"val/loss": 1}, 2)]),
        ("m.json", '{"step":1,"loss":2}\n{"step":2,"loss":1}\n',
         [({"loss": 2}, 1), ({"loss": 1}, 2)]),
        ("m.json", '{\n "loss": 0.5,\n "epoch": 7\n}\n', [({"loss": 0.5}, 7)]),
        ("m.json", '[{"loss":1},{"loss":0.5,"iteration":9}]',
         [({"loss": 1}, None), ({"loss": 0.5}, 9)]),
        ("m.json", "[3, 2]", [({"loss": 3}, None), ({"loss": 2}, None)]),
        ("m.json", '{"loss":{"steps":[0,10],"timestamps":["a","b"],"values":[1,0.5]}}',
         [({"loss": 1}, 0), ({"loss": 0.5}, 10)]),
        ("m.json", '{"half":', []),
        ("m.csv", "step,loss", []),
        ("m.json", "", []),
    ],
)  # fmt: skip
def test_a_file_is_read_by_its_format(name: str, text: str, expected: Any, tmp_path: Path) -> None:
    assert in_file(tmp_path / name, text) == expected


def test_a_file_that_grows_or_changes_is_read_again(tmp_path: Path) -> None:
    kinds = {
        "a.csv": ["step,loss\n0,3\n", "1,2\n", "2,1\n"],
        "b.jsonl": ['{"loss":3}\n', '{"loss":2}\n', '{"loss":1}\n'],
    }
    for name, pieces in kinds.items():
        path = tmp_path / name
        watched = FileExtractor("", "loss", [str(path)], 0.0)
        assert watched.extract(ended=False) == ([], False)
        values = []
        for index, piece in enumerate(pieces):
            with path.open("a") as file:
                file.write(piece)
            os.utime(path, (1000 + index, 1000 + index))
            values += [point.values["loss"] for point in watched.extract(ended=False)[0]]
            assert watched.extract(ended=False) == ([], False)
        assert values == [3, 2, 1]
    path = tmp_path / "c.json"
    watched = FileExtractor("", "loss", [str(path)], 0.0)
    values = []
    for index, content in enumerate([{"loss": 3}, {"loss": 3}, {"loss": 1}, {"loss": 0}]):
        path.write_text(json.dumps(content))
        os.utime(path, (1000 + index, 1000 + index))
        values += [point.values["loss"] for point in watched.extract(ended=False)[0]]
    assert values == [3, 1, 0]  # equal content is not new


def test_an_object_followed_by_others_is_not_read_twice(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    watched = FileExtractor("", "loss", [str(path)], 0.0)
    path.write_text('{"loss":2}\n')
    assert len(watched.extract(ended=False)[0]) == 1
    path.write_text('{"loss":2}\n{"loss":1}\n')
    assert [point.values for point in watched.extract(ended=False)[0]] == [{"loss": 1}]


def test_a_file_of_an_earlier_run_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("step,loss\n0,3\n")
    os.utime(path, (1000, 1000))
    watched = FileExtractor("", "loss", [str(tmp_path / "*.csv")], 2000.0)
    assert watched.extract(ended=True) == ([], False)


# -- the process ---------------------------------------------------------------------------------


class Helper:
    """The scraper process and the daemon's end of its pipes."""

    def __init__(self, root: Path) -> None:
        self.log, self.report = root / "out", root / "7.0" / "report"
        self.order = {
            "watch": "7.0", "kind": "log", "text": r"(?P<step>\d+) loss=(?P<loss>\S+)",
            "name": "loss", "files": [str(self.log)], "since": 0.0, "report": str(self.report),
        }  # fmt: skip
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "stoker.scraper.process"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, order: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def answer(self, seconds: float = 30) -> dict[str, Any]:
        out = self.process.stdout
        assert out is not None
        assert select.select([out], [], [], seconds)[0], "it says nothing"
        reply: dict[str, Any] = json.loads(out.readline())
        return reply

    @property
    def steps(self) -> list[float | None]:
        data = self.report.read_bytes() if self.report.exists() else b""
        return [point.step for point in metric_points(parse_lines(data.rpartition(b"\n")[0]))]

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait(10) is not None


@pytest.fixture
def helper(tmp_path: Path) -> Any:
    helper = Helper(tmp_path)
    yield helper
    helper.close()


def until(condition: Any, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)


def test_a_scraper_killed_at_any_time_extracts_every_point_once(helper: Helper) -> None:
    with helper.log.open("w", buffering=1) as log:
        for round in range(3):
            helper.tell(helper.order)
            for step in range(round * 200, (round + 1) * 200):
                log.write(f"{step} loss={1 / (step + 1)}\n")
            until(lambda some=round * 200: len(helper.steps) > some)
            helper.process.kill()  # maybe within a line
            helper.close()
            helper.start()
    helper.tell(helper.order)
    helper.tell({"finish": "7.0"})
    assert helper.answer() == {"finished": "7.0"}
    assert helper.steps == [float(step) for step in range(600)]


def test_an_incomplete_line_does_not_damage_the_next_one(helper: Helper) -> None:
    helper.log.write_text("0 loss=1\n1 loss=2\n")
    helper.report.parent.mkdir()
    whole = b"".join(scrape.format_lines(extractors.Point({"loss": 1.0}, 0.0, 1.0, "0", 9)))
    helper.report.write_bytes(whole + whole[:20])
    helper.tell(helper.order)
    helper.tell({"finish": "7.0"})
    assert helper.answer() == {"finished": "7.0"}
    assert helper.steps == [0.0, 1.0]


def test_a_pattern_that_takes_forever_is_given_up_and_others_continue(
    helper: Helper, tmp_path: Path
) -> None:
    (tmp_path / "other").write_text("a" * 40 + "b\n")
    bad = {**helper.order, "watch": "8.0", "text": "(a+)+$", "files": [str(tmp_path / "other")]}
    helper.tell(bad)
    answer = helper.answer()
    assert answer["trouble"] == "8.0"
    assert "(a+)+$" in answer["why"]
    helper.log.write_text("0 loss=1\n")
    helper.tell(helper.order)
    helper.tell({"finish": "7.0"})
    assert helper.answer() == {"finished": "7.0"}
    assert helper.steps == [0.0]


def test_an_invalid_pattern_is_reported(helper: Helper) -> None:
    helper.tell({**helper.order, "text": "(loss"})
    assert helper.answer()["why"].startswith("invalid pattern: ")


def test_more_metrics_than_fit_into_a_line_are_written_as_several() -> None:
    values = {f"figure {number}": float(number) for number in range(500)}
    lines = scrape.format_lines(extractors.Point(values, 3.0, 1.0, "0", 77))
    assert max(len(line) for line in lines) < 4096
    points = metric_points(parse_lines(b"".join(lines).rstrip(b"\n")))
    assert {name: value for point in points for name, value in point.values.items()} == values
    assert {point.step for point in points} == {3.0}


# -- the daemon's end ----------------------------------------------------------------------------


class RecordingScorer:
    """Records points and ends of trials."""

    def __init__(self) -> None:
        self.steps: list[float | None] = []
        self.ends: list[AttemptId] = []

    def on_points(self, job: Job, key: AttemptId, points: list[Point]) -> list[e.Event]:
        self.steps += [point.step for point in points]
        return []

    def on_end(self, job: Job, key: AttemptId) -> list[e.Event]:
        self.ends.append(key)
        return []


class ScrapedJob(MonitorFixture):
    """A monitor of a job with metrics in its output."""

    def open_monitor(self) -> None:
        self.state.specs["s"] = replace(
            self.state.specs["s"], source=MetricsSource("log", r"(?P<step>\d+) loss=(\S+)", "loss")
        )
        self.job.params = "{}"
        (self.home / "logs").mkdir(exist_ok=True)
        self.log = self.home / "logs" / "7.out"
        self.scorer, self.reactor = RecordingScorer(), EpollReactor()
        self.monitor = TrainingMonitor(
            str(self.home), self.reactor, self.executor, lambda: self.state, self.scorer
        )
        self.monitor.start()

    def until(self, condition: Any, seconds: float = 30) -> None:
        """Run turns until a condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "not in time"
            self.reactor.wait(0.05)
            self.run_turn()


@pytest.fixture
def scraped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(monitor, "READ_INTERVAL_SECONDS", 0.0)
    fixture = ScrapedJob(tmp_path)
    yield fixture
    fixture.monitor.close()


def test_scraped_metrics_are_published_and_the_end_after_the_last_one(
    scraped: ScrapedJob,
) -> None:
    scraped.log.write_text("0 loss=3\n")
    scraped.until(lambda: scraped.scorer.steps == [0.0])
    assert scraped.monitor.live(7)["metrics"] == {"loss": 3}
    with scraped.log.open("a") as log:
        log.write("1 loss=2\n2 loss=1")
    (fact,) = [fact for fact in scraped.exit() if isinstance(fact, e.ProcessExited)]
    assert fact.code == 0  # at once: nothing waits for the scraper
    assert scraped.monitor.is_reading_ended
    scraped.until(lambda: scraped.scorer.ends == [(7, 0)])
    assert scraped.scorer.steps == [0.0, 1.0, 2.0]


def test_a_remote_attempt_is_scraped_beside_its_own_report(scraped: ScrapedJob) -> None:
    scraped.job.placement = Placement("there", ())
    scraped.state.record.remotes["there"] = NodeAdded(at=1.0, name="there", address="there")
    scraped.monitor.close()
    scraped.open_monitor()
    scraped.monitor.on_report_data(
        AttemptId(7, 0), None, b'{"k":"metrics","s":9,"v":{"acc":1.0}}\n', 0
    )
    scraped.log.write_text("0 loss=3\n")
    scraped.until(lambda: sorted(scraped.scorer.steps) == [0.0, 9.0])  # type: ignore[type-var]
    assert scraped.monitor.live(7)["metrics"] == {"loss": 3, "acc": 1.0}


def test_a_killed_scraper_is_started_again(scraped: ScrapedJob) -> None:
    scraped.log.write_text("0 loss=3\n")
    scraped.until(lambda: scraped.scorer.steps == [0.0])
    os.kill(scraped.monitor.scraper.process.pid, signal.SIGKILL)
    scraped.log.write_text("0 loss=3\n1 loss=2\n")
    scraped.until(lambda: len(scraped.scorer.steps) == 2)
    scraped.exit()
    scraped.until(lambda: scraped.scorer.ends == [(7, 0)])
    assert scraped.scorer.steps == [0.0, 1.0]


def test_a_scraper_that_hangs_after_the_end_is_killed_and_logged_once(
    scraped: ScrapedJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scraped.log.write_text("0 loss=3\n")
    scraped.until(lambda: scraped.scorer.steps == [0.0])
    os.kill(scraped.monitor.scraper.process.pid, signal.SIGSTOP)
    monkeypatch.setattr(scraper, "FINISH_TIMEOUT_SECONDS", 0.2)
    scraped.exit()
    scraped.until(lambda: scraped.scorer.ends == [(7, 0)])
    assert caplog.text.count("metrics of job 7 are no longer scraped") == 1


def test_the_next_daemon_continues_with_an_unpublished_end(scraped: ScrapedJob) -> None:
    scraped.log.write_text("0 loss=3\n")
    scraped.until(lambda: scraped.scorer.steps == [0.0])
    with scraped.log.open("a") as log:
        log.write("1 loss=2\n")
    scraped.exit()
    assert scraped.scorer.ends == []
    scraped.monitor.close()
    del scraped.state.running[7]
    scraped.open_monitor()
    scraped.until(lambda: scraped.scorer.ends == [(7, 0)])
    assert scraped.scorer.steps == [0.0, 1.0]
