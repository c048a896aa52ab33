"""SLURM_* variables: the values that Slurm 22.05 sets for the same requests.

The expected values were read from jobs of a real Slurm 22.05 with four nodes.
"""

from typing import Any

from core.scenario import Scenario
from stoker.core import events as e
from stoker.core.launch.slurm_env import SubmitHost, slurm_variables
from stoker.core.model.resources import DeviceAllocation, DeviceFacts, NodeFacts, Placement
from stoker.core.model.spec import Spec
from stoker.core.options.submit import ParseContext, parse_options

HOST = SubmitHost("login", 1000)
ALWAYS = {
    "SLURM_CLUSTER_NAME": "stoker", "SLURM_JOB_NAME": "wrap", "SLURM_JOB_PARTITION": "gpu",
    "SLURM_JOB_UID": "1000", "SLURM_JOB_USER": "ann", "SLURM_LOCALID": "0",
    "SLURM_SUBMIT_DIR": "/home/ann", "SLURM_SUBMIT_HOST": "login",
    "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURM_JOB_START_TIME": "500",
}  # fmt: skip


def variables(
    placed: tuple[str, ...] = ("n1",), rank: int = 0, devices: int = 0, index: int | None = None,
    attempt: int = 0, **options: Any,
) -> dict[str, str]:  # fmt: skip
    """The variables of a job with these options, without those that all jobs have."""
    context = ParseContext(0.0, lambda _: [], lambda _: [])
    wanted = parse_options({"name": "wrap", "queue": "gpu", **options}, context)
    fields = {key: value for key, value in wanted.fields.items() if value is not None}
    spec = Spec(
        kind="line", user="ann", directory="/home/ann", shell="sh", environment="",
        request=wanted.request, **fields,
    )  # fmt: skip
    takes = [DeviceAllocation("gpu", str(n), 1000) for n in range(devices)]
    if wanted.request.cpus:
        takes.append(DeviceAllocation("cpu", "", wanted.request.cpus))
    scenario = Scenario()
    scenario.tell(e.NodeJoined(at=0, facts=NodeFacts("n1", {"gpu": (DeviceFacts("0"),)})))
    job = scenario.job(scenario.submit(wanted.request, name="wrap"))
    job.attempt = attempt
    if index is not None:
        job.array, job.index = job.id, index
    placement = Placement(placed[rank], tuple(takes))
    found = slurm_variables(job, spec, placement, placed, rank, 500.0, HOST)
    number = str(job.id)
    assert found.pop("SLURM_JOB_ID") == found.pop("SLURM_JOBID") == number
    assert {name: found.pop(name) for name in ALWAYS} == ALWAYS
    return {name.removeprefix("SLURM_"): value for name, value in found.items()}


ONE_NODE = {
    "CPUS_ON_NODE": "1", "JOB_CPUS_PER_NODE": "1", "JOB_NODELIST": "n1", "NODELIST": "n1",
    "JOB_NUM_NODES": "1", "NNODES": "1", "NODEID": "0", "PROCID": "0", "TASKS_PER_NODE": "1",
    "SLURMD_NODENAME": "n1",
}  # fmt: skip


def test_a_plain_job() -> None:
    assert variables() == ONE_NODE


def test_gpus_cores_time_and_account() -> None:
    found = variables(devices=2, gpus="2", cpus="2", time="10", account="acct")
    assert found == ONE_NODE | {
        "CPUS_ON_NODE": "2", "CPUS_PER_TASK": "2", "JOB_CPUS_PER_NODE": "2", "GPUS": "2",
        "GPUS_ON_NODE": "2", "GPUS_PER_NODE": "2", "JOB_GPUS": "0,1", "JOB_ACCOUNT": "acct",
        "JOB_END_TIME": "1100",
    }  # fmt: skip


def test_memory_is_in_mib() -> None:
    assert variables(mem="500M")["MEM_PER_NODE"] == "500"


def test_an_array_with_a_step() -> None:
    found = variables(array="2-8:2%2", index=6)
    assert {name: value for name, value in found.items() if "ARRAY" in name} == {
        "ARRAY_JOB_ID": "1", "ARRAY_TASK_ID": "6", "ARRAY_TASK_COUNT": "4",
        "ARRAY_TASK_MIN": "2", "ARRAY_TASK_MAX": "8", "ARRAY_TASK_STEP": "2",
    }  # fmt: skip


def test_tasks_are_counted_only_when_requested() -> None:
    assert "NTASKS" not in variables(devices=1, gpus="1")
    found = variables(ntasks="3")
    assert (found["NTASKS"], found["NPROCS"], found["CPUS_ON_NODE"]) == ("3", "3", "3")
    assert "NTASKS_PER_NODE" not in found


def test_several_nodes() -> None:
    options = {"nodes": "2", "ntasks_per_node": "2", "gpus_per_node": "1", "time": "5"}
    found = variables(placed=("n3", "n4"), rank=1, devices=1, **options)
    assert found == {
        "CPUS_ON_NODE": "2", "JOB_CPUS_PER_NODE": "2(x2)", "GPUS": "2", "GPUS_ON_NODE": "1",
        "GPUS_PER_NODE": "1", "JOB_GPUS": "0", "JOB_NODELIST": "n3,n4", "NODELIST": "n3,n4",
        "JOB_NUM_NODES": "2", "NNODES": "2", "NODEID": "1", "NPROCS": "4", "NTASKS": "4",
        "NTASKS_PER_NODE": "2", "PROCID": "2", "TASKS_PER_NODE": "2(x2)", "JOB_END_TIME": "800",
        "SLURMD_NODENAME": "n4",
    }  # fmt: skip


def test_tasks_without_a_number_of_nodes_fill_as_many_as_they_need() -> None:
    options = {"ntasks": "4", "ntasks_per_node": "2", "cpus": "3", "gpus_per_task": "1"}
    wanted = parse_options(options, ParseContext(0.0, lambda _: [], lambda _: []))
    request = wanted.request
    assert (request.node_count, request.cpus) == (2, 6000)
    assert request.gpus is not None
    assert request.gpus.amount == 2000


def test_a_first_attempt_has_no_restart_count() -> None:
    assert "RESTART_COUNT" not in variables()
    assert variables(attempt=2)["RESTART_COUNT"] == "2"
