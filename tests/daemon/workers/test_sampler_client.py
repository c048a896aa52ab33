"""SamplerClient: never blocks, and survives failures of its child process."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.daemon.runtime.reactor import EpollReactor
from stoker.daemon.workers import sampler_client as sampler_module
from stoker.daemon.workers.sampler_client import RESTART_DELAYS, SamplerClient

DEFINITION: dict[str, Any] = {
    "name": "t", "method": "tpe", "seed": 1, "samples": 20, "command": ["true"],
    "metric": {"name": "loss", "goal": "maximize"},
    "parameters": {"x": {"distribution": "uniform", "min": 0, "max": 1}, "c": {"value": 3}},
}  # fmt: skip

# A child that answers every question with the messages so far, and runs injected code.
ECHO = """
import json, os, sys, time
messages = []
for line in sys.stdin:
    message = json.loads(line)
    messages.append(message)
    if "ask" in message:
        {act}
        reply = {{"sweep": message["sweep"], "id": message["id"], "points": messages}}
        reply["done"] = False
        print(json.dumps(reply), flush=True)
        messages = []
"""


class SamplerFixture:
    """A sampler client, its reactor, and the received answers."""

    def __init__(self) -> None:
        self.reactor = EpollReactor()
        self.sampler = SamplerClient(self.reactor)
        self.answers: dict[int, list[tuple[list[dict[str, Any]], str | None, bool]]] = {}

    def ask(
        self, sweep: int = 1, trials: list[dict[str, Any]] | None = None, **changes: Any
    ) -> None:
        """Ask, and record the answer."""
        answers = self.answers.setdefault(sweep, [])
        self.sampler.ask(
            sweep, {**DEFINITION, **changes}, trials or [], lambda *got: answers.append(got)
        )

    def until(self, condition: Callable[[], object]) -> None:
        """Run the reactor until a condition holds."""
        deadline = time.monotonic() + 50
        while not condition():
            assert time.monotonic() < deadline
            self.reactor.wait(0.1)

    def ask_and_wait(
        self, sweep: int = 1, trials: list[dict[str, Any]] | None = None, **changes: Any
    ) -> Any:
        """Ask, and return the points of the answer, or its error."""
        self.ask(sweep, trials, **changes)
        count = len(self.answers[sweep])
        self.until(lambda: len(self.answers[sweep]) > count)
        points, error, _ = self.answers[sweep][-1]
        return error or points

    @property
    def pid(self) -> int:
        """The pid of the current child."""
        return self.sampler.process.pid


@pytest.fixture
def fixture(monkeypatch: pytest.MonkeyPatch) -> Iterator[SamplerFixture]:
    monkeypatch.setattr(sampler_module, "RESTART_DELAYS", (0.01, 0.02, 0.04))
    fixture = SamplerFixture()
    yield fixture
    fixture.sampler.close()
    fixture.until(fixture.sampler.process.reap)
    assert not fixture.reactor.callbacks
    fixture.reactor.close()


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replace the real child."""

    def choose(act: str = "pass", text: str = ECHO) -> None:
        monkeypatch.setattr(sampler_module, "COMMAND", ("-c", text.format(act=act)))

    return choose


def running(number: int, **more: Any) -> dict[str, Any]:
    return {"trial": number, "params": {"x": number / 10, "c": 3}, "state": "running", **more}


def test_the_real_process_suggests_new_points(fixture: SamplerFixture) -> None:
    fixture.ask()
    fixture.until(lambda: fixture.answers[1])
    ((points, error, done),) = fixture.answers[1]
    assert (len(points), error, done) == (1, None, False)
    trials = [
        {"trial": i, "params": {"x": i / 100, "c": 3}, "state": "complete", "value": i / 100}
        for i in range(40)
    ]
    pid = fixture.pid
    suggested = [fixture.ask_and_wait(trials=[*trials, running(90)])[0]["x"] for _ in range(3)]
    assert fixture.pid == pid
    assert all(0.2 < x <= 1 for x in suggested)  # larger is better
    finite = {"n": {"values": [1, 2]}}
    used = [{"trial": n, "params": {"n": n}, "state": "running"} for n in (1, 2)]
    fixture.ask(2, used, parameters=finite)
    fixture.until(lambda: fixture.answers[2])
    assert fixture.answers[2] == [([], None, True)]
    odd = fixture.ask_and_wait(3, parameters={"x": {"distribution": "odd"}})
    assert odd == "the sampler failed: 'odd' is not a distribution"


