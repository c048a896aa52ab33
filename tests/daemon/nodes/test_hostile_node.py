"""No input from a node ends, stalls or bloats the daemon: the node is disconnected, or fine."""

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

from daemon.fake_node import FACTS, NAME, World
from stoker.core import events as e
from stoker.core.lifecycle import JobState
from stoker.executors.agent import reconciliation
from stoker.executors.agent.result_collector import PIECE
from stoker.executors.agent.session import reconnecting as connections


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    found = World(tmp_path, monkeypatch)
    yield found
    found.check()
    found.close()


@pytest.fixture
def up(world: World) -> World:
    world.come_up()
    return world


def asked(world: World, verb: str) -> list[str]:
    """The request with this verb, as soon as it is made."""

    def found() -> list[str] | None:
        return next((words for words in world.requests if words[1] == verb), None)

    return list(world.until(found))


def test_an_honest_node_runs_its_jobs(up: World) -> None:
    for job in (1, 2, 3):
        up.say("-", "exited", f"{job}.0", str(job - 1), "0", "0")
    up.until(lambda: len([each for each in up.requests if each[1] == "collect"]) == 3)
    up.answer()
    up.until(lambda: len(up.told(e.ProcessExited)) == 3)
    jobs = up.loop.engine.state.jobs
    assert [jobs[n].state for n in (1, 2)] == [JobState.COMPLETED, JobState.FAILED]
    assert up.connected


# -- one attack each --------------------------------------------------------------------


def line(*words: str) -> Callable[[World], None]:
    return lambda world: world.say(*words)


def junk(data: bytes, pipe: str = "out", times: int = 1) -> Callable[[World], None]:
    def send(world: World) -> None:
        for _ in range(times):
            world.send(data, pipe)
            world.turn(2)

    return send


def beginning(words: str, pipe: str = "out") -> Callable[[World], None]:
    """The beginning of a line of ours."""
    return lambda world: world.send(f"{world.link.nonce} {words}".encode(), pipe)


def all_of(*attacks: Callable[[World], None]) -> Callable[[World], None]:
    def attack(world: World) -> None:
        for each in attacks:
            each(world)

    return attack


def announced(*words: str) -> Callable[[World], None]:
    return lambda world: world.send(f"{world.link.nonce} {' '.join(words)}\n".encode(), "err")


def answered(verb: str, *words: str) -> Callable[[World], None]:
    """The answer to a request of this kind."""
    return lambda world: world.say(asked(world, verb)[0], *words)


def copied(data: bytes) -> Callable[[World], None]:
    """Bulk data in answer to a look at the logs."""

    def send(world: World) -> None:
        world.executor.collector._copied_at = 0.0
        world.bulk(asked(world, "read_new")[0], data)

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
def test_malformed_input_disconnects_the_node_with_a_reason(up: World, attack: str) -> None:
    ATTACKS[attack](up)
    up.turn()
    assert not up.connected
    (why,) = set(up.reasons)
    assert why.startswith("protocol error: ")
    assert len(why) <= 300
    retry = up.executor.connection.retry._handle
    assert retry is not None
    assert retry.due - up.loop.reactor.time() > 20  # and not again at once
    assert up.loop.engine.state.rest.away[NAME].why == why  # as `stoker nodes` shows it
    assert {job.state for job in up.loop.engine.state.jobs.values()} == {JobState.RUNNING}


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
def test_what_is_no_business_of_ours_changes_nothing(up: World, attack: str) -> None:
    HARMLESS[attack](up)
    up.turn()
    assert up.connected
    assert up.loop.engine.state.cluster.nodes[NAME].types["cpu"][0].facts.capacity == 8000
    assert {job.state for job in up.loop.engine.state.jobs.values()} == {JobState.RUNNING}


