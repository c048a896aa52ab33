"""A real Slurm on loopback: a controller and two nodes of two GPUs each, ended by pid."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from e2e.daemon_fixture import until

SLURMCTLD, SLURMD = "/usr/sbin/slurmctld", "/usr/sbin/slurmd"
TOOLS = (SLURMCTLD, SLURMD, "sbatch", "squeue", "scancel", "srun", "scontrol", "sinfo")
NODES = ("n1", "n2")
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
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=5 PreemptMode=OFF
PartitionName=low Nodes=ALL MaxTime=60 State=UP PriorityTier=1 PreemptMode=CANCEL GraceTime=0
PartitionName=high Nodes=ALL MaxTime=60 State=UP PriorityTier=9 PreemptMode=OFF
"""
NODE = "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=8 \
RealMemory=8000 Gres=gpu:a100:2 State=UNKNOWN\n"
# Character devices: with regular files Slurm sets no CUDA_VISIBLE_DEVICES.
GPUS = "NodeName=n[1-2] Name=gpu Type=a100 File=/dev/null,/dev/zero\n"
# The home directory of the nodes is that of the test.
TASK_PROLOG = '#!/bin/sh\necho "export HOME=$(cat {base}/home)"\n'


class SlurmCluster:
    """The daemons of a Slurm cluster; commands use the configuration in `environment`."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.environment = {"SLURM_CONF": str(base / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._write_configuration()
        self.start_controller()
        for name in NODES:
            (base / f"spool.{name}").mkdir()
            self._start(name, SLURMD, "-N", name)
        until(lambda: self._idle_nodes() == len(NODES))

    def _write_configuration(self) -> None:
        (self.base / "state").mkdir()
        port, *node_ports = free_ports(1 + len(NODES))
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True)
        text = CONFIGURATION.format(port=port, user=user.stdout.strip(), base=self.base)
        for name, node_port in zip(NODES, node_ports, strict=True):
            text += NODE.format(name=name, port=node_port)
        (self.base / "slurm.conf").write_text(text)
        (self.base / "gres.conf").write_text(GPUS)
        prolog = self.base / "task-prolog"
        prolog.write_text(TASK_PROLOG.format(base=self.base))
        prolog.chmod(0o755)
        self.set_home(self.base)

    def set_home(self, home: Path) -> None:
        """Set the home directory of jobs that start from now on."""
        (self.base / "home").write_text(str(home))

    # -- daemons ------------------------------------------------------------------------

    def _start(self, name: str, *command: str) -> None:
        # Without variables of the test that runs: at its end, processes with these are killed.
        environment = {"PATH": os.environ["PATH"], **self.environment}
        with open(self.base / f"{name}.out", "ab") as output:
            self._daemons[name] = subprocess.Popen(
                [*command, "-D"], env=environment, stdout=output, stderr=output,
                stdin=subprocess.DEVNULL, start_new_session=True, cwd="/",
            )  # fmt: skip

    def start_controller(self) -> None:
        """Start slurmctld, with the state that it saved last."""
        self._start("slurmctld", SLURMCTLD)
        until(lambda: self._idle_nodes() is not None)

    def kill_controller(self) -> None:
        """Kill slurmctld: what it has not saved is lost."""
        self._end("slurmctld", signal.SIGKILL)

    def _end(self, name: str, number: int = signal.SIGTERM) -> None:
        daemon = self._daemons.pop(name)
        daemon.send_signal(number)
        try:
            daemon.wait(5)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait(5)

    def _idle_nodes(self) -> int | None:
        done = self._try("sinfo", "-h", "-p", "gpu", "-t", "idle", "-o", "%D")
        return int(done.stdout.strip() or 0) if done.returncode == 0 else None

    def close(self) -> None:
        """End everything."""
        with contextlib.suppress(AssertionError):
            self.cancel_all()
        for name in list(self._daemons):
            self._end(name)

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

    def occupy(self, *options: str) -> str:
        """Start a job on all nodes; return its id."""
        words = ("-N2", "--exclusive", "--time=50", *options, "--wrap", "sleep 1000")
        id = self.run("sbatch", "--parsable", *words).strip()
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


def free_ports(count: int) -> list[int]:
    """Return ports on loopback that nothing uses."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
