"""A stop that was asked for: when it acts, in one process and in several."""

import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.training import Job
from training.training_dir import TrainingDir


def stops(job: Job, epochs: int, steps: int = 3) -> int | None:
    """The epoch before which the job stops; None: it runs to its end."""
    try:
        for _ in job.epochs(epochs):
            for _ in job.steps(range(steps)):
                pass
    except SystemExit as stop:
        if stop.code != 75:
            raise
        return job.epoch
    return None


def test_each_attempt_trains_an_epoch_however_often_it_is_preempted(tmp_path: Path) -> None:
    for attempt in range(3):
        training_dir = TrainingDir(tmp_path, attempt, STOKER_EPOCHS_DONE=attempt)
        training_dir.ask_to_stop()
        job = training_dir.job()
        assert not job.should_stop()
        assert stops(job, epochs=9) == attempt + 1
        assert training_dir.epochs("start") == [attempt]
        assert training_dir.epochs("stopped") == [attempt + 1]


def test_a_failed_epoch_that_is_retried_does_not_count_as_trained(
    training_dir: TrainingDir,
) -> None:
    training_dir.ask_to_stop()
    job = training_dir.job()
    for _ in range(3):
        job.start_epoch(0)
    assert (training_dir.epochs("start"), training_dir.epochs("end")) == ([0, 0, 0], [])
    assert job.should_stop()  # once this one is done
    with pytest.raises(SystemExit):
        job.start_epoch(1)
    assert training_dir.epochs("stopped") == [1]


def test_all_ranks_of_an_attempt_train_one_epoch(training_dir: TrainingDir) -> None:
    training_dir.ask_to_stop()
    jobs = [
        training_dir.job(RANK=i, LOCAL_RANK=i, WORLD_SIZE=2, STOKER_EPOCHS_DONE=4) for i in (0, 1)
    ]
    assert [stops(job, epochs=9) for job in jobs] == [5, 5]


def test_a_script_that_continues_after_the_stop_is_stopped_again_silently(
    training_dir: TrainingDir, capsys: pytest.CaptureFixture[str]
) -> None:
    job = training_dir.job()
    job.start_epoch()
    training_dir.ask_to_stop()
    for epoch in (None, None, 7, 0):
        with pytest.raises(SystemExit) as stop:
            job.start_epoch(epoch)
        assert (stop.value.code, job.epoch) == (75, 1)
        job.measure()
        job.end_epoch()
    assert stops(job, epochs=9) == 1
    assert [line["k"] for line in training_dir.lines()] == ["hello", "start", "end", "stopped"]
    assert capsys.readouterr().err.count("\n") == 1


def test_a_job_in_the_last_epoch_of_its_script_is_not_stopped(training_dir: TrainingDir) -> None:
    job = training_dir.job(NUM_GPUS=2)
    training_dir.ask_to_stop()
    for _ in job.epochs(1):
        assert not job.should_stop()
    assert not (training_dir.reports / "stop_at").exists()


def test_the_loop_stops_after_the_body_that_saves(training_dir: TrainingDir) -> None:
    job = training_dir.job(EPOCHS_TO_BE_DONE=5)
    saved = []

    def train() -> None:
        for epoch in job.epochs():
            assert not job.should_stop()
            if epoch == 2:
                training_dir.ask_to_stop()
                assert job.should_stop()
            saved.append(epoch)

    with pytest.raises(SystemExit):
        train()
    assert saved == [0, 1, 2]
    assert training_dir.epochs("stopped") == [3]


def test_a_job_in_its_last_epoch_is_not_stopped(training_dir: TrainingDir) -> None:
    job = training_dir.job(EPOCHS_TO_BE_DONE=2)
    for epoch in job.epochs():
        if epoch == 1:
            training_dir.ask_to_stop()
            assert not job.should_stop()
    assert training_dir.lines("stopped") == []
    assert training_dir.epochs("end") == [0, 1]


def test_a_named_epoch_binds_a_process_that_was_asked_nothing(training_dir: TrainingDir) -> None:
    training_dir.reports.mkdir()
    (training_dir.reports / "stop_at").write_text("2\n")
    job = training_dir.job(NODE_RANK=1, NUM_NODES=2)
    assert stops(job, epochs=9) == 2
    assert training_dir.lines() == []  # only the first process speaks


def test_with_peers_an_epoch_is_named_that_none_has_reached(training_dir: TrainingDir) -> None:
    job = training_dir.job(NUM_GPUS=2, LOCAL_RANK=0, RANK=0, WORLD_SIZE=2)
    job.start_epoch()
    job.end_epoch()
    training_dir.ask_to_stop()
    job.start_epoch()
    assert (training_dir.reports / "stop_at").read_text() == "2\n"
    assert training_dir.epochs("stop_at") == [2]
    job.end_epoch()
    with pytest.raises(SystemExit):
        job.start_epoch()
    assert training_dir.epochs("stopped") == [2]


def test_with_peers_an_epoch_is_named_from_within_one_while_many_steps_are_left(
    training_dir: TrainingDir,
) -> None:
    job = training_dir.job(NUM_GPUS=2, HEARTBEAT_FREQ=1)
    job.start_epoch()
    for _ in job.steps(range(100)):
        pass
    job.start_epoch()
    training_dir.ask_to_stop()
    job.measure()
    job.measure()
    assert (training_dir.reports / "stop_at").read_text() == "2\n"
    assert not job.should_stop()  # the others may not see it yet
    for _ in job.steps(range(98)):
        pass
    assert job.should_stop()


