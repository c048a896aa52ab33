"""What goes wrong between machines, and that every job still ends once, with its own end."""

import os
import random
import signal
import socket
import threading
from pathlib import Path

from e2e.daemon_fixture import DaemonFixture, alive, until
from ssh.moves import HOLD, ONCE, add, all_of, bytes_of, let_go, node, on, ran, reopen, shut, stands
from ssh.ssh_cluster import SshCluster

Field = tuple[DaemonFixture, SshCluster]


# -- the connection ---------------------------------------------------------------------


def test_a_cable_that_is_pulled_loses_nothing_and_slows_nobody(field: Field) -> None:
    box, cluster = field
    a, b = cluster.a, cluster.b
    add(box, a, b)
    runs = on(box, a, f"{ONCE}; echo one; {HOLD}; echo two; exit 5")
    ends = on(box, a, f"{ONCE}; until [ -e $HOME/end ]; do sleep 0.05; done; echo end; exit 6")
    box.becomes(runs, "RUNNING")
    box.becomes(ends, "RUNNING")
    a.cut()
    (a.home / "end").touch()
    ordered = on(box, a, f"{ONCE}; echo late; exit 7")
    elsewhere = [on(box, b, "echo here") for _ in range(3)]
    assert [box.end_of(job, 5)["result"] for job in elsewhere] == [0, 0, 0]
    stands(box, a, "unreachable")
    assert box.job(runs)["state"] == box.job(ends)["state"] == "RUNNING"
    assert box.end_of(on(box, b, "true"), 5)["result"] == 0
    a.restore()
    let_go(a)
    assert [box.end_of(job)["result"] for job in (runs, ends, ordered)] == [5, 6, 7]
    assert [bytes_of(box, job) for job in (runs, ends, ordered)] == [
        b"one\ntwo\n", b"end\n", b"late\n",
    ]  # fmt: skip
    assert sorted(ran(a)) == sorted([runs, ends, ordered])


def test_a_connection_that_breaks_while_files_are_on_their_way(field: Field) -> None:
    box, cluster = field
    (box.user / "data").write_bytes(os.urandom(40 << 20))
    add(box, cluster.a)
    trees = cluster.a.home / ".stoker/trees"
    job = on(box, cluster.a, f"{ONCE}; wc -c <data; cp data copy; exit 3", "--bring", "copy")
    for _ in range(2):
        until(lambda: list(trees.glob("*.part")) or box.job(job)["pid"])
        cluster.a.kill_connections()
        stands(box, cluster.a, "up")
    until(lambda: ran(cluster.a))
    until(lambda: list((cluster.a.home / ".stoker/run").glob("*/*.list")) or box.job(job)["result"])
    cluster.a.kill_connections()
    assert box.end_of(job)["result"] == 3
    assert bytes_of(box, job).strip() == str(40 << 20).encode()
    assert (box.user / "copy").read_bytes() == (box.user / "data").read_bytes()
    assert ran(cluster.a) == [job]


def test_whatever_is_killed_of_ssh_the_job_ends_once(field: Field) -> None:
    box, cluster = field
    add(box, cluster.a)
    job = on(box, cluster.a, f"{ONCE}; echo one; {HOLD}; echo two; exit 5")
    box.says(job, "one")
    cluster.a.stop_sshd()
    cluster.a.start_sshd()
    assert box.job(job)["state"] == "RUNNING"
    cluster.a.kill_agent()
    cluster.a.kill_connections()
    until(cluster.a.agents)
    stands(box, cluster.a, "up")
    let_go(cluster.a)
    assert box.end_of(job)["result"] == 5
    assert bytes_of(box, job) == b"one\ntwo\n"
    assert ran(cluster.a) == [job]


def test_the_computer_sleeps_and_wakes(field: Field) -> None:
    box, cluster = field
    add(box, cluster.a)
    job = on(box, cluster.a, f"{ONCE}; echo one; {HOLD}; echo two; exit 5")
    box.says(job, "one")
    sleepers = [box.pid, *ssh_of(box)]
    assert len(sleepers) > 1
    for pid in sleepers:
        os.kill(pid, signal.SIGSTOP)
    cluster.a.kill_connections()
    let_go(cluster.a)
    until(lambda: "exited" in end_there(cluster))
    for pid in sleepers:
        os.kill(pid, signal.SIGCONT)
    assert box.end_of(job)["result"] == 5
    assert bytes_of(box, job) == b"one\ntwo\n"
    assert ran(cluster.a) == [job]


