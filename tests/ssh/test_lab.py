"""The lab does what the ssh suites rely on: shown with plain ssh, without stoker."""

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

    def __init__(self, lab: SshCluster, machine: SshHost, command: str, *options: str) -> None:
        self.process = subprocess.Popen(
            ["ssh", *options, "-T", "-oBatchMode=yes", "-oStrictHostKeyChecking=accept-new",
             "-i", str(machine.key), machine.url, f"exec sh -c '{command}'"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **lab.environment},
        )  # fmt: skip

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said


@pytest.fixture
def session(lab: SshCluster) -> Iterator[Session]:
    """A shell on machine a that has said hello and waits."""
    there = Session(lab, lab.a, "echo hello; read line; echo $line; read line")
    assert there.said() == "hello\n"
    yield there
    there.process.kill()
    there.process.communicate()


# ------------------------------------------------------------------------ three machines


def test_three_machines_are_three(lab: SshCluster) -> None:
    machines = [lab.a, lab.b, lab.c]
    script = 'hostname; id -un; echo "$HOME"; cat /proc/sys/kernel/random/boot_id; echo $SHELL'
    said = [lab.ssh(each, script) for each in machines]
    assert [each.stderr for each in said] == ["", "", ""]
    facts = [each.stdout.split() for each in said]
    assert [each[:3] for each in facts] == [
        [name, f"user-{name}", f"/home/user-{name}"] for name in "abc"
    ]
    boots = {each[3] for each in facts}
    assert len(boots) == 3
    assert Path("/proc/sys/kernel/random/boot_id").read_text().strip() not in boots


def test_nothing_of_this_computer_is_there(lab: SshCluster, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    tmp_path.chmod(0o755)
    assert lab.ssh(lab.a, f"cat {tmp_path}/mine").returncode == 1
    assert lab.ssh(lab.a, "ls -A; ls -A /tmp; ls /home").stdout == "user-a\n"
    assert "Permission denied" in lab.ssh(lab.a, "ls /root").stderr
    assert lab.ssh(lab.a, "ls -ld .").stdout.startswith("drwx------")


@pytest.mark.needs("useradd")
def test_users_that_come_and_go_here_are_no_matter(lab: SshCluster) -> None:
    assert lab.ssh(lab.a, "id -un").stdout == "user-a\n"
    with another_user():
        assert lab.ssh(lab.a, "id -un").stdout == "user-a\n"
    assert lab.ssh(lab.a, "id -un").stdout == "user-a\n"


def test_files_are_seen_from_here_and_from_there(lab: SshCluster) -> None:
    assert lab.ssh(lab.a, "echo there >file").returncode == 0
    assert (lab.a.home / "file").read_text() == "there\n"
    assert lab.a.sh("cat file; pwd; id -un").stdout == f"there\n{lab.a.home_there}\nuser-a\n"
    assert lab.a.sh("id -u", as_root=True).stdout == "0\n"
    assert not (lab.b.home / "file").exists()


def test_machines_reach_each_other(lab: SshCluster) -> None:
    address = lab.b.address
    connect = f"import socket; print(socket.create_connection(('{address}', 2222), 5).recv(4))"
    command = [*lab.a.inside.enter("-n"), sys.executable, "-c", connect]
    assert subprocess.check_output(command, text=True, timeout=30) == "b'SSH-'\n"


def test_the_user_s_own_configuration_names_machines(lab: SshCluster) -> None:
    words = ["ssh", "-oBatchMode=yes", "-oStrictHostKeyChecking=accept-new", lab.a.alias, "id -un"]
    env = {**os.environ, **lab.environment}
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30, env=env)
    assert done.stdout == "user-a\n", done.stderr
    assert lab.calls.read_text().count("\n") == 1
    assert lab.a.address in lab.known_hosts.read_text()


def test_without_its_key_nobody_gets_in(lab: SshCluster) -> None:
    words = ["ssh", "-oBatchMode=yes", "-oStrictHostKeyChecking=accept-new", lab.a.url, "true"]
    env = {**os.environ, **lab.environment}
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30, env=env)
    assert done.returncode == 255
    assert "Permission denied" in done.stderr


# ------------------------------------------------------------------------ what goes wrong


def test_a_cut_link_swallows_packets_until_it_is_restored(lab: SshCluster) -> None:
    session = Session(lab, lab.a, "echo hello; read line", *QUICK)
    assert session.said() == "hello\n"
    lab.a.cut()
    code, why = session.end()
    assert (code, "not responding" in why) == (255, True), why
    assert "timed out" in lab.ssh(lab.a, "true", *BRIEF).stderr
    assert lab.ssh(lab.b, "echo fine").stdout == "fine\n"
    lab.a.restore()
    assert lab.ssh(lab.a, "echo back").stdout == "back\n"


def test_a_connection_survives_a_short_cut(lab: SshCluster, session: Session) -> None:
    lab.a.cut()
    session.tell("while away")
    lab.a.restore()
    assert session.said() == "while away\n"


