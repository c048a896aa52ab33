"""Processes killed at any time: acknowledged jobs are never lost and never run twice."""

import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, Run, kill, until

ONCE = 'echo "$STOKER_JOB_ID $STOKER_ATTEMPT" >> {runs}; sleep {nap}; exit {code}'
AGAIN = (
    'echo "$STOKER_JOB_ID $STOKER_ATTEMPT" >> {runs}; '
    '[ "$(grep -c "^$STOKER_JOB_ID " {runs})" -ge {times} ] || exit {code}'
)


def ran(runs: Path) -> Counter[tuple[int, int]]:
    """Return how often each attempt ran."""
    lines = runs.read_text().splitlines() if runs.exists() else []
    return Counter((int(line.split()[0]), int(line.split()[1])) for line in lines)


def times_run(runs: Path) -> Counter[int]:
    """Return how often each job ran."""
    return Counter(job for job, _ in ran(runs).elements())


def lines(chance: random.Random, runs: Path, count: int) -> tuple[str, list[int]]:
    """Return shell lines with various durations and codes, and those codes."""
    codes = [chance.choice([0, 0, 0, 1, 3, 42]) for _ in range(count)]
    text = [
        ONCE.format(runs=runs, nap=chance.choice(["0", "0.05", "0.2", "0.6"]), code=code)
        for code in codes
    ]
    return "\n".join(text) + "\n", codes


def ids(label: str) -> list[int]:
    """Return the ids of a range as submit prints it."""
    first, _, last = label.partition("-")
    return list(range(int(first), int(last or first) + 1))


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_daemon_killed_dozens_of_times_loses_no_job_and_runs_none_twice(
    idle: DaemonFixture, seed: int
) -> None:
    box, chance = idle.start("{gpu:4,cpu:4}"), random.Random(seed)
    runs = box.user / "runs"
    text, codes = lines(chance, runs, 120)
    expected = dict(zip(ids(box.submit("--each-line", "-", input=text)), codes, strict=True))
    again = box.submit(
        "--retries", "3", "--retry-on", "exit:9", AGAIN.format(runs=runs, times=2, code=9)
    )
    array = box.submit("--array", "0-9%3", "--gpus", "0.5", ONCE.format(runs=runs, nap=0.1, code=0))
    chain = [again]
    for _ in range(4):
        line = ONCE.format(runs=runs, nap=0.1, code=0)
        chain.append(box.submit("--gpus", "1", "-d", f"afterok:{chain[-1]}", line))
    expected.update(dict.fromkeys(map(int, chain), 0))
    expected.update({job["id"]: 0 for job in box.jobs(array)})

    for _ in range(30):
        waking = box.popen("queue", "--json", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.0, 0.7))  # anywhere between its first step and full work
        if (daemon := box.lock_pid) is not None:
            kill(daemon)
        waking.wait(30)

    box.up()
    done = box.client.wait([str(job) for job in expected], timeout=90)
    assert done["finished"], box.client.jobs()["counts"]
    results = {job["id"]: (job["state"], job["result"]) for job in done["jobs"]}
    wrong = {
        job: results[job]
        for job, code in expected.items()
        if results[job] != ("COMPLETED" if code == 0 else "FAILED", code)
    }
    assert wrong == {}
    assert {key: count for key, count in ran(runs).items() if count > 1} == {}
    count = times_run(runs)
    assert {job: count[job] for job in expected if count[job] != 1} == {int(again): 2}
    assert set(count) == set(expected)