def ssh_of(box: DaemonFixture) -> list[int]:
    children = Path(f"/proc/{box.pid}/task/{box.pid}/children").read_text().split()
    return [int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text() == "ssh\n"]


def end_there(cluster: SshCluster) -> str:
    return "".join(path.read_text() for path in (cluster.a.home / ".stoker/run").glob("*/*.exit"))


def test_a_daemon_that_is_replaced_finds_its_jobs_again(field: Field) -> None:
    box, cluster = field
    add(box, cluster.a, cluster.b)
    line = f"{ONCE}; echo one; {HOLD}; echo two; head -c 3000000 /dev/zero >$(hostname); exit 5"
    jobs = [on(box, each, line) for each in (cluster.a, cluster.b)]
    for job in jobs:
        box.becomes(job, "RUNNING")
    box.stoker("daemon", "stop")
    let_go(cluster.a)
    box.up()
    let_go(cluster.b)
    assert [box.end_of(job)["result"] for job in jobs] == [5, 5]
    assert [bytes_of(box, job) for job in jobs] == [b"one\ntwo\n"] * 2
    assert ran(cluster.a) + ran(cluster.b) == jobs
    assert [(box.user / name).stat().st_size for name in "ab"] == [3_000_000] * 2


def test_the_ssh_of_a_killed_daemon_is_in_nobody_s_way(field: Field) -> None:
    box, cluster = field
    add(box, cluster.a)
    before = on(box, cluster.a, f"{HOLD}; exit 5")
    box.becomes(before, "RUNNING")
    (old,) = ssh_of(box)
    box.crash()
    box.up()
    stands(box, cluster.a, "up")
    until(lambda: not alive(old))
    (box.user / "data").write_text("data\n")
    end = box.end_of(on(box, cluster.a, "cat data"))
    assert (end["result"], end["attempt"]) == (0, 0)
    let_go(cluster.a)
    assert box.end_of(before)["result"] == 5


def test_a_daemon_killed_again_and_again_runs_everything_once(field: Field) -> None:
    box, cluster = field
    machines = all_of(cluster)
    add(box, *machines)
    chance = random.Random(4)
    jobs = []
    for round in range(4):
        for machine in machines:
            line = f"{ONCE}; echo $STOKER_JOB_ID; sleep 0.{chance.randrange(5)}; exit {round}"
            jobs.append((on(box, machine, line), machine, round))
        threading.Event().wait(chance.random() / 2)  # no condition: any moment is as good
        box.crash()
    box.up()
    for job, _, round in jobs:
        end = box.end_of(job)
        assert (end["result"], end["attempt"]) == (round, end["attempt"]), end
        assert bytes_of(box, job) == f"{job}\n".encode()
    for machine in machines:
        assert sorted(ran(machine)) == [job for job, where, _ in jobs if where is machine]


# -- the machine ------------------------------------------------------------------------


def test_only_a_reboot_loses_what_runs_and_then_its_rule_applies(field: Field) -> None:
    box, cluster = field
    add(box, cluster.a)
    lost = on(box, cluster.a, f"{ONCE}; {HOLD}", "--no-requeue")
    again = on(box, cluster.a, f"{ONCE}; {HOLD}; exit 4", "--requeue")
    until(lambda: len(ran(cluster.a)) == 2)
    cluster.a.fake_reboot()
    assert box.end_of(lost)["state"] == "NODE_FAIL"
    let_go(cluster.a)
    assert box.end_of(again)["result"] == 4
    assert sorted(ran(cluster.a)) == sorted([lost, again, again])


def test_a_full_disk_makes_jobs_wait_and_loses_no_end(field: Field) -> None:
    box, cluster = field
    small = cluster.machine("small", small_disk="3m")
    add(box, small)
    fill = "echo before; dd if=/dev/zero of=$HOME/fat bs=4k 2>/dev/null; echo after; exit 9"
    job = on(box, small, fill, "--no-send", "--no-bring")
    assert box.end_of(job)["result"] == 9
    assert bytes_of(box, job) == b"before\nafter\n"
    (box.user / "data").write_bytes(os.urandom(200_000))
    second = on(box, small, "echo run; exit 8")
    until(lambda: box.job(second)["begin_at"])
    (small.home / "fat").unlink()
    assert box.end_of(second)["result"] == 8
    assert bytes_of(box, second) == b"run\n"