def test_only_changed_trials_are_sent(fixture: SamplerFixture, echo: Callable[..., None]) -> None:
    echo()
    begin, tell, ask = fixture.ask_and_wait(trials=[running(0), running(1)])
    assert begin["definition"]["parameters"] == DEFINITION["parameters"]
    assert begin["definition"]["metric"] == {"goal": "maximize"}
    assert tell["tell"] == [running(0), running(1)]
    assert ask["ask"] == 1
    over = {**running(0), "state": "complete", "value": 0.5}
    stopped = {**running(1), "state": "pruned", "value": 0.25, "steps": [[3, 0.25]]}
    tell, _ = fixture.ask_and_wait(trials=[over, stopped], samples=50)
    assert tell["tell"] == [over, stopped]
    (ask,) = fixture.ask_and_wait(trials=[over, stopped])
    assert ask["ask"] == 1


def test_another_definition_starts_a_new_generation(
    fixture: SamplerFixture, echo: Callable[..., None]
) -> None:
    echo()
    fixture.ask_and_wait(trials=[running(0)])
    begin, tell, _ = fixture.ask_and_wait(trials=[running(0)], seed=2)
    assert (begin["generation"], begin["definition"]["seed"]) == (2, 2)
    assert tell["tell"] == [running(0)]


def test_one_question_at_a_time_for_each_sweep(
    fixture: SamplerFixture, echo: Callable[..., None]
) -> None:
    echo()
    for sweep in (1, 1, 2, 1):
        fixture.ask(sweep)
    assert fixture.sampler.sessions[1].question is not None
    fixture.until(lambda: fixture.answers[1] and fixture.answers[2])
    assert fixture.sampler.sessions[1].question is None
    fixture.ask_and_wait(2)  # all its answers have arrived
    assert len(fixture.answers[1]) == 1


def test_an_answer_may_ask_again(fixture: SamplerFixture, echo: Callable[..., None]) -> None:
    echo()
    fixture.ask()
    questions: list[str] = []

    def again(points: list[dict[str, Any]], error: str | None, done: bool) -> None:
        questions.append(points[-1]["id"])
        if len(questions) < 5:
            fixture.sampler.ask(2, DEFINITION, [], again)

    fixture.sampler.ask(2, DEFINITION, [], again)
    fixture.until(lambda: len(questions) == 5)
    assert len(set(questions)) == 5


