"""No input of a node ends, blocks or bloats the daemon: it is handled or disconnects the node."""

import contextlib
import os
import shutil
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.fake_node import FACTS, NAME, NodeScenario
from stoker.core import events as e
from stoker.core.model.job import JobState
from stoker.executors.agent import reconciliation
from stoker.executors.agent.result_collector import PIECE
from stoker.executors.agent.session import reconnecting as connections


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeScenario]:
    scenario = NodeScenario(tmp_path, monkeypatch)
    yield scenario
    scenario.check()
    scenario.close()


@pytest.fixture
def connected(scenario: NodeScenario) -> NodeScenario:
    scenario.come_up()
    return scenario


def wait_for_request(scenario: NodeScenario, verb: str) -> list[str]:
    """Wait for a request with this verb; return it."""

    def find_request() -> list[str] | None:
        return next((words for words in scenario.requests if words[1] == verb), None)

    return list(scenario.until(find_request))


def test_an_honest_node_runs_its_jobs(connected: NodeScenario) -> None:
    for job in (1, 2, 3):
        connected.send_line("-", "exited", f"{job}.0", str(job - 1), "0", "0")
    connected.until(
        lambda: len([words for words in connected.requests if words[1] == "collect"]) == 3
    )
    connected.answer()
    connected.until(lambda: len(connected.events_of(e.ProcessExited)) == 3)
    jobs = connected.loop.engine.state.jobs
    assert [jobs[n].state for n in (1, 2)] == [JobState.COMPLETED, JobState.FAILED]
    assert connected.is_connected


# -- single attacks ---------------------------------------------------------------------


def line(*words: str) -> Callable[[NodeScenario], None]:
    return lambda scenario: scenario.send_line(*words)


def junk(data: bytes, pipe: str = "out", times: int = 1) -> Callable[[NodeScenario], None]:
    def send(scenario: NodeScenario) -> None:
        for _ in range(times):
            scenario.send(data, pipe)
            scenario.turn(2)

    return send


def beginning(words: str, pipe: str = "out") -> Callable[[NodeScenario], None]:
    """Send the beginning of a line with the nonce."""
    return lambda scenario: scenario.send(f"{scenario.link.nonce} {words}".encode(), pipe)


def all_of(*attacks: Callable[[NodeScenario], None]) -> Callable[[NodeScenario], None]:
    def attack(scenario: NodeScenario) -> None:
        for single in attacks:
            single(scenario)

    return attack


def announced(*words: str) -> Callable[[NodeScenario], None]:
    return lambda scenario: scenario.send(
        f"{scenario.link.nonce} {' '.join(words)}\n".encode(), "err"
    )


def answered(verb: str, *words: str) -> Callable[[NodeScenario], None]:
    """Reply to a request with this verb."""
    return lambda scenario: scenario.send_line(wait_for_request(scenario, verb)[0], *words)


def copied(data: bytes) -> Callable[[NodeScenario], None]:
    """Reply to a request for new output with this bulk data."""

    def send(scenario: NodeScenario) -> None:
        scenario.executor.collector._copied_at = 0.0
        scenario.bulk(wait_for_request(scenario, "read_new")[0], data)

    return send


