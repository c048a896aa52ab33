"""Journals of all releases, replayed by the current code."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from postgres import Server
from simulation.state_comparison import fold, replayed, state_as_dict
from stoker.core import events as e
from stoker.core.state.state import State
from stoker.store import codec
from stoker.store.postgres import PostgresStore
from store.rows import batch

GOLDEN = Path(__file__).parent / "golden"
JOURNALS = sorted(path.stem for path in GOLDEN.glob("*.jsonl"))
LASTING = ("jobs", "sweeps", "running", "finished", "unseen", "devices")
"""Parts of a portrait that mean the same in every release; new fields may be added to them."""


def outline(state: State) -> dict[str, Any]:
    found = state_as_dict(state)
    kept = {part: found[part] for part in LASTING}
    kept |= {"ready": sorted(found["ready"]), "next id": state.record.next_id}
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(kept))
    return plain


def read(name: str) -> list[e.Event]:
    class Line(msgspec.Struct):
        version: int
        event: msgspec.Raw

    class Kind(msgspec.Struct):
        kind: str

    lines = (GOLDEN / f"{name}.jsonl").read_bytes().splitlines()
    decoded = [msgspec.json.decode(line, type=Line) for line in lines]
    return [
        codec.decode_event(
            msgspec.json.decode(line.event, type=Kind).kind, line.version, bytes(line.event)
        )
        for line in decoded
    ]


def same(expected: Any, actual: Any) -> bool:
    """Return whether values are equal, except for fields that were added since."""
    if isinstance(expected, dict):
        return all(key in actual and same(value, actual[key]) for key, value in expected.items())
    if isinstance(expected, list) and isinstance(actual, list):
        return len(expected) <= len(actual) and all(map(same, expected, actual))
    return bool(expected == actual)


@pytest.mark.parametrize("name", JOURNALS)
def test_an_old_journal_gives_the_recorded_state(name: str):
    expected = msgspec.json.decode((GOLDEN / f"{name}.state.json").read_bytes())
    found = outline(fold(read(name)))
    for part, value in expected.items():
        assert same(value, found[part]), part
        if isinstance(value, dict):
            assert set(value) == set(found[part])


@pytest.mark.parametrize("name", JOURNALS)
def test_no_field_of_an_old_journal_is_lost(name: str):
    lines = (GOLDEN / f"{name}.jsonl").read_bytes().splitlines()
    for line, event in zip(lines, read(name), strict=True):
        assert same(msgspec.json.decode(line)["event"], msgspec.json.decode(codec.encode(event)))


@pytest.mark.parametrize("name", JOURNALS)
def test_an_old_journal_is_encoded_as_it_was_read(name: str):
    for event in read(name):
        assert codec.decode_event(type(event).__name__, codec.VERSION, codec.encode(event)) == event


@pytest.mark.parametrize("name", JOURNALS)
def test_an_old_journal_is_stored_in_postgres(postgres: Server, name: str):
    store, journal = PostgresStore(postgres.choice()), read(name)
    store.acquire_term()
    store.commit(batch(events=journal), sync=True)
    assert [event for _, event in store.events(0, 100_000)] == journal
    assert outline(replayed(store)) == outline(fold(journal))
    store.close()


def test_every_kind_of_event_is_in_a_journal():
    kinds = {type(event).__name__ for name in JOURNALS for event in read(name)}
    assert kinds == {kind.__name__ for kind in e.AnyEvent.__args__}


def test_an_unknown_event_is_rejected():
    event = e.JobHeld(at=1.0, job=1)
    with pytest.raises(codec.UnreadableEvent, match="newer stoker"):
        codec.decode_event("JobHeld", codec.VERSION + 1, codec.encode(event))
    with pytest.raises(codec.UnreadableEvent):
        codec.decode_event("JobHeld", codec.VERSION, b'{"kind": "JobHeld"')
