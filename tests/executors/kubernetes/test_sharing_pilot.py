"""A pilot and the pods beside it, as one node."""

from types import SimpleNamespace
from typing import Any

import pytest

from executors.recording_sink import RecordingSink
from stoker.core.model.job import AttemptId
from stoker.executors.kubernetes.pilot import PilotExecutor
from stoker.executors.kubernetes.sharing_pilot import SharingPilotExecutor

ID = AttemptId(7, 0)


class Pods:
    """Keeps what it is asked, like the pinned pods of a pilot."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.is_up, self.failure, self.count = False, "", 0

    def has_attempts(self) -> bool:
        return self.count > 0

    def __getattr__(self, name: str) -> Any:
        return lambda *words: self.calls.append((name, *words))


class Bench:
    """An executor whose agent is another list of calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pods, self.agent, self.sink = Pods(), list[tuple[Any, ...]](), RecordingSink()
        self.abandoned: list[AttemptId] = []
        self.node = SharingPilotExecutor.__new__(SharingPilotExecutor)
        self.node.pods, self.node._is_gone, self.node.name = self.pods, False, "lab-1"  # type: ignore[assignment]
        self.node.end_reason, self.node._sink = None, self.sink
        self.node.records = SimpleNamespace(abandoned_attempts=lambda _: self.abandoned)  # type: ignore[assignment]
        for name in ("start", "terminate", "recover", "_report_up"):
            self._replace(monkeypatch, name)

    def _replace(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        def call(_: object, *words: Any) -> None:
            self.agent.append((name, *words))

        monkeypatch.setattr(PilotExecutor, name, call)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def launch(container: object) -> Any:
    return SimpleNamespace(container=container)


def test_a_job_with_an_image_is_a_pod_and_any_other_is_not(bench: Bench) -> None:
    plain, boxed = launch(None), launch("img")
    bench.node.start(plain)
    bench.node.start(boxed)
    assert bench.agent == [("start", plain, None)]
    assert bench.pods.calls == [("start", boxed, None)]


def test_attempts_of_an_earlier_daemon_are_looked_for_where_they_run(bench: Bench) -> None:
    plain, boxed = (SimpleNamespace(spec=launch(box)) for box in (None, "img"))
    bench.node.recover([plain, boxed])  # type: ignore[list-item]
    assert bench.agent == [("recover", [plain])]
    assert bench.pods.calls == [("recover", [boxed])]


def test_an_instruction_about_an_attempt_reaches_both(bench: Bench) -> None:
    bench.node.terminate(ID, 3.0)
    assert bench.agent == bench.pods.calls == [("terminate", ID, 3.0)]


@pytest.mark.parametrize(
    ("is_up", "failure", "count", "abandoned", "is_reported"),
    [
        (False, "", 0, [], False),
        (True, "", 1, [ID], True),
        (False, "forbidden", 0, [], True),
        (False, "no route", 1, [], False),
        (False, "no route", 0, [ID], False),
    ],
)
def test_a_node_is_up_when_its_pods_are_known_or_do_not_matter(
    bench: Bench, is_up: bool, failure: str, count: int, abandoned: list[AttemptId],
    is_reported: bool,
) -> None:  # fmt: skip
    bench.pods.is_up, bench.pods.failure, bench.pods.count = is_up, failure, count
    bench.abandoned = abandoned
    bench.node._on_pods_changed()
    assert bool(bench.agent) == is_reported


def test_a_pilot_that_has_ended_is_gone_once_its_pods_are(bench: Bench) -> None:
    bench.node.end_reason, bench.pods.count = "its pod is gone", 1
    bench.node._report_gone("its pod is gone")
    assert bench.pods.calls == [("expel",)]
    assert bench.sink.gone == []
    bench.pods.count = 0
    for _ in range(2):
        bench.node._on_pods_changed()
    assert bench.sink.gone == ["its pod is gone"]
