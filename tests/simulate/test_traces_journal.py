"""Stoker's own records as a workload: the journal by its store and its file, and the history."""

import gzip
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from stoker.core import events as e
from stoker.core.model.job import Job, JobState, PastAttempt, Progress
from stoker.core.model.resources import (
    DeviceAllocation,
    DeviceFacts,
    GpuRequest,
    NodeFacts,
    Placement,
    ResourceRequest,
)
from stoker.core.model.spec import Spec, Training
from stoker.core.state.record import ClusterRecord
from stoker.simulate.traces import detect, files
from stoker.simulate.traces.errors import TraceError
from stoker.simulate.traces.formats import stoker_history as history
from stoker.simulate.workload import TraceJob
from stoker.store.port import Batch, Store
from stoker.store.sqlite import SqliteStore

SAMPLE = Path(__file__).parent / "traces/history/history.json"
BOX = NodeFacts("box", {"gpu": tuple(DeviceFacts(str(n)) for n in range(4))})
NOW = 10_000.0


def spec(request: ResourceRequest, **more: Any) -> Spec:
    common = {
        "kind": "line", "user": "ada", "directory": "/tmp", "shell": "/bin/sh",
        "environment": "x", "name": "train",
    }  # fmt: skip
    return Spec(request=request, **{**common, **more})


SPECS = {
    "one": spec(ResourceRequest(gpus=GpuRequest(1000)), limit=7200),
    "wide": spec(
        ResourceRequest(gpus=GpuRequest(4000, model="a100"), cpus=8000, memory=100, node_count=2),
        queue="large",
    ),
    "epochs": spec(
        ResourceRequest(gpus=GpuRequest(1000, max_amount=4000)), training=Training(epochs=10)
    ),
    "other": spec(ResourceRequest(cpus=2000), name="prepare", requeueable=True),
}


def job(id: int, spec: str, state: str, at: float, *spans: tuple[float, float], **more: Any) -> Job:
    past = tuple(PastAttempt(n, start, end, "done") for n, (start, end) in enumerate(spans))
    ended = {"ended_at": past[-1].ended_at, "started_at": past[-1].started_at} if past else {}
    return Job(
        id=id, spec=spec, name=SPECS[spec].name, user="ada", state=JobState(state),
        submitted_at=at, past=past, **{**ended, **more},
    )  # fmt: skip


JOBS = [
    job(1, "one", "COMPLETED", 1000.0, (1100.0, 1200.0), (1300.0, 1500.0)),
    job(2, "wide", "FAILED", 1010.0, (1010.0, 1060.0), priority=5),
    job(3, "one", "CANCELLED", 1020.0, ended_at=1030.0),
    job(
        4,
        "epochs",
        "RUNNING",
        1030.0,
        started_at=9600.0,
        last_devices=("0", "1"),
        progress=Progress(epochs=4, previous_runtime=400.0),
        placement=Placement(
            "box", (DeviceAllocation("gpu", "0", 1000), DeviceAllocation("gpu", "1", 1000))
        ),
    ),
    job(5, "one", "PENDING", 9000.0),
    job(6, "other", "PENDING", 9500.0),
]


def filled(store: Store) -> Store:
    store.acquire_term()
    store.commit(
        Batch(
            events=[e.JobHeld(at=NOW, job=5)], jobs=JOBS, dropped=[2],
            rest=ClusterRecord(nodes={"box": BOX}), blobs={}, secrets={}, keys=[], specs=SPECS,
        ),
        sync=True,
    )  # fmt: skip
    return store


EXPECTED = [
    TraceJob(
        submit_time=0.0,
        duration=300.0,
        gpus=1.0,
        user="ada",
        name="train",
        queue="default",
        time_limit=7200,
        non_preemptible=True,
    ),
    TraceJob(
        submit_time=10.0,
        duration=50.0,
        gpus=8.0,
        user="ada",
        name="train",
        queue="large",
        priority=5,
        cpus=16.0,
        ram=200,
        gpu_models=("a100",),
        non_preemptible=True,
    ),
    # 400 s before and 400 s now for 4 of 10 epochs.
    TraceJob(
        submit_time=30.0, duration=2000.0, gpus=2.0, user="ada", name="train", queue="default"
    ),
    # Jobs of its name took 300 and 50 s.
    TraceJob(
        submit_time=8000.0,
        duration=175.0,
        gpus=1.0,
        user="ada",
        name="train",
        queue="default",
        time_limit=7200,
        non_preemptible=True,
    ),
    # Nothing is known of its like: what all took.
    TraceJob(
        submit_time=8500.0,
        duration=175.0,
        gpus=0.0,
        user="ada",
        name="prepare",
        queue="default",
        cpus=2.0,
    ),
]
NOTES = [
    "1 job skipped: never ran.",
    (
        "3 jobs not finished: durations are estimated from epochs, jobs of the same name "
        "or time limits."
    ),
    "1 job elastic: replayed with the GPUs held last.",
]


