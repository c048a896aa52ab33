"""Bugs that users found."""

from e2e.daemon_fixture import DaemonFixture


def test_devices_named_in_a_feed_are_removed_when_its_lines_are_done(idle: DaemonFixture) -> None:
    assert idle.stoker("feed", "--gpus", "0,22", input="true\n").returncode == 0
    refused = idle.stoker("submit", "--gpus", "1", "true")
    assert refused.returncode == 6
    assert "has no GPU" in refused.stderr


def test_the_whole_machine_can_be_drained(box: DaemonFixture) -> None:
    box.stoker("drain", "all", check=True)
    waiting = box.submit("true")
    assert box.job(waiting)["state"] == "PENDING"
    box.stoker("undrain", "all", check=True)
    assert box.end_of(waiting)["state"] == "COMPLETED"


def test_a_missing_interpreter_is_named(box: DaemonFixture) -> None:
    script = box.user / "crlf.sh"
    script.write_bytes(b"#!/no/such/interpreter\r\necho hi\r\n")
    ended = box.end_of(box.submit(script))
    assert ended["cause"].startswith("/no/such/interpreter: not found")
    assert "Windows line ends" in ended["cause"]


def test_waiting_for_the_end_of_a_broken_chain_ends(box: DaemonFixture) -> None:
    first = box.submit("exit 1")
    second = box.submit("--dependency", f"afterok:{first}", "true")
    third = box.submit("--dependency", f"afterany:{second}", "true")
    done = box.stoker("wait", third, timeout=30)
    assert done.returncode == 1
    assert "never start" in done.stderr


def test_history_counts_what_it_does_not_show(box: DaemonFixture) -> None:
    label = box.submit("--each-line", "-", input="true\n" * 7)
    box.client.wait([label], timeout=30)
    assert box.client.history(limit=3)["more"] == 4


def test_a_restart_is_rejected_if_the_new_daemon_could_not_start(box: DaemonFixture) -> None:
    before = box.pid
    (box.home / "config.toml").write_text("oops = 1\n")
    refused = box.stoker("daemon", "restart")
    assert refused.returncode == 2
    assert "oops" in refused.stderr
    assert box.pid == before
    (box.home / "config.toml").unlink()
    assert box.stoker("daemon", "restart", "--gpus", "0,0").returncode == 2
    assert box.pid == before


def test_a_missing_path_of_send_is_rejected(box: DaemonFixture) -> None:
    (box.user / "data").mkdir(exist_ok=True)
    code, stderr = box.refused("--send", "data", "--send", "nosuch", "true")
    assert (code, stderr) == (2, f"stoker: There is no 'nosuch' in {box.user} for --send.\n")
    for words in (("--no-send", "--send", "data"), ("--no-bring", "--bring", "data")):
        code, stderr = box.refused(*words, "true")
        assert (code, "contradict each other" in stderr) == (2, True)
    waiting = box.submit("--hold", "--send", "data", "true")
    assert "There is no 'nosuch'" in box.stoker("edit", waiting, "--send", "nosuch").stderr


def test_a_line_that_is_too_long_for_a_shell_is_rejected(box: DaemonFixture) -> None:
    done = box.stoker("submit", "--each-line", "-", input="echo " + "x" * (128 << 10) + "\n")
    assert done.returncode == 2
    assert "put it into a script" in done.stderr


def test_a_limit_holds_for_failures_too_and_the_newest_come_first(box: DaemonFixture) -> None:
    label = box.submit("--array", "0-11%1", "exit 1")
    assert box.client.wait([label], timeout=60)["finished"]
    reply = box.client.jobs(limit=5)
    assert (len(reply["jobs"]), reply["more"]) == (5, 7)
    ends = [job["ended_at"] for job in reply["jobs"]]
    assert ends == sorted(ends, reverse=True)
    assert [job["label"] for job in reply["jobs"]] == [f"{label}_{n}" for n in (11, 10, 9, 8, 7)]
    done = box.stoker("queue", "-e", "--limit", "5")
    assert "7 more jobs" in done.stderr
    box.stoker("queue", "--limit", "5", "--seen", check=True)
    assert box.client.jobs()["jobs"] == [], "all are marked, not only those listed"