def test_with_peers_an_epoch_is_not_named_when_the_others_may_be_through(
    training_dir: TrainingDir,
) -> None:
    job = training_dir.job(NUM_GPUS=2, HEARTBEAT_FREQ=1)
    job.start_epoch()
    for _ in job.steps(range(20)):
        pass
    job.start_epoch()
    for _ in job.steps(range(17)):
        pass
    training_dir.ask_to_stop()
    for _ in job.steps(range(3)):
        pass
    assert not (training_dir.reports / "stop_at").exists()
    assert not job.should_stop()
    job.start_epoch()
    assert (training_dir.reports / "stop_at").read_text() == "3\n"


def test_machines_are_given_time_to_hear_of_it(
    training_dir: TrainingDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("stoker.training.training_job.perf_counter", lambda: now[0])
    job = training_dir.job(NUM_NODES=2, NUM_GPUS=2)
    training_dir.ask_to_stop()
    job.start_epoch()  # nobody knows how long an epoch takes
    assert not (training_dir.reports / "stop_at").exists()
    now[0] += 8.0
    job.start_epoch()
    assert (training_dir.reports / "stop_at").read_text() == f"{1 + 1 + 3}\n"


def test_one_process_on_several_gpus_that_has_made_its_group_has_no_peers(
    training_dir: TrainingDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Group:
        is_available = is_initialized = staticmethod(lambda: True)
        get_rank = staticmethod(lambda: 0)
        get_world_size = staticmethod(lambda: 1)

    monkeypatch.setitem(sys.modules, "torch.distributed", Group())  # type: ignore[arg-type]
    job = training_dir.job(NUM_GPUS=4)
    job.start_epoch()
    training_dir.ask_to_stop()
    with pytest.raises(SystemExit):
        job.start_epoch()


RANKS = [
    ({"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 4}, True),
    ({"RANK": 1, "LOCAL_RANK": 1, "WORLD_SIZE": 4}, False),
    ({"LOCAL_RANK": 1}, False),
    ({"NODE_RANK": 1}, False),
    ({"STOKER_NODE_RANK": 1, "NODE_RANK": 0}, False),
    ({"NODE_RANK": 0, "WORLD_SIZE": 1}, True),
    ({"OMPI_COMM_WORLD_RANK": 2}, False),
    # A rendezvous may give rank 0 to the second machine; stoker listens on the first.
    ({"NODE_RANK": 0, "NUM_NODES": 2, "RANK": 4, "LOCAL_RANK": 0}, True),
    ({"NODE_RANK": 1, "NUM_NODES": 2, "RANK": 0, "LOCAL_RANK": 0}, False),
]


@pytest.mark.parametrize(("variables", "speaks"), RANKS)
def test_one_process_speaks_for_all(
    training_dir: TrainingDir, variables: dict[str, object], speaks: bool
) -> None:
    job = training_dir.job(HEARTBEAT_FREQ=1, **variables)
    for _ in job.epochs(1):
        for _ in job.steps(range(3)):
            job.report(loss=1)
    assert bool(training_dir.lines()) is speaks
    assert (training_dir.reports / "steps").exists() is speaks


# ---------------------------------------------------------- all ranks, in every order of events


def rank(job: Job, epochs: int, steps: int, answers: list[tuple[int, int, bool]]) -> Iterator[str]:
    """One rank's life, cut into pieces between which the others may run."""
    for epoch in range(job.epochs_done, epochs):
        try:
            job.start_epoch()
        except SystemExit:
            return
        yield "started"
        for step in range(steps):
            yield "join"  # the gradients of all are needed
            job.measure()
            answers.append((epoch, step, job.should_stop()))
            yield "stepped"
        job.end_epoch()
        answers.append((epoch, steps, job.should_stop()))
        yield "ended"


@given(
    ranks=st.integers(2, 4),
    epochs=st.integers(1, 5),
    steps=st.integers(1, 12),
    heartbeat=st.integers(1, 4),
    moment=st.integers(0, 200),
    seed=st.integers(0, 2**32),
)
def test_whenever_a_stop_is_asked_for_all_ranks_stop_at_the_same_epoch(
    ranks: int, epochs: int, steps: int, heartbeat: int, moment: int, seed: int
) -> None:
    order = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        training_dir = TrainingDir(Path(directory), WORLD_SIZE=ranks, HEARTBEAT_FREQ=heartbeat)
        jobs = [training_dir.job(RANK=i, LOCAL_RANK=i) for i in range(ranks)]
        answers: list[list[tuple[int, int, bool]]] = [[] for _ in jobs]
        lives = {
            i: rank(job, epochs, steps, said)
            for i, (job, said) in enumerate(zip(jobs, answers, strict=True))
        }
        waiting: set[int] = set()
        for turn in range(10_000):
            if turn == moment:
                training_dir.ask_to_stop()
            if len(waiting) == len(jobs):
                waiting.clear()
            able = [i for i in lives if i not in waiting]
            if not able:
                break
            chosen = order.choice(able)
            did = next(lives[chosen], None)
            if did is None:
                del lives[chosen]
            elif did == "join":
                waiting.add(chosen)
        assert not lives, "a rank waits for one that has stopped"
        assert len({job.epoch for job in jobs}) == 1
        assert all(said == answers[0] for said in answers)
        stopped = jobs[0].epoch
        assert training_dir.epochs("stopped") == ([stopped] if stopped < epochs else [])
        if stopped < epochs:
            assert answers[0][-1][2]  # and it was foretold to all