def test_a_refused_key_is_refused_until_it_is_admitted(lab: SshCluster) -> None:
    lab.a.refuse()
    assert "Permission denied" in lab.ssh(lab.a, "true").stderr
    assert lab.ssh(lab.b, "true").returncode == 0
    lab.a.admit()
    assert lab.ssh(lab.a, "true").returncode == 0


@pytest.mark.parametrize("kill", [True, False])
def test_without_sshd_connections_are_refused_and_living_ones_stay(
    lab: SshCluster, session: Session, kill: bool
) -> None:
    lab.a.stop_sshd(kill=kill)
    assert "Connection refused" in lab.ssh(lab.a, "true").stderr
    session.tell("still there")
    assert session.said() == "still there\n"
    lab.a.start_sshd()
    assert lab.ssh(lab.a, "true").returncode == 0


def test_connections_can_be_killed_while_detached_jobs_live_on(
    lab: SshCluster, session: Session
) -> None:
    lab.ssh(lab.a, "setsid sleep 4242 >/dev/null 2>&1 </dev/null &")
    job = until(lambda: lab.a.pids("sleep 4242"))
    assert lab.a.kill_connections() >= 2, "a privileged sshd and one of the user"
    assert session.end()[0] == 255
    assert lab.a.pids("sleep 4242") == job
    assert lab.ssh(lab.a, "true").returncode == 0


def test_the_shell_behind_a_connection_can_be_killed_alone(
    lab: SshCluster, session: Session
) -> None:
    lab.ssh(lab.a, "setsid sleep 4242 >/dev/null 2>&1 </dev/null &")
    job = until(lambda: lab.a.pids("sleep 4242"))
    assert lab.a.kill_agent() == 1
    assert session.end()[0] == 255
    assert lab.a.pids("sleep 4242") == job
    assert lab.a.kill_agent() == 0


def test_a_new_host_key_is_noticed(lab: SshCluster) -> None:
    assert lab.ssh(lab.a, "true").returncode == 0
    lab.a.new_host_key()
    done = lab.ssh(lab.a, "true")
    assert (done.returncode, "verification failed" in done.stderr) == (255, True), done.stderr
    lab.forget()
    assert lab.ssh(lab.a, "true").returncode == 0


def test_a_reboot_ends_everything_and_shows(lab: SshCluster, session: Session) -> None:
    read = "cat /proc/sys/kernel/random/boot_id"
    before = lab.ssh(lab.a, read).stdout
    lab.ssh(lab.a, "touch kept; setsid sleep 4242 >/dev/null 2>&1 </dev/null &")
    job = until(lambda: lab.a.pids("sleep 4242"))[0]
    lab.a.fake_reboot()
    assert not alive(job)
    assert session.end()[0] == 255
    after = lab.ssh(lab.a, read).stdout
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\n", after)
    assert after != before
    assert (lab.a.home / "kept").exists()
    assert lab.a.sh(read).stdout == after, "the same without ssh"


def test_an_orphan_is_buried(lab: SshCluster) -> None:
    there = int(lab.ssh(lab.a, "(sleep 4242 >/dev/null 2>&1 & echo $!)").stdout)
    here = lab.a.here(there)
    os.kill(here, signal.SIGKILL)
    until(lambda: lab.a.sh(f"[ -e /proc/{there} ]").returncode == 1)
    assert not Path(f"/proc/{here}").exists()


def test_processes_are_found_by_their_environment(lab: SshCluster) -> None:
    lab.ssh(lab.a, "TOKEN=some-token sleep 4242 >/dev/null 2>&1 &")
    found = until(lambda: lab.a.pids("TOKEN=some-token"))
    assert found == lab.a.pids("sleep 4242")
    assert lab.b.pids("sleep 4242") == []


# ------------------------------------------------------------------------ kinds of machine


def test_a_bare_machine_has_sh_and_little_else(lab: SshCluster) -> None:
    bare = lab.machine(bare=True)
    for tool in ("bash", "rsync", "nvidia-smi", "python3"):
        assert lab.ssh(bare, f"command -v {tool}").returncode == 127, tool
        assert lab.ssh(bare, f"{tool} --version").returncode in {126, 127}
    assert lab.ssh(bare, "command -v sh tar >/dev/null && echo $SHELL").stdout == "/bin/sh\n"
    assert lab.ssh(lab.a, "command -v rsync bash").returncode == 0
    assert lab.ssh(lab.a, "command -v nvidia-smi").returncode != 0, "even where GPUs are"


def test_any_program_can_be_hidden(lab: SshCluster) -> None:
    some = lab.machine(hide=("rsync", "setsid"))
    assert lab.ssh(some, "for t in rsync setsid tar; do command -v $t; done").stdout == (
        "/usr/bin/tar\n"
    )


def test_a_machine_kind_is_made_once(lab: SshCluster) -> None:
    assert lab.machine(bare=True) is lab.machine(bare=True)
    assert lab.machine(bare=True) is not lab.a
    assert lab.a is lab.machine("a")


def smi(lab: SshCluster, machine: SshHost, words: str) -> str:
    return lab.ssh(machine, f"nvidia-smi {words}").stdout


