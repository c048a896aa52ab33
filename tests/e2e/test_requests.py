"""What jobs ask for, in which order they get it, and what people do to the queue."""

from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, until

HOLDS = "echo ready; exec sleep 300"


def busy(box: DaemonFixture, *options: object) -> str:
    """A job that keeps what it was given."""
    job = box.submit(*options, HOLDS)
    box.says(job, "ready")
    return job


def waits(box: DaemonFixture, *options: object) -> str:
    """A job that cannot start now."""
    job = box.submit(*options, HOLDS)
    assert box.job(job)["state"] == "PENDING", box.job(job)
    return job


def devices(box: DaemonFixture, label: object) -> list[str]:
    """The GPUs a job has."""
    found: list[str] = box.job(label)["devices"]["gpu"]
    return found


def order(box: DaemonFixture) -> list[str]:
    """What ran, in the order in which it started."""
    path = box.user / "order"
    return path.read_text().split() if path.exists() else []


@pytest.fixture
def one(idle: DaemonFixture) -> DaemonFixture:
    """A box with a single GPU."""
    return idle.start("{gpu:1,cpu:8}")


# ------------------------------------------------------------------------------- amounts


def test_two_halves_share_a_gpu_and_a_third_waits(one: DaemonFixture) -> None:
    first, second = (busy(one, "--gpus", "0.5") for _ in range(2))
    assert devices(one, first) == devices(one, second) == ["0"]
    third = waits(one, "--gpus", "0.5")
    assert one.job(third)["reason"] == "Resources"
    assert one.gpus()["0"]["free"] == "0"
    one.client.kill([first])
    one.becomes(third, "RUNNING")


def test_ten_tenths_fill_a_gpu_and_the_eleventh_waits(one: DaemonFixture) -> None:
    label = one.submit("--gpus", "0.1", "--each-line", "-", input=f"{HOLDS}\n" * 11)
    until(lambda: one.states(label).count("RUNNING") == 10)
    assert one.states(label) == ["RUNNING"] * 10 + ["PENDING"]


def test_two_and_a_half_gpus_are_two_of_its_own_and_half_of_another(box: DaemonFixture) -> None:
    job = busy(box, "--gpus", "2.5")
    assert len(devices(box, job)) == 3
    assert sorted(gpu["free"] for gpu in box.gpus().values()) == ["0", "0", "0.5", "1"]
    rest = busy(box, "--gpus", "1.5")
    assert len(devices(box, rest)) == 2
    waits(box, "--gpus", "0.1")


def test_two_jobs_submitted_in_the_same_breath_never_share_by_accident(box: DaemonFixture) -> None:
    label = box.submit("--gpus", "1", "--each-line", "-", input=f"{HOLDS}\n" * 6)
    until(lambda: box.states(label).count("RUNNING") == 4)
    used = [job["devices"]["gpu"] for job in box.jobs(label) if job["state"] == "RUNNING"]
    assert sorted(used) == [["0"], ["1"], ["2"], ["3"]]


def test_named_resources_are_counted(idle: DaemonFixture) -> None:
    idle.start("{gpu:4,cpu:8,licence:[2]}")
    for _ in range(2):
        busy(idle, "--resource", "licence=1")
    third = waits(idle, "-r", "{licence:1}")
    why = idle.client.why(third)
    assert "licence" in str(why)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--gpus", "5"), "GPU"),
        (("--gpus", "a100:1"), "a100"),
        (("--gpus-min-vram", "80G"), "GPU"),
        (("--cpus", "9"), "cores"),
        (("--mem", "90T"), "RAM"),
        (("--resource", "licence=1"), "licence"),
        (("--use-gpus", "7"), "among those named"),
        (("-N", "2"), "node"),
    ],
)
def test_the_impossible_is_refused_with_its_reason(
    box: DaemonFixture, options: tuple[str, ...], word: str
) -> None:
    code, text = box.refused(*options, "true")
    assert code == 6, text
    assert word in text
    assert box.client.jobs()["jobs"] == []


def test_gpus_can_be_chosen_preferred_and_avoided(box: DaemonFixture) -> None:
    assert devices(box, busy(box, "--gpus", "1", "--use-gpus", "2")) == ["2"]
    assert devices(box, busy(box, "--gpus", "1", "--prefer-gpus", "3")) == ["3"]
    assert devices(box, busy(box, "--gpus", "1", "--avoid-gpus", "0")) == ["1"]
    waits(box, "--gpus", "1", "--avoid-gpus", "0")
    assert devices(box, busy(box, "--gpus", "1", "--prefer-gpus", "3")) == ["0"]


def test_a_whole_machine_means_alone(box: DaemonFixture) -> None:
    first = busy(box)
    alone = waits(box, "--exclusive")
    box.client.kill([first])
    box.becomes(alone, "RUNNING")
    waits(box)


