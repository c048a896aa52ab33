"""What people mean by `5`, `3-7`, `last` or a name."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable

from stoker.core.job import Job
from stoker.core.state import State
from stoker.core.units import BadValue

MOST = 1_000_000


class NotFound(LookupError):
    """A selector that means nothing here; the message is one sentence."""


Recall = Callable[[int], Job | None]
"""Reads a job that is no longer in memory."""
ByName = Callable[[str], list[int]]
Members = Callable[[int], list[int]]
"""The jobs of an array or a sweep, also those that are no longer in memory."""


def select(
    words: list[str], state: State, recall: Recall, by_name: ByName, members: Members
) -> list[int]:
    """The ids meant by several selectors, in order, without repeats."""
    found: dict[int, None] = {}
    arrays = _Arrays(state, recall, members)
    for word in words:
        for part in _parts(word):
            sweep = sweep_meant(part, state)
            if sweep is not None:
                found.update(dict.fromkeys(arrays.whole(sweep)))
            else:
                found.update(dict.fromkeys(_one(part, state, by_name, arrays)))
    return list(found)


def sweep_meant(word: str, state: State) -> int | None:
    """The sweep that a selector means as a whole: by its number, its name, or as the last thing."""
    if word in ("last", "-1"):
        return state.rest.last_first if state.rest.last_first in state.sweeps else None
    if word.isdecimal():
        return int(word) if int(word) in state.sweeps else None
    named = [sweep.id for sweep in state.sweeps.values() if sweep.name == word]
    return named[-1] if named else None


class _Arrays:
    """The members of arrays and sweeps, looked up once for all words that name some of them."""

    def __init__(self, state: State, recall: Recall, members: Members) -> None:
        self.state, self.recall, self.members = state, recall, members
        self.known: dict[int, list[int]] = {}

    def whole(self, id: int) -> list[int]:
        """All jobs of what has this number; none if it is neither an array nor a sweep."""
        if id not in self.known:
            self.known[id] = self._look(id)
        return self.known[id]

    def _look(self, id: int) -> list[int]:
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
        """One of them, by its own number."""
        ids = self.whole(array)
        at = bisect_left(ids, index, key=self._index)  # numbers rise with ids
        if at == len(ids) or self._index(ids[at]) != index:
            raise NotFound(f"There is no job {array}_{index}.")
        return ids[at]

    def some(self, array: int, spans: str) -> list[int]:
        """Return members by their numbers, as a listing prints them: `2-9,12`."""
        found: list[int] = []
        for span in spans.split(","):
            low, _, high = span.partition("-")
            if not low.isdecimal() or not (high or low).isdecimal():
                raise BadValue(f"'{array}_[{spans}]' is not a list of members; write 70_[2-9,12].")
            numbers = range(int(low), int(high or low) + 1)
            ids = self.whole(array)
            found += ids[
                bisect_left(ids, numbers.start, key=self._index) : bisect_left(
                    ids, numbers.stop, key=self._index
                )
            ]
        if not found:
            raise NotFound(f"There is no job {array}_[{spans}].")
        return found

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


def _one(word: str, state: State, by_name: ByName, arrays: _Arrays) -> list[int]:
    if word == "all":
        return [id for id, job in state.jobs.items() if not job.finished]
    if word in ("last", "-1"):
        first, count = state.rest.last_first, state.rest.last_count
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
        return arrays.some(int(match[1]), match[2])
    try:
        return _named(word, state, by_name)
    except NotFound:
        name, _, index = word.rpartition("_")
        sweep = sweep_meant(name, state) if index.isdecimal() and len(index) <= 7 else None
        if sweep is None:
            raise
        return [arrays.member(sweep, int(index))]


def _numbers(match: re.Match[str], word: str, state: State, arrays: _Arrays) -> list[int]:
    first = int(match[1])
    known = range(1, state.rest.next_id)
    if match[2] is None:
        if first not in known:
            raise NotFound(f"There is no job {first}.")
        return arrays.whole(first) or [first]
    last, step = int(match[2]), int(match[3] or 1)
    if last < first or not step:
        raise BadValue(f"'{word}' is empty; write the smaller id first.")
    if last - first > MOST:
        raise BadValue(f"'{word}' is too large a range.")
    ids = [id for id in range(first, last + 1, step) if id in known and id not in state.sweeps]
    if first not in known:
        raise NotFound(f"There is no job {first}.")
    if last not in known and step == 1:
        raise NotFound(f"There is no job {last}; the newest is {state.rest.next_id - 1}.")
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
