"""The agent and training jobs: reports, words for the library, checkpoints, what is shelved."""

import os
from pathlib import Path

from executors.agent.test_agent import Agent, agent

__all__ = ["agent"]


def reports(agent: Agent, key: str) -> Path:
    return agent.run / f"{key}.reports"


def test_reports_come_with_the_logs_and_before_them(agent: Agent) -> None:
    line = 'mkdir "$R"; printf 0123456 >"$R/report"; printf abc'
    agent.start("1.0", line, f"R={reports(agent, '1.0')}")
    agent.hears("exited")
    everything = {"1.0 said 0": b"0123456", "1.0 out 0": b"abc"}
    assert agent.fetches("grown", "100", "1.0", "0", "0", "0") == everything
    assert agent.fetches("grown", "8", "1.0", "0", "0", "2") == {
        "1.0 said 2": b"23456", "1.0 out 0": b"abc",
    }  # fmt: skip
    assert agent.fetches("grown", "6", "1.0", "0", "0", "0") == {"1.0 said 0": b"012345"}
    assert agent.fetches("grown", "9", "2.0", "0", "0", "0", "1.0", "3", "0", "7") == {}
    assert agent.fetches("collect", "100", "1.0", "0", "0", "5") == {
        "1.0 said 5": b"56", "1.0 out 0": b"abc",
    }  # fmt: skip
    assert agent.fetches("grown", "100", "1.0", "3", "0", "9") == {
        "1.0 cut-said 0": b"", "1.0 said 0": b"0123456",
    }  # fmt: skip


def test_what_is_no_report_is_not_read(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "secret.$(date)").write_text("secret")
    for key, make in (("1.0", "symlink"), ("2.0", "fifo"), ("3.0", "directory")):
        reports(agent, key).mkdir()
        there = reports(agent, key) / "report"
        if make == "symlink":
            there.symlink_to(tmp_path / "secret.$(date)")
        elif make == "fifo":
            os.mkfifo(there)
        else:
            there.mkdir()
    (agent.run / "4.0.out").write_text("x")
    words = [word for key in ("1.0", "2.0", "3.0", "4.0") for word in (key, "0", "0", "0")]
    assert agent.fetches("grown", "100", *words) == {"4.0 out 0": b"x"}


def test_a_word_is_left_for_the_library_of_an_attempt_that_is_known(agent: Agent) -> None:
    assert agent.asks("leave", "1.0", "stop", "because") == [["failed"]]
    assert not reports(agent, "1.0").exists()
    line = 'until [ -e "$R/stop" ]; do sleep 0.02; done; cat "$R/stop"'
    agent.start("1.0", line, f"R={reports(agent, '1.0')}")
    agent.hears("started")
    why = "room for 'job 7': $HOME\\n"
    assert agent.asks("leave", "1.0", "stop", why) == [["done"]]
    agent.hears("exited")
    assert (agent.run / "1.0.out").read_text() == f"{why}\n"
    assert reports(agent, "1.0").stat().st_mode & 0o777 == 0o700
    assert [path.name for path in reports(agent, "1.0").iterdir()] == ["stop"]
    agent.asks("forget", "1.0")
    agent.wait(lambda: not reports(agent, "1.0").exists())


def test_checkpoints_outlive_the_attempt_and_are_told_of(agent: Agent) -> None:
    name = f"{agent.install[:8]}-1"
    place = agent.run.parents[1] / "checkpoints" / name
    assert agent.asks("room", name) == [["done"]]
    agent.start("1.0", "exit 4")
    assert agent.hears("exited")[1:] == ["1.0", "4", "0", "0"]
    agent.start("1.1", f"echo 1 >'{place}/model'")
    agent.wait(lambda: ["exited", "1.1", "0", "0", "0", "saved"] in agent.news)
    assert agent.stands("1.1") == ["exited", "1.1", "0", "0", "0", "saved"]
    assert agent.asks("salvage", "1.1", "nothing") == [["done", "0", "saved"]]
    agent.asks("forget", "1.0", "1.1")
    agent.wait(lambda: not (agent.run / "1.1.claim").exists())
    assert agent.asks("mark", name) == [["done"]]
    assert agent.asks("room", name) == [["done", "ahead"]]
    assert agent.asks("unmark", name) == [["done"]]
    assert agent.asks("room", name) == [["done"]]
    assert (place / "model").read_text() == "1\n"


def test_a_library_stays_when_its_tree_goes(agent: Agent) -> None:
    root = agent.run.parents[1]
    assert agent.asks("shelve", "abc") == [["failed"]]
    tree = root / "trees/abc/pack"
    tree.mkdir(parents=True, mode=0o700)
    (tree / "it.py").write_text("x = 1\n")
    (tree / "it.py").chmod(0o600)
    assert agent.asks("shelve", "abc") == [["done"]]
    (tree / "it.py").unlink()
    assert agent.asks("shelve", "abc") == [["done"]]
    there = root / "library/abc/pack"
    assert (there / "it.py").read_text() == "x = 1\n"
    assert (there.stat().st_mode & 0o777, (there / "it.py").stat().st_mode & 0o777) == (
        0o755,
        0o644,
    )
    assert os.listdir(root / "library") == ["abc"]


def test_into_a_container_its_first_process_passes_signals_on(agent: Agent) -> None:
    first = "trap 'echo told; kill $!; exit 3' TERM; setsid sleep 64 & echo up; wait"
    agent.start("1.0", "", "STOKER_CONTAINER=stoker-1", words=("sh", "-c", first))
    agent.wait(lambda: (agent.run / "1.0.out").exists() and (agent.run / "1.0.out").read_text())
    said = agent.asks("signal", "15", "1.0")
    assert len(said[0]) == 2, said
    assert agent.hears("exited")[2] == "3"
    assert (agent.run / "1.0.out").read_text() == "up\ntold\n"
