"""GpuHistory: the use of every GPU over the last days, in a few kilobytes each."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Collection

import msgspec

from stoker import places

logger = logging.getLogger(__name__)

RINGS = ((2, 300), (30, 720), (600, 2016))
"""Seconds per slot, and slots: 10 minutes, 6 hours, 14 days. About 85 kB per GPU."""
UNKNOWN = 0xFFFF_FFFF
SERIES = ("utilization", "utilization_max", "memory", "power", "jobs")
MAX_AGE_SECONDS = RINGS[-1][0] * RINGS[-1][1]


class Ring:
    """The last values of one GPU at one resolution; a slot without a reading is unknown."""

    def __init__(self, seconds: int, slots: int) -> None:
        self.seconds, self.slots = seconds, slots
        self.values = {name: array("I", [UNKNOWN]) * slots for name in SERIES}
        self.last = -1
        """The number of the newest slot: its time divided by `seconds`."""
        self._count = 0
        self._sums = [0.0, 0.0]

    def add(
        self, at: float, utilization: float | None, memory: int | None, power: float | None,
        job: int | None,
    ) -> None:  # fmt: skip
        """Add a reading to the slot of its time.

        If the clock was set back, slots after its new time are dropped; one slot is waited for.
        """
        number = int(at // self.seconds)
        if number == self.last - 1:
            return
        if number < self.last:
            self._drop_after(number)
        if number > self.last:
            self._clear(number)
        index, values = number % self.slots, self.values
        self._count += 1
        if utilization is not None:
            self._sums[0] += utilization
            values["utilization"][index] = round(self._sums[0] / self._count)
            _raise_to(values["utilization_max"], index, round(utilization))
        if power is not None:
            self._sums[1] += power
            values["power"][index] = round(self._sums[1] / self._count)
        if memory is not None:
            _raise_to(values["memory"], index, memory)
        if job is not None:
            values["jobs"][index] = job & 0x7FFF_FFFF

    def _drop_after(self, number: int) -> None:
        """Forget all slots from a number on."""
        for later in range(max(number, self.last - self.slots + 1), self.last + 1):
            for series in self.values.values():
                series[later % self.slots] = UNKNOWN
        self.last = number - 1

    def _clear(self, number: int) -> None:
        """Begin a new slot; slots that were skipped are unknown."""
        first = max(self.last + 1, number - self.slots + 1)
        for skipped in range(first, number + 1):
            for series in self.values.values():
                series[skipped % self.slots] = UNKNOWN
        self.last, self._count, self._sums = number, 0, [0.0, 0.0]

    def slot(self, name: str, number: int) -> int | None:
        """Return the value of a slot, None if it is unknown."""
        if not self.last - self.slots < number <= self.last:
            return None
        value = self.values[name][number % self.slots]
        return None if value == UNKNOWN else value


class _StoredRing(msgspec.Struct):
    last: int
    values: dict[str, bytes]


class GpuHistory:
    """The rings of all GPUs, by NODE/ID; the coarsest is kept in a file."""

    def __init__(self, path: str | None = None) -> None:
        """Without a `path` nothing is kept."""
        self._path = path
        self._rings: dict[str, tuple[Ring, ...]] = {}
        self.saved_at = 0.0
        if path is not None:
            self._load(path)

    @property
    def gpus(self) -> list[str]:
        """All GPUs with readings."""
        return list(self._rings)

    def add(
        self, gpu: str, at: float, utilization: float | None, memory: int | None,
        power: float | None, job: int | None,
    ) -> None:  # fmt: skip
        """Add a reading of a GPU and the job that holds it."""
        for ring in self._of(gpu):
            ring.add(at, utilization, memory, power, job)

    def _of(self, gpu: str) -> tuple[Ring, ...]:
        rings = self._rings.get(gpu)
        if rings is None:
            rings = self._rings[gpu] = tuple(Ring(*size) for size in RINGS)
        return rings

    def series(
        self, now: float, seconds: int, step: int, gpus: Collection[str]
    ) -> tuple[int, int, dict[str, dict[str, list[int | None]]]]:
        """Return the time of the first value, the step, and the values of each series by GPU.

        The step is rounded up to a multiple of what is kept for so long.
        """
        at = next((i for i, (each, slots) in enumerate(RINGS) if each * slots >= seconds), -1)
        base = RINGS[at][0]
        width = max(-(-step // base), 1)
        count = max(min(seconds // (base * width), RINGS[at][1] // width), 1)
        last = int(now // base) // width
        first = last - count + 1
        found = {
            gpu: _values(self._rings[gpu][at], first, count, width)
            for gpu in self._rings
            if not gpus or gpu in gpus
        }
        return first * width * base, base * width, found

    def save(self, now: float) -> None:
        """Write the coarsest ring; losing it is allowed."""
        self.saved_at = now
        if self._path is None or not self._rings:
            return
        stored = {
            gpu: _StoredRing(rings[-1].last, {n: v.tobytes() for n, v in rings[-1].values.items()})
            for gpu, rings in self._rings.items()
            if now - rings[-1].last * rings[-1].seconds < MAX_AGE_SECONDS
        }
        try:
            places.write_private(self._path, msgspec.json.encode(stored).decode())
        except OSError as error:
            logger.warning("the GPU history is not kept: %s", places.describe_os_error(error))

    def _load(self, path: str) -> None:
        try:
            with open(path, "rb") as file:
                stored = msgspec.json.decode(file.read(), type=dict[str, _StoredRing])
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as error:
            logger.warning("%s cannot be read: %s", path, error)
            return
        for gpu, kept in stored.items():
            ring = self._of(gpu)[-1]
            for name, data in kept.values.items():
                if name in SERIES and len(data) == ring.slots * ring.values[name].itemsize:
                    ring.values[name] = array("I", data)
            ring.last = kept.last


def _values(ring: Ring, first: int, count: int, width: int) -> dict[str, list[int | None]]:
    """Return values of `width` slots each: means of utilisation and power, maxima of others."""
    found: dict[str, list[int | None]] = {}
    for name in SERIES:
        values: list[int | None] = []
        for number in range(first, first + count):
            slots = [ring.slot(name, number * width + i) for i in range(width)]
            known = [slot for slot in slots if slot is not None]
            if not known:
                values.append(None)
            elif name in {"utilization", "power"}:
                values.append(round(sum(known) / len(known)))
            else:
                values.append(known[-1] if name == "jobs" else max(known))
        found[name] = values
    return found


def _raise_to(values: array[int], index: int, value: int) -> None:
    if values[index] == UNKNOWN or values[index] < value:
        values[index] = value