@pytest.mark.parametrize(
    "facts",
    ["cores 999999999999999", "MemTotal: 999999999999999 kB", "home nowhere",
     "\n".join(f"gpu {n}, GPU-{n}, A100, 81920, 0, 0, 0, 0" for n in range(300))],
    ids=lambda facts: facts[:10],
)  # fmt: skip
def test_impossible_devices_disconnect_the_node(up: World, facts: str) -> None:
    up.executor.readings.measure_soon()
    asked(up, "measure")
    for each in f"{facts}\n{FACTS}".split("\n"):
        up.say("-", "reading", each)
    up.say("-", "reading-end")
    up.turn(5)
    assert not up.connected


def test_a_measurement_without_end_disconnects_the_node(up: World) -> None:
    up.executor.readings.measure_soon()
    asked(up, "measure")
    for _ in range(200):
        for n in range(100):
            up.say("-", "reading", f"owner {n} - me - {'x' * 100}")
        up.turn(1)
    assert not up.connected


def test_devices_that_change_all_the_time_do_not_fill_the_journal(up: World) -> None:
    for n in range(60):
        up.executor.readings.measure_soon()
        asked(up, "measure")
        up.requests = [words for words in up.requests if words[1] != "measure"]
        for each in FACTS.replace("cores 8", f"cores {8 + n}").split("\n"):
            up.say("-", "reading", each)
        up.say("-", "reading-end")
        up.turn(2)
    assert up.connected
    assert 2 < len([each for each in up.told(e.NodeJoined) if each.facts.name == NAME]) < 15


def test_text_from_a_node_is_short_and_valid_before_it_is_stored(up: World) -> None:
    up.send(f"{up.link.nonce} - failed 1.0 ".encode() + b"\xff\x1b[31m\xe2\x80\xae" * 2000 + b"\n")
    up.turn()
    cause = up.loop.engine.state.jobs[1].cause
    assert cause is not None
    assert cause.isprintable()
    assert len(cause) <= 2000
    cause.encode()


def test_an_attempt_whose_end_is_being_fetched_ends_once(up: World) -> None:
    for said in ("exited 1.0 3 0 0", "free 1.0", "late 1.0", "void 1.0", "failed 1.0 no",
                 "gone 1.0", "exited 1.0 4"):  # fmt: skip
        up.say("-", said)
    asked(up, "collect")
    up.answer()
    up.until(lambda: up.told(e.ProcessExited))
    up.turn()
    assert [(each.job, each.code) for each in up.told(e.ProcessExited)] == [(1, 3)]
    assert up.told(e.AttemptLost) == up.told(e.StartCalledOff) == up.told(e.StartFailed) == []


def test_a_record_that_is_found_after_all_counts(up: World) -> None:
    up.say("-", "gone", "1.0")
    (number, *_) = asked(up, "end_unrecorded")
    up.say("-", "exited", "1.0", "3", "0", "0")  # written down just before the look was over
    up.say(number, "done", "0")
    asked(up, "collect")
    up.answer()
    up.until(lambda: up.told(e.ProcessExited))
    assert [(each.job, each.code) for each in up.told(e.ProcessExited)] == [(1, 3)]
    assert up.told(e.AttemptLost) == []


def test_an_attempt_is_not_lost_while_something_of_it_lives(up: World) -> None:
    for answer in ("busy", "busy"):
        up.say("-", "gone", "1.0")
        (number, *_) = asked(up, "end_unrecorded")
        up.requests = [words for words in up.requests if words[1] != "end_unrecorded"]
        up.say(number, answer)
        up.turn()
        assert up.told(e.AttemptLost) == []
        assert up.loop.engine.state.jobs[1].state is JobState.RUNNING


def test_an_attempt_without_a_record_is_lost(up: World) -> None:
    up.say("-", "gone", "1.0")
    (number, *_) = asked(up, "end_unrecorded")
    up.say(number, "done", "0")
    asked(up, "collect")
    up.answer()
    up.until(lambda: up.told(e.AttemptLost))
    assert up.loop.engine.state.jobs[1].state is JobState.NODE_FAIL