def test_drained_gpus_get_nothing_new_and_what_runs_there_goes_on(box: DaemonFixture) -> None:
    job = busy(box, "--gpus", "1", "--use-gpus", "1")
    done = box.stoker("drain", "0,1")
    assert done.returncode == 0
    assert box.gpus()["0"]["state"] == "drained"
    assert devices(box, busy(box, "--gpus", "2")) == ["2", "3"]
    blocked = waits(box, "--gpus", "1")
    assert "drained" in str(box.client.why(blocked))
    assert box.job(job)["state"] == "RUNNING"
    box.stoker("daemon", "restart", check=True)  # it is not forgotten
    assert box.job(blocked)["state"] == "PENDING"
    box.stoker("undrain", "0,1", check=True)
    assert box.becomes(blocked, "RUNNING")["devices"]["gpu"] == ["0"]


# --------------------------------------------------------------------------------- order


def test_larger_priority_goes_first_and_equals_go_in_the_order_of_submission(
    one: DaemonFixture,
) -> None:
    blocker = busy(one, "--gpus", "1")
    for name, priority in [("a", 0), ("b", 5), ("c", 0), ("d", 5), ("e", -1)]:
        one.submit("--gpus", "1", f"--priority={priority}", f"echo {name} >> order")
    one.client.kill([blocker])
    until(lambda: len(order(one)) == 5)
    assert order(one) == ["b", "d", "a", "c", "e"]


def test_a_large_job_at_the_head_is_not_starved_by_small_ones(box: DaemonFixture) -> None:
    blocker = busy(box, "--gpus", "1")
    large = waits(box, "--gpus", "4")
    small = [box.submit("--gpus", "1", HOLDS) for _ in range(3)]
    assert {box.job(job)["state"] for job in small} == {"PENDING"}
    box.client.kill([blocker])
    box.becomes(large, "RUNNING")


def test_small_jobs_with_a_time_limit_fill_the_gap_before_a_reserved_start(
    box: DaemonFixture,
) -> None:
    busy(box, "--gpus", "1", "--time", "10m")
    large = waits(box, "--gpus", "4", "--time", "10m")
    short = box.submit("--gpus", "1", "--time", "5m", HOLDS)
    box.becomes(short, "RUNNING")
    long = waits(box, "--gpus", "1", "--time", "30m")
    (estimate,) = box.client.eta([large])["jobs"]
    assert estimate["start"]["likely"] is not None
    assert box.job(long)["reason"] in ("Priority", "Resources")


def test_queues_of_the_config_have_their_limits(idle: DaemonFixture) -> None:
    (idle.home / "config.toml").write_text(
        "[queues.small]\nmax_running = 1\n[queues.narrow]\nmax_gpus = 2\ndevices = ['2', '3']\n"
    )
    box = idle.start()
    first = busy(box, "-p", "small")
    second = waits(box, "-p", "small")
    assert "small" in str(box.client.why(second))
    assert devices(box, busy(box, "-p", "narrow", "--gpus", "2")) == ["2", "3"]
    waits(box, "-p", "narrow", "--gpus", "1")
    busy(box, "--gpus", "2")
    box.client.kill([first])
    box.becomes(second, "RUNNING")


def test_an_array_runs_no_more_members_at_once_than_it_may(box: DaemonFixture) -> None:
    label = box.submit("--array", "0-5%2", HOLDS)
    until(lambda: box.states(label).count("RUNNING") == 2)
    assert box.states(label) == ["RUNNING"] * 2 + ["PENDING"] * 4
    box.client.kill([f"{label}_0"])
    until(lambda: box.states(label).count("RUNNING") == 2)
    assert box.states(label)[2] == "RUNNING"
    box.client.cancel([label])
    until(lambda: set(box.states(label)) == {"CANCELLED"})


def test_dependencies_go_by_how_the_other_job_ended(box: DaemonFixture) -> None:
    bad = box.submit("--hold", "exit 1")
    after = {
        kind: box.submit("-d", f"{kind}:{bad}", "true")
        for kind in ("afterok", "afterany", "afternotok")
    }
    assert {box.job(job)["reason"] for job in after.values()} == {"Dependency"}
    box.client.release([bad])
    assert box.end_of(after["afterany"])["state"] == "COMPLETED"
    assert box.end_of(after["afternotok"])["state"] == "COMPLETED"
    assert box.job(after["afterok"])["reason"] == "DependencyNeverSatisfied"
    done = box.stoker("wait", after["afterok"])
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


def test_a_retried_dependency_revives_those_that_wait_for_it(box: DaemonFixture) -> None:
    flaky = box.submit("[ -e fixed ] || exit 1")
    waiting = box.submit("-d", f"afterok:{flaky}", "echo done")
    box.end_of(flaky)
    until(lambda: box.job(waiting)["reason"] == "DependencyNeverSatisfied")
    (box.user / "fixed").touch()
    assert box.stoker("retry", "--failed").returncode == 0
    assert box.end_of(flaky)["attempt"] == 1
    assert box.end_of(waiting)["state"] == "COMPLETED"


def test_singletons_of_a_name_run_one_after_the_other(box: DaemonFixture) -> None:
    first = busy(box, "-J", "only", "-d", "singleton")
    second = waits(box, "-J", "only", "-d", "singleton")
    busy(box, "-J", "other", "-d", "singleton")
    box.client.kill([first])
    box.becomes(second, "RUNNING")


