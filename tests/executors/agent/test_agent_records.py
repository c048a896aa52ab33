"""Records of attempts: their content, and agents that read them while others write them."""

from pathlib import Path

from executors.agent.test_agent import Agent, Pipe, agent, poll_meanwhile

__all__ = ["agent"]


def test_a_record_that_is_being_written_does_not_count_yet(agent: Agent) -> None:
    agent.start("1.0", "sleep 60")
    pid = agent.wait_for("started")[2]
    # The agent reads single bytes: the first of `none`, then the rest of what replaced it.
    (agent.run / "1.0.exit").write_text("nxited 0 0 0\n")
    assert agent.state_of("1.0") == ["running", "1.0", pid]
    assert agent.request("poll_records", "1.0")[0][:3] == ["running", "1.0", pid]
    (agent.run / "1.0.pid").write_text(f"n{pid[1:]} 1\n")
    assert agent.request("poll_records", "1.0")[0] == ["busy", "1.0"]
    agent.request("signal", "9", "1.0")


def test_an_attempt_that_begins_and_ends_during_a_poll_is_reported_with_its_process(
    agent: Agent,
) -> None:
    (agent.run / "1.0.claim").write_text("boot 1 1\n")
    record = agent.run / "1.0.pid"
    record.write_text("none\n")
    pipe = Pipe(agent.run / "1.0.exit")
    writing = (pipe, lambda: record.write_text("17 1\n"), "exited 0 0 0\n")
    reply = poll_meanwhile(agent, "1.0", writing, verb="poll_records")
    assert reply[:3] == ["started", "1.0", "17"]


def test_the_exit_of_a_job_that_the_kernel_killed_for_memory_says_so(
    agent: Agent, tmp_path: Path
) -> None:
    kills = tmp_path / "kills"
    kills.write_text("oom_kill 3\n")
    # Another file in place of /proc/vmstat.
    agent.session.request(None, "eval", f"count_oom_kills() {{ cat '{kills}'; }}")
    grow = f"echo oom_kill 4 >>{kills};"
    for key, line in (
        ("1.0", "kill -9 $$"),
        ("2.0", f"{grow} kill -9 $$"),
        ("3.0", f"{grow} exit 3"),
    ):
        agent.start(key, line)
        agent.wait(lambda key=key: agent.notifications[-1][:2] == ["exited", key])
    exits = [words for words in agent.notifications if words[0] == "exited"]
    assert [words[2] for words in exits] == ["137", "137", "3"]
    assert ["memory" in words for words in exits] == [False, True, False]
