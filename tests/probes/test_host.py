import os
import pwd
import subprocess

import pytest

from stoker.probes import host


@pytest.fixture
def child():
    env = {**os.environ, "STOKER_TOKEN": "abc"}
    with subprocess.Popen(
        ["/bin/cat", "a (strange) name", "-"],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        # It answers: so it has its name and arguments, which come a moment after the start.
        process.stdin.write(b"here\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"here\n"
        yield process
        process.kill()


def test_the_machine_has_a_boot_a_name_cores_and_memory():
    assert len(host.boot_id()) == 36
    assert host.hostname()
    assert "." not in host.hostname()
    assert host.memory_mib() > 0


def test_cores_are_those_we_may_run_on():
    allowed = os.sched_getaffinity(0)
    assert host.cores() == len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert host.cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_a_process_is_known_by_owner_and_command(child):
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert host.process_info(child.pid) == (user, "/bin/cat a (strange) name -")


def test_a_process_that_does_not_exist_has_no_owner():
    assert host.process_info(2**30) is None


def test_a_zombie_has_only_its_name(child):
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert host.process_info(child.pid)[1] == "[cat]"


def test_a_user_without_a_name_is_a_number():
    assert host.user_name(4_000_000_000) == "4000000000"
