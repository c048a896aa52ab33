"""Attempts that the journal does not have: what can be recovered of them."""

import os
from types import SimpleNamespace
from typing import Any

import pytest

from core.scenario import Scenario, gpus, node
from stoker.core import events as e
from stoker.core.model.resources import DeviceAllocation, Placement
from stoker.daemon import unknown_attempts as recovered
from stoker.executors.local.claims import Claim


def test_a_claim_has_the_devices_of_its_attempt() -> None:
    claim = Claim(note=b'["box",[["gpu","1",500,0],["cpu","cpu",2000]]]')
    takes = (DeviceAllocation("gpu", "1", 500), DeviceAllocation("cpu", "cpu", 2000))
    assert recovered._placement(claim, "other") == Placement("box", takes)


@pytest.mark.parametrize(
    ("variables", "takes"),
    [
        ({"STOKER_GPUS": "0,2", "STOKER_GPU_COUNT": "2"}, (("0", 1000), ("2", 1000))),
        ({"STOKER_GPUS": "1", "STOKER_GPU_COUNT": "0.5"}, (("1", 500),)),
        ({"STOKER_GPUS": "1", "STOKER_GPU_COUNT": "many"}, (("1", 1000),)),
        ({"STOKER_GPUS": ""}, ()),
    ],
)
def test_without_a_claim_the_environment_has_the_gpus(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    takes: tuple[tuple[str, int], ...],
) -> None:
    monkeypatch.setattr(recovered, "_environment", lambda pid: variables)
    expected = Placement(
        "box", tuple(DeviceAllocation("gpu", name, amount) for name, amount in takes)
    )
    assert recovered._placement(Claim(pid=1), "box") == expected


def test_only_devices_that_exist_and_are_free_are_entered() -> None:
    scenario = Scenario(gpus=2)
    job = scenario.submit(request=gpus(1))
    scenario.run(job)
    (held,) = scenario.on(job)
    free = "1" if held == "0" else "0"
    wanted = Placement(
        "box", tuple(DeviceAllocation("gpu", name, 1000) for name in ("0", "1", "7"))
    )
    assert recovered._available(scenario.state, 99, wanted, "box").names("gpu") == [free]
    # Resources of an earlier attempt of the same job belong to it.
    assert recovered._available(scenario.state, job, wanted, "box").names("gpu") == ["0", "1"]


def test_a_placement_on_the_old_name_of_this_node_is_local() -> None:
    scenario = Scenario(gpus=1)
    scenario.tell(e.NodeJoined(at=0, facts=node(1, name="new")))
    placed = recovered._available(
        scenario.state, 99, Placement("old", (DeviceAllocation("gpu", "0", 1000),)), "new"
    )
    assert placed == Placement("new", (DeviceAllocation("gpu", "0", 1000),))


def test_a_job_is_recovered_from_its_process() -> None:
    scenario = Scenario()
    placement = Placement(
        "box", (DeviceAllocation("gpu", "0", 500), DeviceAllocation("cpu", "cpu", 3000))
    )
    claim = Claim(pid=os.getpid())
    events = recovered._submission(scenario.state, 40, claim, placement, "ada", 5.0)
    for event in events:
        scenario.tell(event)
    job = scenario.job(40)
    spec = scenario.state.spec(job)
    assert (job.user, spec.directory, spec.request.cpus) == ("ada", os.getcwd(), 3000)
    assert spec.request.gpu_amount == 500
    assert isinstance(job.command, tuple)
    assert job.command[0]


def test_a_job_with_an_unreadable_process_is_recovered_too() -> None:
    scenario = Scenario()
    for event in recovered._submission(
        scenario.state, 40, Claim(), Placement("box", ()), "ada", 5.0
    ):
        scenario.tell(event)
    assert scenario.job(40).command == ("unknown",)
    assert scenario.state.spec(scenario.job(40)).directory == "/"


def test_an_unknown_job_may_end_during_its_recovery() -> None:
    scenario = Scenario()
    recovery: Any = SimpleNamespace(fully_ended=set, claim=lambda key: Claim(status=0))
    context: Any = SimpleNamespace(node="box", user="ada", load_job=lambda _: None)

    def cycle(events: list[e.Event]) -> None:
        for event in events:
            scenario.tell(event)

    jobs, _ = recovered.recover({40: 1}, lambda: scenario.state, context, recovery, cycle)
    assert [(job.id, job.attempt) for job in jobs] == [(40, 1)]