def test_the_same_output_again_and_again_ends_the_connection(up: World) -> None:
    up.large()
    up.say("-", "exited", "1.0", "0", "0", "0")
    for _ in range(20):
        found = up.until(
            lambda: (
                not up.connected
                or next((each for each in up.requests if each[1] in ("collect", "read_new")), None)
            )
        )
        if found is True:
            break
        up.requests.remove(found)
        data = b"1.0 out 0 %d\n" % PIECE + b"x" * PIECE
        for start in range(0, len(data), 60000):
            piece = data[start : start + 60000]
            up.send(f"{up.link.nonce} {found[0]} {len(piece)}\n".encode() + piece, "err")
            up.turn(2)
        up.send(f"{up.link.nonce} {found[0]} 0\n".encode(), "err")
        up.turn(2)
    assert not up.connected
    assert (up.place / "logs/1.out").stat().st_size == PIECE


def test_an_inventory_without_end_disconnects_the_node(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciliation, "MAX_LISTED_ATTEMPTS", 1000)
    world.until(lambda: world.process is not None)
    world.say("-", "hello", "x")
    (number, *_) = asked(world, "list_attempts")
    for job in range(2000):
        world.say(number, "attempt", f"{job + 100}.0")
        if job % 100 == 0:
            world.turn(1)
    world.turn()
    assert not world.connected


@pytest.mark.parametrize(
    ("key", "reserved"), [("7.0", 8), ("9000000.0", 4), (f"{'9' * 18}.0", 4), ("2.999999999", 4)]
)
def test_what_a_node_says_of_unknown_jobs_is_believed_within_reason(
    world: World, key: str, reserved: int
) -> None:
    """A journal may have lost jobs; but a node does not use up the numbers."""
    world.until(lambda: world.process is not None)
    world.say("-", "hello", "x")
    (number, *_) = asked(world, "list_attempts")
    world.requests = [words for words in world.requests if words[1] != "list_attempts"]
    world.say(number, "attempt", key)
    world.say(number, "done")
    asked(world, "poll")
    world.answer({key: "running 77"})
    world.turn()
    state = world.loop.engine.state
    assert state.rest.next_id == reserved
    assert state.jobs[2].attempt == 0


def test_what_an_unknown_job_left_is_kept_there(world: World) -> None:
    world.until(lambda: world.process is not None)
    world.say("-", "hello", "x")
    (number, *_) = asked(world, "list_attempts")
    world.requests = [words for words in world.requests if words[1] != "list_attempts"]
    world.say(number, "attempt", "7.0")
    world.say(number, "attempt", "1.5")
    world.say(number, "done")
    (number, *_) = asked(world, "poll")
    world.say(number, "exited", "7.0", "0", "0", "0")
    world.say(number, "exited", "1.5", "0", "0", "0")
    world.say(number, "done")
    world.turn()
    done = [words[1:] for words in world.requests if words[1] in ("keep_results", "forget")]
    assert done == [["keep_results", "7.0"], ["forget", "7.0"], ["forget", "1.5"]]
    assert world.loop.engine.state.rest.next_id == 8


# -- silence ----------------------------------------------------------------------------


