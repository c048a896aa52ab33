"""squeue, sinfo, sacct and scontrol print what Slurm 22.05.8 prints for the same jobs and nodes."""

import getpass
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client.fake_daemon import FakeDaemon, in_home, view
from compat.slurm_facts import (
    SACCT_WIDTHS,
    SINFO_CODES,
    SINFO_NAMES,
    SQUEUE_CODES,
    SQUEUE_NAMES,
)
from stoker.cli import output
from stoker.compat.slurm import sinfo
from stoker.compat.slurm.__main__ import main
from stoker.compat.slurm.columns import squeue_columns
from stoker.compat.slurm.columns.formats import fold_hosts, fold_numbers
from stoker.compat.slurm.columns.job_fields import format_memory, full_duration

USER = getpass.getuser()
REQUEST = {"gpus": None, "model": None, "cpus": "1", "memory": 100, "exclusive": False}
COMMON = {"user": USER, "queue": "gpu", "directory": "/data", "request": REQUEST}
SUBMITTED = "2026-11-18T01:48:59.100Z"
RUNNING = view(
    17, **{**COMMON, "request": {**REQUEST, "gpus": "1", "model": "a100", "memory": 200}},
    state="RUNNING", name="run", comment="hi", nodes=["n2"], submitted_at=SUBMITTED,
    started_at="2026-11-18T01:49:00.000Z", elapsed=2.2, time_limit=600, restartable=True,
    command="/data/s.sh", log="/data/slurm-17.out",
)  # fmt: skip
MEMBER = view(
    23, **COMMON, label="18_0", array={"id": 18, "index": 0}, state="RUNNING", name="arr",
    nodes=["n1"], started_at="2026-11-18T01:49:00.000Z", elapsed=2.2, time_limit=93840,
    submitted_at=SUBMITTED,
)  # fmt: skip
PENDING = view(
    25, **COMMON, label="18_2", array={"id": 18, "index": 2}, state="PENDING", name="arr",
    reason="JobArrayTaskLimit", time_limit=93840, submitted_at=SUBMITTED,
    members={"label": "18_[2-5%2]", "count": 4},
)  # fmt: skip
DEPENDENT = view(
    22, **{**COMMON, "request": {**REQUEST, "nodelist": ["n2"], "not_nodes": ["n3"]}},
    state="PENDING", name="s.sh", reason="Dependency", depends="afterok:17",
    begin_at="2026-11-18T02:49:00.000Z", submitted_at=SUBMITTED,
)  # fmt: skip
HELD = view(21, **COMMON, state="PENDING", name="held", reason="JobHeldUser")
NOW = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
DONE = view(19, **COMMON, nodes=["n1"], state="COMPLETED", name="done", exit_code=0,
            elapsed=0.1, started_at=NOW, ended_at=NOW, submitted_at=NOW)  # fmt: skip
BAD = view(20, **COMMON, nodes=["n1"], state="FAILED", name="bad", exit_code=3,
           elapsed=0.1, started_at=NOW, ended_at=NOW, submitted_at=NOW)  # fmt: skip


def node(name: str, cores: int = 0, state: str = "up") -> dict[str, Any]:
    """Return a node of which some cores are used."""
    amounts = {"cpu": (8, cores), "mem": (8000, 100 * cores), "gpu": (2, 0)}
    resources = {
        kind: {"total": str(total), "free": str(total - used)}
        for kind, (total, used) in amounts.items()
    }
    return {"name": name, "state": state, "why": None, "resources": resources, "jobs": cores}


