"""Job selectors: `5`, `3-7`, `7_2`, `last`, `%label`, a name."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable

from stoker.core.model.job import Job
from stoker.core.model.units import BadValue
from stoker.core.state.state import State

MAX_RANGE = 1_000_000
"""Jobs in one range: a larger one is a typing error."""


class NotFound(LookupError):
    """A selector that matches no job; the message is one sentence for the user."""


LoadJob = Callable[[int], Job | None]
"""Return a job that was unloaded from memory."""
ByName = Callable[[str], list[int]]
"""Return the unloaded jobs with a name."""
Members = Callable[[int], list[int]]
"""Return the jobs of an array or a sweep, also unloaded ones."""


def select(
    words: list[str], state: State, recall: LoadJob, by_name: ByName, members: Members
) -> list[int]:
    """Return the ids of all selected jobs, in order, without repeats."""
    ids: dict[int, None] = {}
    arrays = _ArrayMembers(state, recall, members)
    for word in words:
        for part in _parts(word):
            sweep = selected_sweep(part, state)
            if sweep is not None:
                ids.update(dict.fromkeys(arrays.members_of(sweep)))
            else:
                ids.update(dict.fromkeys(_select_word(part, state, by_name, arrays)))
    return list(ids)


def selected_sweep(word: str, state: State) -> int | None:
    """Return the sweep that a selector names by id, by name, or as the last submission."""
    if word in ("last", "-1"):
        return state.record.last_first if state.record.last_first in state.sweeps else None
    if word.isdecimal():
        return int(word) if int(word) in state.sweeps else None
    named = [sweep.id for sweep in state.sweeps.values() if sweep.name == word]
    return named[-1] if named else None


class _ArrayMembers:
    """Members of arrays and sweeps, loaded once per selection."""

    def __init__(self, state: State, recall: LoadJob, members: Members) -> None:
        self.state, self.recall, self.members = state, recall, members
        self.cache: dict[int, list[int]] = {}

    def members_of(self, id: int) -> list[int]:
        """Return all jobs of an array or sweep; empty if the id is neither."""
        if id not in self.cache:
            self.cache[id] = self._load_members(id)
        return self.cache[id]

    def _load_members(self, id: int) -> list[int]:
        board = self.state.boards.get(id)
        if board is not None:
            return list(board.trials)
        if id in self.state.sweeps:
            return self.members(id)
        leader = self._job(id)
        return self.members(id) if leader is not None and leader.array == id else []

    def _job(self, id: int) -> Job | None:
        return self.state.jobs.get(id) or self.recall(id)

    def member(self, array: int, index: int) -> int:
        """Return the member with this index."""
        ids = self.members_of(array)
        at = bisect_left(ids, index, key=self._index)  # indexes ascend with ids
        if at == len(ids) or self._index(ids[at]) != index:
            raise NotFound(f"There is no job {array}_{index}.")
        return ids[at]

    def members_in(self, array: int, spans: str) -> list[int]:
        """Return the members with these indexes, as a listing prints them: `2-9,12`."""
        members: list[int] = []
        for span in spans.split(","):
            low, _, high = span.partition("-")
            if not low.isdecimal() or not (high or low).isdecimal():
                raise BadValue(f"'{array}_[{spans}]' is not a list of members; write 70_[2-9,12].")
            numbers = range(int(low), int(high or low) + 1)
            ids = self.members_of(array)
            members += ids[
                bisect_left(ids, numbers.start, key=self._index) : bisect_left(
                    ids, numbers.stop, key=self._index
                )
            ]
        if not members:
            raise NotFound(f"There is no job {array}_[{spans}].")
        return members

    def _index(self, id: int) -> int:
        job = self._job(id)
        return job.index if job is not None and job.index is not None else 0


def _parts(word: str) -> list[str]:
    if re.fullmatch(r"[\d\s,:_-]+", word):
        parts = [part.strip() for part in word.split(",") if part.strip()]
        if parts:
            return parts
    if not word.strip():
        raise BadValue("An empty selector selects no job; write an id, a range, a name or last.")
    return [word]


def _select_word(word: str, state: State, by_name: ByName, arrays: _ArrayMembers) -> list[int]:
    if word == "all":
        return [id for id, job in state.jobs.items() if not job.finished]
    if word in ("last", "-1"):
        first, count = state.record.last_first, state.record.last_count
        if not count:
            raise NotFound("Nothing has been submitted yet.")
        return list(range(first, first + count))
    if word.startswith("%"):
        return _labelled(word[1:], state)
    match = re.fullmatch(r"(\d{1,15})(?:-(\d{1,15})(?::(\d{1,9}))?)?", word)
    if match:
        return _numbers(match, word, state, arrays)
    match = re.fullmatch(r"(\d{1,15})_(\d{1,7})", word)
    if match:
        return [arrays.member(int(match[1]), int(match[2]))]
    match = re.fullmatch(r"(\d{1,15})_\[([\d,-]+)(?:%\d+)?\]", word)
    if match:
        return arrays.members_in(int(match[1]), match[2])
    try:
        return _named(word, state, by_name)
    except NotFound:
        name, _, index = word.rpartition("_")
        sweep = selected_sweep(name, state) if index.isdecimal() and len(index) <= 7 else None
        if sweep is None:
            raise
        return [arrays.member(sweep, int(index))]


def _numbers(match: re.Match[str], word: str, state: State, arrays: _ArrayMembers) -> list[int]:
    first = int(match[1])
    known = range(1, state.record.next_id)
    if match[2] is None:
        if first not in known:
            raise NotFound(f"There is no job {first}.")
        return arrays.members_of(first) or [first]
    last, step = int(match[2]), int(match[3] or 1)
    if last < first or not step:
        raise BadValue(f"'{word}' is empty; write the smaller id first.")
    if last - first > MAX_RANGE:
        raise BadValue(f"'{word}' is too large a range.")
    ids = [id for id in range(first, last + 1, step) if id in known and id not in state.sweeps]
    if first not in known:
        raise NotFound(f"There is no job {first}.")
    if last not in known and step == 1:
        raise NotFound(f"There is no job {last}; the newest is {state.record.next_id - 1}.")
    return ids


def _labelled(label: str, state: State) -> list[int]:
    ids = [id for id, job in state.jobs.items() if label in state.specs[job.spec].labels]
    if not ids:
        raise NotFound(f"No job has the label '{label}'.")
    return ids


def _named(name: str, state: State, by_name: ByName) -> list[int]:
    ids = [id for id, job in state.jobs.items() if job.name == name]
    ids += [id for id, job in state.jobs.items() if state.specs[job.spec].group == name]
    ids = sorted(set(ids)) or by_name(name)
    if not ids:
        raise NotFound(f"There is no job called '{name}'. Use an id, a range, a name or last.")
    return ids
