"""Rings of GPU readings: three resolutions, gaps stay unknown, the coarsest survives a restart."""

from pathlib import Path

import pytest

from stoker.daemon.gpus.history import RINGS, GpuHistory, Ring


def test_a_slot_has_means_maxima_and_the_last_job() -> None:
    ring = Ring(10, 6)
    for at, utilization, memory, power, job in ((100, 10, 500, 50, 1), (105, 31, 700, 60, 2)):
        ring.add(at, utilization, memory, power, job)
    values = {name: ring.slot(name, 10) for name in ring.values}
    assert values == {
        "utilization": 20, "utilization_max": 31, "memory": 700, "power": 55, "jobs": 2
    }  # fmt: skip


def test_gaps_and_old_slots_are_unknown() -> None:
    ring = Ring(10, 6)
    for at in (0, 10, 40, 75):
        ring.add(at, at, None, None, None)
    slots = [ring.slot("utilization", number) for number in range(9)]
    assert slots == [None, None, None, None, 40, None, None, 75, None]
    ring.add(1000, 5, None, None, None)
    assert [ring.slot("utilization", number) for number in range(95, 101)] == [None] * 5 + [5]


def test_after_the_clock_was_set_back_readings_are_kept_again() -> None:
    ring = Ring(10, 6)
    for at in (960, 970, 980, 990, 1000):
        ring.add(at, at // 10, None, None, None)
    ring.add(999, 9, None, None, None)
    assert ring.slot("utilization", 99) == 99, "a slot back is no jump"
    ring.add(985, 7, None, None, None)
    slots = [ring.slot("utilization", number) for number in range(95, 102)]
    assert slots == [None, 96, 97, 7, None, None, None]
    ring.add(1000, 8, None, None, None)
    assert [ring.slot("utilization", number) for number in range(98, 101)] == [7, None, 8]
    ring.add(100, 3, None, None, None)
    assert [ring.slot("utilization", number) for number in (9, 10, 11, 98, 100)] == [
        None, 3, None, None, None,
    ]  # fmt: skip


def test_a_query_uses_the_finest_ring_that_is_long_enough() -> None:
    history = GpuHistory()
    for at in range(0, 1200, 2):
        history.add("box/0", at, at // 12, 1000, 100.0, 7)
    first, step, series = history.series(1199.0, 60, 2, ())
    assert (first, step, len(series["box/0"]["utilization"])) == (1140, 2, 30)
    assert series["box/0"]["jobs"] == [7] * 30
    first, step, series = history.series(1199.0, 3600, 10, ())
    assert (step, len(series["box/0"]["power"])) == (30, 120)
    assert series["box/0"]["power"][:80] == [None] * 80
    assert series["box/0"]["power"][80:] == [100] * 40
    assert history.series(1199.0, 60, 2, {"box/1"})[2] == {}
    assert history.series(1199.0, 10**9, 1, ())[1] == RINGS[-1][0]


def test_the_coarsest_ring_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    before = GpuHistory(str(path))
    for at in range(0, 6000, 60):
        before.add("box/0", 1_000_000 + at, 50, 100, None, None)
    before.save(1_006_000.0)
    after = GpuHistory(str(path))
    days = 86400
    assert after.series(1_006_000.0, days, 600, ()) == before.series(1_006_000.0, days, 600, ())
    after.add("box/0", 1_006_000.0, 70, 100, None, None)
    assert after.series(1_006_000.0, days, 600, ())[2]["box/0"]["utilization_max"][-1] == 70


@pytest.mark.parametrize("text", ["{", '{"box/0": 3}', '{"box/0": {"last": 1, "values": {}}}'])
def test_a_damaged_file_is_ignored(tmp_path: Path, text: str) -> None:
    path = tmp_path / "history.json"
    path.write_text(text)
    history = GpuHistory(str(path))
    history.add("box/0", 1000.0, 1, 1, 1.0, 1)
    assert history.series(1000.0, 60, 2, ())[2]["box/0"]["utilization"][-1] == 1