def test_it_never_waits_for_a_child_that_does_not_read(
    fixture: SamplerFixture, echo: Callable[..., None], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    wait = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
    echo(text=wait + ECHO)
    trials = [running(number, note="x") for number in range(20_000)]
    fixture.ask(trials=trials)
    assert len(fixture.sampler.process._unsent) > 500_000
    fixture.reactor.wait(0.05)
    assert not fixture.answers[1]
    gate.touch()
    fixture.until(lambda: fixture.answers[1])
    _, tell, _ = fixture.answers[1][0][0]
    assert len(tell["tell"]) == 20_000


def test_a_child_that_dies_during_a_question_is_replaced(
    fixture: SamplerFixture, echo: Callable[..., None], tmp_path: Path
) -> None:
    tries = tmp_path / "tries"
    act = f"f = open({str(tries)!r}, 'a'); f.write('x'); f.close(); "
    act += f"os.path.getsize({str(tries)!r}) <= {len(RESTART_DELAYS)} and os._exit(3)"
    echo(act)
    fixture.ask(2, [running(5)])
    begin, tell, _ = fixture.ask_and_wait(1, [running(0)])
    assert (begin["sweep"], tell["tell"]) == (1, [running(0)])
    fixture.until(lambda: fixture.answers[2])
    begin, tell, _ = fixture.answers[2][0][0]
    assert (begin["sweep"], tell["tell"]) == (2, [running(5)])
    assert tries.read_text() == "x" * (len(RESTART_DELAYS) + 2)


def test_a_child_that_always_dies_is_not_restarted_and_its_last_error_reported(
    fixture: SamplerFixture, echo: Callable[..., None]
) -> None:
    echo("raise MemoryError('no room for ' + str(message['sweep']))")
    fixture.ask(2)
    error = fixture.ask_and_wait(1)
    assert error.startswith("the process that suggests parameters has failed: MemoryError: no room")
    assert fixture.answers[2] == [([], error, False)]
    echo()
    assert fixture.ask_and_wait(1)[-1]["ask"] == 1  # the next question starts another child


def test_a_child_killed_between_questions_is_replaced(
    fixture: SamplerFixture, echo: Callable[..., None]
) -> None:
    echo()
    fixture.ask_and_wait(trials=[running(0)])
    before = fixture.pid
    os.kill(before, signal.SIGKILL)
    fixture.until(lambda: not fixture.sampler.process.is_running)
    _, tell, _ = fixture.ask_and_wait(trials=[running(0)])
    assert fixture.pid != before
    assert tell["tell"] == [running(0)]


def test_a_child_that_cannot_be_started_is_reported_as_an_answer(
    fixture: SamplerFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert fixture.ask_and_wait().endswith("it cannot be started: No such file or directory")


@pytest.mark.parametrize("words", ["nonsense", "[1]", "{}", "3"])
def test_a_child_with_invalid_replies_is_ended(
    fixture: SamplerFixture, echo: Callable[..., None], words: str
) -> None:
    echo(f"print('{words}', flush=True); continue")
    assert "has failed: it answered" in fixture.ask_and_wait()


def test_a_child_that_hangs_is_killed(fixture: SamplerFixture, echo: Callable[..., None]) -> None:
    echo("time.sleep(1000)")
    fixture.ask()
    for _ in range(len(RESTART_DELAYS) + 1):
        fixture.until(lambda: fixture.sampler.process.is_running)
        question = fixture.sampler.sessions[1].question
        assert question is not None
        question.requested_at -= sampler_module.ANSWER_TIMEOUT_SECONDS
        fixture.sampler._timeout()
    assert fixture.answers[1] == [
        ([], "the process that suggests parameters has failed: it has not answered for 10 minutes",
         False),
    ]  # fmt: skip


def test_a_sweep_that_is_forgotten_is_not_answered(
    fixture: SamplerFixture, echo: Callable[..., None]
) -> None:
    echo()
    fixture.ask_and_wait(2)
    fixture.ask(1)
    fixture.sampler.forget(1)
    forgotten = fixture.ask_and_wait(2)
    assert {"sweep": 1, "forget": True} in forgotten
    assert not fixture.answers[1]
    begin, _, _ = fixture.ask_and_wait(1, [running(0)])
    assert begin["generation"] == 1
    fixture.sampler.forget(7)  # unknown


def test_the_process_ends_with_the_last_sweep(
    fixture: SamplerFixture, echo: Callable[..., None]
) -> None:
    echo()
    fixture.ask_and_wait()
    pid = fixture.pid
    fixture.sampler.forget(1)
    assert not fixture.sampler.process.is_running
    fixture.until(fixture.sampler.process.reap)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_nothing_is_started_before_the_first_question(fixture: SamplerFixture) -> None:
    assert not fixture.sampler.process.is_running
    assert fixture.reactor.next_due() is None
    assert not fixture.reactor.callbacks