@pytest.fixture
def slurm(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    """A daemon with the jobs and nodes of the Slurm cluster whose output is compared."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    daemon = in_home(home)
    current = [RUNNING, MEMBER, PENDING, DEPENDENT, HELD]
    daemon.answers = {
        "GET /v1/jobs": (200, {"jobs": current, "more": 0, "counts": {}}),
        "GET /v1/history": (200, {"jobs": [DONE, BAD], "more": 0}),
        "GET /v1/queues": (200, {"queues": [{"name": "default"}, {"name": "low"}]}),
        "GET /v1/nodes": (
            200, {"nodes": [node("n1", 4), node("n2", 1), node("n3"), node("n4")]}
        ),
    }  # fmt: skip
    yield daemon
    daemon.close()
    output.wants_json = False
    monkeypatch.undo()
    time.tzset()


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> list[str]:
    """Run a command; return its lines."""
    assert main(list(words)) == code
    return capsys.readouterr().out.split("\n")[:-1]


def test_every_code_and_name_has_slurms_title() -> None:
    assert {code: column.title for code, column in squeue_columns.CODES.items()} == SQUEUE_CODES
    assert {name: column.title for name, column in squeue_columns.NAMES.items()} == SQUEUE_NAMES | {
        "comment": "COMMENT", "name": "NAME", "state": "STATE",
    }  # fmt: skip
    assert {code: column.title for code, column in sinfo.CODES.items()} == SINFO_CODES
    assert {name: column.title for name, column in sinfo.NAMES.items()} == SINFO_NAMES


def test_the_queue(slurm: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    user = USER[:8].rjust(8)
    assert run(capsys, "squeue", "-t", "all") == [
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)",
        f"                19       gpu     done {user} CD       0:00      1 n1",
        f"                20       gpu      bad {user}  F       0:00      1 (NonZeroExitCode)",
        f"        18_[2-5%2]       gpu      arr {user} PD       0:00      1 (JobArrayTaskLimit)",
        f"                22       gpu     s.sh {user} PD       0:00      1 (Dependency)",
        f"                21       gpu     held {user} PD       0:00      1 (JobHeldUser)",
        f"                17       gpu      run {user}  R       0:02      1 n2",
        f"              18_0       gpu      arr {user}  R       0:02      1 n1",
    ]
    assert len(run(capsys, "squeue")) == 6
    _, title, first, *_ = run(capsys, "squeue", "--long")
    assert title.startswith(
        "             JOBID PARTITION     NAME     USER    STATE       TIME TIME_LIMI"
    )
    assert "PENDING       0:00 1-02:04:00      1 (JobArrayTaskLimit)" in first
    title, first, *_ = run(capsys, "squeue", "--start", "-S", "i", "-j", "22")
    assert title == (
        "             JOBID PARTITION     NAME     USER ST          START_TIME  NODES"
        " SCHEDNODES           NODELIST(REASON)"
    )
    assert first.endswith("PD 2026-11-18T02:49:00      1 (null)               (Dependency)")


VALUES = """
17 a=(null) A=17 b=gres:gpu:a100:1 B=n2 c=1 C=1 d=0 D=1 e=2026-11-18T01:59:00 E=(null) F=17 h=OK
17 H=* i=17 I=* j=run J=* k=hi K=N/A l=10:00 L=9:57 m=200M M=0:02 n= N=n2 o=/data/s.sh O=0 P=gpu
17 q=(null) r=None R=n2 s= S=2026-11-18T01:49:00 t=R T=RUNNING v=(null) V=2026-11-18T01:48:59
17 w=(null) W=(null) x= X=N/A y=0 Y=(null) z=*:*:* Z=/data
18_[2-5%2] A=18 B=n/a b=N/A e=N/A F=18 i=18_[2-5%2] K=2-5%2 l=1-02:04:00 L=1-02:04:00 m=100M N=
18_[2-5%2] R=(JobArrayTaskLimit) r=JobArrayTaskLimit S=N/A t=PD M=0:00 k=(null)
18_0 A=23 F=18 i=18_0 K=0 e=2026-11-19T03:53:00 L=1-02:03:57
22 E=afterok:17(unfulfilled) n=n2 x=n3 S=2026-11-18T02:49:00 l=UNLIMITED L=UNLIMITED e=N/A
20 R=(NonZeroExitCode) r=NonZeroExitCode t=F T=FAILED N=n1 B=n1
19 R=n1 r=None t=CD T=COMPLETED
"""


@pytest.mark.parametrize("line", VALUES.strip().split("\n"))
def test_values(line: str, slurm: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    id, *words = line.split(" ")
    for word in words:
        code, _, value = word.partition("=")
        rows = run(capsys, "squeue", "-h", "-t", "all", "-o", f"%i %{code}|")
        assert f"{id} {value}|" in rows, word


def test_widths(slurm: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    def squeue(format: str) -> list[str]:
        return run(capsys, "squeue", "-j", "17", "-o", format)

    assert squeue("%3j|%.3j|%8j|%.8j|") == [
        "NAM|NAM|NAME    |    NAME|",
        "run|run|run     |     run|",
    ]
    # Times, and the titles of nodes, are not cut off when they are aligned right.
    assert squeue("%3l|%.3l|") == ["TIM|TIM|", "10:|10:00|"]
    assert squeue("%3N|%.3N|%.3R|") == ["NOD|NODELIST|NODELIST(REASON)|", "n2 | n2| n2|"]
    assert squeue("%.3Y|") == ["SCHEDNODES|", "(null)|"]
    names = "jobid,jobarrayid:12,name:.9,state:|,numnodes"
    assert run(capsys, "squeue", "-j", "17", "-O", names) == [
        "JOBID               JOBID            NAMESTATE|NODES               ",
        "17                  17                runRUNNING|1                   ",
    ]


def test_wrong_formats_are_reported_and_printed(
    slurm: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["squeue", "-j", "17", "-o", "%!"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "%!\n%!\n"
    assert captured.err == "squeue: error: Invalid job format specification: !\n"
    assert main(["sinfo", "-o", "%i|"]) == 0
    assert capsys.readouterr().err == "Invalid node format specification: i\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["squeue", "-j", "99999"], "slurm_load_jobs error: Invalid job id specified\n"),
        (["squeue", "-t", "x"], "squeue: error: Invalid job state specified: x\n"),
        (["squeue", "x"], "squeue: error: Unrecognized option: x\n"),
        (["sacct", "-o", "x"], 'sacct: error: Invalid field requested: "x"\n'),
        (["scancel"], "scancel: error: No job identification provided\n"),
        (["scancel", "foo"], "scancel: error: Invalid job id foo\n"),
        (["scancel", "-s", "FOO", "1"], "Unknown job signal: FOO\n"),
        (["scancel", "-t", "FOO"], "Invalid job state specified: FOO\n"),
        (["scontrol", "x"], "invalid keyword: x\n"),
        (["scontrol", "show", "x"], "invalid entity:x for keyword:show \n"),
        (["scontrol", "show", "node", "x"], "Node x not found\n"),
        (["scontrol", "show", "partition", "x"], "Partition x not found\n"),
        (["scontrol", "update", "JobId=1", "Foo=1"],
         "Update of this parameter is not supported: Foo=1\nRequest aborted\n"),
        (["scontrol", "update", "x=1"], "No valid entity in update command\n"),
        (["sbatch", "no-such.sh"], "sbatch: error: Unable to open file no-such.sh\n"),
        (["sbatch", "--wrap", "true", "x"],
         "sbatch: error: Script arguments not permitted with --wrap option\n"),
        (["srun"], "srun: error: No command given to execute.\n"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_wrong_input(
    words: list[str], text: str, slurm: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    assert capsys.readouterr().err.startswith(text)


def test_nodes_and_partitions(slurm: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "sinfo") == [
        "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST",
        "default*     up   infinite      2    mix n[1-2]",
        "default*     up   infinite      2   idle n[3-4]",
        "low          up   infinite      2    mix n[1-2]",
        "low          up   infinite      2   idle n[3-4]",
    ]
    assert run(capsys, "sinfo", "-N")[:4] == [
        "NODELIST   NODES PARTITION STATE ",
        "n1             1  default* mix   ",
        "n1             1       low mix   ",
        "n2             1  default* mix   ",
    ]
    assert run(capsys, "sinfo", "-s")[1] == "default*     up   infinite          2/2/0/4 n[1-4]"
    assert run(capsys, "sinfo", "-h", "-o", "%P") == ["default*", "low"]
    assert run(capsys, "sinfo", "-h", "-o", "%a|%D|%C|%c|%G|%F|%z|%m") == [
        "up|4|5/27/0/32|8|gpu:2|2/2/0/4|8:1:1|8000"
    ]
    assert run(capsys, "sinfo", "-h", "-p", "low", "-t", "idle", "-o", "%N %T") == ["n[3-4] idle"]


def test_a_job_in_full(slurm: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    slurm.answers["GET /v1/jobs"] = (200, {"jobs": [RUNNING], "more": 0, "counts": {}})
    lines = run(capsys, "scontrol", "show", "job", "17")
    expected = f"""\
JobId=17 JobName=run
   UserId={USER}({os.getuid()}) GroupId=
   Priority=0 Nice=0 Account=(null) QOS=(null)
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:02 TimeLimit=00:10:00 TimeMin=N/A
   SubmitTime=2026-11-18T01:48:59 EligibleTime=2026-11-18T01:48:59
   AccrueTime=2026-11-18T01:48:59
   StartTime=2026-11-18T01:49:00 EndTime=2026-11-18T01:59:00 Deadline=N/A
   SuspendTime=None SecsPreSuspend=0 LastSchedEval=
   Partition=gpu AllocNode:Sid=
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n2
   BatchHost=n2
   NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   TRES=cpu=1,mem=200M,node=1,billing=1
   Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*
   MinCPUsNode=1 MinMemoryNode=200M MinTmpDiskNode=0
   Features=(null) DelayBoot=00:00:00
   OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)
   Command=/data/s.sh
   WorkDir=/data
   Comment=hi\x20
   StdErr=/data/slurm-17.out
   StdIn=/dev/null
   StdOut=/data/slurm-17.out
   Power=
   TresPerNode=gres:gpu:a100:1
   """.split("\n")
    for line, start in zip(lines, expected, strict=False):
        assert line.startswith(start)
    assert lines[len(expected) :] == [""]
    (line,) = run(capsys, "scontrol", "-o", "show", "job", "17")
    assert line.startswith("JobId=17 JobName=run UserId=")


def test_a_node_and_a_partition_in_full(
    slurm: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = run(capsys, "scontrol", "show", "node", "n1")
    for line in (
        "   CPUAlloc=4 CPUEfctv=8 CPUTot=8 CPULoad=N/A",
        "   Gres=gpu:2",
        "   State=MIXED ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A",
        "   AllocTRES=cpu=4,mem=400M",
    ):
        assert line in lines
    lines = run(capsys, "scontrol", "show", "partition", "default")
    for line in (
        "PartitionName=default",
        "   AllocNodes=ALL Default=YES QoS=N/A",
        "   MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED",
        "   Nodes=n[1-4]",
        "   State=UP TotalCPUs=32 TotalNodes=4 SelectTypeParameters=NONE",
        "   TRES=cpu=32,mem=32000M,node=4,billing=32",
    ):
        assert line in lines


def test_the_accounting(slurm: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    fields = ",".join(SACCT_WIDTHS)
    title, dashes, *_ = run(capsys, "sacct", "-X", "-o", fields)
    at = 0
    for name, width in SACCT_WIDTHS.items():
        size = abs(int(width))
        text = name[:size]
        shown = title[at : at + size + 1]
        assert shown == f"{text.ljust(size) if int(width) < 0 else text.rjust(size)} ", name
        assert dashes[at : at + size + 1] == f"{'-' * size} "
        at += size + 1
    assert len(title) == at
    assert run(capsys, "sacct", "-X", "-P", "-o", "JobID,JobIDRaw,State,ExitCode,NodeList") == [
        "JobID|JobIDRaw|State|ExitCode|NodeList",
        "17|17|RUNNING|0:0|n2",
        "18_0|23|RUNNING|0:0|n1",
        "18_[2-5%2]|18|PENDING|0:0|None assigned",
        "19|19|COMPLETED|0:0|n1",
        "20|20|FAILED|3:0|n1",
        "21|21|PENDING|0:0|None assigned",
        "22|22|PENDING|0:0|None assigned",
    ]
    lines = run(capsys, "sacct", "-n", "--name", "bad", "-o", "JobID,JobName%12,State%-8")
    assert lines == [
        "20                    bad FAILED   ",
        "20.batch            batch FAILED   ",
        "20.extern          extern FAILED   ",
    ]
    assert run(capsys, "sacct", "-n", "-p", "-s", "CD", "-o", "jobid,timelimit") == [
        "19|UNLIMITED|", "19.batch||", "19.extern||",
    ]  # fmt: skip


def test_jobs_as_json(slurm: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    assert main(["squeue", "--json", "-t", "all"]) == 0
    reply = json.loads(capsys.readouterr().out)
    assert reply["meta"]["Slurm"]["version"] == {"major": 22, "micro": 8, "minor": 5}
    jobs = {job["job_id"]: job for job in reply["jobs"]}
    assert (jobs[17]["job_state"], jobs[17]["time_limit"], jobs[17]["nodes"]) == (
        "RUNNING",
        10,
        "n2",
    )
    assert (jobs[23]["array_job_id"], jobs[23]["array_task_id"]) == (18, 0)
    assert (jobs[18]["array_task_id"], jobs[18]["array_task_string"]) == (None, "2-5%2")
    assert jobs[20]["exit_code"] == 3 << 8
    assert jobs[17]["submit_time"] == 1794966539


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["n1"], "n1"), (["n1", "n2", "n3"], "n[1-3]"), (["n1", "n3"], "n[1,3]"), (["vm"], "vm"),
        (["a1", "b2", "a2"], "a[1-2],b2"), (["n09", "n10"], "n09,n10"), ([], ""),
    ],
)  # fmt: skip
def test_names_of_nodes_are_folded(names: list[str], folded: str) -> None:
    assert fold_hosts(names) == folded


def test_numbers() -> None:
    assert fold_numbers([1, 2, 3, 7, 9, 10]) == "1-3,7,9-10"
    assert [format_memory(size) for size in (200, 1024, 1536, 4096, 1 << 20)] == [
        "200M", "1G", "1536M", "4G", "1T",
    ]  # fmt: skip
    assert [full_duration(seconds) for seconds in (None, 0, 3661, 93840)] == [
        "UNLIMITED", "00:00:00", "01:01:01", "1-02:04:00",
    ]  # fmt: skip