def test_a_job_does_not_begin_before_its_time(box: DaemonFixture) -> None:
    later = box.submit("--begin", "now+1hour", "true")
    assert (box.job(later)["state"], box.job(later)["reason"]) == ("PENDING", "BeginTime")
    soon = box.submit("--delay", "1s", "true")
    ended = box.end_of(soon)
    assert ended["started_at"] > ended["submitted_at"]
    assert box.job(later)["state"] == "PENDING"


# -------------------------------------------------------------------- what people change


def test_held_jobs_wait_until_they_are_released(box: DaemonFixture) -> None:
    job = box.submit("--hold", "true")
    assert (box.job(job)["state"], box.job(job)["reason"]) == ("PENDING", "JobHeldUser")
    assert box.stoker("release", job).returncode == 0
    assert box.end_of(job)["state"] == "COMPLETED"


def test_a_paused_job_stands_still_and_keeps_its_gpu(one: DaemonFixture) -> None:
    job = one.submit("--gpus", "1", "while :; do echo x >> ticks; sleep 0.05; done")
    ticks = one.user / "ticks"
    until(ticks.exists)
    assert one.stoker("pause", job).returncode == 0
    assert one.job(job)["state"] == "SUSPENDED"
    pid = one.pid_of(job)
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    size = ticks.stat().st_size
    waits(one, "--gpus", "1")
    assert ticks.stat().st_size == size
    assert one.stoker("resume", job).returncode == 0
    until(lambda: ticks.stat().st_size > size)
    assert one.job(job)["state"] == "RUNNING"


def test_a_waiting_job_can_be_changed(one: DaemonFixture) -> None:
    blocker = busy(one, "--gpus", "1")
    job = waits(one, "--gpus", "1")
    done = one.stoker("edit", job, "--gpus", "0", "--cpus", "2", "-J", "changed")
    assert done.returncode == 0, done.stderr
    now = one.becomes(job, "RUNNING")
    assert (now["name"], now["request"]["cpus"]) == ("changed", "2")
    assert one.stoker("edit", blocker, "--gpus", "0").returncode == 1
    late = waits(one, "--gpus", "1")
    assert one.stoker("edit", late, "--gpus", "2").returncode == 6


def test_time_limit_and_priority_of_a_running_job_can_be_changed(one: DaemonFixture) -> None:
    job = busy(one, "--gpus", "1", "--time", "1h")
    refused = one.stoker("edit", job, "--priority", "4", "--gpus", "0")
    assert refused.returncode == 1
    assert "it is running and --gpus counts only when a job starts" in refused.stderr
    assert one.job(job)["priority"] == 0
    assert one.stoker("edit", job, "--priority", "4", "--time", "2h").returncode == 0
    one.crash()
    one.up()
    now = one.job(job)
    assert (now["state"], now["priority"], now["time_limit"]) == ("RUNNING", 4, 7200)
    until(lambda: one.client.edit([job], {"time": "1s"}, dry_run=True) == {"overdue": [job]})
    assert one.stoker("edit", job, "--time", "1s").returncode == 0
    assert one.end_of(job)["state"] == "TIMEOUT"


def test_a_waiting_job_can_be_moved(one: DaemonFixture) -> None:
    blocker = busy(one, "--gpus", "1")
    jobs = {name: one.submit("--gpus", "1", f"echo {name} >> order") for name in "abcd"}
    assert one.stoker("move", jobs["d"], "--first").returncode == 0
    assert one.stoker("move", jobs["a"], "--last").returncode == 0
    assert one.stoker("move", jobs["c"], "--before", jobs["b"]).returncode == 0
    one.client.kill([blocker])
    until(lambda: len(order(one)) == 4)
    assert order(one) == ["d", "c", "b", "a"]


def test_why_names_the_machine_the_constraint_and_who_is_in_the_way(one: DaemonFixture) -> None:
    blocker = busy(one, "--gpus", "1")
    job = waits(one, "--gpus", "1")
    why = one.client.why(job)
    assert why["reason"] == "Resources"
    (constraint,) = [c for c in why["nodes"][0]["constraints"] if c["name"] == "gpus"]
    assert (constraint["needs"], constraint["free"]) == ("1", "0")
    assert f"job {blocker}" in str(constraint)


def test_more_memory_than_there_is_waits_and_is_given_back(idle: DaemonFixture) -> None:
    box = idle.start("{gpu:1,cpu:4,mem:1024}")
    first = busy(box, "--mem", "800M")
    second = waits(box, "--mem", "300M")
    box.client.kill([first])
    box.becomes(second, "RUNNING")


def test_retry_failed_means_the_failures_that_are_still_listed(box: DaemonFixture) -> None:
    old, new = box.submit("exit 1"), box.submit("exit 2")
    for job in (old, new):
        box.end_of(job)
    box.client.act("jobs/dismiss", [old])
    box.client.retry([], failed=True)
    assert box.end_of(new)["attempt"] == 1
    assert box.job(old)["attempt"] == 0
    assert box.client.retry([], failed=True, all=True, dry_run=True)["count"] == 2
    past = {"failed": True, "since": "2100-01-01T00:00:00Z"}
    assert box.client.retry([], **past)["done"] == []