def expect_replies_soon(up: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ping the node within 0.05 s of silence, and wait 0.1 s for its reply."""
    monkeypatch.setattr(connections, "KEEPALIVE_SECONDS", 0.05)
    monkeypatch.setattr(connections, "REPLY_SECONDS", 0.1)
    up.executor.connection._check()


def test_a_node_that_does_not_answer_is_not_kept_by_what_else_it_says(
    up: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_replies_soon(up, monkeypatch)
    deadline = time.monotonic() + 5
    while up.connected and time.monotonic() < deadline:
        up.say("-", "busy", "1.0")
        up.send(b"noise\n", "err")
        up.turn(1)
        time.sleep(0.01)
    up.turn(1)
    assert up.reasons[-1:] == ["the shell stopped answering"]


def test_a_node_that_withholds_bulk_data_is_disconnected(
    up: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    up.executor.collector._copied_at = 0.0
    up.executor.collector.on_running()
    asked(up, "read_new")
    expect_replies_soon(up, monkeypatch)
    deadline = time.monotonic() + 5
    while up.connected and time.monotonic() < deadline:
        for number, verb, *_ in up.requests:
            if verb == "ping":
                up.say(number, "done")
        up.requests.clear()
        up.turn(1)
        time.sleep(0.01)
    up.turn(1)
    assert up.reasons[-1:] == ["the shell stopped answering"]


def test_a_node_that_reads_nothing_is_disconnected_before_much_is_queued(
    up: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_replies_soon(up, monkeypatch)
    up._read = lambda: None  # type: ignore[method-assign]
    deadline = time.monotonic() + 5
    while up.connected and time.monotonic() < deadline:
        up.executor.connection.request(None, "write_control", "1.0", "x", "y" * 1000)
        up.turn(1)
    up.turn(1)
    assert up.reasons[-1:] == ["the shell stopped answering"]


def test_an_ssh_that_does_not_end_stalls_nothing(world: World) -> None:
    """Its output ends before the greeting, but the process goes on."""
    world.until(lambda: world.process is not None)
    assert world.process is not None
    world.process.end("out")
    began = time.monotonic()
    world.turn(10)
    assert time.monotonic() - began < 0.5
    world.until(lambda: world.reasons)
    assert "closed the connection without a message" in world.reasons[-1]


# -- memory -----------------------------------------------------------------------------


def test_floods_leave_nothing_behind(up: World) -> None:
    up.large()
    gave_up = 0
    tracemalloc.start()
    try:
        for data, pipe in ((b"x" * 60000, "out"), (b"x" * 60000, "err"), (b"\n" * 60000, "out")):
            for _ in range(200):
                up.send(data, pipe)
                up.turn(1)
            gave_up += not up.connected
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
SAID = st.lists(WORDS, max_size=6).map(lambda words: ("say", " ".join(words)))
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
    SAID | RAW | MARKED | PIECES | ANSWERS | st.just(("measure", "")) | st.just(("copy", "")),
    max_size=25,
)


def act(world: World, step: tuple[str, object]) -> None:
    kind, what = step
    match kind:
        case "say":
            world.say(str(what))
        case "announce":
            world.send(os.fsencode(f"{world.link.nonce} {what}\n"), "err")
        case "bulk":
            due = [
                words
                for words in world.requests
                if words[1] in ("read_new", "collect", "read_file")
            ]
            if due:
                world.requests.remove(due[0])
                assert isinstance(what, bytes)
                world.bulk(due[0][0], what)
        case "answer":
            world.answer({f"{job}.0": str(what) for job in range(9)})
        case "measure":
            world.executor.readings.measure_soon()
        case "copy":
            world.executor.collector._copied_at = 0.0
            world.executor.collector.on_running()
        case _:
            assert isinstance(what, bytes)
            world.send(what, kind)


@settings(max_examples=150)
@given(STEPS, st.booleans())
def test_any_input_is_survived(steps: list[tuple[str, object]], greeted: bool) -> None:
    place = Path(tempfile.mkdtemp(prefix="stoker-node-"))
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, place)
        patch.setattr(connections, "MIN_PAUSE_SECONDS", 0.0)
        patch.setattr(connections, "MAX_PAUSE_SECONDS", 0.0)
        world = World(place, patch)
        stack.callback(world.close)
        if greeted:
            world.come_up()
        for step in steps:
            began = time.monotonic()
            act(world, step)
            world.turn(2)
            world.check()
            assert time.monotonic() - began < 5
        for job in world.loop.engine.state.jobs.values():
            assert not job.cause or job.cause.isprintable()