def test_what_cannot_be_listed_on_a_full_disk_stays_there(field: Field) -> None:
    box, cluster = field
    small = cluster.machine("small", small_disk="3m")
    add(box, small)
    job = on(box, small, "echo kept >made; dd if=/dev/zero of=fat bs=4k 2>/dev/null; exit 9")
    end = box.end_of(job)
    assert end["result"] == 9
    if not (box.user / "made").exists():
        assert ".stoker/kept/" in end["termination_note"]
        kept = list((small.home / ".stoker/kept").glob("*/made"))
        assert kept[0].read_text() == "kept\n"


# -- machines that do not let us in -----------------------------------------------------


def test_a_refused_key_and_a_changed_host_key_are_told_and_concern_nobody_else(
    field: Field,
) -> None:
    box, cluster = field
    add(box, cluster.a, cluster.b, cluster.c)
    cluster.a.refuse()
    cluster.a.kill_connections()
    cluster.b.new_host_key()
    cluster.b.kill_connections()
    why = stands(box, cluster.a, "unreachable")["why"]
    until(lambda: "rejected the key" in node(box, "a")["why"])
    until(lambda: "host key" in node(box, "b")["why"])
    assert "ssh-keygen -R" in node(box, "b")["why"], why
    assert box.end_of(on(box, cluster.c, "true"))["result"] == 0
    cluster.a.admit()
    assert box.end_of(on(box, cluster.a, "exit 3"))["result"] == 3


def test_a_machine_that_never_answers_slows_nobody(field: Field) -> None:
    box, cluster = field
    add(box, cluster.b)
    cluster.a.cut()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        box.client.add_node("a", cluster.a.url, key=str(cluster.a.key))
        box.client.add_node("mute", f"ssh://me@127.0.0.1:{port}")
        assert box.end_of(on(box, cluster.b, "exit 3"), 5)["result"] == 3
        assert node(box, "a")["state"] in ("connecting", "unreachable")
    cluster.a.restore()
    stands(box, cluster.a, "up")


# -- strange homes ----------------------------------------------------------------------


def test_noise_and_nosiness_of_login_scripts(field: Field) -> None:
    box, cluster = field
    noise = "printf welcome; printf oops >&2; read -r x; cd /; cd() { echo no; }"
    (cluster.a.home / ".bashrc").write_text(f"{noise}; export count=99 RUN=/x\n")
    add(box, cluster.a)
    line, apart = "pwd; echo $count; echo err >&2; exit 4", ("-o", "o", "-e", "e")
    job = on(box, cluster.a, line, *apart, "--no-send", "--no-bring")
    assert box.end_of(job)["result"] == 4
    where, count = (box.user / "o").read_text().split()
    assert (where.split("/")[4:6], count) == (["work", where.split("/")[5]], "99")
    assert (box.user / "e").read_text() == "err\n"


def test_a_bashrc_that_ends_the_shell_is_told_and_the_job_not_said_to_have_run(
    field: Field,
) -> None:
    box, cluster = field
    (cluster.a.home / ".bashrc").write_text("case $- in *i*) exec true ;; esac\n")
    add(box, cluster.a)
    end = box.end_of(on(box, cluster.a, "echo never"))
    assert end["state"] == "FAILED"
    assert ".bashrc ended the shell" in end["cause"]


def test_a_machine_with_next_to_nothing(field: Field) -> None:
    box, cluster = field
    bare = cluster.machine("bare", bare=True)
    add(box, bare)
    (box.user / "data").write_text("data\n")
    job = on(box, bare, "cat data; echo made >made; exit 3")
    assert box.end_of(job)["result"] == 3
    assert bytes_of(box, job) == b"data\n"
    assert (box.user / "made").read_text() == "made\n"


def test_a_machine_without_tar_as_well_says_so(field: Field) -> None:
    box, cluster = field
    bare = cluster.machine("barest", bare=True, hide=("tar",))
    add(box, bare)
    (box.user / "data").write_text("data\n")
    end = box.end_of(on(box, bare, "cat data"))
    assert end["state"] == "FAILED"
    assert "neither rsync nor tar" in end["cause"]
    assert box.end_of(on(box, bare, "exit 3", "--no-send", "--no-bring"))["result"] == 3


# -- unreachable is not dead ------------------------------------------------------------


