"""The reply to `drain`: the jobs that still run on the devices."""

from pathlib import Path
from typing import Any

from core.scenario import Scenario
from stoker.daemon.context import RequestContext
from stoker.daemon.handlers.drain import drain, undrain
from stoker.engine import Instant
from stoker.schema.requests import Drain, Undrain
from stoker.store.memory import MemoryStore


def test_running_tasks_of_an_array_are_named_by_their_labels(tmp_path: Path) -> None:
    story = Scenario(gpus=2)
    story.submit()
    array = story.submit(count=2, array=True)
    story.run(1, array)
    context = RequestContext(MemoryStore(), str(tmp_path), "box", "ana")

    def reply(body: Drain | Undrain) -> dict[str, Any]:
        handler = drain(context, body) if isinstance(body, Drain) else undrain(context, body)
        decided = handler(story.state, Instant(story.now, story.now))
        assert decided.reply is not None
        found: dict[str, Any] = decided.reply(story.state)
        return found

    found = reply(Drain(devices=["1"]))
    assert (found["running"], found["labels"]) == ([array], [f"{array}_0"])
    assert reply(Undrain(devices=["1"]))["labels"] == []
