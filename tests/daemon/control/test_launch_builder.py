"""LaunchBuilder: what exactly is executed for a start."""

from core.scenario import Scenario
from stoker.core.events.instructions import StartProcess
from stoker.daemon.control.launch_builder import LaunchBuilder
from stoker.engine import Instant


def test_a_start_has_the_devices_token_and_log_of_its_attempt():
    scenario = Scenario(gpus=2)
    job = scenario.submit()
    scenario.plan()
    placement = scenario.placed(job)
    builder = LaunchBuilder(
        lambda: scenario.state, lambda attempt: f"token.{attempt}", "box",
        "/home/logs", "/home/scripts", lambda: Instant(1000.0, 5.0),
    )  # fmt: skip
    launch = builder.build(StartProcess(job=job, attempt=0, placement=placement), 0)
    assert (launch.job, launch.attempt) == (job, 0)
    assert launch.out.startswith("/home/logs/")
    assert f"token.{job}.0" in str(launch)
