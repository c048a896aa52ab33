"""A real Slurm on loopback: a controller and some nodes of two GPUs each, ended by pid."""

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from e2e.daemon_fixture import until

COMMANDS = ("sbatch", "squeue", "scancel", "srun", "scontrol", "sinfo")
TOOLS = ("/usr/sbin/slurmctld", "/usr/sbin/slurmd", *COMMANDS)
ALIVE = "PENDING,RUNNING,CONFIGURING"
"""Not COMPLETING: Slurm tries for seconds to reach the srun of a job that has ended."""

CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
MpiDefault=none
DefMemPerCPU=100
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
GresTypes=gpu
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool.%n
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/slurmd.%n.pid
SlurmctldLogFile={base}/slurmctld.log
SlurmdLogFile={base}/slurmd.%n.log
SlurmdParameters=config_overrides
TaskProlog={base}/task-prolog
SlurmctldTimeout=10
SlurmdTimeout=30
KillWait=1
MinJobAge=300
JobAcctGatherType=jobacct_gather/none
"""
PARTITIONS = """\
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=5 PreemptMode=OFF
PartitionName=low Nodes=ALL MaxTime=60 State=UP PriorityTier=1 PreemptMode=CANCEL GraceTime=0
PartitionName=grace Nodes=ALL MaxTime=60 State=UP PriorityTier=1 PreemptMode=CANCEL GraceTime=60
PartitionName=high Nodes=ALL MaxTime=60 State=UP PriorityTier=9 PreemptMode=OFF
"""
NODE = "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=8 \
RealMemory=8000 Gres=gpu:a100:2 State=UNKNOWN\n"
# Character devices: with regular files Slurm sets no CUDA_VISIBLE_DEVICES.
GPUS = "NodeName={names} Name=gpu Type=a100 File=/dev/null,/dev/zero\n"
# The home directory of the nodes is that of the test.
TASK_PROLOG = '#!/bin/sh\necho "export HOME=$(cat {base}/home)"\n'


class DaemonGroup:
    """Daemons in the foreground, ended by pid in reverse order."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self._path = os.environ["PATH"]
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start_daemon(
        self, name: str, *command: str, environment: Mapping[str, str] | None = None
    ) -> int:
        """Start a daemon; return its pid."""
        # Without variables of the test that runs: at its end, processes with these are killed.
        variables = {"PATH": self._path, **(environment or {})}
        with open(self.base / f"{name}.out", "ab") as output:
            self._daemons[name] = subprocess.Popen(
                command, env=variables, stdout=output, stderr=output,
                stdin=subprocess.DEVNULL, start_new_session=True, cwd="/",
            )  # fmt: skip
        return self._daemons[name].pid

    def pid(self, name: str) -> int:
        """Return the pid of a daemon."""
        return self._daemons[name].pid

    def end_daemon(self, name: str, number: int = signal.SIGTERM) -> None:
        """End a daemon."""
        daemon = self._daemons.pop(name)
        daemon.send_signal(number)
        try:
            daemon.wait(5)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait(5)

    def close(self) -> None:
        """End everything."""
        for name in reversed(list(self._daemons)):
            self.end_daemon(name)


class Service(Protocol):
    """What a cluster needs besides its own daemons."""

    settings: dict[str, str]
    """For slurm.conf."""

    def start(self, environment: dict[str, str]) -> None:
        """Start it; change the environment of the cluster's commands if that is needed."""

    def close(self) -> None:
        """End it, after the cluster's daemons."""


