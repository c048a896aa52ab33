"""Training jobs under the virtual clock: counted, stopped, shared, grown, crashed, rebooted."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from simulation.sim_fixture import SimFixture, gpus
from simulation.simulated_executor import Faults
from simulation.simulated_machine import Model
from simulation.test_random_commands import SMALL
from simulation.training_model import TrainingModel
from stoker.core.model.job import JobState
from stoker.core.model.spec import Retry


def test_a_training_job_counts_its_epochs_and_ends():
    box = SimFixture(gpus=1)
    job = box.train(trainee=TrainingModel(epochs=5, seconds=20))
    box.run(50)
    assert box.job(job).progress.epochs == 2
    box.run(100)
    assert (box.job(job).state, box.job(job).progress.epochs) == (JobState.COMPLETED, 5)


def test_the_more_urgent_has_its_gpu_after_the_next_epoch():
    box = SimFixture(gpus=1)
    low = box.train(trainee=TrainingModel(epochs=5, seconds=20))
    box.run(30)
    high = box.submit(gpus(1), (Model(seconds=30),), priority=5)
    box.run(20)
    assert (box.job(low).state, box.job(high).state) == (JobState.PENDING, JobState.RUNNING)
    box.finish()
    assert (box.job(low).state, box.runs(low)) == (JobState.COMPLETED, [0, 1])
    assert (box.job(low).retries, box.job(low).progress.preemptions) == (0, 1)


def test_whatever_happens_to_it_it_has_the_epochs_it_was_to_have():
    box = SimFixture(gpus=2)
    trainee = TrainingModel(epochs=30, seconds=20)
    low = box.train(gpus(1), trainee, retry=Retry(9, ("lost",)))
    for step in range(8):
        box.run(33)
        if step % 3 == 0:
            box.submit(gpus(2), (Model(seconds=5),), priority=1)
        elif step % 3 == 1:
            box.driver.crash()
        else:
            box.driver.reboot()
    box.finish()
    assert box.job(low).state is JobState.COMPLETED
    assert box.job(low).progress.epochs == 30


def test_those_who_share_a_gpu_are_measured_and_sorted_out():
    box = SimFixture(gpus=1, seed=1)
    grows = TrainingModel(epochs=6, memory=(2000, 2000, 20_000))
    jobs = [
        box.train(gpus(1, shareable=True, memory=4000), trainee, name=name)
        for name, trainee in (("a", grows), ("b", TrainingModel(epochs=6)), ("c", grows))
    ]
    box.finish()
    assert [box.job(job).state for job in jobs] == [JobState.COMPLETED] * 3


# -- closed workloads ---------------------------------------------------------------------

TRAINEES = st.builds(
    TrainingModel,
    epochs=st.integers(1, 8),
    seconds=st.sampled_from([5.0, 20.0, 60.0, 200.0]),
    scaling=st.sampled_from([0.0, 0.5, 0.95]),
    warmup=st.sampled_from([1.0, 5.0, 40.0]),
    memory=st.sampled_from(
        [(2000,), (500, 6000), (9000,), (2000, 2000, 20_000, 2000), (23_500,), (1000, 5000, 13_000)]
    ),
    ignores=st.sampled_from([False] * 5 + [True]),
)
ASKS = [
    gpus(1), gpus(2), gpus(1, shareable=True, memory=4000), gpus(1, shareable=True, memory=11_000),
    gpus(1, shareable=True), gpus(2, shareable=True, memory=3000), gpus(1, max_amount=4000),
    gpus(1, max_amount=2000, shareable=True, memory=4000), gpus(2, max_amount=3000), gpus(3),
]  # fmt: skip


@st.composite
def work(draw):
    """When a job comes, and what it is."""
    trains = draw(st.integers(0, 4)) > 0
    more = {
        "priority": draw(st.sampled_from([0, 0, 0, 1, 2])),
        "restartable": draw(st.sampled_from([False, False, True])),
        "retry": Retry(4, ("lost", "fail")),
        "limit": draw(st.sampled_from([None, None, None, 1500])),
    }
    request = draw(st.sampled_from(ASKS if trains else ASKS[:2]))
    if trains:
        trainee = draw(TRAINEES)
        dies = replace(trainee, dies_after=1)
        models = draw(st.sampled_from([(trainee,), (trainee,), (dies, trainee)]))
        more["name"] = draw(st.sampled_from("abc"))
        more["models"] = tuple(Model(trains=each) for each in models)
    else:
        trainee = None
        more["models"] = (Model(seconds=draw(st.sampled_from([10, 100, 600]))),)
    return draw(st.sampled_from([0.0, 1.0, 30.0, 200.0])), trainee, request, more


@settings(SMALL, max_examples=25)
@given(
    works=st.lists(work(), min_size=2, max_size=9),
    seed=st.integers(0, 99),
    faulty=st.booleans(),
    mishaps=st.lists(st.sampled_from(["crash", "reboot"]), max_size=2),
)
def test_a_closed_workload_comes_to_its_end_without_ping_pong(works, seed, faulty, mishaps):
    faults = Faults(lost=0.2, repeated=0.2, late=0.3, start_delay=2.0) if faulty else Faults()
    box = SimFixture(gpus=3, seed=seed, faults=faults, check_every=10)
    jobs = []
    for wait, trainee, request, more in works:
        if trainee is not None:
            jobs.append(box.train(request, trainee, **more))
        else:
            jobs.append(box.submit(request, **more))
        box.run(wait)
    for mishap in mishaps:
        box.run(60)
        getattr(box.driver, mishap)()
    box.finish()
    for job in jobs:
        found = box.job(job)
        assert found.finished, (job, found)
        assert box.mirror.witness.stops[job] <= 2 * len(works) + 6, (job, found)
    box.check_all_over()
