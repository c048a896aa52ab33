"""The test cluster does what the ssh suites rely on: checked with plain ssh, without stoker."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, alive, until
from e2e.other_users import another_user
from ssh.ssh_cluster import SshCluster
from ssh.ssh_host import SshHost

QUICK = ("-oServerAliveInterval=1", "-oServerAliveCountMax=2")
BRIEF = ("-oConnectTimeout=1",)


class Session:
    """A command that runs over ssh for as long as its input is open."""

    def __init__(self, cluster: SshCluster, machine: SshHost, command: str, *options: str) -> None:
        self.process = subprocess.Popen(
            ["ssh", *options, "-T", "-oBatchMode=yes", "-oStrictHostKeyChecking=accept-new",
             "-i", str(machine.key), machine.url, f"exec sh -c '{command}'"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **cluster.environment},
        )  # fmt: skip

    def read_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def write_line(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        _, stderr = self.process.communicate(timeout=30)
        return self.process.returncode, stderr


@pytest.fixture
def session(cluster: SshCluster) -> Iterator[Session]:
    """A shell on host a that has printed hello and waits."""
    session = Session(cluster, cluster.a, "echo hello; read line; echo $line; read line")
    assert session.read_line() == "hello\n"
    yield session
    session.process.kill()
    session.process.communicate()


# ------------------------------------------------------------------------ three machines


def test_three_hosts_have_their_own_names_users_and_boot_ids(cluster: SshCluster) -> None:
    machines = [cluster.a, cluster.b, cluster.c]
    script = 'hostname; id -un; echo "$HOME"; cat /proc/sys/kernel/random/boot_id; echo $SHELL'
    results = [cluster.ssh(result, script) for result in machines]
    assert [result.stderr for result in results] == ["", "", ""]
    facts = [result.stdout.split() for result in results]
    assert [result[:3] for result in facts] == [
        [name, f"user-{name}", f"/home/user-{name}"] for name in "abc"
    ]
    boots = {result[3] for result in facts}
    assert len(boots) == 3
    assert Path("/proc/sys/kernel/random/boot_id").read_text().strip() not in boots


def test_a_host_has_nothing_of_this_computer(cluster: SshCluster, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    tmp_path.chmod(0o755)
    assert cluster.ssh(cluster.a, f"cat {tmp_path}/mine").returncode == 1
    assert cluster.ssh(cluster.a, "ls -A; ls -A /tmp; ls /home").stdout == "user-a\n"
    assert "Permission denied" in cluster.ssh(cluster.a, "ls /root").stderr
    assert cluster.ssh(cluster.a, "ls -ld .").stdout.startswith("drwx------")


@pytest.mark.needs("useradd")
def test_users_added_outside_do_not_matter(cluster: SshCluster) -> None:
    assert cluster.ssh(cluster.a, "id -un").stdout == "user-a\n"
    with another_user():
        assert cluster.ssh(cluster.a, "id -un").stdout == "user-a\n"
    assert cluster.ssh(cluster.a, "id -un").stdout == "user-a\n"


def test_files_are_visible_outside_and_inside(cluster: SshCluster) -> None:
    assert cluster.ssh(cluster.a, "echo there >file").returncode == 0
    assert (cluster.a.home / "file").read_text() == "there\n"
    assert (
        cluster.a.sh("cat file; pwd; id -un").stdout == f"there\n{cluster.a.home_inside}\nuser-a\n"
    )
    assert cluster.a.sh("id -u", as_root=True).stdout == "0\n"
    assert not (cluster.b.home / "file").exists()


def test_hosts_reach_each_other(cluster: SshCluster) -> None:
    address = cluster.b.address
    connect = f"import socket; print(socket.create_connection(('{address}', 2222), 5).recv(4))"
    command = [*cluster.a.inside.enter("-n"), sys.executable, "-c", connect]
    assert subprocess.check_output(command, text=True, timeout=30) == "b'SSH-'\n"


def test_the_ssh_configuration_of_the_user_names_hosts(cluster: SshCluster) -> None:
    words = [
        "ssh",
        "-oBatchMode=yes",
        "-oStrictHostKeyChecking=accept-new",
        cluster.a.alias,
        "id -un",
    ]
    env = {**os.environ, **cluster.environment}
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30, env=env)
    assert done.stdout == "user-a\n", done.stderr
    assert cluster.calls.read_text().count("\n") == 1
    assert cluster.a.address in cluster.known_hosts.read_text()


def test_a_connection_without_the_key_is_rejected(cluster: SshCluster) -> None:
    words = ["ssh", "-oBatchMode=yes", "-oStrictHostKeyChecking=accept-new", cluster.a.url, "true"]
    env = {**os.environ, **cluster.environment}
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30, env=env)
    assert done.returncode == 255
    assert "Permission denied" in done.stderr


# ------------------------------------------------------------------------ failures


def test_a_cut_link_drops_packets_until_it_is_restored(cluster: SshCluster) -> None:
    session = Session(cluster, cluster.a, "echo hello; read line", *QUICK)
    assert session.read_line() == "hello\n"
    cluster.a.cut()
    code, why = session.end()
    assert (code, "not responding" in why) == (255, True), why
    assert "timed out" in cluster.ssh(cluster.a, "true", *BRIEF).stderr
    assert cluster.ssh(cluster.b, "echo fine").stdout == "fine\n"
    cluster.a.restore()
    assert cluster.ssh(cluster.a, "echo back").stdout == "back\n"


def test_a_connection_survives_a_short_cut(cluster: SshCluster, session: Session) -> None:
    cluster.a.cut()
    session.write_line("during the cut")
    cluster.a.restore()
    assert session.read_line() == "during the cut\n"


def test_a_rejected_key_stays_rejected_until_it_is_accepted(cluster: SshCluster) -> None:
    cluster.a.refuse()
    assert "Permission denied" in cluster.ssh(cluster.a, "true").stderr
    assert cluster.ssh(cluster.b, "true").returncode == 0
    cluster.a.admit()
    assert cluster.ssh(cluster.a, "true").returncode == 0


@pytest.mark.parametrize("kill", [True, False])
def test_without_sshd_new_connections_fail_and_open_ones_stay(
    cluster: SshCluster, session: Session, kill: bool
) -> None:
    cluster.a.stop_sshd(kill=kill)
    assert "Connection refused" in cluster.ssh(cluster.a, "true").stderr
    session.write_line("still there")
    assert session.read_line() == "still there\n"
    cluster.a.start_sshd()
    assert cluster.ssh(cluster.a, "true").returncode == 0


def test_connections_can_be_killed_while_detached_processes_continue(
    cluster: SshCluster, session: Session
) -> None:
    cluster.ssh(cluster.a, "setsid sleep 4242 >/dev/null 2>&1 </dev/null &")
    job = until(lambda: cluster.a.pids("sleep 4242"))
    assert cluster.a.kill_connections() >= 2, "a privileged sshd and one of the user"
    assert session.end()[0] == 255
    assert cluster.a.pids("sleep 4242") == job
    assert cluster.ssh(cluster.a, "true").returncode == 0


def test_the_shell_behind_a_connection_can_be_killed_alone(
    cluster: SshCluster, session: Session
) -> None:
    cluster.ssh(cluster.a, "setsid sleep 4242 >/dev/null 2>&1 </dev/null &")
    job = until(lambda: cluster.a.pids("sleep 4242"))
    assert cluster.a.kill_agent() == 1
    assert session.end()[0] == 255
    assert cluster.a.pids("sleep 4242") == job
    assert cluster.a.kill_agent() == 0


def test_a_new_host_key_is_noticed(cluster: SshCluster) -> None:
    assert cluster.ssh(cluster.a, "true").returncode == 0
    cluster.a.new_host_key()
    done = cluster.ssh(cluster.a, "true")
    assert (done.returncode, "verification failed" in done.stderr) == (255, True), done.stderr
    cluster.forget()
    assert cluster.ssh(cluster.a, "true").returncode == 0


def test_a_reboot_ends_all_processes_and_changes_the_boot_id(
    cluster: SshCluster, session: Session
) -> None:
    read = "cat /proc/sys/kernel/random/boot_id"
    before = cluster.ssh(cluster.a, read).stdout
    cluster.ssh(cluster.a, "touch kept; setsid sleep 4242 >/dev/null 2>&1 </dev/null &")
    job = until(lambda: cluster.a.pids("sleep 4242"))[0]
    cluster.a.fake_reboot()
    assert not alive(job)
    assert session.end()[0] == 255
    after = cluster.ssh(cluster.a, read).stdout
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\n", after)
    assert after != before
    assert (cluster.a.home / "kept").exists()
    assert cluster.a.sh(read).stdout == after, "the same without ssh"


def test_an_orphan_is_reaped(cluster: SshCluster) -> None:
    inner_pid = int(cluster.ssh(cluster.a, "(sleep 4242 >/dev/null 2>&1 & echo $!)").stdout)
    outer_pid = cluster.a.outer_pid(inner_pid)
    os.kill(outer_pid, signal.SIGKILL)
    until(lambda: cluster.a.sh(f"[ -e /proc/{inner_pid} ]").returncode == 1)
    assert not Path(f"/proc/{outer_pid}").exists()


def test_processes_are_found_by_their_environment(cluster: SshCluster) -> None:
    cluster.ssh(cluster.a, "TOKEN=some-token sleep 4242 >/dev/null 2>&1 &")
    pids = until(lambda: cluster.a.pids("TOKEN=some-token"))
    assert pids == cluster.a.pids("sleep 4242")
    assert cluster.b.pids("sleep 4242") == []


# ------------------------------------------------------------------------ kinds of machine


def test_a_bare_host_has_sh_and_little_else(cluster: SshCluster) -> None:
    bare = cluster.machine(bare=True)
    for tool in ("bash", "rsync", "nvidia-smi", "python3"):
        assert cluster.ssh(bare, f"command -v {tool}").returncode == 127, tool
        assert cluster.ssh(bare, f"{tool} --version").returncode in {126, 127}
    assert cluster.ssh(bare, "command -v sh tar >/dev/null && echo $SHELL").stdout == "/bin/sh\n"
    assert cluster.ssh(cluster.a, "command -v rsync bash").returncode == 0
    assert cluster.ssh(cluster.a, "command -v nvidia-smi").returncode != 0, "even where GPUs are"


def test_any_program_can_be_hidden(cluster: SshCluster) -> None:
    some = cluster.machine(hide=("rsync", "setsid"))
    assert cluster.ssh(some, "for t in rsync setsid tar; do command -v $t; done").stdout == (
        "/usr/bin/tar\n"
    )


def test_a_kind_of_host_is_created_once(cluster: SshCluster) -> None:
    assert cluster.machine(bare=True) is cluster.machine(bare=True)
    assert cluster.machine(bare=True) is not cluster.a
    assert cluster.a is cluster.machine("a")


def smi(cluster: SshCluster, machine: SshHost, words: str) -> str:
    return cluster.ssh(machine, f"nvidia-smi {words}").stdout


def test_the_stand_in_of_nvidia_smi_answers_all_queries(cluster: SshCluster) -> None:
    two = cluster.machine(gpus=2)
    plain = "--format=csv,noheader,nounits"
    assert smi(cluster, two, f"--query-gpu=index,memory.total,name {plain}") == (
        "0, 16384, Tesla T4\n1, 16384, Tesla T4\n"
    )
    assert smi(cluster, two, f"--query-compute-apps=gpu_uuid,pid,used_memory {plain}") == ""
    busy = {"memory.used": 500, "power.draw": "[N/A]", "utilization.gpu": 97}
    uuids = two.gpus([{}, busy], apps=[{"gpu": 1, "pid": 77, "used_memory": "[N/A]"}])
    columns = "uuid,memory.used,memory.free,utilization.gpu,temperature.gpu,power.draw"
    assert smi(cluster, two, f"--query-gpu={columns} {plain}") == (
        f"{uuids[0]}, 0, 16384, 0, 40, 30.00\n{uuids[1]}, 500, 15884, 97, 40, [N/A]\n"
    )
    apps = smi(cluster, two, f"--query-compute-apps=gpu_uuid,pid,used_memory,process_name {plain}")
    assert apps == f"{uuids[1]}, 77, [N/A], python\n"
    assert smi(cluster, two, "--query-gpu=index,memory.used --format=csv -i 1") == (
        "index, memory.used [MiB]\n1, 500 MiB\n"
    )
    assert smi(cluster, two, "-L").startswith(f"GPU 0: Tesla T4 (UUID: {uuids[0]})\n")
    wrong = cluster.ssh(two, f"nvidia-smi --query-gpu=index,colour {plain}")
    assert (wrong.returncode, wrong.stdout.split("\n")[0]) == (
        2, 'Field "colour" is not a valid field to query.',
    )  # fmt: skip


def test_any_host_can_get_gpus_and_a_broken_driver(cluster: SshCluster) -> None:
    cluster.a.gpus([{}])
    assert smi(cluster, cluster.a, "--query-gpu=index --format=csv,noheader") == "0\n"
    cluster.a.tool("nvidia-smi", "#!/bin/sh\necho 'no devices were found'\nexit 6\n")
    assert cluster.ssh(cluster.a, "nvidia-smi").returncode == 6


def test_a_small_disk_fills_up(cluster: SshCluster) -> None:
    small = cluster.machine(small_disk="1m")
    assert cluster.ssh(small, "echo fits >file").returncode == 0
    assert "No space left" in cluster.ssh(small, "head -c 2000000 /dev/zero >big").stderr
    assert (small.home / "file").read_text() == "fits\n"
    assert small.home.stat().st_mode & 0o777 == 0o700
    (small.home / "big").unlink()
    assert cluster.ssh(small, "head -c 200000 /dev/zero >big").returncode == 0


# ------------------------------------------------------------------------ order


def test_many_concurrent_connections_are_all_accepted(cluster: SshCluster) -> None:
    cluster.ssh(cluster.a, "true")  # its host key is now known
    words = ["ssh", "-T", "-oBatchMode=yes", "-i", str(cluster.a.key), cluster.a.url, "true"]
    env = {**os.environ, **cluster.environment}
    crowd = [subprocess.Popen(words, stdin=subprocess.DEVNULL, env=env) for _ in range(15)]
    assert [client.wait(60) for client in crowd] == [0] * 15


def test_a_wiped_host_is_as_new(cluster: SshCluster) -> None:
    cluster.ssh(cluster.a, "mkdir -p x/y; touch x/y/z /tmp/t; chmod 0 x; ln -s /nowhere l")
    cluster.ssh(cluster.a, "setsid sleep 4242 >/dev/null 2>&1 </dev/null &")
    cluster.a.gpus([{}])
    cluster.a.refuse()
    cluster.a.cut()
    cluster.a.stop_sshd()
    cluster.wipe()
    done = cluster.ssh(cluster.a, "ls -A . /tmp; command -v nvidia-smi")
    assert done.stdout == ".:\n\n/tmp:\n", done.stderr
    assert cluster.a.pids("sleep") == []


KILLED = """
import os, pathlib, sys, tempfile, time
from ssh.ssh_cluster import SshCluster
cluster = SshCluster(pathlib.Path(tempfile.mkdtemp(dir=sys.argv[1])))
cluster.ssh(cluster.a, "setsid sleep 4243 >/dev/null 2>&1 </dev/null &")
while not (pids := cluster.a.pids("sleep 4243")):
    time.sleep(0.05)
print(cluster.a.inside.pid, cluster._device, *pids, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_killed_cluster_leaves_no_process_running(cluster: SshCluster, tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": tests}
    words = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == -9, done.stderr
    first, device, job = done.stdout.split()
    until(lambda: not alive(int(first)) and not alive(int(job)))
    until(lambda: not Path(f"/sys/class/net/{device}").exists())


def test_a_daemon_home_reaches_the_cluster(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    box.start()
    label = box.submit("--", "ssh", "-oBatchMode=yes", "-oStrictHostKeyChecking=accept-new",
                       cluster.b.alias, "hostname")  # fmt: skip
    assert box.end_of(label)["state"] == "COMPLETED", box.output(label)
    assert box.output(label).endswith("b\n")