class SlurmCluster(DaemonGroup):
    """The daemons of a Slurm cluster; commands use the configuration in `environment`."""

    def __init__(
        self,
        base: Path,
        nodes: Sequence[str] = ("n1", "n2"),
        settings: Mapping[str, str] | None = None,
        services: Sequence[Service] = (),
    ) -> None:
        """`settings` replace those of `CONFIGURATION`."""
        super().__init__(base)
        self.environment = {"SLURM_CONF": str(base / "slurm.conf")}
        self.nodes = list(nodes)
        self._services: list[Service] = []
        every = dict(settings or {})
        for service in services:
            every |= service.settings
        self._write_configuration(every)
        try:
            for service in services:
                self._services.append(service)
                service.start(self.environment)
            self.start_controller()
            for name in self.nodes:
                (base / f"spool.{name}").mkdir()
                self.start_node(name)
            until(lambda: self._idle_nodes() == len(nodes))
        except BaseException:
            self.close()
            raise

    def _write_configuration(self, settings: Mapping[str, str]) -> None:
        (self.base / "state").mkdir()
        port, *node_ports = free_ports(1 + len(self.nodes))
        text = CONFIGURATION.format(port=port, user=user_name(), base=self.base)
        lines = dict(line.split("=", 1) for line in text.split("\n") if line)
        text = "".join(f"{name}={value}\n" for name, value in {**lines, **settings}.items())
        text += PARTITIONS
        for name, node_port in zip(self.nodes, node_ports, strict=True):
            text += NODE.format(name=name, port=node_port)
        (self.base / "slurm.conf").write_text(text)
        (self.base / "gres.conf").write_text(GPUS.format(names=",".join(self.nodes)))
        prolog = self.base / "task-prolog"
        prolog.write_text(TASK_PROLOG.format(base=self.base))
        prolog.chmod(0o755)
        self.set_home(self.base)

    def set_home(self, home: Path) -> None:
        """Set the home directory of jobs that start from now on."""
        (self.base / "home").write_text(str(home))

    # -- daemons ------------------------------------------------------------------------

    def _start(self, name: str, *command: str) -> None:
        path = self.environment.get("PATH", self._path)
        # By `env`: it looks for the program on the PATH that it gets.
        variables = {**self.environment, "PATH": f"{path}:/usr/sbin"}
        self.start_daemon(name, "env", *command, "-D", environment=variables)

    def start_controller(self) -> None:
        """Start slurmctld, with the state that it saved last."""
        self._start("slurmctld", "slurmctld")
        until(lambda: self._idle_nodes() is not None)

    def start_node(self, name: str) -> None:
        """Start the slurmd of a node."""
        self._start(name, "slurmd", "-N", name)

    def kill_controller(self) -> None:
        """Kill slurmctld: what it has not saved is lost."""
        self.end_daemon("slurmctld", signal.SIGKILL)

    def _idle_nodes(self) -> int | None:
        done = self._try("sinfo", "-h", "-p", "gpu", "-t", "idle", "-o", "%D")
        return int(done.stdout.strip() or 0) if done.returncode == 0 else None

    def close(self) -> None:
        """End everything."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.cancel_all()
        super().close()
        for service in reversed(self._services):
            service.close()

    # -- commands -----------------------------------------------------------------------

    def run(self, *words: str) -> str:
        """Run one of Slurm's commands; return its output."""
        done = self._try(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _try(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            words, env={**os.environ, **self.environment}, capture_output=True, text=True,
            check=False, timeout=30, stdin=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip

    def jobs(self, states: str = ALIVE, format: str = "%A %T") -> list[list[str]]:
        """Return id and state of the jobs in these states."""
        text = self.run("squeue", "-h", "-t", states, "-o", format)
        return [line.split() for line in text.splitlines()]

    def only_job(self, states: str = ALIVE) -> str:
        """Wait until exactly one job is in these states; return its id."""
        until(lambda: len(self.jobs(states)) == 1)
        return self.jobs(states)[0][0]

    def submit_to_all(self, *options: str) -> str:
        """Submit a job for all nodes; return its id."""
        words = ("--exclusive", "--time=50", *options, "--wrap", "sleep 1000")
        return self.run("sbatch", "--parsable", f"-N{len(self.nodes)}", *words).strip()

    def occupy(self, *options: str) -> str:
        """Start a job on all nodes; return its id."""
        id = self.submit_to_all(*options)
        until(lambda: [id, "RUNNING"] in self.jobs())
        return id

    def cancel_all(self) -> None:
        """End all jobs, and wait for that."""
        ids = [id for id, _ in self.jobs()]
        if not ids:
            return
        # A batch script that ends by itself is faster than Slurm, which waits after its signal.
        self._try("scancel", "--quiet", "--batch", "--signal=USR1", *ids)
        self._try("scancel", "--quiet", "--state=PENDING", *ids)
        deadline = time.monotonic() + 3
        while self.jobs() and time.monotonic() < deadline:
            time.sleep(0.1)
        self._try("scancel", "--quiet", *ids)
        until(lambda: not self.jobs())


def user_name() -> str:
    """Return the name of the user who runs the tests."""
    return pwd.getpwuid(os.getuid()).pw_name


def free_ports(count: int) -> list[int]:
    """Return ports on loopback that nothing uses."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