ATTACKS = {
    "bulk that was not asked for": announced("99", "5"),
    "bulk with a negative length": announced("1", "-5"),
    "bulk without a length": announced("1"),
    "bulk of a terabyte": announced("1", "1099511627776"),
    "bulk with a length too long for int": announced("1", "9" * 5000),
    "an announcement that does not end": beginning("1" * 60000, "err"),
    "an answer that was not asked for": line("9999999", "done"),
    "an answer with a number too long for int": line("9" * 5000, "done"),
    "an answer with foreign digits": line("\u0663", "done"),
    "a second greeting": line("-", "hello"),
    "news without a word": line("-"),
    "nothing": line(""),
    "a pid too large": line("-", "running", "1.0", "9" * 30),
    "a pid too long for int": line("-", "running", "1.0", "9" * 5000),
    "a negative pid": line("-", "running", "1.0", "-1"),
    "a pid of foreign digits": line("-", "running", "1.0", "\u0663"),
    "no pid": line("-", "started", "1.0"),
    "an exit code out of range": line("-", "exited", "1.0", "256"),
    "an exit code too long for int": line("-", "exited", "1.0", "9" * 5000),
    "no exit code": line("-", "exited", "1.0"),
    "a port out of range": line("-", "ready", "1.0", "65536"),
    "processes left over without number": line("-", "exited", "1.0", "0", "0", "many"),
    "an unknown word": line("-", "rm", "1.0"),
    "a piece of a negative length": copied(b"1.0 out 0 -5\n"),
    "a piece longer than the data": copied(b"1.0 out 0 5000000\nshort"),
    "a piece twice": copied(b"1.0 out 0 1\na1.0 out 1 1\nb"),
    "pieces that are none": copied(b"x" * 1000),
    "a line that does not end": all_of(beginning("- reading "), junk(b"x" * 60000, times=3)),
    "noise without end": junk(b"y\n" * 30000, times=100),
    "noise without end on the other pipe": junk(b"y" * 60000, "err", times=100),
    "zeros without end": junk(bytes(60000), times=100),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_malformed_input_disconnects_the_node_with_a_reason(
    connected: NodeScenario, attack: str
) -> None:
    ATTACKS[attack](connected)
    connected.turn()
    assert not connected.is_connected
    (why,) = set(connected.reasons)
    assert why.startswith("protocol error: ")
    assert len(why) <= 300
    retry = connected.executor.connection.retry._handle
    assert retry is not None
    assert retry.due - connected.loop.reactor.time() > 20  # and not reconnected at once
    assert (
        connected.loop.engine.state.record.unreachable[NAME].reason == why
    )  # as `stoker nodes` shows it
    assert {job.state for job in connected.loop.engine.state.jobs.values()} == {JobState.RUNNING}


HARMLESS = {
    "news of an older attempt": line("-", "exited", "1.7", "0"),
    "news of an unknown job": line("-", "started", "99.0", "5"),
    "a key too long for int": line("-", "exited", f"{'9' * 5000}.0", "0"),
    "a key of foreign digits": line("-", "exited", "\u0661.\u0660", "0"),
    "no key": line("-", "exited", "", "0"),
    "an answer to a request without one": line("1", "done"),
    "an answer without a word": line("1"),
    "a measurement that was not asked for": all_of(
        line("-", "reading", "cores 999999999999999"), line("-", "reading-end")
    ),
    "some noise": junk(b"\x1b[2Jwelcome\x00\xff\n"),
    "output of an unknown job": copied(b"99.0 out 0 1\na"),
    "output that is far ahead": copied(b"1.0 out 999999999999999 1\na"),
}  # fmt: skip


@pytest.mark.parametrize("attack", HARMLESS)
def test_unexpected_but_valid_input_changes_nothing(connected: NodeScenario, attack: str) -> None:
    HARMLESS[attack](connected)
    connected.turn()
    assert connected.is_connected
    assert connected.loop.engine.state.cluster.nodes[NAME].types["cpu"][0].facts.capacity == 8000
    assert {job.state for job in connected.loop.engine.state.jobs.values()} == {JobState.RUNNING}


@pytest.mark.parametrize(
    "facts",
    ["cores 999999999999999", "MemTotal: 999999999999999 kB", "home nowhere",
     "\n".join(f"gpu {n}, GPU-{n}, A100, 81920, 0, 0, 0, 0" for n in range(300))],
    ids=lambda facts: facts[:10],
)  # fmt: skip
def test_impossible_devices_disconnect_the_node(connected: NodeScenario, facts: str) -> None:
    connected.executor.readings.measure_soon()
    wait_for_request(connected, "measure")
    for line in f"{facts}\n{FACTS}".split("\n"):
        connected.send_line("-", "reading", line)
    connected.send_line("-", "reading-end")
    connected.turn(5)
    assert not connected.is_connected


def test_an_endless_measurement_disconnects_the_node(connected: NodeScenario) -> None:
    connected.executor.readings.measure_soon()
    wait_for_request(connected, "measure")
    for _ in range(200):
        for n in range(100):
            connected.send_line("-", "reading", f"owner {n} - me - {'x' * 100}")
        connected.turn(1)
    assert not connected.is_connected


def test_devices_that_change_all_the_time_do_not_fill_the_journal(connected: NodeScenario) -> None:
    for n in range(60):
        connected.executor.readings.measure_soon()
        wait_for_request(connected, "measure")
        connected.requests = [words for words in connected.requests if words[1] != "measure"]
        for line in FACTS.replace("cores 8", f"cores {8 + n}").split("\n"):
            connected.send_line("-", "reading", line)
        connected.send_line("-", "reading-end")
        connected.turn(2)
    assert connected.is_connected
    assert (
        2
        < len([line for line in connected.events_of(e.NodeJoined) if line.facts.name == NAME])
        < 15
    )


def test_text_from_a_node_is_short_and_valid_before_it_is_stored(connected: NodeScenario) -> None:
    connected.send(
        f"{connected.link.nonce} - failed 1.0 ".encode()
        + b"\xff\x1b[31m\xe2\x80\xae" * 2000
        + b"\n"
    )
    connected.turn()
    cause = connected.loop.engine.state.jobs[1].cause
    assert cause is not None
    assert cause.isprintable()
    assert len(cause) <= 2000
    cause.encode()


def test_an_attempt_ends_once_while_its_results_are_collected(connected: NodeScenario) -> None:
    for line in ("exited 1.0 3 0 0", "revoked 1.0", "late 1.0", "not-begun 1.0", "failed 1.0 no",
                 "gone 1.0", "exited 1.0 4"):  # fmt: skip
        connected.send_line("-", line)
    wait_for_request(connected, "collect")
    connected.answer()
    connected.until(lambda: connected.events_of(e.ProcessExited))
    connected.turn()
    assert [(event.job, event.code) for event in connected.events_of(e.ProcessExited)] == [(1, 3)]
    assert (
        connected.events_of(e.AttemptLost)
        == connected.events_of(e.StartCancelled)
        == connected.events_of(e.StartFailed)
        == []
    )


def test_an_exit_record_found_during_the_collection_counts(connected: NodeScenario) -> None:
    connected.send_line("-", "gone", "1.0")
    (number, *_) = wait_for_request(connected, "end_unrecorded")
    connected.send_line(
        "-", "exited", "1.0", "3", "0", "0"
    )  # recorded just before the poll was complete
    connected.send_line(number, "done", "0")
    wait_for_request(connected, "collect")
    connected.answer()
    connected.until(lambda: connected.events_of(e.ProcessExited))
    assert [(event.job, event.code) for event in connected.events_of(e.ProcessExited)] == [(1, 3)]
    assert connected.events_of(e.AttemptLost) == []


def test_an_attempt_is_not_lost_while_one_of_its_processes_lives(connected: NodeScenario) -> None:
    for answer in ("busy", "busy"):
        connected.send_line("-", "gone", "1.0")
        (number, *_) = wait_for_request(connected, "end_unrecorded")
        connected.requests = [words for words in connected.requests if words[1] != "end_unrecorded"]
        connected.send_line(number, answer)
        connected.turn()
        assert connected.events_of(e.AttemptLost) == []
        assert connected.loop.engine.state.jobs[1].state is JobState.RUNNING


def test_an_attempt_without_a_record_is_lost(connected: NodeScenario) -> None:
    connected.send_line("-", "gone", "1.0")
    (number, *_) = wait_for_request(connected, "end_unrecorded")
    connected.send_line(number, "done", "0")
    wait_for_request(connected, "collect")
    connected.answer()
    connected.until(lambda: connected.events_of(e.AttemptLost))
    assert connected.loop.engine.state.jobs[1].state is JobState.NODE_FAIL


def test_repeated_output_disconnects_the_node(connected: NodeScenario) -> None:
    connected.enlarge_pipes()
    connected.send_line("-", "exited", "1.0", "0", "0", "0")
    for _ in range(20):
        request = connected.until(
            lambda: (
                not connected.is_connected
                or next(
                    (words for words in connected.requests if words[1] in ("collect", "read_new")),
                    None,
                )
            )
        )
        if request is True:
            break
        connected.requests.remove(request)
        data = b"1.0 out 0 %d\n" % PIECE + b"x" * PIECE
        for start in range(0, len(data), 60000):
            piece = data[start : start + 60000]
            connected.send(
                f"{connected.link.nonce} {request[0]} {len(piece)}\n".encode() + piece, "err"
            )
            connected.turn(2)
        connected.send(f"{connected.link.nonce} {request[0]} 0\n".encode(), "err")
        connected.turn(2)
    assert not connected.is_connected
    assert (connected.base / "logs/1.out").stat().st_size == PIECE


def test_an_endless_list_of_attempts_disconnects_the_node(
    scenario: NodeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciliation, "MAX_LISTED_ATTEMPTS", 1000)
    scenario.until(lambda: scenario.process is not None)
    scenario.send_line("-", "hello", "x")
    (number, *_) = wait_for_request(scenario, "list_attempts")
    for job in range(2000):
        scenario.send_line(number, "attempt", f"{job + 100}.0")
        if job % 100 == 0:
            scenario.turn(1)
    scenario.turn()
    assert not scenario.is_connected


@pytest.mark.parametrize(
    ("key", "reserved"), [("7.0", 8), ("9000000.0", 4), (f"{'9' * 18}.0", 4), ("2.999999999", 4)]
)
def test_ids_of_unknown_jobs_on_a_node_are_reserved_within_limits(
    scenario: NodeScenario, key: str, reserved: int
) -> None:
    """A journal may have lost jobs, but a node must not use up the ids."""
    scenario.until(lambda: scenario.process is not None)
    scenario.send_line("-", "hello", "x")
    (number, *_) = wait_for_request(scenario, "list_attempts")
    scenario.requests = [words for words in scenario.requests if words[1] != "list_attempts"]
    scenario.send_line(number, "attempt", key)
    scenario.send_line(number, "done")
    wait_for_request(scenario, "poll")
    scenario.answer({key: "running 77"})
    scenario.turn()
    state = scenario.loop.engine.state
    assert state.record.next_id == reserved
    assert state.jobs[2].attempt == 0


def test_results_of_an_unknown_job_are_kept_on_the_node(scenario: NodeScenario) -> None:
    scenario.until(lambda: scenario.process is not None)
    scenario.send_line("-", "hello", "x")
    (number, *_) = wait_for_request(scenario, "list_attempts")
    scenario.requests = [words for words in scenario.requests if words[1] != "list_attempts"]
    scenario.send_line(number, "attempt", "7.0")
    scenario.send_line(number, "attempt", "1.5")
    scenario.send_line(number, "done")
    (number, *_) = wait_for_request(scenario, "poll")
    scenario.send_line(number, "exited", "7.0", "0", "0", "0")
    scenario.send_line(number, "exited", "1.5", "0", "0", "0")
    scenario.send_line(number, "done")
    scenario.turn()
    done = [words[1:] for words in scenario.requests if words[1] in ("keep_results", "forget")]
    assert done == [["keep_results", "7.0"], ["forget", "7.0"], ["forget", "1.5"]]
    assert scenario.loop.engine.state.record.next_id == 8


# -- timeouts ---------------------------------------------------------------------------


def expect_replies_soon(connected: NodeScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ping the node within 0.05 s of silence, and wait 0.1 s for its reply."""
    monkeypatch.setattr(connections, "KEEPALIVE_SECONDS", 0.05)
    monkeypatch.setattr(connections, "REPLY_SECONDS", 0.1)
    connected.executor.connection._check()


def test_a_node_that_does_not_reply_is_disconnected_despite_notifications(
    connected: NodeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_replies_soon(connected, monkeypatch)
    deadline = time.monotonic() + 5
    while connected.is_connected and time.monotonic() < deadline:
        connected.send_line("-", "busy", "1.0")
        connected.send(b"noise\n", "err")
        connected.turn(1)
        time.sleep(0.01)
    connected.turn(1)
    assert connected.reasons[-1:] == ["the shell stopped answering"]


def test_a_node_that_withholds_bulk_data_is_disconnected(
    connected: NodeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected.executor.collector._copied_at = 0.0
    connected.executor.collector.on_running()
    wait_for_request(connected, "read_new")
    expect_replies_soon(connected, monkeypatch)
    deadline = time.monotonic() + 5
    while connected.is_connected and time.monotonic() < deadline:
        for number, verb, *_ in connected.requests:
            if verb == "ping":
                connected.send_line(number, "done")
        connected.requests.clear()
        connected.turn(1)
        time.sleep(0.01)
    connected.turn(1)
    assert connected.reasons[-1:] == ["the shell stopped answering"]


def test_a_node_that_reads_nothing_is_disconnected_before_much_is_queued(
    connected: NodeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_replies_soon(connected, monkeypatch)
    connected._read = lambda: None  # type: ignore[method-assign]
    deadline = time.monotonic() + 5
    while connected.is_connected and time.monotonic() < deadline:
        connected.executor.connection.request(None, "write_control", "1.0", "x", "y" * 1000)
        connected.turn(1)
    connected.turn(1)
    assert connected.reasons[-1:] == ["the shell stopped answering"]


def test_an_ssh_process_that_does_not_end_blocks_nothing(scenario: NodeScenario) -> None:
    """Its output ends before the greeting, but the process continues."""
    scenario.until(lambda: scenario.process is not None)
    assert scenario.process is not None
    scenario.process.end("out")
    began = time.monotonic()
    scenario.turn(10)
    assert time.monotonic() - began < 0.5
    scenario.until(lambda: scenario.reasons)
    assert "closed the connection without a message" in scenario.reasons[-1]


# -- memory -----------------------------------------------------------------------------


def test_floods_do_not_increase_memory_use(connected: NodeScenario) -> None:
    connected.enlarge_pipes()
    gave_up = 0
    tracemalloc.start()
    try:
        for data, pipe in ((b"x" * 60000, "out"), (b"x" * 60000, "err"), (b"\n" * 60000, "out")):
            for _ in range(200):
                connected.send(data, pipe)
                connected.turn(1)
            gave_up += not connected.is_connected
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert gave_up
    assert peak < 8 << 20


# -- anything ---------------------------------------------------------------------------

WORDS = st.sampled_from([
    "-", "1", "2", "3", "5", "999", "hello", "done", "failed", "reading", "reading-end",
    "end", "attempt", "poll", "started", "running", "exited", "released", "not-begun", "revoked",
    "late", "rebooted", "gone", "busy", "undecided", "ready", "1.0", "2.0", "3.0", "1.1", "0", "-1",
    "255", "256", "9" * 20, "\u0663",
    "saved", "ahead", "yes", "cores", "gpu", "0,", "GPU-a,", "\udcff", "", "\x1b[2J", "out", "4242",
    "65536", "no space left", "no longer in", "nan", "1e999",
])  # fmt: skip
LINES = st.lists(WORDS, max_size=6).map(lambda words: ("say", " ".join(words)))
RAW = st.tuples(st.sampled_from(["out", "err"]), st.binary(max_size=300))
MARKED = st.tuples(st.just("announce"), st.lists(WORDS, max_size=3).map(" ".join))
PIECES = st.tuples(
    st.just("bulk"),
    st.lists(
        st.sampled_from([
            b"1.0 out 0 3\nabc", b"2.0 err 0 0\n", b"1.0 report 0 4\n{}\n\n", b"1.0 cut-out 0 0\n",
            b"1.0 tar 0 3\nabc", b"1.0 out 0 -1\n", b"9.9 out 0 1\nx", b"1.0 out 5 1\nx",
            b"\n", b"x",
            b'1.0 report 0 32\n{"k":"start","e":1000000000,"t":1}\n',
            b'3.0 report 0 40\n{"k":"metrics","v":{"\\u0000\\ud800":NaN}}  \n',
        ]), max_size=4,
    ).map(b"".join),
)  # fmt: skip
ANSWERS = st.tuples(st.just("answer"), st.sampled_from([
    "revoked", "gone", "not-begun", "running 5", "exited 0", "exited 0 1 2 saved", "rebooted",
    "late", "undecided", "ready 5", "ready", "busy", "failed no", "released", "nonsense",
]))  # fmt: skip
STEPS = st.lists(
    LINES | RAW | MARKED | PIECES | ANSWERS | st.just(("measure", "")) | st.just(("copy", "")),
    max_size=25,
)


def act(scenario: NodeScenario, step: tuple[str, object]) -> None:
    kind, what = step
    match kind:
        case "say":
            scenario.send_line(str(what))
        case "announce":
            scenario.send(os.fsencode(f"{scenario.link.nonce} {what}\n"), "err")
        case "bulk":
            due = [
                words
                for words in scenario.requests
                if words[1] in ("read_new", "collect", "read_file")
            ]
            if due:
                scenario.requests.remove(due[0])
                assert isinstance(what, bytes)
                scenario.bulk(due[0][0], what)
        case "answer":
            scenario.answer({f"{job}.0": str(what) for job in range(9)})
        case "measure":
            scenario.executor.readings.measure_soon()
        case "copy":
            scenario.executor.collector._copied_at = 0.0
            scenario.executor.collector.on_running()
        case _:
            assert isinstance(what, bytes)
            scenario.send(what, kind)


@settings(max_examples=150)
@given(STEPS, st.booleans())
def test_the_daemon_survives_any_input(steps: list[tuple[str, object]], greeted: bool) -> None:
    base = Path(tempfile.mkdtemp(prefix="stoker-node-"))
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, base)
        patch.setattr(connections, "MIN_PAUSE_SECONDS", 0.0)
        patch.setattr(connections, "MAX_PAUSE_SECONDS", 0.0)
        scenario = NodeScenario(base, patch)
        stack.callback(scenario.close)
        if greeted:
            scenario.come_up()
        for step in steps:
            began = time.monotonic()
            act(scenario, step)
            scenario.turn(2)
            scenario.check()
            assert time.monotonic() - began < 5
        for job in scenario.loop.engine.state.jobs.values():
            assert not job.cause or job.cause.isprintable()
