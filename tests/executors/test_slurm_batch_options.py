"""Options of sbatch for attempts, and which attempts one call submits as an array."""

from specs import A100, launch_of
from stoker.core.launch.launch import Launch
from stoker.core.model.job import AttemptId
from stoker.core.model.resources import CPU, GPU, MEMORY, DeviceAllocation, Placement
from stoker.core.model.spec import EarlySignal, Training
from stoker.executors.slurm.commands import parse_row
from stoker.executors.slurm.handover.batch_options import (
    BatchJob,
    batch_jobs,
    batch_options,
    start_requests,
)

PREFIX = "stoker-12345678-lab"


def launch(**fields: object) -> Launch:
    return launch_of(**{"placement": Placement("lab", ()), **fields})


def calls(ids: list[AttemptId], may_be_arrays: bool = True) -> list[BatchJob]:
    return list(batch_jobs(PREFIX, ids, may_be_arrays))


def test_what_an_attempt_requests_becomes_options() -> None:
    allocations = (
        DeviceAllocation(CPU, "*", 2500),
        DeviceAllocation(MEMORY, "*", 512),
        DeviceAllocation(GPU, "*", 2000),
    )
    request = launch(placement=Placement("lab", allocations), limit=600, request=A100, priority=-50)
    assert batch_options(request, ["v100", "a100"], 10.0) == (
        "--cpus-per-task=3", "--mem=512M", "--gres=gpu:a100:2", "--time=12", "--nice=50",
    )  # fmt: skip


def test_a_higher_priority_is_left_to_stokers_queue() -> None:
    assert batch_options(launch(priority=50), [], 10.0) == ()


def test_slurm_warns_what_can_save_its_work_and_has_no_limit_of_its_own() -> None:
    training = launch(training=Training())
    assert batch_options(training, [], 10.0) == ("--signal=B:USR2@120",)
    assert start_requests(training, ["7.0", "it's"]) == (
        "1 start '7.0' 'it'\\''s'\n1 stop_on_warning '7.0' '' ''\n"
    )
    early = launch(early_signal=EarlySignal(10, 300, to_script=True))
    assert batch_options(early, [], 10.0) == ("--signal=B:USR2@300",)
    assert start_requests(early, ["7.0"]).endswith("stop_on_warning '7.0' '10' 'only-if-handled'\n")
    assert "stop_on_warning" not in start_requests(launch(), ["7.0"])
    assert batch_options(launch(training=Training(), limit=600), [], 10.0) == ("--time=12",)


def test_twenty_attempts_of_one_shape_are_an_array() -> None:
    [job] = calls([AttemptId(id, 0) for id in (*range(10, 30), 35)])
    assert job.name == f"{PREFIX}-a10.0"
    assert job.options()[-1] == "--array=0-19,25"
    assert job.key == "$((10 + SLURM_ARRAY_TASK_ID)).0"


def test_fewer_attempts_are_submitted_one_by_one() -> None:
    jobs = calls([AttemptId(id, 1) for id in range(10, 19)])
    assert [job.name for job in jobs] == [f"{PREFIX}-{id}.1" for id in range(10, 19)]
    assert not any("--array" in word for job in jobs for word in job.options())


def test_arrays_span_at_most_a_thousand_ids_and_one_attempt_number() -> None:
    ids = [AttemptId(id, number) for number in (0, 1) for id in range(20)]
    ids += [AttemptId(id, 0) for id in range(1000, 1020)]
    assert [(str(job.ids[0]), len(job.ids)) for job in calls(ids)] == [
        ("0.0", 20), ("1000.0", 20), ("0.1", 20),
    ]  # fmt: skip
    assert len(calls(ids, may_be_arrays=False)) == 60


def test_a_task_of_an_array_is_listed_as_the_job_of_its_attempt() -> None:
    row = parse_row(f"4711_25|{PREFIX}-a10.3|RUNNING|n1|N/A|1700000000|None")
    assert row is not None
    assert (row.id, row.name) == ("4711_25", f"{PREFIX}-35.3")
    alone = parse_row(f"4711|{PREFIX}-a1234567|RUNNING|n1|N/A|1700000000|None")
    assert alone is not None
    assert alone.name == f"{PREFIX}-a1234567"


def test_the_script_reads_the_request_of_its_task() -> None:
    [job] = calls([AttemptId(id, 0) for id in range(10, 30)])
    script = job.script("run", "agent-1")
    assert 'request="$HOME"/.stoker/run/run/$key.request' in script
    assert "key=$((10 + SLURM_ARRAY_TASK_ID)).0" in script