def test_what_is_decided_while_a_machine_is_silent_happens_when_it_returns(field: Field) -> None:
    box, cluster = field
    trap = f"trap 'echo asked; exit 0' TERM; {ONCE}; echo up; while :; do sleep 0.05; done"
    add(box, cluster.a)
    cancelled, limited = on(box, cluster.a, trap), on(box, cluster.a, trap, "-t", "00:00:03")
    until(lambda: len(ran(cluster.a)) == 2)
    shut(cluster.a)
    stands(box, cluster.a, "unreachable")
    box.stoker("cancel", str(cancelled))
    until(lambda: box.job(limited)["elapsed"] > 3)
    assert box.job(cancelled)["state"] == "COMPLETING"
    waits = on(box, cluster.a, "exit 3")
    assert box.job(waits)["state"] == "PENDING"
    reopen(box, cluster.a)
    assert box.end_of(cancelled)["state"] == "CANCELLED"
    assert box.end_of(limited)["state"] == "TIMEOUT"
    assert [bytes_of(box, job) for job in (cancelled, limited)] == [b"up\nasked\n"] * 2
    assert box.end_of(waits)["result"] == 3


def test_restarted_elsewhere_and_the_old_copy_killed_on_return(field: Field) -> None:
    box, cluster = field
    add(box, cluster.a, cluster.b)
    job = on(box, "a,b", f"{ONCE}; {HOLD}; exit 3", "--if-unreachable", "restart:1s")
    box.becomes(job, "RUNNING")
    until(lambda: ran(cluster.a) or ran(cluster.b))
    first, second = (cluster.a, cluster.b) if ran(cluster.a) else (cluster.b, cluster.a)
    shut(first)
    until(lambda: ran(second))
    assert len(first.pids("STOKER_TOKEN=")) > 0
    reopen(box, first)
    stands(box, first, "up")
    assert first.pids("STOKER_TOKEN=") == []
    let_go(second)
    assert box.end_of(job)["result"] == 3
    assert (ran(first), ran(second)) == ([job], [job])


# -- processes --------------------------------------------------------------------------


def test_what_a_job_leaves_behind_ends_with_it(field: Field) -> None:
    box, cluster = field
    gpu = cluster.machine("gpu", gpus=1)
    add(box, gpu)
    line = "nohup setsid sleep 301 >/dev/null 2>&1 & nohup sleep 302 >/dev/null 2>&1 & exit 3"
    assert box.end_of(on(box, gpu, line, "--gpus", "1"))["result"] == 3
    assert gpu.pids("sleep 30") == []


def test_a_job_that_ignores_term_is_killed_after_its_grace(field: Field) -> None:
    box, cluster = field
    (box.home / "config.toml").write_text('grace = "1s"\n')
    add(box, cluster.a)
    job = on(box, cluster.a, "trap '' TERM; env -i sleep 303 & echo up; wait; sleep 304")
    box.says(job, "up")
    box.stoker("cancel", str(job))
    assert box.end_of(job)["state"] == "CANCELLED"
    assert cluster.a.pids("sleep 30") == []


def test_interrupted_as_from_a_keyboard(field: Field) -> None:
    box, cluster = field
    add(box, cluster.a)
    sleeps = "try: time.sleep(60)\nexcept KeyboardInterrupt: exit(4)"
    python = f"import time\nprint('up', flush=True)\n{sleeps}"
    job = int(box.submit("-w", "a", "--", "python3", "-c", python))
    box.says(job, "up")
    box.stoker("kill", "-s", "INT", str(job))
    assert box.end_of(job)["result"] == 4


# -- what travels -----------------------------------------------------------------------

ODD = "a'b\"c$HOME`date`\\n!x *? \t;é\x01\x7f\n\n  end "


def test_variables_and_words_arrive_as_they_are(field: Field) -> None:
    box, cluster = field
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


def test_an_array_and_its_umask(field: Field) -> None:
    box, cluster = field
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


def test_a_full_disk_sends_the_next_try_elsewhere(field: tuple[DaemonFixture, SshCluster]) -> None:
    box, cluster = field
    small = cluster.machine("small", small_disk="3m")
    add(box, small, cluster.a)
    small.sh("head -c 9000000 /dev/zero >full")
    # No cores: all nodes are on this host, so that what else runs here counts as load on each.
    jobs = [on(box, "small,a", "hostname") for _ in range(2)]
    assert [box.end_of(job)["result"] for job in jobs] == [0, 0]
    assert [box.output(job) for job in jobs] == ["a\n", "a\n"]
    (view,) = [view for view in box.client.nodes()["nodes"] if view["name"] == "small"]
    assert view["notes"][0].startswith("accepts no new jobs: ")
