"""What people mean by `5`, `3-7`, `last` or a name."""

from __future__ import annotations

import re
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
    words: list[str], state: State, recall: Recall, by_name: ByName,
    members: Members = lambda _: [],
) -> list[int]:  # fmt: skip
    """The ids meant by several selectors, in order, without repeats."""
    found: dict[int, None] = {}
    for word in words:
        for part in _parts(word):
            sweep = sweep_meant(part, state)
            if sweep is not None:
                found.update(dict.fromkeys(trials(sweep, state, members)))
            else:
                found.update(dict.fromkeys(_one(part, state, recall, by_name, members)))
    return list(found)


def sweep_meant(word: str, state: State) -> int | None:
    """The sweep that a selector means as a whole: by its number, its name, or as the last thing."""
    if word in ("last", "-1"):
        return state.rest.last_first if state.rest.last_first in state.sweeps else None
    if word.isdecimal():
        return int(word) if int(word) in state.sweeps else None
    named = [sweep.id for sweep in state.sweeps.values() if sweep.name == word]
    return named[-1] if named else None


def trials(sweep: int, state: State, members: Members) -> list[int]:
    """The jobs of a sweep."""
    board = state.boards.get(sweep)
    return list(board.trials) if board is not None else members(sweep)


def _parts(word: str) -> list[str]:
    if re.fullmatch(r"[\d\s,:_-]+", word):
        parts = [part.strip() for part in word.split(",") if part.strip()]
        if parts:
            return parts
    if not word.strip():
        raise BadValue("An empty selector means no job; write an id, a range, a name or last.")
    return [word]


def _one(word: str, state: State, recall: Recall, by_name: ByName, members: Members) -> list[int]:
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
        return _numbers(match, word, state, recall)
    match = re.fullmatch(r"(\d{1,15})_(\d{1,7})", word)
    if match:
        return [_member(int(match[1]), int(match[2]), state, recall, members)]
    return _named(word, state, by_name)


def _numbers(match: re.Match[str], word: str, state: State, recall: Recall) -> list[int]:
    first = int(match[1])
    known = range(1, state.rest.next_id)
    if match[2] is None:
        if first not in known:
            raise NotFound(f"There is no job {first}.")
        return _array(first, state, recall) or [first]
    last, step = int(match[2]), int(match[3] or 1)
    if last < first or not step:
        raise BadValue(f"'{word}' runs nowhere; write the smaller id first.")
    if last - first > MOST:
        raise BadValue(f"'{word}' is too large a range.")
    ids = [id for id in range(first, last + 1, step) if id in known and id not in state.sweeps]
    if first not in known:
        raise NotFound(f"There is no job {first}.")
    if last not in known and step == 1:
        raise NotFound(f"There is no job {last}; the newest is {state.rest.next_id - 1}.")
    return ids


def _array(first: int, state: State, recall: Recall) -> list[int] | None:
    """All members, when this id leads an array."""
    leader = state.jobs.get(first) or recall(first)
    if leader is None or leader.array != first:
        return None
    ids = []
    for id in range(first, state.rest.next_id):
        job = state.jobs.get(id) or recall(id)
        if job is None or job.array != first:
            break
        ids.append(id)
    return ids


def _member(array: int, index: int, state: State, recall: Recall, members: Members) -> int:
    whole = trials(array, state, members) if array in state.sweeps else None
    for id in whole if whole is not None else _array(array, state, recall) or ():
        job = state.jobs.get(id) or recall(id)
        if job is not None and job.index == index:
            return id
    raise NotFound(f"There is no job {array}_{index}.")


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
