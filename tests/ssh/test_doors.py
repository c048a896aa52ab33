"""With a machine added, jobs of every door go there when this one has no room."""

from collections.abc import Iterator

import pytest

from frontdoors import auto_lab, grass_lab
from ssh.lab import Lab

FOREVER = "until [ -e $HOME/go ]; do sleep 0.05; done"


@pytest.fixture
def reach(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A machine with two GPUs that homes made in this test can reach."""
    monkeypatch.setenv("PATH", lab.environment["PATH"])
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    try:
        yield lab
    finally:
        lab.heal()


def test_grs_31_a_job_of_a_queue_runs_on_another_machine(reach: Lab) -> None:
    there = reach.machine("rich", gpus=2)
    with grass_lab.lab() as home:
        assert home.grass("start").returncode == 0
        home.done("create-queue", "q", "--json", "{gpu:1}")
        added = home.stoker("nodes", "add", "rich", there.url, "--key", there.key)
        assert added.returncode == 0, added.stderr
        gate = grass_lab.Gate(home.user, "here")
        first = int(home.done("enqueue", "q", "--json", "{gpu:1}", *gate.command))
        assert home.allocation("q", first) == {"gpu": ["0"]}
        second = home.done("enqueue", "q", "--json", "{gpu:1}", "--", "sh", "-c", "hostname; pwd")
        home.end(second)
        assert home.jobs("q")[int(second)]["status"] == "Finished"
        log = home.jobs("q")[int(second)]["log"]
        with open(log) as file:
            assert file.readline() == "rich\n"
        gate.open()
        home.end(first)


def test_aut_44_a_task_is_placed_on_the_machine_that_has_room(reach: Lab) -> None:
    there = reach.machine("rich", gpus=2)
    with auto_lab.lab() as home:
        home.serve("--gpus", "0", "1", "--port", "0")
        added = home.run(
            auto_lab.sys.executable, "-m", "stoker", "nodes", "add", "rich", there.url,
            "--key", there.key,
        )  # fmt: skip
        assert added.returncode == 0, added.stderr
        here = home.task(auto_lab.UNTIL_GO, "-n", "2")
        assert home.running(here)["node"] != "rich"
        assert home.result("hostname; echo $CUDA_VISIBLE_DEVICES", "-n", "2") == "rich\n0,1\n"
        (home.user / "go").touch()
        home.ended(here)
        # A server finds its own GPUs, whatever the other machines have.
        home.stop()
        home.serve("--gpus", "0", "1", "--port", "0")
