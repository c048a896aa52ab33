"""Training reports over HTTP, from pods on a real kubelet."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from daemon.reports.report_server import ATTEMPT, ReportServer
from e2e.daemon_fixture import DaemonFixture, until
from kubernetes.actions import add_reporting_cluster
from kubernetes.handover_bench import HandoverBench
from kubernetes.kubelet_node import KubeletNode
from stoker.core import events as e
from stoker.core.model.spec import Training

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]

EPOCHS = 80
TRAIN = f"""\
import time
from stoker.training import job
for epoch in job.epochs({EPOCHS}):
    for step in range(5):
        time.sleep(0.1)
        job.measure()
    job.report(loss=1.0 / (epoch + 1))
print('trained')
"""


@pytest.fixture
def lab(real: KubeletNode, idle: DaemonFixture) -> DaemonFixture:
    add_reporting_cluster(idle, real.cluster)
    return idle


def reported(node: KubeletNode, pod: str) -> int:
    """Return how many lines of the report are in the log of a pod."""
    lines = node.cluster.kubectl("logs", pod).splitlines()
    return sum(line.startswith("~stoker") and line.split()[1] == "r" for line in lines)


def epochs_done(box: DaemonFixture) -> int:
    return int(box.job("1")["training"]["epochs_done"])


def test_epochs_arrive_over_http_and_by_the_log_while_the_daemon_is_away(
    lab: DaemonFixture, real: KubeletNode
) -> None:
    lab.script("train.py", TRAIN)
    lab.submit("--gpus", "1", "--epochs", EPOCHS, "python3", "train.py")
    until(lambda: epochs_done(lab) >= 4 or lab.job("1")["result"] is not None, 120)
    assert lab.job("1")["result"] is None, lab.output("1")
    (pod,) = real.cluster.pods()
    before = reported(real, pod)
    assert before <= 6, "the first second, before the daemon has answered"
    lab.crash()
    until(lambda: reported(real, pod) > before + 4, 60)
    lab.up()
    known = epochs_done(lab)
    until(lambda: epochs_done(lab) >= min(known + 6, EPOCHS - 1), 60)
    end = lab.end_of("1", 120)
    assert (end["result"], end["training"]["epochs_done"]) == (0, EPOCHS), end
    assert len(lab.client.metrics("1")["series"]["loss"]) == EPOCHS
    shown = lab.stoker("show", "1", "--json").stdout + (lab.state / "daemon.log").read_text()
    assert "STOKER_REPORT_ACCESS" not in shown


def test_a_stop_request_arrives_over_http(
    tmp_path: Path, kubelet_node: KubeletNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a command in the pod, and at the end of an epoch."""
    for name, value in kubelet_node.cluster.environment.items():
        monkeypatch.setenv(name, value)
    kubelet_node.cluster.use_nodes("real")
    bench = HandoverBench(tmp_path, kubelet_node.cluster)
    server = ReportServer(
        tmp_path / "reports", bench.executor, f"{kubelet_node.cluster.host_address}:0"
    )
    try:
        settings = replace(bench.executor.settings, report_access=server.describe)
        bench.executor.settings = settings
        launch = bench.script(ATTEMPT, f"python3 -c '{TRAIN.replace(chr(39), chr(34))}'")
        extra = launch.extra | {"JOB_UUID": f"{bench.install[:8]}-7"}
        bench.executor.start(
            replace(
                launch, extra=extra, spec=replace(launch.spec, training=Training()),
                checkpoints=str(tmp_path / "work" / f"{bench.install[:8]}-7"),
                reports=str(tmp_path / "training/7.0"),
            )
        )  # fmt: skip
        monitor = server.box.monitor
        bench.until(
            lambda: ((monitor.reports.get(7) and monitor.reports[7].report.counted) or 0) >= 2
        )
        commands: list[object] = []
        monkeypatch.setattr(bench.api, "run", lambda argv, _: commands.append(argv))
        bench.executor.send_control(ATTEMPT, 0, "stop", "job 9 needs the GPU")
        (end,) = bench.until(
            lambda: [each for each in bench.sink.events if isinstance(each, e.ProcessExited)]
        )
        assert (end.code, commands) == (75, [])
        for id, rank, offset, data in bench.sink.reports:  # the last lines are in the log
            monitor.on_report_data(id, rank, data, offset)
        report = monitor.reports[7].report
        assert report.stopped
        assert 3 <= report.counted < EPOCHS
    finally:
        server.close()
        bench.stop()
        kubelet_node.cluster.delete_pods()
