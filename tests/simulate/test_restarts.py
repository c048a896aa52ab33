"""A restart does not change decisions: what is not stored is rebuilt from what is."""

from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks.golden.cluster import SimulatedCluster
from benchmarks.golden.workloads import WorkloadBuilder, gpu_request, make_node
from stoker.core import events as e
from stoker.core.events import Event

JOBS = st.fixed_dictionaries(
    {
        "gpus": st.sampled_from((0.5, 1, 2, 4)),
        "seconds": st.sampled_from((300.0, 2000.0, 9000.0)),
        "name": st.sampled_from(("a", "b")),
        "user": st.sampled_from(("ada", "bob")),
        "queue": st.sampled_from(("default", "other")),
        "priority": st.sampled_from((0, 0, 0, 1)),
        "limit": st.sampled_from((None, None, 3600)),
        "non_preemptible": st.booleans(),
        "wait": st.sampled_from((0.0, 10.0, 1000.0)),
    }
)
"""Jobs of a few names and users, so that they share profiles and fair-share penalties."""


def decisions(
    policy: str, max_running: int | None, jobs: list[dict[str, Any]], cycles_per_restart: int
) -> list[Event]:
    build = WorkloadBuilder("restarts")
    build.choose_policy(policy)
    build.add(e.QueueDefined(at=0.0, name="other", max_running=max_running))
    for job in jobs:
        fields = dict(job)
        build.time += fields.pop("wait")
        gpus = fields.pop("gpus")
        behaviour = build.training(gpus, fields.pop("seconds"))
        build.submit(gpu_request(gpus), behaviour, **fields)
    cluster = SimulatedCluster(
        [make_node(0, 4), make_node(1, 2)], build.arrivals, cycles_per_restart
    )
    made: list[Event] = []
    cluster.decisions.add = made.append  # type: ignore[method-assign]
    cluster.run()
    return made


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(
    st.sampled_from(("planner", "backfill", "conservative", "tiresias", "fair")),
    st.sampled_from((None, 2)),
    st.lists(JOBS, min_size=4, max_size=14),
    st.integers(2, 9),
)
def test_jobs_start_and_stop_as_without_restarts(
    policy: str, max_running: int | None, jobs: list[dict[str, Any]], cycles_per_restart: int
):
    without = decisions(policy, max_running, jobs, 0)
    assert decisions(policy, max_running, jobs, cycles_per_restart) == without
