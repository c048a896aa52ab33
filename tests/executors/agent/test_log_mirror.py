"""Copies of logs: pieces may arrive twice, or late, or after the log was truncated."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.executors.agent.session.framing import ProtocolError
from stoker.executors.agent.transfer.log_mirror import LogMirror, Piece, pieces


def mirror(base: Path, before: bytes = b"") -> LogMirror:
    (base / "out").write_bytes(before)
    found = LogMirror(str(base / "out"), None, str(base / "note"))
    found.open(0o022)
    return found


@given(
    st.binary(max_size=60), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8)
)
def test_overlapping_pieces_are_copied_once(
    tmp_path_factory: object, data: bytes, pieces: list[tuple[int, int]]
) -> None:
    copy = LogMirror("/dev/null", None, "/nowhere")
    held = b""
    for offset, size in (*pieces, (0, 60)):
        have = copy.at_out
        copy.take(Piece("1.0", "out", offset, data[offset : offset + size]))
        held += data[have : copy.at_out]
        assert held == data[: copy.at_out]
    assert held == data


def test_another_daemon_continues_where_the_copy_ends(tmp_path: Path) -> None:
    first = mirror(tmp_path, b"before\n")
    first.write_note(12.5)
    first.take(Piece("1.0", "out", 0, b"one\ntw"))
    second = LogMirror(first.out, None, first.note)
    assert second.resume() == 12.5
    assert second.offsets == ("6", "0")
    second.take(Piece("1.0", "out", 4, b"two\n"))
    assert (tmp_path / "out").read_bytes() == b"before\none\ntwo\n"


def test_a_truncated_log_is_copied_again_after_its_earlier_content(tmp_path: Path) -> None:
    copy = mirror(tmp_path, b"before\n")
    copy.take(Piece("1.0", "out", 0, b"old"))
    copy.take(Piece("1.0", "cut-out", 0, b""))
    copy.take(Piece("1.0", "out", 0, b"new"))
    assert (tmp_path / "out").read_bytes() == b"before\nnew"


def test_data_of_other_writers_is_not_truncated(tmp_path: Path) -> None:
    copy = mirror(tmp_path)
    copy.take(Piece("1.0", "out", 0, b"mine"))
    with (tmp_path / "out").open("ab") as file:
        file.write(b"theirs")
    copy.take(Piece("1.0", "cut-out", 0, b""))
    assert (tmp_path / "out").read_bytes() == b"minetheirs"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["7.0", "8.1"]),
            st.sampled_from(["out", "err", "report", "cut-out", "tar"]),
            st.integers(0, 9),
            st.binary(max_size=30),
        ),
        unique_by=lambda piece: piece[:2],
    )
)
def test_pieces_are_parsed(sent: list[tuple[str, str, int, bytes]]) -> None:
    bulk = b"".join(
        f"{key} {what} {at} {len(data)}\n".encode() + data for key, what, at, data in sent
    )
    assert pieces(bulk) == [Piece(*piece) for piece in sent]


@pytest.mark.parametrize(
    "bulk",
    [
        b"7.0 out 0 -5\n",  # would be parsed repeatedly
        b"7.0 out 0 0\n7.0 out 0 -14\n",
        b"7.0 out 0 6\nshort",
        b"7.0 out 0 " + b"9" * 5000 + b"\n",
        "7.0 out 0 \u0663\nabc".encode(),
        b"7.0 out -1 0\n",
        b"7.0 out 0 1\na7.0 out 1 1\nb",  # one piece of each kind
        b"7.0 passwd 0 0\n",
        b"7.0 out 0\n",
        b"7.0 out 0 0",
        b"\xff\xfe out 0 0 0\n",
        b"\n",
        b"x" * 200_000,
    ],
)
def test_malformed_pieces_are_rejected(bulk: bytes) -> None:
    with pytest.raises(ProtocolError):
        pieces(bulk)


@given(st.binary(max_size=200) | st.text("7.0 outer-9\n", max_size=80).map(str.encode))
def test_any_bulk_data_is_parsed_or_rejected(bulk: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert sum(len(piece.data) for piece in pieces(bulk)) <= len(bulk)
