"""The decoder of chunked replies, however the bytes are cut."""

import pytest

from stoker.client.errors import ConnectionBroken
from stoker.client.transport import ChunkedDecoder

RAW = b"3;name=value\r\nabc\r\n10\r\n0123456789\r\nabcd\r\n0\r\n\r\n"
BODY = b"abc0123456789\r\nabcd"


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(RAW)])
def test_a_chunked_body_is_decoded_wherever_it_is_cut(size: int) -> None:
    decoder = ChunkedDecoder()
    pieces = [decoder.feed(RAW[at : at + size]) for at in range(0, len(RAW), size)]
    assert b"".join(pieces) == BODY
    assert decoder.is_complete


def test_a_body_is_passed_on_before_its_chunk_is_whole() -> None:
    decoder = ChunkedDecoder()
    assert decoder.feed(b"5\r\nab") == b"ab"
    assert decoder.feed(b"cde\r") == b"cde"
    assert not decoder.is_complete


def test_a_chunk_without_a_size_breaks_the_connection() -> None:
    with pytest.raises(ConnectionBroken, match="not HTTP"):
        ChunkedDecoder().feed(b"\r\n\r\n")
