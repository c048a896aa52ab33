"""Selectors of jobs (`5`, `3-7`, `7_2`, `last`, `%label`, a name) and of devices (`box/gpu:0`).

For a user of a system daemon, only ids select jobs of others: names, labels, `last` and `all` are
about its own.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable

from stoker.core.cluster.cluster import Cluster
from stoker.core.cluster.node import ALL_DEVICES, Device, Node
from stoker.core.model.job import Job
from stoker.core.model.resources import GPU
from stoker.core.model.units import BadValue
from stoker.core.state.state import State


class NotFound(LookupError):
    """A selector that matches no job; the message is one sentence for the user."""


LoadJob = Callable[[int], Job | None]
"""Return a job that was unloaded from memory."""
ByName = Callable[[str], list[int]]
"""Return the unloaded jobs with a name."""
Members = Callable[[int], list[int]]
"""Return the jobs of an array or a sweep, also unloaded ones."""


def select(
    words: list[str], state: State, recall: LoadJob, by_name: ByName, members: Members,
    uid: int | None = None,
) -> list[int]:  # fmt: skip
    """Return the ids of all selected jobs, in order, without repeats; `uid`: for this user."""
    selection = _Selection(state, recall, by_name, members, uid)
    ids = (id for word in words for part in _parts(word) for id in selection.ids(part))
    return list(dict.fromkeys(ids))


def selected_sweep(word: str, state: State, uid: int | None = None) -> int | None:
    """Return the sweep that a selector names by id, by name, or as the last submission."""
    if word in ("last", "-1"):
        last, _ = state.record.last_of(uid)
        return last if last in state.sweeps else None
    if word.isdecimal():
        return int(word) if int(word) in state.sweeps else None
    sweeps = state.sweeps.values()
    named = [each.id for each in sweeps if each.name == word and uid in (None, each.uid)]
    return named[-1] if named else None


def find_devices(cluster: Cluster, word: str) -> list[tuple[Node, Device]]:
    """Return the devices that a user means by `0`, `gpu:0`, `box/gpu:0`, a UUID or `all`."""
    node_name, slash, device_word = word.rpartition("/")
    type, colon, name = device_word.partition(":")
    if not colon:
        type, name = GPU, device_word
    return [
        (node, device)
        for node in cluster.nodes.values()
        for device in node.devices()
        if (not slash or node.name == node_name)
        and not device.removed
        and (
            device_word == ALL_DEVICES
            or (device.type == type and (name == ALL_DEVICES or device.answers_to(name)))
        )
    ]


def _parts(word: str) -> list[str]:
    if re.fullmatch(r"[\d\s,:_-]+", word):
        parts = [part.strip() for part in word.split(",") if part.strip()]
        if parts:
            return parts
    if not word.strip():
        raise BadValue("An empty selector selects no job; write an id, a range, a name or last.")
    return [word]


class _Selection:
    """One selection; the members of arrays and sweeps are loaded once."""

    def __init__(
        self, state: State, recall: LoadJob, by_name: ByName, members: Members, uid: int | None
    ) -> None:
        self.state, self.recall, self.by_name, self.members = state, recall, by_name, members
        self.uid = uid
        self.cache: dict[int, list[int]] = {}

    def _own_jobs(self) -> Iterable[Job]:
        """Return the jobs that may be selected otherwise than by id."""
        state, jobs = self.state, self.state.jobs.values()
        return jobs if self.uid is None else [j for j in jobs if state.spec(j).uid == self.uid]

    def ids(self, word: str) -> list[int]:
        """Return the jobs that one selector means."""
        state = self.state
        sweep = selected_sweep(word, state, self.uid)
        if sweep is not None:
            return self._members_of(sweep)
        if word == "all":
            return [job.id for job in self._own_jobs() if not job.finished]
        if word in ("last", "-1"):
            first, count = state.record.last_of(self.uid)
            if not count:
                raise NotFound("Nothing has been submitted yet.")
            return list(range(first, first + count))
        if word.startswith("%"):
            ids = [job.id for job in self._own_jobs() if word[1:] in state.spec(job).labels]
            if not ids:
                raise NotFound(f"No job has the label '{word[1:]}'.")
            return ids
        match = re.fullmatch(r"(\d{1,15})(?:-(\d{1,15})(?::(\d{1,9}))?)?", word)
        if match:
            return self._range(match)
        match = re.fullmatch(r"(\d{1,15})_(?:(\d{1,7})|\[([\d,-]+)(?:%\d+)?\])", word)
        if match:
            return self._array_members(int(match[1]), match[2] or match[3], word)
        return self._named(word)

    def _range(self, match: re.Match[str]) -> list[int]:
        first, known = int(match[1]), range(1, self.state.record.next_id)
        last, step = int(match[2] or first), int(match[3] or 1)
        if last < first or not step:
            raise BadValue(f"'{match[0]}' is empty; write the smaller id first.")
        if first not in known:
            raise NotFound(f"There is no job {first}.")
        if last not in known and step == 1:
            raise NotFound(f"There is no job {last}; the newest is {known[-1]}.")
        if match[2] is None:
            return self._members_of(first) or [first]
        sweeps = self.state.sweeps
        return [id for id in known[first - 1 : last : step] if id not in sweeps]

    def _named(self, name: str) -> list[int]:
        state = self.state
        own = self._own_jobs()
        named = (job.id for job in own if name in (job.name, state.spec(job).group))
        ids = sorted(named) or self.by_name(name)
        if ids:
            return ids
        sweep_name, _, index = name.rpartition("_")
        is_index = index.isdecimal() and len(index) <= 7
        sweep = selected_sweep(sweep_name, state, self.uid) if is_index else None
        if sweep is None:
            raise NotFound(f"There is no job called '{name}'. Use an id, a range, a name or last.")
        return self._array_members(sweep, index, name)

    def _array_members(self, array: int, spans: str, word: str) -> list[int]:
        """Return the members with these indexes, as a listing prints them: `2-9,12`."""
        ids, members = self._members_of(array), []
        for span in spans.split(","):
            low, _, high = span.partition("-")
            if not low.isdecimal() or not (high or low).isdecimal():
                raise BadValue(f"'{word}' is not a list of members; write 70_[2-9,12].")
            start = bisect_left(ids, int(low), key=self._index)  # indexes ascend with ids
            members += ids[start : bisect_left(ids, int(high or low) + 1, key=self._index)]
        if not members:
            raise NotFound(f"There is no job {word}.")
        return members

    def _members_of(self, id: int) -> list[int]:
        """Return all jobs of an array or sweep; empty if the id is neither."""
        if id in self.state.boards:
            return list(self.state.boards[id].trials)
        if id not in self.cache:
            leader = None if id in self.state.sweeps else self._job(id)
            has_members = id in self.state.sweeps or (leader is not None and leader.array == id)
            self.cache[id] = self.members(id) if has_members else []
        return self.cache[id]

    def _index(self, id: int) -> int:
        job = self._job(id)
        return job.index if job is not None and job.index is not None else 0

    def _job(self, id: int) -> Job | None:
        return self.state.jobs.get(id) or self.recall(id)