def test_a_journal_has_all_jobs_and_nodes_and_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    store = filled(SqliteStore(str(path)))
    try:
        workload = detect.read(path)  # while a daemon has it open
        assert workload.jobs == EXPECTED
        assert workload.notes == NOTES
        assert list(workload.nodes) == [BOX]
    finally:
        store.close()
    before = path.read_bytes()
    assert detect.read(path) == workload
    assert path.read_bytes() == before


@pytest.mark.parametrize("packed", [False, True])
def test_a_journal_may_be_piped(
    tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(SqliteStore(str(tmp_path / "journal.db")))
    store.backup(str(tmp_path / "copy"))
    store.close()
    data = (tmp_path / "copy").read_bytes()
    files._read_stdin.cache_clear()
    monkeypatch.setattr(
        "sys.stdin", TextIOWrapper(BytesIO(gzip.compress(data) if packed else data))
    )
    assert detect.read(Path("-")).jobs == EXPECTED


def test_nothing_is_left_beside_a_backup(tmp_path: Path) -> None:
    store = filled(SqliteStore(str(tmp_path / "journal.db")))
    (tmp_path / "kept").mkdir()
    store.backup(str(tmp_path / "kept/copy"))
    store.close()
    (tmp_path / "kept").chmod(0o500)
    try:
        assert detect.read(tmp_path / "kept/copy").jobs == EXPECTED
        assert [path.name for path in (tmp_path / "kept").iterdir()] == ["copy"]
    finally:
        (tmp_path / "kept").chmod(0o700)


def test_another_database_is_refused(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "music.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE songs (name TEXT)")
    db.close()
    with pytest.raises(TraceError, match="no such table"):
        detect.read(path)


def test_a_journal_of_a_newer_stoker_is_refused(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "journal.db"
    filled(SqliteStore(str(path))).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(TraceError, match="schema 99"):
        detect.read(path)


def test_an_empty_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    SqliteStore(str(path)).close()
    with pytest.raises(TraceError, match="no job that ran"):
        detect.read(path)


def test_the_history_counts_all_attempts_and_the_gpus_really_held() -> None:
    workload = history.read(SAMPLE)
    assert len(workload.jobs) == 19
    assert workload.jobs[0] == TraceJob(
        submit_time=0.0,
        duration=13088.0,
        gpus=2.0,
        user="cleo",
        name="eval",
        queue="default",
        time_limit=28800,
        non_preemptible=True,
    )
    assert workload.jobs[3].duration == 5539.0  # 4,639 in the first attempt, 900 in the second
    (elastic,) = [job for job in workload.jobs if job.name.endswith("batch 64")]
    assert (elastic.gpus, elastic.duration, elastic.non_preemptible) == (3.0, 5000.0, False)
    assert workload.notes == [
        "1 job skipped: never ran.",
        "1 job elastic: replayed with the GPUs held last.",
        "3 jobs missing from the file; create it with a larger --limit.",
    ]


def test_json_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"jobs": [{"id": "a"}]}')
    with pytest.raises(TraceError, match=r"jobs\[0\]\.id"):
        detect.read(path)
    path.write_text('{"jobs": [{"id": 7, "submitted_at": "noon", "state": "COMPLETED"}]}')
    with pytest.raises(TraceError, match="job 7"):
        detect.read(path)
    long = '"elapsed": 1e300'
    path.write_text(f'{{"jobs": [{{"id": 7, "submitted_at": "0", "state": "RUNNING", {long}}}]}}')
    with pytest.raises(TraceError, match="ten years"):
        detect.read(path)
