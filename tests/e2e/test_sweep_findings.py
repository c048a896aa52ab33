"""Sweeps without trials, with failures only, that grow during a wait, and with a target."""

import sys

from e2e.daemon_fixture import DaemonFixture, until
from e2e.test_sweeps import counts, sweep, sweep_view

TPE = ("--minimize", "loss", "--method", "tpe", "-n", "3")
LOSS = "from stoker.training import report; report(loss={x})"


def test_a_sweep_without_trials_can_be_shown(box: DaemonFixture) -> None:
    id, _ = sweep(box, *TPE, "--hold", "--param", "x=uniform(0,1)", "python -c '...' {x}")
    daemon = box.client.daemon()["pid"]
    for verb in ("why", "metrics", "logs"):
        done = box.stoker(verb, id)
        assert "Traceback" not in done.stderr
        assert "500" not in done.stderr
        assert done.returncode in (0, 3), (verb, done.stderr)
    waited = box.client.wait([id], timeout=0.0)
    assert not waited["finished"]
    box.stoker("cancel", id)
    assert box.client.wait([id], timeout=30)["finished"]
    assert box.client.daemon()["pid"] == daemon


def test_waiting_for_a_growing_sweep_covers_all_its_trials(box: DaemonFixture) -> None:
    words = ("--param", "x=uniform(0,1)", sys.executable, "-c", LOSS)
    id, _ = sweep(box, *TPE, "--max-running", "1", *words)
    last = box.submit("--dependency", f"afterok:{id}", "true")
    assert box.client.wait([id], timeout=60)["count"] == 3
    assert box.end_of(last)["result"] == 0
    trials = sweep_view(box, id)["trials"]
    assert len(trials) == 3
    begun = box.client.jobs([str(last)])["jobs"][0]["started_at"]
    assert all(trial["ended_at"] <= begun for trial in trials)


def test_a_sweep_that_only_fails_is_not_endless(box: DaemonFixture) -> None:
    id, _ = sweep(box, "--method", "random", "--param", "x=uniform(0,1)", "exit 1; {x}")
    reply = box.client.wait([id], timeout=60)
    assert not reply["finished"]
    assert "have failed" in reply["notes"][0]
    failed = counts(box, id)["failed"]
    assert 10 <= failed < 40
    box.stoker("release", id)
    more = until(lambda: (count := counts(box, id)["failed"]) > failed and count)
    assert more >= failed + 1
    box.stoker("cancel", id)


def test_a_reached_target_stays_reached(box: DaemonFixture) -> None:
    words = ("--minimize", "loss", "--target", "0.5", "--max-running", "1",
             "--param", "x=0.4,0.6,0.7,0.8", sys.executable, "-c", LOSS)  # fmt: skip
    id, _ = sweep(box, *words)
    done = box.stoker("wait", id)
    assert done.returncode == 0, done.stderr
    before = counts(box, id)
    assert before["done"] >= 1
    again = box.stoker("sweep", *words)
    assert again.stdout.strip() == id
    assert "its target has already been reached" in again.stderr
    assert counts(box, id) == before


def test_a_sweep_cancelled_during_sampling_can_be_resumed(box: DaemonFixture) -> None:
    words = (*TPE, "--param", "x=uniform(0,1)", sys.executable, "-c", LOSS)
    id, _ = sweep(box, *words)
    box.stoker("cancel", id)
    sweep(box, *words)
    assert box.client.wait([id], timeout=60)["finished"]
    assert counts(box, id) == {"done": 3}


def test_a_held_sweep_that_is_submitted_again_is_released(box: DaemonFixture) -> None:
    words = ("--max-running", "1", "--param")
    id, _ = sweep(box, "--hold", *words, "x=1,2", "true {x}")
    assert counts(box, id) == {"waiting": 2}
    sweep(box, "--param", "x=1,2,3", "true {x}")
    assert box.client.wait([id], timeout=60)["finished"]
    assert counts(box, id) == {"done": 3}
    assert sweep_view(box, id)["sweep"]["max_running"] == 1


def test_waiting_for_a_sweep_returns_its_best_trial(box: DaemonFixture) -> None:
    prints = "for i in $(seq 20000); do echo loss=$i; done; echo loss={x}"
    words = ("--minimize", "loss", "--metric-regex", "loss=(?P<loss>.*)", "--param", "x=1,2")
    id, _ = sweep(box, *words, prints)
    assert box.client.wait([id], timeout=60)["finished"]
    view = sweep_view(box, id)["sweep"]
    assert view["best"]["value"] == 1
    assert view["reading"] == 0


def test_failed_trials_run_again_with_the_new_options(box: DaemonFixture) -> None:
    words = ("--param", "x=1,2", 'test "$GOOD" = yes || exit {x}')
    id, _ = sweep(box, "--priority", "5", *words)
    assert box.client.wait([id], timeout=60)["finished"]
    assert counts(box, id) == {"failed": 2}
    again, summary = sweep(box, "--env", "GOOD=yes", *words)
    assert (again, summary) == (id, "2 again of 2")
    assert box.client.wait([id], timeout=60)["finished"]
    assert counts(box, id) == {"done": 2}
    assert sweep_view(box, id)["sweep"]["priority"] == 5