def test_gpus_answer_for_whatever_is_asked(lab: SshCluster) -> None:
    two = lab.machine(gpus=2)
    plain = "--format=csv,noheader,nounits"
    assert smi(lab, two, f"--query-gpu=index,memory.total,name {plain}") == (
        "0, 16384, Tesla T4\n1, 16384, Tesla T4\n"
    )
    assert smi(lab, two, f"--query-compute-apps=gpu_uuid,pid,used_memory {plain}") == ""
    busy = {"memory.used": 500, "power.draw": "[N/A]", "utilization.gpu": 97}
    uuids = two.gpus([{}, busy], apps=[{"gpu": 1, "pid": 77, "used_memory": "[N/A]"}])
    columns = "uuid,memory.used,memory.free,utilization.gpu,temperature.gpu,power.draw"
    assert smi(lab, two, f"--query-gpu={columns} {plain}") == (
        f"{uuids[0]}, 0, 16384, 0, 40, 30.00\n{uuids[1]}, 500, 15884, 97, 40, [N/A]\n"
    )
    apps = smi(lab, two, f"--query-compute-apps=gpu_uuid,pid,used_memory,process_name {plain}")
    assert apps == f"{uuids[1]}, 77, [N/A], python\n"
    assert smi(lab, two, "--query-gpu=index,memory.used --format=csv -i 1") == (
        "index, memory.used [MiB]\n1, 500 MiB\n"
    )
    assert smi(lab, two, "-L").startswith(f"GPU 0: Tesla T4 (UUID: {uuids[0]})\n")
    wrong = lab.ssh(two, f"nvidia-smi --query-gpu=index,colour {plain}")
    assert (wrong.returncode, wrong.stdout.split("\n")[0]) == (
        2, 'Field "colour" is not a valid field to query.',
    )  # fmt: skip


def test_any_machine_can_get_gpus_and_a_broken_driver(lab: SshCluster) -> None:
    lab.a.gpus([{}])
    assert smi(lab, lab.a, "--query-gpu=index --format=csv,noheader") == "0\n"
    lab.a.tool("nvidia-smi", "#!/bin/sh\necho 'no devices were found'\nexit 6\n")
    assert lab.ssh(lab.a, "nvidia-smi").returncode == 6


def test_a_small_disk_fills_up(lab: SshCluster) -> None:
    small = lab.machine(small_disk="1m")
    assert lab.ssh(small, "echo fits >file").returncode == 0
    assert "No space left" in lab.ssh(small, "head -c 2000000 /dev/zero >big").stderr
    assert (small.home / "file").read_text() == "fits\n"
    assert small.home.stat().st_mode & 0o777 == 0o700
    (small.home / "big").unlink()
    assert lab.ssh(small, "head -c 200000 /dev/zero >big").returncode == 0


# ------------------------------------------------------------------------ order


def test_many_connections_at_once_are_all_taken(lab: SshCluster) -> None:
    lab.ssh(lab.a, "true")  # its host key is known from here on
    words = ["ssh", "-T", "-oBatchMode=yes", "-i", str(lab.a.key), lab.a.url, "true"]
    env = {**os.environ, **lab.environment}
    crowd = [subprocess.Popen(words, stdin=subprocess.DEVNULL, env=env) for _ in range(15)]
    assert [each.wait(60) for each in crowd] == [0] * 15


def test_a_wiped_machine_is_as_new(lab: SshCluster) -> None:
    lab.ssh(lab.a, "mkdir -p x/y; touch x/y/z /tmp/t; chmod 0 x; ln -s /nowhere l")
    lab.ssh(lab.a, "setsid sleep 4242 >/dev/null 2>&1 </dev/null &")
    lab.a.gpus([{}])
    lab.a.refuse()
    lab.a.cut()
    lab.a.stop_sshd()
    lab.wipe()
    done = lab.ssh(lab.a, "ls -A . /tmp; command -v nvidia-smi")
    assert done.stdout == ".:\n\n/tmp:\n", done.stderr
    assert lab.a.pids("sleep") == []


KILLED = """
import os, pathlib, sys, tempfile
from ssh.ssh_cluster import SshCluster
lab = SshCluster(pathlib.Path(tempfile.mkdtemp(dir=sys.argv[1])))
lab.ssh(lab.a, "setsid sleep 4243 >/dev/null 2>&1 </dev/null &")
print(lab.a.inside.pid, lab._device, *lab.a.pids("sleep 4243"), flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_lab_that_is_killed_leaves_nothing_running(lab: SshCluster, tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": tests}
    words = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == -9, done.stderr
    first, device, job = done.stdout.split()
    until(lambda: not alive(int(first)) and not alive(int(job)))
    until(lambda: not Path(f"/sys/class/net/{device}").exists())


def test_a_home_reaches_the_lab(field: tuple[DaemonFixture, SshCluster]) -> None:
    box, lab = field
    box.start()
    label = box.submit("--", "ssh", "-oBatchMode=yes", "-oStrictHostKeyChecking=accept-new",
                       lab.b.alias, "hostname")  # fmt: skip
    assert box.end_of(label)["state"] == "COMPLETED", box.output(label)
    assert box.output(label).endswith("b\n")
