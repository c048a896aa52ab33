"""Copies of logs: pieces may come twice, or late, or after the log was emptied."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from stoker.executors.ssh.mirror import Mirror, Piece, pieces


def mirror(place: Path, before: bytes = b"") -> Mirror:
    (place / "out").write_bytes(before)
    found = Mirror(str(place / "out"), None, str(place / "note"))
    found.open(0o022)
    return found


@given(
    st.binary(max_size=60), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8)
)
def test_every_byte_once_whatever_is_asked_for_again(
    tmp_path_factory: object, data: bytes, asked: list[tuple[int, int]]
) -> None:
    copy = Mirror("/dev/null", None, "/nowhere")
    held = b""
    for offset, size in (*asked, (0, 60)):
        have = copy.at_out
        copy.take(Piece("1.0", "out", offset, data[offset : offset + size]))
        held += data[have : copy.at_out]
        assert held == data[: copy.at_out]
    assert held == data


def test_a_new_driver_goes_on_where_the_copy_ends(tmp_path: Path) -> None:
    first = mirror(tmp_path, b"before\n")
    first.take(Piece("1.0", "out", 0, b"one\ntw"))
    second = Mirror(first.out, None, first.note)
    second.resume()
    assert second.offsets == ("6", "0")
    second.take(Piece("1.0", "out", 4, b"two\n"))
    assert (tmp_path / "out").read_bytes() == b"before\none\ntwo\n"


def test_an_emptied_log_begins_anew_after_what_was_there_before(tmp_path: Path) -> None:
    copy = mirror(tmp_path, b"before\n")
    copy.take(Piece("1.0", "out", 0, b"old"))
    copy.take(Piece("1.0", "cut-out", 0, b""))
    copy.take(Piece("1.0", "out", 0, b"new"))
    assert (tmp_path / "out").read_bytes() == b"before\nnew"


def test_what_others_wrote_to_the_file_is_not_cut_off(tmp_path: Path) -> None:
    copy = mirror(tmp_path)
    copy.take(Piece("1.0", "out", 0, b"mine"))
    with (tmp_path / "out").open("ab") as file:
        file.write(b"theirs")
    copy.take(Piece("1.0", "cut-out", 0, b""))
    assert (tmp_path / "out").read_bytes() == b"minetheirs"


@given(
    st.lists(
        st.tuples(st.sampled_from(["out", "err", "tar"]), st.integers(0, 9), st.binary(max_size=30))
    )
)
def test_pieces_are_taken_apart(said: list[tuple[str, int, bytes]]) -> None:
    bulk = b"".join(f"7.0 {what} {at} {len(data)}\n".encode() + data for what, at, data in said)
    assert pieces(bulk) == [Piece("7.0", what, at, data) for what, at, data in said]
