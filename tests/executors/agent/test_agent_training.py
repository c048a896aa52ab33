"""The agent and training jobs: reports, control files, checkpoints and libraries."""

import os
from pathlib import Path

from executors.agent.test_agent import Agent, agent

__all__ = ["agent"]


def reports(agent: Agent, key: str) -> Path:
    return agent.run / f"{key}.reports"


def test_reports_are_sent_before_logs_within_one_limit(agent: Agent) -> None:
    line = 'mkdir "$R"; printf 0123456 >"$R/report"; printf abc'
    agent.start("1.0", line, f"R={reports(agent, '1.0')}")
    agent.wait_for("exited")
    everything = {"1.0 report 0": b"0123456", "1.0 out 0": b"abc"}
    assert agent.fetch("read_new", "100", "1.0", "0", "0", "0") == everything
    assert agent.fetch("read_new", "8", "1.0", "0", "0", "2") == {
        "1.0 report 2": b"23456", "1.0 out 0": b"abc",
    }  # fmt: skip
    assert agent.fetch("read_new", "6", "1.0", "0", "0", "0") == {"1.0 report 0": b"012345"}
    assert agent.fetch("read_new", "9", "2.0", "0", "0", "0", "1.0", "3", "0", "7") == {}
    assert agent.fetch("collect", "100", "1.0", "0", "0", "5") == {
        "1.0 report 5": b"56", "1.0 out 0": b"abc",
    }  # fmt: skip
    assert agent.fetch("read_new", "100", "1.0", "3", "0", "9") == {
        "1.0 cut-report 0": b"", "1.0 report 0": b"0123456",
    }  # fmt: skip


def test_only_regular_files_are_read_as_reports(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "secret.$(date)").write_text("secret")
    for key, make in (("1.0", "symlink"), ("2.0", "fifo"), ("3.0", "directory")):
        reports(agent, key).mkdir()
        path = reports(agent, key) / "report"
        if make == "symlink":
            path.symlink_to(tmp_path / "secret.$(date)")
        elif make == "fifo":
            os.mkfifo(path)
        else:
            path.mkdir()
    (agent.run / "4.0.out").write_text("x")
    words = [word for key in ("1.0", "2.0", "3.0", "4.0") for word in (key, "0", "0", "0")]
    assert agent.fetch("read_new", "100", *words) == {"4.0 out 0": b"x"}


def test_a_control_file_is_written_only_for_a_claimed_attempt(agent: Agent) -> None:
    assert agent.request("write_control", "1.0", "stop", "because") == [["failed"]]
    assert not reports(agent, "1.0").exists()
    line = 'until [ -e "$R/stop" ]; do sleep 0.02; done; cat "$R/stop"'
    agent.start("1.0", line, f"R={reports(agent, '1.0')}")
    agent.wait_for("started")
    why = "preempted by 'job 7': $HOME\\n"
    assert agent.request("write_control", "1.0", "stop", why) == [["done"]]
    agent.wait_for("exited")
    assert (agent.run / "1.0.out").read_text() == f"{why}\n"
    assert reports(agent, "1.0").stat().st_mode & 0o777 == 0o700
    assert [path.name for path in reports(agent, "1.0").iterdir()] == ["stop"]
    agent.request("forget", "1.0")
    agent.wait(lambda: not reports(agent, "1.0").exists())


def test_checkpoints_outlive_their_attempt_and_are_reported(agent: Agent) -> None:
    name = f"{agent.install[:8]}-1"
    directory = agent.run.parents[1] / "checkpoints" / name
    assert agent.request("make_checkpoint_dir", name) == [["done"]]
    agent.start("1.0", "exit 4")
    assert agent.wait_for("exited")[1:] == ["1.0", "4", "0", "0"]
    agent.start("1.1", f"echo 1 >'{directory}/model'")
    agent.wait(lambda: ["exited", "1.1", "0", "0", "0", "saved"] in agent.notifications)
    assert agent.state_of("1.1") == ["exited", "1.1", "0", "0", "0", "saved"]
    assert agent.request("end_unrecorded", "1.1", "nothing") == [["done", "0", "saved"]]
    agent.request("forget", "1.0", "1.1")
    agent.wait(lambda: not (agent.run / "1.1.claim").exists())
    assert agent.request("mark_ahead", name) == [["done"]]
    assert agent.request("make_checkpoint_dir", name) == [["done", "ahead"]]
    assert agent.request("unmark_ahead", name) == [["done"]]
    assert agent.request("make_checkpoint_dir", name) == [["done"]]
    assert (directory / "model").read_text() == "1\n"


def test_an_installed_library_does_not_change_with_its_tree(agent: Agent) -> None:
    root = agent.run.parents[1]
    assert agent.request("install_library", "abc") == [["failed"]]
    tree = root / "trees/abc/pack"
    tree.mkdir(parents=True, mode=0o700)
    (tree / "it.py").write_text("x = 1\n")
    (tree / "it.py").chmod(0o600)
    assert agent.request("install_library", "abc") == [["done"]]
    (tree / "it.py").unlink()
    assert agent.request("install_library", "abc") == [["done"]]
    library = root / "library/abc/pack"
    assert (library / "it.py").read_text() == "x = 1\n"
    assert (library.stat().st_mode & 0o777, (library / "it.py").stat().st_mode & 0o777) == (
        0o755,
        0o644,
    )
    assert os.listdir(root / "library") == ["abc"]


def test_a_signal_to_a_container_goes_to_its_main_process_only(agent: Agent) -> None:
    script = "trap 'echo signalled; kill $!; exit 3' TERM; setsid sleep 64 & echo up; wait"
    agent.start("1.0", "", "STOKER_CONTAINER=stoker-1", words=("sh", "-c", script))
    agent.wait(lambda: (agent.run / "1.0.out").exists() and (agent.run / "1.0.out").read_text())
    reply = agent.request("signal", "15", "1.0")
    assert len(reply[0]) == 2, reply
    assert agent.wait_for("exited")[2] == "3"
    assert (agent.run / "1.0.out").read_text() == "up\nsignalled\n"
