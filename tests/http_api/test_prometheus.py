"""`GET /metrics`: read by the reference parser; rules and dashboard use only what it exports."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from ruamel.yaml import YAML

from core.scenario import Scenario, gpus
from e2e.daemon_fixture import DaemonFixture, until
from e2e.test_live import Connection
from fakes.nvml import FakeNvml, Gpu, nvml
from stoker.core import events as e
from stoker.core.model.alarm import Alarm
from stoker.daemon.control.counters import SHORT_BUCKETS, DaemonCounters, Histogram
from stoker.daemon.handlers import exported_metrics
from stoker.daemon.views.exposition import Exposition
from stoker.engine import CycleResult, Instant

__all__ = ["nvml"]

PACKAGING = Path(__file__).parents[2] / "packaging"
NAME = re.compile(r"\bstoker_[a-z_]+\b")
SUFFIXES = re.compile(r"_(bucket|sum|count)$")


def scrape(path: str = "/metrics", accept: str = "text/plain") -> str:
    connection = Connection()
    try:
        connection.request("GET", path, headers={"Accept": accept})
        response = connection.getresponse()
        assert response.status == 200
        text: str = response.read().decode()
        return text
    finally:
        connection.close()


def samples(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in parse(text):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found.setdefault(sample.name, {}), sample
            found[sample.name][labels] = sample.value
    return found


@pytest.fixture
def box(home: Path, stoker: Any, nvml: FakeNvml) -> DaemonFixture:
    """A daemon with two GPUs, with jobs that run, wait, have failed and are held."""
    (home / "config.toml").write_text("[metrics]\nopen = true\n")
    nvml.set([Gpu(uuid=f"GPU-{n}", name="A100", memory_total=81920, pci=f"0000:0{n}:00.0")
              for n in (1, 2)])  # fmt: skip
    done = stoker("daemon", "start", env=nvml.env())
    assert done.returncode == 0, done.stderr
    box = DaemonFixture(home, stoker)
    box.end_of(box.submit("--gpus", "1", "false"))
    running = box.submit("--gpus", "2", "--name", 'a"b\\', "sleep", "300")
    box.becomes(running, "RUNNING")
    box.submit("--gpus", "1", "true")
    box.submit("--hold", "true")
    return box


def names_in(expressions: list[str]) -> set[str]:
    return {SUFFIXES.sub("", name) for text in expressions for name in NAME.findall(text)}


def test_everything_is_exported_and_rules_and_dashboard_use_nothing_else(
    box: DaemonFixture,
) -> None:
    until(lambda: "stoker_gpu_energy_joules_total{" in scrape())
    text = scrape()
    found = samples(text)
    assert found["stoker_jobs"][("queue", "default"), ("state", "RUNNING")] == 1
    assert found["stoker_jobs"][("queue", "default"), ("state", "PENDING")] == 1
    assert found["stoker_jobs_not_eligible"][()] == 1
    assert found["stoker_job_submissions_total"][()] == 4
    assert found["stoker_job_completions_total"][(("outcome", "FAILED"),)] == 1
    assert found["stoker_job_wait_seconds_count"][()] == 2
    assert len(found["stoker_gpu_utilization_ratio"]) == 2
    ((labels, _), _) = found["stoker_gpu_job_info"].items()
    assert dict(labels)["name"] == 'a"b\\'
    assert found["stoker_state_free_bytes"][()] > 0
    families = {family.name for family in parse_openmetrics(
        scrape("/v1/metrics", "application/openmetrics-text"))}  # fmt: skip
    assert "stoker_job_submissions" in families

    exported = {SUFFIXES.sub("", name) for name in found}
    dashboard = json.loads((PACKAGING / "grafana" / "stoker.json").read_text())
    assert dashboard["schemaVersion"] >= 39
    expressions = [target["expr"] for panel in dashboard["panels"]
                   for target in panel.get("targets", ())]  # fmt: skip
    assert len(expressions) > 15
    variables = [variable["definition"] for variable in dashboard["templating"]["list"]]
    assert names_in([*expressions, *variables]) <= exported
    rules = YAML(typ="safe", pure=True).load(PACKAGING / "prometheus" / "stoker.rules.yml")
    alerts = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    assert names_in(alerts) <= exported


def test_a_port_serves_metrics_without_a_token_only_if_configured(
    box: DaemonFixture, home: Path
) -> None:
    import http.client

    def status(path: str, host: str | None = None) -> int:
        connection = http.client.HTTPConnection(address, timeout=30)
        try:
            connection.request("GET", path, headers={"Host": host or address})
            return connection.getresponse().status
        finally:
            connection.close()

    address = box.client.listen("127.0.0.1:0")["address"]
    assert (status("/metrics"), status("/v1/metrics"), status("/v1/jobs")) == (200, 200, 401)
    assert status("/metrics", host="evil.org") == 421
    (home / "config.toml").unlink()
    box.stoker("daemon", "restart")
    address = box.client.listen("127.0.0.1:0")["address"]
    assert status("/metrics") == 401


def test_a_metrics_port_serves_nothing_else_and_has_its_own_token(home: Path, stoker: Any) -> None:
    import http.client

    (home / "config.toml").write_text('[metrics]\nlisten = "0.0.0.0:0"\n')
    box = DaemonFixture(home, stoker).start()
    (listener,) = box.client.daemon()["listeners"]
    token = Path(listener["token_file"]).read_text()
    port = int(listener["address"].rpartition(":")[2])

    def status(path: str, secret: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {secret}"})
            return connection.getresponse().status
        finally:
            connection.close()

    assert [status(path, token) for path in ("/metrics", "/v1/jobs", "/")] == [200, 403, 403]
    own = box.client.listen("127.0.0.1:0")["token_file"]
    assert status("/metrics", Path(own).read_text()) == 401
    assert [status(path, "wrong") for path in ("/metrics", "/", "/ui/app.js")] == [401] * 3


def test_names_of_users_are_bounded_and_can_be_left_out() -> None:
    scenario = Scenario(gpus=3 * exported_metrics.MAX_USERS)
    for number in range(exported_metrics.MAX_USERS + 50):
        scenario.submit(gpus(1), user=f"user{number}")
    scenario.plan()
    for with_users, expected in ((True, exported_metrics.MAX_USERS + 1), (False, 1)):
        text = Exposition()
        exported_metrics.add_jobs(text, scenario.state, Instant(2000.0, 2000.0), with_users)
        found = samples(text.text().decode())["stoker_user_gpus"]
        assert len(found) == expected
        assert sum(found.values()) == exported_metrics.MAX_USERS + 50


def test_alarms_are_counted_by_kind_and_gpu() -> None:
    scenario = Scenario(gpus=1)
    scenario.tell(
        e.AlarmRaised(at=1.0, alarm=Alarm(kind="hot", since=1.0, text="", node="box", gpu="0"))
    )
    text = Exposition()
    exported_metrics.add_alarms(text, scenario.state)
    found = samples(text.text().decode())["stoker_alarm_active"]
    active = {dict(labels)["kind"]: count for labels, count in found.items()}
    assert active == {"gpu_idle": 0, "gpu_unused": 0, "hung": 0, "nan": 0, "hot": 1, "ecc": 0,
                      "xid": 0, "loss_flat": 0, "diverged": 0, "log_silent": 0}  # fmt: skip
    assert dict(next(labels for labels, count in found.items() if count))["node"] == "box"


def test_a_histogram_counts_values_up_to_each_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    text = Exposition()
    text.histogram("stoker_x", "x", histogram.bounds, histogram.counts, histogram.sum)
    found = samples(text.text().decode())
    assert found["stoker_x_bucket"] == {
        (("le", "1.0"),): 2, (("le", "2.0"),): 3, (("le", "+Inf"),): 4
    }  # fmt: skip
    assert (found["stoker_x_count"][()], found["stoker_x_sum"][()]) == (4, 12.0)
    assert list(SHORT_BUCKETS) == sorted(SHORT_BUCKETS)


def test_labels_cannot_break_lines() -> None:
    text = Exposition()
    text.gauge("stoker_x", "x", [({"a": 'q"\n\\ }{', "b": "\u202e<img>"}, 1)])
    (family,) = parse(text.text().decode())
    assert family.samples[0].labels == {"a": 'q"\n\\ }{', "b": "\u202e<img>"}


def test_a_job_that_is_retried_is_completed_twice_and_its_gpu_time_counted_once() -> None:
    scenario = Scenario(gpus=1)
    counters = DaemonCounters(scenario.state, scenario.now)

    def cycle() -> None:
        result = CycleResult(1, events=scenario.journal[-1:])
        result.changes.add(scenario.state.take_changes())
        counters.observe_cycle(result, 0.01, scenario.state)

    job = scenario.submit(gpus(1))
    scenario.run(job)
    cycle()
    scenario.now += 10
    scenario.exited(job, 1)
    for _ in range(2):
        scenario.state.changes.job(job)
        cycle()
    usage = counters.usage[scenario.job(job).user, "default"]
    assert (counters.completions, usage.held) == ({"FAILED": 1}, 10.0)


def test_gpu_time_before_the_start_of_the_daemon_is_not_counted() -> None:
    scenario = Scenario(gpus=1)
    job = scenario.submit(gpus(1))
    scenario.run(job)
    scenario.now += 100
    counters = DaemonCounters(scenario.state, scenario.now)
    scenario.now += 10
    scenario.exited(job, 1)
    result = CycleResult(1, events=scenario.journal[-1:])
    result.changes.add(scenario.state.take_changes())
    counters.observe_cycle(result, 0.01, scenario.state)
    assert counters.usage[scenario.job(job).user, "default"].held == 10.0
