"""The text about an upload in progress."""

import pytest

from stoker.executors.agent.transfer.upload_progress import UploadProgress


@pytest.mark.parametrize(
    ("total", "counts", "elapsed", "text"),
    [
        (900_000_000, (100, 312_000_100), 21.2, "sending 312 of 900 MB to gpu1, about 40 s left"),
        (900_000_000, (100, 312_000_100), 1.0, "sending 312 of 900 MB to gpu1"),
        (900_000_000, (100,), 60.0, "sending 0 of 900 MB to gpu1"),
        (900_000_000, (), 60.0, "sending 0 of 900 MB to gpu1"),
        (24 * 10**9, (1, 12 * 10**9), 600, "sending 12.0 of 24.0 GB to gpu1, about 10 min left"),
        (2_000_000_000, (), 0.0, "sending 0 of 2,000 MB to gpu1"),
        (1_200, (), 0.0, "sending 0 of 1 kB to gpu1"),
        (0, (), 5.0, "sending 0 of 0 bytes to gpu1"),
        (10**8, (1, 12 * 10**7), 60.0, "sending 120 of 100 MB to gpu1, about 1 s left"),
        (None, (), 5.0, "reading its files, to send them to gpu1"),
    ],
)
def test_the_text_has_the_bytes_sent_and_the_time_left(
    total: int | None, counts: tuple[int, ...], elapsed: float, text: str
) -> None:
    transfer = UploadProgress(total)
    for sent in counts:
        transfer.count(sent)
    assert transfer.text("gpu1", transfer.began + elapsed) == text
