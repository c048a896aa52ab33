"""What is said about an upload that is under way."""

import pytest

from stoker.executors.ssh.transfer import Transfer


@pytest.mark.parametrize(
    ("total", "sent", "elapsed", "text"),
    [
        (900_000_000, 312_000_000, 21.2, "sending 312 of 900 MB to gpu1, about 40 s left"),
        (900_000_000, 312_000_000, 1.0, "sending 312 of 900 MB to gpu1"),
        (900_000_000, 0, 60.0, "sending 0 of 900 MB to gpu1"),
        (24_000_000_000, 12_000_000_000, 600, "sending 12.0 of 24.0 GB to gpu1, about 10 min left"),
        (1_200, 0, 0.0, "sending 0 of 1 kB to gpu1"),
        (0, 0, 5.0, "sending 0 of 0 bytes to gpu1"),
        (100_000_000, 120_000_000, 60.0, "sending 120 of 100 MB to gpu1, about 0 s left"),
    ],
)
def test_what_is_sent_and_how_long_it_takes(
    total: int, sent: int, elapsed: float, text: str
) -> None:
    transfer = Transfer(total)
    transfer.sent = sent
    assert transfer.text("gpu1", transfer.began + elapsed) == text
