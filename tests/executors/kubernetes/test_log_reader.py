"""LogReader: output, reports and ends out of the log of a pod, each byte once."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.executors.kubernetes.handover.logs.log_reader import ERR, OUT, REPORT, LogReader, Piece

NONCE = "~stoker1234"


def at(second: int, text: str, fraction: str = ".000000001") -> bytes:
    return f"2026-11-20T09:00:{second:02}{fraction}Z {text}".encode()


def read(reader: LogReader, log: bytes, size: int = 1 << 20) -> list[Piece]:
    """Return what a request for a log gives, in chunks of a size."""
    reader.begin()
    pieces: list[Piece] = []
    for begin in range(0, len(log), size):
        pieces += reader.feed(log[begin : begin + size])
    return pieces + reader.finish()


def text(pieces: list[Piece], stream: str = OUT) -> bytes:
    """Return a stream; its pieces must be adjacent."""
    data = b""
    for piece in pieces:
        if piece.stream == stream:
            assert piece.offset == len(data)
            data += piece.data
    return data


LOG = b"".join((
    at(1, "hello\n"), at(1, "hello\n"), at(2, "\n"),
    at(3, f'{NONCE} r 0 {{"k":"epoch"}}\n'), at(3, f"{NONCE} e 0 oops\n"),
    at(4, "10%\r20%\r\n"), at(5, f"part{NONCE} r 14 next\n"), at(6, f"ial\n{''}"),
    at(7, f"last{NONCE} x 3\n"),
))  # fmt: skip
OUTPUT = b"hello\nhello\n\n10%\r20%\r\npartial\nlast"


@given(st.integers(1, 60))
def test_output_reports_and_the_exit_are_separated(size: int) -> None:
    reader = LogReader(NONCE)
    pieces = read(reader, LOG, size)
    assert text(pieces) == OUTPUT
    assert text(pieces, REPORT) == b'{"k":"epoch"}\nnext\n'
    assert text(pieces, ERR) == b"oops\n"
    assert reader.exit_code == 3


@given(st.integers(0, len(LOG)))
def test_a_cut_anywhere_loses_and_repeats_nothing(cut: int) -> None:
    reader = LogReader(NONCE)
    reader.begin()
    pieces = reader.feed(LOG[:cut])
    since = reader.since
    again = LOG if since is None else LOG[LOG.index(since.split(".")[0].encode()) :]
    pieces += read(reader, again)
    assert text(pieces) == OUTPUT
    assert text(pieces, REPORT) == b'{"k":"epoch"}\nnext\n'
    assert reader.exit_code == 3


@given(st.integers(0, len(LOG)))
def test_a_later_daemon_reads_the_whole_log_again(cut: int) -> None:
    first = LogReader(NONCE)
    first.begin()
    first.feed(LOG[:cut])
    later = LogReader(NONCE, first.position)
    assert later.since is None
    pieces = read(later, LOG)
    assert text(pieces) == OUTPUT
    assert text(pieces, REPORT) == b'{"k":"epoch"}\nnext\n'


def test_a_later_daemon_continues_in_a_log_that_was_rotated() -> None:
    first = LogReader(NONCE)
    read(first, LOG[: LOG.index(b"10%") - len(at(4, ""))])
    rotated = LOG[len(at(1, "hello\n")) * 2 :]
    later = LogReader(NONCE, first.position)
    (output, *_) = read(later, rotated)
    assert (output.offset, output.data[:4]) == (13, b"10%\r")


def test_a_line_of_several_entries_is_one_line() -> None:
    long = "x" * 16384
    log = at(1, long) + at(2, long) + at(3, "end 2026-11-20T09:00:00Z here\n")
    reader = LogReader(NONCE)
    assert text(read(reader, log)) == f"{long}{long}end 2026-11-20T09:00:00Z here\n".encode()


def test_a_cut_within_a_line_of_several_entries() -> None:
    long = "x" * 16384
    log = at(1, "a\n") + at(2, long) + at(3, "end\n")
    reader = LogReader(NONCE)
    reader.begin()
    pieces = reader.feed(log[:9000])
    pieces += read(reader, log)
    assert text(pieces) == f"a\n{long}end\n".encode()


def test_marks_of_another_nonce_are_output() -> None:
    log = at(1, "~stoker9 x 3\n")
    reader = LogReader(NONCE)
    assert text(read(reader, log)) == b"~stoker9 x 3\n"
    assert reader.exit_code is None


def test_a_part_that_waits_at_its_barrier() -> None:
    reader = LogReader(NONCE)
    read(reader, at(1, f"{NONCE} b\n"))
    assert reader.is_at_barrier
    read(reader, at(2, f"{NONCE} x cancelled\n"))
    assert reader.is_cancelled
    assert reader.exit_code is None


def test_an_error_of_the_kubelet_in_place_of_the_log_is_no_output() -> None:
    reader = LogReader(NONCE)
    error = b"unable to retrieve container logs for containerd://1234"
    assert text(read(reader, at(1, "a\n") + error)) == b"a\n"
    assert reader.trouble == error.decode()


def test_the_termination_message_has_the_end_of_a_log_that_was_lost() -> None:
    reader = LogReader(NONCE)
    pieces = read(reader, at(1, f"{NONCE} r 0 one\n") + b"unable to retrieve container logs")
    pieces += reader.read_message(f"cut\n{NONCE} r 0 one\n{NONCE} r 4 two\n{NONCE} x 75\n")
    assert [(each.offset, each.data) for each in pieces] == [
        (0, b"one\n"), (0, b"one\n"), (4, b"two\n"),
    ]  # fmt: skip
    assert reader.exit_code == 75
