"""Jobs of several users through gate, system daemon and user executors."""

import pytest

from multiuser.conftest import Machine
from multiuser.system_daemon import Rejected, SystemDaemon


def test_a_job_runs_as_its_submitter_with_its_directory_and_environment(
    machine: Machine, system: SystemDaemon
) -> None:
    ana = system.client(machine.ana)
    view = ana.run("id -u; id -g; pwd; umask; echo $HOME; cat /proc/self/status | grep CapEff")
    assert view["state"] == "COMPLETED", (view, system.log(), system.gate.log())
    lines = ana.log(view["id"]).splitlines()
    user = machine.ana
    assert lines[:5] == [str(user.uid), str(user.gid), str(user.home), "0022", str(user.home)]
    assert lines[5].split() == ["CapEff:", "0000000000000000"]


def test_the_log_of_a_job_is_its_users_and_is_read_by_its_users_process(
    machine: Machine, system: SystemDaemon
) -> None:
    ana, ben = system.client(machine.ana), system.client(machine.ben)
    job = ana.run("for i in 1 2 3; do echo line $i; done")["id"]
    assert ana.log(job) == "line 1\nline 2\nline 3\n"
    assert ana.log(job, "?tail=1") == "line 3\n"
    with pytest.raises(Rejected, match="belongs to") as rejected:
        ben.log(job)
    assert rejected.value.status == 403
    assert system.client(None).log(job, "?tail=2") == "line 2\nline 3\n"
    log = system.gate.users_dir / str(machine.ana.uid) / "logs" / f"{job}.out"
    assert log.stat().st_uid == machine.ana.uid
    assert machine.ben.run("cat", log).returncode != 0
