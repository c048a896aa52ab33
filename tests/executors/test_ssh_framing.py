"""What comes over a connection, taken apart: in any pieces, with any noise in between."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stoker.executors.ssh.address import Address
from stoker.executors.ssh.framing import LONGEST_LINE, Bulks, Lines
from stoker.executors.ssh.link import complaint, quoted

NONCE = "0123456789abcdef"
noise = st.binary(max_size=40).filter(lambda data: NONCE.encode() not in data)
cuts = st.lists(st.integers(0, 400), max_size=12)
words = st.lists(st.text(st.characters(codec="ascii", exclude_characters="\n "), min_size=1),
                 min_size=1, max_size=4)  # fmt: skip


def portions(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in at), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@given(st.lists(st.tuples(noise, words), max_size=5), cuts)
def test_lines_are_heard_whole_and_noise_is_not(
    said: list[tuple[bytes, list[str]]], at: list[int]
) -> None:
    stream = b"".join(
        before + f"{NONCE} {' '.join(each)}\n".encode() for before, each in said
    )  # fmt: skip
    lines = Lines(NONCE)
    heard = [each for piece in portions(stream, at) for each in lines.feed(piece)]
    assert heard == [each for _, each in said]


def test_a_line_without_end_is_noise_and_what_follows_is_heard() -> None:
    lines = Lines(NONCE)
    for _ in range(3):
        assert lines.feed(b"x" * LONGEST_LINE) == []
    assert lines.feed(f"{NONCE} - hello\n".encode()) == [["-", "hello"]]


@given(
    st.lists(
        st.tuples(noise, st.lists(st.binary(min_size=1, max_size=99), max_size=3)), max_size=4
    ),
    cuts,
)
def test_bulk_comes_in_portions_and_may_hold_anything(
    said: list[tuple[bytes, list[bytes]]], at: list[int]
) -> None:
    stream = b""
    for number, (before, parts) in enumerate(said):
        stream += before
        for part in (*parts, b""):
            stream += f"{NONCE} {number} {len(part)}\n".encode() + part
    bulks = Bulks(NONCE)
    heard = [each for piece in portions(stream, at) for each in bulks.feed(piece)]
    assert heard == [(str(n), b"".join(parts)) for n, (_, parts) in enumerate(said)]


def test_bulk_that_imitates_an_announcement_is_bulk() -> None:
    body = f"{NONCE} 1 0\n{NONCE} 2 3\n".encode()
    stream = f"{NONCE} 1 {len(body)}\n".encode() + body + f"{NONCE} 1 0\n".encode()
    assert Bulks(NONCE).feed(stream) == [("1", body)]


def test_noise_without_bulk_is_not_kept() -> None:
    bulks = Bulks(NONCE)
    for _ in range(100):
        assert bulks.feed(b"x" * 10_000) == []
    assert len(bulks._rest) < 100


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_word_is_one_line(word: str) -> None:
    assert "\n" not in quoted(word)


def test_complaints_say_what_to_do() -> None:
    there = Address("box", "me", 2222, "/k")
    changed = complaint("@@@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @@@\nx\n", there, 255)
    assert "ssh-keygen -R '[box]:2222'" in changed
    refused = complaint("me@box: Permission denied (publickey).\n", there, 255)
    assert refused.startswith("it refused the key /k (Permission denied (publickey)")
    assert refused.endswith("try it by hand: ssh -i /k ssh://me@box:2222")
    assert complaint("ssh: connect to host box port 1: Connection refused\r\n", there, 255) == (
        "ssh: connect to host box port 1: Connection refused"
    )
    assert "code 3 and no word" in complaint("", there, 3)
