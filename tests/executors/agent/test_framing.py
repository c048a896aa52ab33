"""Parsing data of a connection: in any portions, with any noise between."""

import contextlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.executors.agent.session.framing import (
    MAX_HEADER_BYTES,
    MAX_LINE_BYTES,
    Bulks,
    Lines,
    ProtocolError,
    number,
)
from stoker.executors.agent.session.session import quoted
from stoker.executors.rate_limit import RateLimit
from stoker.executors.ssh.address import Address
from stoker.executors.ssh.transport import explain_failure

NONCE = "0123456789abcdef"
noise = st.binary(max_size=40).filter(lambda data: NONCE.encode() not in data)
cuts = st.lists(st.integers(0, 400), max_size=12)
words = st.lists(st.text(st.characters(codec="ascii", exclude_characters="\n "), min_size=1),
                 min_size=1, max_size=4)  # fmt: skip


def portions(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in at), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def expecting(*requests: tuple[str, int]) -> Bulks:
    """Return a parser that expects these replies."""
    bulks = Bulks(NONCE)
    for request, most in requests:
        bulks.expect(request, most)
    return bulks


@given(st.lists(st.tuples(noise, words), max_size=5), cuts)
def test_complete_lines_are_returned_and_noise_is_not(
    said: list[tuple[bytes, list[str]]], at: list[int]
) -> None:
    stream = b"".join(
        before + f"{NONCE} {' '.join(each)}\n".encode() for before, each in said
    )  # fmt: skip
    lines = Lines(NONCE)
    received = [each for piece in portions(stream, at) for each in lines.feed(piece)]
    assert received == [each for _, each in said]


def test_an_endless_line_is_noise_and_later_lines_are_returned() -> None:
    lines = Lines(NONCE)
    for _ in range(3):
        assert lines.feed(b"x" * MAX_LINE_BYTES) == []
    assert lines.feed(f"{NONCE} - hello\n".encode()) == [["-", "hello"]]


@given(
    st.lists(
        st.tuples(noise, st.lists(st.binary(min_size=1, max_size=99), max_size=3)), max_size=4
    ),
    cuts,
)
def test_bulk_data_arrives_in_portions_and_may_contain_any_bytes(
    said: list[tuple[bytes, list[bytes]]], at: list[int]
) -> None:
    stream = b""
    for request, (before, parts) in enumerate(said):
        stream += before
        for part in (*parts, b""):
            stream += f"{NONCE} {request} {len(part)}\n".encode() + part
    bulks = expecting(*((str(n), sum(map(len, parts))) for n, (_, parts) in enumerate(said)))
    received = [each for piece in portions(stream, at) for each in bulks.feed(piece)]
    assert received == [(str(n), b"".join(parts)) for n, (_, parts) in enumerate(said)]
    assert bulks.noise == sum(len(before) for before, _ in said)


def test_bulk_data_that_looks_like_a_header_is_data() -> None:
    body = f"{NONCE} 1 0\n{NONCE} 2 3\n".encode()
    stream = f"{NONCE} 1 {len(body)}\n".encode() + body + f"{NONCE} 1 0\n".encode()
    assert expecting(("1", len(body))).feed(stream) == [("1", body)]


def test_noise_is_not_buffered() -> None:
    bulks = Bulks(NONCE)
    for _ in range(100):
        assert bulks.feed(b"x" * 10_000) == []
    assert len(bulks._rest) < 100
    assert bulks.noise > 900_000


@pytest.mark.parametrize(
    ("announced", "why"),
    [
        ("1 101", "up to 100"),
        ("1 -1", "up to 100"),
        ("1 0x10", "up to 100"),
        ("1 \u0663", "up to 100"),
        (f"1 {'9' * 100}", "up to 100"),
        ("1 1e2", "up to 100"),
        ("1", "1 words"),
        ("1 1 1", "3 words"),
        ("", "1 words"),
        ("2 5", "not expected"),
        ("\u0661 5", "not expected"),
        ("1 " + "1" * 5000, "unterminated"),
    ],
)
def test_a_malformed_header_of_bulk_data_is_rejected(announced: str, why: str) -> None:
    bulks = expecting(("1", 100), ("2", 100))
    with pytest.raises(ProtocolError, match=why):
        bulks.feed(f"{NONCE} {announced}\n".encode())


def test_portions_together_may_not_exceed_the_requested_size() -> None:
    bulks = expecting(("1", 100))
    bulks.feed(f"{NONCE} 1 60\n{'x' * 60}".encode())
    with pytest.raises(ProtocolError, match="up to 40"):
        bulks.feed(f"{NONCE} 1 60\n".encode())


def test_an_endless_header_is_rejected() -> None:
    with pytest.raises(ProtocolError, match="unterminated"):
        expecting(("1", 100)).feed(f"{NONCE} 1 {'0' * 1000}".encode())


def test_an_endless_line_with_the_nonce_is_rejected() -> None:
    lines = Lines(NONCE)
    lines.feed(f"{NONCE} - reading ".encode())
    with pytest.raises(ProtocolError, match="a line of more than"):
        lines.feed(b"x" * MAX_LINE_BYTES)


@pytest.mark.parametrize(
    "word", ["", "-1", "+1", " 1", "1_0", "\u0663", "\u00b2", "9" * 5000, "101"]
)
def test_a_word_that_is_no_number_within_bounds_is_rejected(word: str) -> None:
    with pytest.raises(ProtocolError):
        number(word, 100)
    assert number("100", 100) == 100


def test_data_without_a_request_is_limited() -> None:
    limit = RateLimit(1000, 10, now=0.0)
    assert limit.try_spend(1000, now=0.0)
    assert limit.try_spend(10, now=1.0)
    assert not limit.try_spend(11, now=2.0)
    assert limit.try_spend(10, now=2.0)


junk = st.binary(max_size=60) | st.sampled_from([
    b"\n", b" ", b"0", b"-1", b"99999999999999999999", f"{NONCE} ".encode(), b"1", b"2", b"100",
    f"{NONCE} 1 0\n".encode(), f"{NONCE} 1 3\nabc".encode(), "\u0663".encode(), b"\xff",
])  # fmt: skip


@given(st.lists(junk, max_size=40).map(b"".join), cuts)
def test_any_bytes_are_parsed_or_rejected_with_bounded_buffers(data: bytes, at: list[int]) -> None:
    lines, bulks = Lines(NONCE), expecting(("1", 100), ("2", 100))
    for take in (lines.feed, bulks.feed):
        with contextlib.suppress(ProtocolError):
            for portion in portions(data, at):
                take(portion)  # after an error the connection is closed
                assert len(lines._rest) <= MAX_LINE_BYTES
                assert len(bulks._rest) <= MAX_HEADER_BYTES
                assert len(bulks._body) <= 100


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_word_is_quoted_on_one_line(word: str) -> None:
    assert "\n" not in quoted(word)


def test_connection_failures_say_what_to_do() -> None:
    there = Address("box", "me", 2222, "/k")
    changed = explain_failure(
        "@@@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @@@\nx\n", there, 255
    )
    assert "ssh-keygen -R '[box]:2222'" in changed
    refused = explain_failure("me@box: Permission denied (publickey).\n", there, 255)
    assert refused.startswith("the server rejected the key /k (Permission denied (publickey)")
    assert refused.endswith("try manually: ssh -i /k ssh://me@box:2222")
    assert explain_failure(
        "ssh: connect to host box port 1: Connection refused\r\n", there, 255
    ) == ("ssh: connect to host box port 1: Connection refused")
    assert "code 3 and no message" in explain_failure("", there, 3)
