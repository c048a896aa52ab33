"""The hub builds a frame once, a slow reader delays no other one, and without readers it rests."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from daemon.control.test_change_collector import ObservedHandlers
from stoker.core import events as e
from stoker.core.model.alarm import Alarm
from stoker.daemon.context import daemon_stopping, reply_only
from stoker.daemon.routes import live_hub
from stoker.daemon.routes.live_hub import LiveHub, LiveReader
from stoker.schema.live import GpusFrame


class HubFixture:
    """A hub over handlers in this thread."""

    def __init__(self, directory: Path) -> None:
        self.handlers = ObservedHandlers(directory)
        self.aborted: list[LiveReader] = []
        self.hub = LiveHub(
            self.ask, lambda: self.handlers.engine.seq, self.handlers.context,
            self.handlers.publisher, lambda state, now: reply_only(GpusFrame(t=1.0, g=[])),
        )  # fmt: skip

    async def ask(self, handler: Any) -> Any:
        await asyncio.sleep(0)
        return self.handlers.ask(handler)

    async def reader(self, *topics: str, user: str | None = None) -> LiveReader:
        reader: LiveReader = LiveReader(
            frozenset(topics), lambda: self.aborted.append(reader), user
        )
        await self.hub.add(reader)
        return reader


def parsed(frame: bytes) -> tuple[str, Any]:
    head, _, data = frame.decode().partition("\ndata: ")
    return head.removeprefix("event: "), json.loads(data)


async def next_frame(frames: AsyncIterator[bytes]) -> tuple[str, Any]:
    return parsed(await asyncio.wait_for(anext(frames), 10))


@pytest.fixture
def fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubFixture:
    monkeypatch.setattr(live_hub, "FRAME_SECONDS", 0.001)
    return HubFixture(tmp_path)


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_readers_get_the_frames_of_their_topics(fixture: HubFixture) -> None:
    async def scenario() -> None:
        jobs = (await fixture.reader("jobs")).frames()
        counts = (await fixture.reader("counts")).frames()
        job = fixture.handlers.submit()
        event, data = await next_frame(jobs)
        assert (event, data["changed"][0]["id"]) == ("jobs", job)
        assert (await next_frame(counts))[1]["counts"] == {"CONFIGURING": 1}

    run(scenario)


def test_users_get_the_public_part_of_jobs_of_others(fixture: HubFixture) -> None:
    async def scenario() -> None:
        all = (await fixture.reader("jobs")).frames()
        job = fixture.handlers.submit(label=["private"])
        row = (await next_frame(all))[1]["changed"][0]
        assert (row["id"], row["labels"]) == (job, "private")
        for user, labels in ((row["user"], "private"), ("another", None)):
            frames = (await fixture.reader("jobs", user=user)).frames()
            fixture.handlers.submit(label=["private"])
            (row,) = (await next_frame(frames))[1]["changed"]
            assert row.get("labels") == labels
            assert row["name"]

    run(scenario)


def test_alarms_are_sent_when_they_change(fixture: HubFixture) -> None:
    async def scenario() -> None:
        frames = (await fixture.reader("alarms")).frames()
        alarm = Alarm(kind="hot", since=1.0, text="99 °C", node="box", gpu="0")
        fixture.handlers.apply(e.AlarmRaised(at=1.0, alarm=alarm))
        event, data = await next_frame(frames)
        assert (event, [found["kind"] for found in data["alarms"]]) == ("alarms", ["hot"])
        assert data["alarms"][0]["action"] == "stoker drain box/0"
        fixture.handlers.apply(e.AlarmCleared(at=2.0, alarm=alarm))
        assert (await next_frame(frames))[1]["alarms"] == []

    run(scenario)


def test_gpu_frames_come_only_while_a_reader_has_that_topic(fixture: HubFixture) -> None:
    async def scenario() -> None:
        await fixture.reader("jobs")
        assert fixture.hub._seconds_to_gpus() is None
        gpus = (await fixture.reader("gpus")).frames()
        assert await next_frame(gpus) == ("gpus", {"t": 1.0, "g": []})
        assert (fixture.hub._seconds_to_gpus() or 0.0) > 0

    run(scenario)


def test_a_frame_is_encoded_once_for_all_readers(
    fixture: HubFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []
    real = live_hub.sse_frame
    monkeypatch.setattr(
        live_hub, "sse_frame", lambda event, data: encoded.append(event) or real(event, data)
    )

    async def scenario() -> None:
        readers = [(await fixture.reader("jobs")).frames() for _ in range(20)]
        fixture.handlers.submit()
        for frames in readers:
            assert (await next_frame(frames))[0] == "jobs"
        assert encoded == ["jobs"]

    run(scenario)


def test_a_reader_that_does_not_read_is_disconnected_and_delays_no_other(
    fixture: HubFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_hub, "MAX_QUEUED_FRAMES", 3)

    async def scenario() -> None:
        stalled = await fixture.reader("jobs")
        frames = (await fixture.reader("jobs")).frames()
        for _ in range(5):
            job = fixture.handlers.submit()
            assert (await next_frame(frames))[1]["changed"][0]["id"] == job
        assert fixture.aborted == [stalled]
        assert stalled.is_closed
        assert [frame async for frame in stalled.frames()] == []

    run(scenario)


def test_a_hub_without_readers_has_no_task_and_observes_nothing(fixture: HubFixture) -> None:
    async def scenario() -> None:
        assert not fixture.handlers.publisher.has_streams
        reader = await fixture.reader("jobs", "gpus")
        assert fixture.handlers.publisher.has_streams
        task = fixture.hub._task
        assert task is not None
        fixture.hub.remove(reader)
        await task
        assert not fixture.handlers.publisher.has_streams
        again = (await fixture.reader("jobs")).frames()
        job = fixture.handlers.submit()
        assert (await next_frame(again))[1]["changed"][0]["id"] == job

    run(scenario)


def test_a_reader_that_comes_while_the_hub_ends_misses_nothing(fixture: HubFixture) -> None:
    async def scenario() -> None:
        for _ in range(20):
            reader = await fixture.reader("jobs")
            fixture.hub.remove(reader)
            await asyncio.sleep(0)
            frames = (await fixture.reader("jobs")).frames()
            job = fixture.handlers.submit()
            _, data = await next_frame(frames)
            assert job in [row["id"] for row in data["changed"]]

    run(scenario)


def test_readers_end_when_the_daemon_stops(fixture: HubFixture) -> None:
    async def scenario() -> None:
        reader = await fixture.reader("jobs")
        fixture.hub._ask = _stopping
        fixture.handlers.submit()
        assert [frame async for frame in reader.frames()] == []

    run(scenario)


async def _stopping(handler: Any) -> Any:
    raise daemon_stopping()