@pytest.mark.timeout(120)
def test_submissions_acknowledged_while_daemons_were_killed_exist_and_run_once(
    idle: DaemonFixture,
) -> None:
    box, chance = idle.start("{gpu:4,cpu:4}"), random.Random(3)
    runs = box.user / "runs"
    acknowledged: list[int] = []
    for _ in range(25):
        line = ONCE.format(runs=runs, nap=0, code=0)
        submitting = [
            box.popen("submit", line, stderr=subprocess.DEVNULL),
            box.popen("submit", "--each-line", "-", stdin=subprocess.PIPE),
        ]
        assert submitting[1].stdin is not None
        submitting[1].stdin.write(f"{line}\n{line}\n".encode())
        submitting[1].stdin.close()
        submitting[1].stdin = None
        time.sleep(chance.uniform(0.0, 0.3))
        if (daemon := box.lock_pid) is not None:
            kill(daemon)
        for process in submitting:
            label = process.communicate(timeout=60)[0].decode().strip()
            if label:
                acknowledged += ids(label)
    box.up()
    assert len(acknowledged) == len(set(acknowledged))
    assert acknowledged, "not one submission got through"
    done = box.client.wait([str(job) for job in acknowledged], timeout=60)
    assert done["finished"]
    assert {job["state"] for job in done["jobs"]} == {"COMPLETED"}
    count = times_run(runs)
    assert {job: count[job] for job in acknowledged if count[job] != 1} == {}
    assert max(count.values()) == 1


def test_a_repeated_key_is_one_job_also_after_a_crash(box: DaemonFixture) -> None:
    body = {
        "key": "the-same", "what": {"line": "true"}, "directory": str(box.user),
        "environment": {}, "shell": "/bin/sh", "options": {},
    }  # fmt: skip
    first = box.client.submit(body)
    assert box.client.submit(body)["first"] == first["first"]
    box.crash()
    box.up()
    assert box.client.submit(body)["first"] == first["first"]
    assert len(box.client.jobs()["jobs"]) + len(box.client.history()["jobs"]) >= 1
    assert int(box.submit("true")) == first["first"] + 1


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [4, 5])
def test_lines_queued_by_a_killed_feed_run_with_the_next_daemon(
    idle: DaemonFixture, seed: int
) -> None:
    box, chance = idle, random.Random(seed)
    runs = box.user / "runs"
    text, codes = lines(chance, runs, 60)
    feed = box.popen(
        "feed", "--gpus", "0,1,2,3", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert feed.stdin is not None
    feed.stdin.write(text.encode())
    feed.stdin.close()
    until(lambda: len(ran(runs)) > chance.randrange(1, 15))
    feed.send_signal(signal.SIGKILL)
    feed.wait(10)

    box.up()
    # In this order: a job that ends in between is in both, not in neither.
    queued = box.client.jobs()["jobs"] + box.client.history(limit=1000)["jobs"]
    ids_in_journal = sorted({job["id"] for job in queued})
    done = box.client.wait([str(job) for job in ids_in_journal], timeout=60)
    assert done["finished"]
    # Every journalled line ran, exactly once, and those are the first lines of the input.
    assert ids_in_journal == list(range(1, len(ids_in_journal) + 1))
    results = [job["result"] for job in sorted(done["jobs"], key=lambda job: job["id"])]
    assert results == codes[: len(ids_in_journal)]
    assert ran(runs) == Counter(dict.fromkeys(ran(runs), 1))
    assert times_run(runs) == Counter(dict.fromkeys(ids_in_journal, 1))


def test_a_cancellation_that_a_crash_interrupted_is_completed(
    idle: DaemonFixture, stoker: Run
) -> None:
    (idle.home / "config.toml").write_text("grace = 1\n")
    box = idle.start()
    job = box.submit("--gpus", "1", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    box.says(job, "ready")
    box.client.cancel([job])
    box.crash()  # within the grace: no daemon is left that sends KILL
    assert box.up().end_of(job)["state"] == "CANCELLED"
    assert box.gpus()["0"]["state"] == "free"


def test_a_time_limit_that_passes_without_a_daemon_is_enforced_by_the_next_one(
    box: DaemonFixture,
) -> None:
    job = box.submit("--time", "2s", "echo ready; sleep 60")
    box.says(job, "ready")
    box.crash()
    time.sleep(2.2)
    ended = box.up().end_of(job)
    assert (ended["state"], ended["result"]) == ("TIMEOUT", 124)


def test_a_paused_job_is_still_paused_after_a_crash_and_can_be_resumed(box: DaemonFixture) -> None:
    job = box.submit("echo ready; sleep 0.5; echo over")
    box.says(job, "ready")
    pid = box.pid_of(job)
    box.client.pause([job])
    box.crash()
    box.up()
    assert box.job(job)["state"] == "SUSPENDED"
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    box.client.resume([job])
    assert box.end_of(job)["result"] == 0
