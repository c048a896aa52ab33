"""Failures of connections and nodes: every job still ends once, with its own exit."""

import os
import random
import signal
import socket
import threading
from pathlib import Path

from e2e.daemon_fixture import DaemonFixture, alive, until
from ssh.node_actions import (
    HOLD,
    ONCE,
    add,
    all_of,
    bytes_of,
    disconnect,
    node,
    ran,
    release_jobs,
    reopen,
    submit_to,
    wait_for_state,
)
from ssh.ssh_cluster import SshCluster

DaemonAndCluster = tuple[DaemonFixture, SshCluster]


# -- the connection ---------------------------------------------------------------------


def test_a_cut_cable_loses_nothing_and_delays_no_other_node(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    a, b = cluster.a, cluster.b
    add(box, a, b)
    runs = submit_to(box, a, f"{ONCE}; echo one; {HOLD}; echo two; exit 5")
    ends = submit_to(
        box, a, f"{ONCE}; until [ -e $HOME/end ]; do sleep 0.05; done; echo end; exit 6"
    )
    box.becomes(runs, "RUNNING")
    box.becomes(ends, "RUNNING")
    a.cut()
    (a.home / "end").touch()
    ordered = submit_to(box, a, f"{ONCE}; echo late; exit 7")
    elsewhere = [submit_to(box, b, "echo here") for _ in range(3)]
    assert [box.end_of(job, 5)["result"] for job in elsewhere] == [0, 0, 0]
    wait_for_state(box, a, "unreachable")
    assert box.job(runs)["state"] == box.job(ends)["state"] == "RUNNING"
    assert box.end_of(submit_to(box, b, "true"), 5)["result"] == 0
    a.restore()
    release_jobs(a)
    assert [box.end_of(job)["result"] for job in (runs, ends, ordered)] == [5, 6, 7]
    assert [bytes_of(box, job) for job in (runs, ends, ordered)] == [
        b"one\ntwo\n", b"end\n", b"late\n",
    ]  # fmt: skip
    assert sorted(ran(a)) == sorted([runs, ends, ordered])


def test_a_connection_lost_during_an_upload_is_retried(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    (box.user / "data").write_bytes(os.urandom(40 << 20))
    add(box, cluster.a)
    trees = cluster.a.home / ".stoker/trees"
    job = submit_to(box, cluster.a, f"{ONCE}; wc -c <data; cp data copy; exit 3", "--bring", "copy")
    for _ in range(2):
        until(lambda: list(trees.glob("*.part")) or box.job(job)["pid"])
        cluster.a.kill_connections()
        wait_for_state(box, cluster.a, "up")
    until(lambda: ran(cluster.a))
    until(lambda: list((cluster.a.home / ".stoker/run").glob("*/*.list")) or box.job(job)["result"])
    cluster.a.kill_connections()
    assert box.end_of(job)["result"] == 3
    assert bytes_of(box, job).strip() == str(40 << 20).encode()
    assert (box.user / "copy").read_bytes() == (box.user / "data").read_bytes()
    assert ran(cluster.a) == [job]


def test_a_job_ends_once_whichever_ssh_process_is_killed(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    job = submit_to(box, cluster.a, f"{ONCE}; echo one; {HOLD}; echo two; exit 5")
    box.says(job, "one")
    cluster.a.stop_sshd()
    cluster.a.start_sshd()
    assert box.job(job)["state"] == "RUNNING"
    cluster.a.kill_agent()
    cluster.a.kill_connections()
    until(cluster.a.agents)
    wait_for_state(box, cluster.a, "up")
    release_jobs(cluster.a)
    assert box.end_of(job)["result"] == 5
    assert bytes_of(box, job) == b"one\ntwo\n"
    assert ran(cluster.a) == [job]


def test_a_job_continues_while_the_daemons_host_sleeps(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    job = submit_to(box, cluster.a, f"{ONCE}; echo one; {HOLD}; echo two; exit 5")
    box.says(job, "one")
    sleepers = [box.pid, *ssh_of(box)]
    assert len(sleepers) > 1
    for pid in sleepers:
        os.kill(pid, signal.SIGSTOP)
    cluster.a.kill_connections()
    release_jobs(cluster.a)
    until(lambda: "exited" in recorded_end(cluster))
    for pid in sleepers:
        os.kill(pid, signal.SIGCONT)
    assert box.end_of(job)["result"] == 5
    assert bytes_of(box, job) == b"one\ntwo\n"
    assert ran(cluster.a) == [job]


def ssh_of(box: DaemonFixture) -> list[int]:
    children = Path(f"/proc/{box.pid}/task/{box.pid}/children").read_text().split()
    return [int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text() == "ssh\n"]


def recorded_end(cluster: SshCluster) -> str:
    return "".join(path.read_text() for path in (cluster.a.home / ".stoker/run").glob("*/*.exit"))


def test_a_new_daemon_recovers_the_jobs_of_the_old_one(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a, cluster.b)
    line = f"{ONCE}; echo one; {HOLD}; echo two; head -c 3000000 /dev/zero >$(hostname); exit 5"
    jobs = [submit_to(box, machine, line) for machine in (cluster.a, cluster.b)]
    for job in jobs:
        box.becomes(job, "RUNNING")
    box.stoker("daemon", "stop")
    release_jobs(cluster.a)
    box.up()
    release_jobs(cluster.b)
    ends = [box.end_of(job) for job in jobs]
    assert [(end["result"], end["termination_note"]) for end in ends] == [(5, None)] * 2
    assert [bytes_of(box, job) for job in jobs] == [b"one\ntwo\n"] * 2
    assert ran(cluster.a) + ran(cluster.b) == jobs
    assert [(box.user / name).stat().st_size for name in "ab"] == [3_000_000] * 2


def test_the_ssh_of_a_killed_daemon_does_not_block_the_next(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    before = submit_to(box, cluster.a, f"{HOLD}; exit 5")
    box.becomes(before, "RUNNING")
    (old,) = ssh_of(box)
    box.crash()
    box.up()
    wait_for_state(box, cluster.a, "up")
    until(lambda: not alive(old))
    (box.user / "data").write_text("data\n")
    end = box.end_of(submit_to(box, cluster.a, "cat data"))
    assert (end["result"], end["attempt"]) == (0, 0)
    release_jobs(cluster.a)
    assert box.end_of(before)["result"] == 5


def test_a_daemon_killed_repeatedly_runs_every_job_once(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    machines = all_of(cluster)
    add(box, *machines)
    chance = random.Random(4)
    jobs = []
    for round in range(4):
        for machine in machines:
            line = f"{ONCE}; echo $STOKER_JOB_ID; sleep 0.{chance.randrange(5)}; exit {round}"
            jobs.append((submit_to(box, machine, line), machine, round))
        threading.Event().wait(chance.random() / 2)  # no condition: any time is as good
        box.crash()
    box.up()
    for job, _, round in jobs:
        end = box.end_of(job)
        assert (end["result"], end["attempt"]) == (round, end["attempt"]), end
        assert bytes_of(box, job) == f"{job}\n".encode()
    for machine in machines:
        assert sorted(ran(machine)) == [job for job, where, _ in jobs if where is machine]


# -- the machine ------------------------------------------------------------------------


def test_only_a_reboot_loses_running_jobs_and_then_their_retry_rule_applies(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    lost = submit_to(box, cluster.a, f"{ONCE}; {HOLD}", "--no-requeue")
    again = submit_to(box, cluster.a, f"{ONCE}; {HOLD}; exit 4", "--requeue")
    until(lambda: len(ran(cluster.a)) == 2)
    cluster.a.fake_reboot()
    assert box.end_of(lost)["state"] == "NODE_FAIL"
    release_jobs(cluster.a)
    assert box.end_of(again)["result"] == 4
    assert sorted(ran(cluster.a)) == sorted([lost, again, again])


def test_a_full_disk_makes_jobs_wait_and_loses_no_exit(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    small = cluster.machine("small", small_disk="3m")
    add(box, small)
    fill = "echo before; dd if=/dev/zero of=$HOME/fat bs=4k 2>/dev/null; echo after; exit 9"
    job = submit_to(box, small, fill, "--no-send", "--no-bring")
    assert box.end_of(job)["result"] == 9
    assert bytes_of(box, job) == b"before\nafter\n"
    (box.user / "data").write_bytes(os.urandom(200_000))
    second = submit_to(box, small, "echo run; exit 8")
    until(lambda: box.job(second)["begin_at"])
    (small.home / "fat").unlink()
    assert box.end_of(second)["result"] == 8
    assert bytes_of(box, second) == b"run\n"


def test_results_that_cannot_be_listed_on_a_full_disk_stay_on_the_node(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    small = cluster.machine("small", small_disk="3m")
    add(box, small)
    job = submit_to(box, small, "echo kept >made; dd if=/dev/zero of=fat bs=4k 2>/dev/null; exit 9")
    end = box.end_of(job)
    assert end["result"] == 9
    if not (box.user / "made").exists():
        assert ".stoker/kept/" in end["termination_note"]
        kept = list((small.home / ".stoker/kept").glob("*/made"))
        assert kept[0].read_text() == "kept\n"


# -- nodes that reject us ---------------------------------------------------------------


def test_a_rejected_key_and_a_changed_host_key_are_reported_for_that_node_only(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a, cluster.b, cluster.c)
    cluster.a.refuse()
    cluster.a.kill_connections()
    cluster.b.new_host_key()
    cluster.b.kill_connections()
    why = wait_for_state(box, cluster.a, "unreachable")["why"]
    until(lambda: "rejected the key" in node(box, "a")["why"])
    until(lambda: "host key" in node(box, "b")["why"])
    assert "ssh-keygen -R" in node(box, "b")["why"], why
    assert box.end_of(submit_to(box, cluster.c, "true"))["result"] == 0
    cluster.a.admit()
    assert box.end_of(submit_to(box, cluster.a, "exit 3"))["result"] == 3


def test_a_node_that_never_answers_delays_no_other_node(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.b)
    cluster.a.cut()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        box.client.add_node("a", cluster.a.url, key=str(cluster.a.key))
        box.client.add_node("mute", f"ssh://me@127.0.0.1:{port}")
        assert box.end_of(submit_to(box, cluster.b, "exit 3"), 5)["result"] == 3
        assert node(box, "a")["state"] in ("connecting", "unreachable")
    cluster.a.restore()
    wait_for_state(box, cluster.a, "up")


# -- login scripts ----------------------------------------------------------------------


def test_login_scripts_that_print_and_read_do_no_harm(daemon_and_cluster: DaemonAndCluster) -> None:
    box, cluster = daemon_and_cluster
    noise = "printf welcome; printf oops >&2; read -r x; cd /; cd() { echo no; }"
    (cluster.a.home / ".bashrc").write_text(f"{noise}; export count=99 RUN=/x\n")
    add(box, cluster.a)
    line, apart = "pwd; echo $count; echo err >&2; exit 4", ("-o", "o", "-e", "e")
    job = submit_to(box, cluster.a, line, *apart, "--no-send", "--no-bring")
    assert box.end_of(job)["result"] == 4
    where, count = (box.user / "o").read_text().split()
    assert (where.split("/")[4:6], count) == (["work", where.split("/")[5]], "99")
    assert (box.user / "e").read_text() == "err\n"


def test_a_bashrc_that_ends_the_shell_is_reported_and_the_job_has_not_run(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    (cluster.a.home / ".bashrc").write_text("case $- in *i*) exec true ;; esac\n")
    add(box, cluster.a)
    end = box.end_of(submit_to(box, cluster.a, "echo never"))
    assert end["state"] == "FAILED"
    assert ".bashrc ended the shell" in end["cause"]


def test_a_job_runs_on_a_bare_node(daemon_and_cluster: DaemonAndCluster) -> None:
    box, cluster = daemon_and_cluster
    bare = cluster.machine("bare", bare=True)
    add(box, bare)
    (box.user / "data").write_text("data\n")
    job = submit_to(box, bare, "cat data; echo made >made; exit 3")
    assert box.end_of(job)["result"] == 3
    assert bytes_of(box, job) == b"data\n"
    assert (box.user / "made").read_text() == "made\n"


def test_a_node_without_rsync_and_tar_is_reported(daemon_and_cluster: DaemonAndCluster) -> None:
    box, cluster = daemon_and_cluster
    bare = cluster.machine("barest", bare=True, hide=("tar",))
    add(box, bare)
    (box.user / "data").write_text("data\n")
    end = box.end_of(submit_to(box, bare, "cat data"))
    assert end["state"] == "FAILED"
    assert "neither rsync nor tar" in end["cause"]
    assert box.end_of(submit_to(box, bare, "exit 3", "--no-send", "--no-bring"))["result"] == 3


# -- unreachable is not dead ------------------------------------------------------------


def test_commands_for_an_unreachable_node_take_effect_when_it_returns(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    trap = f"trap 'echo asked; exit 0' TERM; {ONCE}; echo up; while :; do sleep 0.05; done"
    add(box, cluster.a)
    cancelled, limited = (
        submit_to(box, cluster.a, trap),
        submit_to(box, cluster.a, trap, "-t", "00:00:03"),
    )
    until(lambda: len(ran(cluster.a)) == 2)
    disconnect(cluster.a)
    wait_for_state(box, cluster.a, "unreachable")
    box.stoker("cancel", str(cancelled))
    until(lambda: box.job(limited)["elapsed"] > 3)
    assert box.job(cancelled)["state"] == "COMPLETING"
    waits = submit_to(box, cluster.a, "exit 3")
    assert box.job(waits)["state"] == "PENDING"
    reopen(box, cluster.a)
    assert box.end_of(cancelled)["state"] == "CANCELLED"
    assert box.end_of(limited)["state"] == "TIMEOUT"
    assert [bytes_of(box, job) for job in (cancelled, limited)] == [b"up\nasked\n"] * 2
    assert box.end_of(waits)["result"] == 3


def test_an_abandoned_attempt_is_killed_when_its_node_returns(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a, cluster.b)
    job = submit_to(box, "a,b", f"{ONCE}; {HOLD}; exit 3", "--if-unreachable", "restart:1s")
    box.becomes(job, "RUNNING")
    until(lambda: ran(cluster.a) or ran(cluster.b))
    first, second = (cluster.a, cluster.b) if ran(cluster.a) else (cluster.b, cluster.a)
    disconnect(first)
    until(lambda: ran(second))
    assert len(first.pids("STOKER_TOKEN=")) > 0
    reopen(box, first)
    wait_for_state(box, first, "up")
    assert first.pids("STOKER_TOKEN=") == []
    release_jobs(second)
    assert box.end_of(job)["result"] == 3
    assert (ran(first), ran(second)) == ([job], [job])


# -- processes --------------------------------------------------------------------------


def test_processes_left_behind_are_ended_with_the_job(daemon_and_cluster: DaemonAndCluster) -> None:
    box, cluster = daemon_and_cluster
    gpu = cluster.machine("gpu", gpus=1)
    add(box, gpu)
    line = "nohup setsid sleep 301 >/dev/null 2>&1 & nohup sleep 302 >/dev/null 2>&1 & exit 3"
    assert box.end_of(submit_to(box, gpu, line, "--gpus", "1"))["result"] == 3
    assert gpu.pids("sleep 30") == []


def test_a_job_that_ignores_term_is_killed_after_its_grace(
    daemon_and_cluster: DaemonAndCluster,
) -> None:
    box, cluster = daemon_and_cluster
    (box.home / "config.toml").write_text('grace = "1s"\n')
    add(box, cluster.a)
    job = submit_to(box, cluster.a, "trap '' TERM; env -i sleep 303 & echo up; wait; sleep 304")
    box.says(job, "up")
    box.stoker("cancel", str(job))
    assert box.end_of(job)["state"] == "CANCELLED"
    assert cluster.a.pids("sleep 30") == []


def test_an_interrupt_signal_ends_the_job(daemon_and_cluster: DaemonAndCluster) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    sleeps = "try: time.sleep(60)\nexcept KeyboardInterrupt: exit(4)"
    python = f"import time\nprint('up', flush=True)\n{sleeps}"
    job = int(box.submit("-w", "a", "--", "python3", "-c", python))
    box.says(job, "up")
    box.stoker("kill", "-s", "INT", str(job))
    assert box.end_of(job)["result"] == 4


# -- what is sent -----------------------------------------------------------------------

ODD = "a'b\"c$HOME`date`\\n!x *? \t;é\x01\x7f\n\n  end "


def test_variables_and_arguments_arrive_unchanged(daemon_and_cluster: DaemonAndCluster) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    env = {"ODD": ODD, "RUN": "7", "count": "1", "key": "2", "HIDDEN": "x"}
    names = "ODD,RUN,count,key"
    show = 'printf "%s|" "$ODD" "$RUN" "$count" "$key" "${HIDDEN-none}" "$@"'
    script = box.script("s.sh", f"#!/bin/sh\n{show}\n")
    job = box.submit("-w", "a", "--export", names, script, ODD, "", "x" * 100_000, env=env)
    assert box.end_of(job)["result"] == 0
    expected = "|".join((env["ODD"], "7", "1", "2", "none", ODD, "", "x" * 100_000, ""))
    assert bytes_of(box, int(job)) == os.fsencode(expected)
    words = box.submit("-w", "a", "--export", names, "--", "printf", "%s|", ODD, "a=b", env=env)
    assert box.end_of(words)["result"] == 0
    assert bytes_of(box, int(words)) == os.fsencode(f"{ODD}|a=b|")


def test_an_array_job_has_its_index_and_umask(daemon_and_cluster: DaemonAndCluster) -> None:
    box, cluster = daemon_and_cluster
    add(box, cluster.a)
    before = os.umask(0o027)
    try:
        done = box.submit("-w", "a", "--array", "0-3", "--wrap", "umask; exit $STOKER_ARRAY_INDEX")
    finally:
        os.umask(before)
    box.client.wait([done], timeout=30)
    jobs = box.jobs(done)
    assert [job["result"] for job in jobs] == [0, 1, 2, 3]
    assert {Path(job["log"]).read_text() for job in jobs} == {"0027\n"}


def test_after_a_full_disk_the_next_attempt_uses_another_node(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    small = cluster.machine("small", small_disk="3m")
    add(box, small, cluster.a)
    small.sh("head -c 9000000 /dev/zero >full")
    # No cores: all nodes are on this host, so that other processes count as load on each.
    jobs = [submit_to(box, "small,a", "hostname") for _ in range(2)]
    assert [box.end_of(job)["result"] for job in jobs] == [0, 0]
    assert [box.output(job) for job in jobs] == ["a\n", "a\n"]
    (view,) = [view for view in box.client.nodes()["nodes"] if view["name"] == "small"]
    assert view["notes"][0].startswith("accepts no new jobs: ")
