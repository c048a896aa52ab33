"""The records of `scontrol show`, with the lines of Slurm 22.05."""

from __future__ import annotations

import os
import time

from stoker.client.errors import StokerError
from stoker.compat.slurm.columns.formats import fold_hosts
from stoker.compat.slurm.columns.job_fields import (
    CLUSTER,
    ENDED_SECONDS,
    MAX_JOBS,
    NULL,
    VERSION,
    SlurmError,
    SlurmJobView,
    format_memory,
    format_time,
    full_duration,
    group_name,
    local_time,
)
from stoker.compat.slurm.sinfo import (
    DEFAULT_PARTITION,
    LONG_STATES,
    amounts,
    node_state,
    partitions,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.client.client import Client
    from stoker.wire import JsonObject

Record = list[str]


def jobs(client: Client, ids: list[str]) -> list[Record]:
    """Return the named jobs, or all current ones."""
    if not ids:
        listed = client.jobs(limit=MAX_JOBS, arrays="1")["jobs"]
        return [_job(SlurmJobView(view)) for view in listed]
    views = []
    for id in ids:
        try:
            views += client.jobs([id], limit=MAX_JOBS)["jobs"]
        except StokerError:
            raise SlurmError("slurm_load_jobs error: Invalid job id specified") from None
    return [_job(SlurmJobView(view)) for view in views]


def _job(view: SlurmJobView) -> Record:
    job, user, group = view.job, view.text("user"), group_name(view.group_id)
    request = view.request
    array = ""
    if view.array_id is not None:
        array = f" ArrayJobId={view.array_id} ArrayTaskId={view.index}"
    submitted = format_time(view.submitted, "Unknown")
    eligible = "Unknown" if view.reason in ("JobHeldUser", "JobArrayTaskLimit") else submitted
    script_host = [f"BatchHost={view.batch_host}"] if view.batch_host else []
    comment = [f"Comment={job['comment']} "] if job.get("comment") else []
    gpus = [f"TresPerNode={view.gpus}"] if view.gpus else []
    exclusive = "NO" if request.get("exclusive") else "OK"
    wanted, excluded = (",".join(request.get(key) or ()) for key in ("nodelist", "not_nodes"))
    return [
        f"JobId={view.raw_id}{array} JobName={view.text('name')}",
        f"UserId={user}({view.user_id}) GroupId={group}({view.group_id}) MCS_label=N/A",
        f"Priority={view.priority} Nice=0 Account={view.text('account')} QOS={NULL}",
        f"JobState={view.state} Reason={view.reason} Dependency={view.dependency}",
        (
            f"Requeue={view.requeue} Restarts={view.restarts} BatchFlag=1 Reboot=0"
            f" ExitCode={view.exit_code}"
        ),
        (
            f"RunTime={full_duration(view.elapsed)} TimeLimit={full_duration(view.time_limit)}"
            " TimeMin=N/A"
        ),
        f"SubmitTime={submitted} EligibleTime={eligible}",
        f"AccrueTime={eligible}",
        (
            f"StartTime={format_time(view.start, 'Unknown')}"
            f" EndTime={format_time(view.end, 'Unknown')}"
            f" Deadline={local_time(job.get('deadline_at'), 'N/A')}"
        ),
        f"SuspendTime=None SecsPreSuspend=0 LastSchedEval={submitted} Scheduler=Main",
        f"Partition={view.text('queue')} AllocNode:Sid={os.uname().nodename}:0",
        f"ReqNodeList={wanted or NULL} ExcNodeList={excluded or NULL}",
        f"NodeList={view.nodes}",
        *script_host,
        (
            f"NumNodes={view.node_count} NumCPUs={view.cores} NumTasks={view.node_count}"
            f" CPUs/Task={view.node_cores} ReqB:S:C:T=0:0:*:*"
        ),
        f"TRES={view.tres}",
        "Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*",
        f"MinCPUsNode={view.node_cores} MinMemoryNode={view.memory} MinTmpDiskNode=0",
        f"Features={NULL} DelayBoot=00:00:00",
        f"OverSubscribe={exclusive} Contiguous=0 Licenses={NULL} Network={NULL}",
        f"Command={view.text('command')}",
        f"WorkDir={view.text('directory')}",
        *comment,
        f"StdErr={view.error}",
        "StdIn=/dev/null",
        f"StdOut={view.output}",
        "Power=",
        *gpus,
        "",
    ]


def nodes(client: Client, names: list[str]) -> list[Record]:
    """Return the named nodes, or all."""
    known = {str(node["name"]): node for node in client.nodes()["nodes"]}
    for name in names:
        if name not in known:
            raise SlurmError(f"Node {name} not found")
    queues = ",".join(partitions(client))
    return [_node(known[name], queues) for name in names or known]


def _node(node: JsonObject, queues: str) -> Record:
    free_cores, cores = amounts(node, "cpu")
    free_memory, memory = amounts(node, "mem")
    free_gpus, gpus = amounts(node, "gpu")
    state = LONG_STATES[node_state(node)].upper()
    used = [f"cpu={cores - free_cores:g}"] if cores > free_cores else []
    used += [f"mem={format_memory(int(memory - free_memory))}"] if memory > free_memory else []
    used += [f"gres/gpu={gpus - free_gpus:g}"] if gpus > free_gpus else []
    since = local_time(node.get("since"), "None")
    system = os.uname()
    return [
        f"NodeName={node['name']} Arch={system.machine} CoresPerSocket=1 ",
        f"CPUAlloc={cores - free_cores:g} CPUEfctv={cores:g} CPUTot={cores:g} CPULoad=N/A",
        f"AvailableFeatures={NULL}",
        f"ActiveFeatures={NULL}",
        f"Gres={f'gpu:{gpus:g}' if gpus else NULL}",
        (
            f"NodeAddr={node.get('address') or '127.0.0.1'} NodeHostName={node['name']}"
            f" Version={VERSION}"
        ),
        f"OS={system.sysname} ",
        (
            f"RealMemory={memory:g} AllocMem={memory - free_memory:g} FreeMem={free_memory:g}"
            f" Sockets={cores:g} Boards=1"
        ),
        f"State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A",
        f"Partitions={queues} ",
        f"BootTime={since} SlurmdStartTime={since}",
        "LastBusyTime=Unknown",
        f"CfgTRES=cpu={cores:g},mem={format_memory(int(memory))},billing={cores:g}"
        + (f",gres/gpu={gpus:g}" if gpus else ""),
        f"AllocTRES={','.join(used)}",
        "CapWatts=n/a",
        "CurrentWatts=0 AveWatts=0",
        "ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s",
        *([f"Reason={node['why']}"] if node.get("why") else ()),
    ]


def partitions_of(client: Client, names: list[str]) -> list[Record]:
    """Return the named partitions, or all."""
    known = partitions(client)
    for name in names:
        if name not in known:
            raise SlurmError(f"Partition {name} not found")
    listed = client.nodes()["nodes"]
    hosts = fold_hosts([str(node["name"]) for node in listed])
    cores = sum(amounts(node, "cpu")[1] for node in listed)
    memory = int(sum(amounts(node, "mem")[1] for node in listed))
    return [
        [
            f"PartitionName={name}",
            "AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL",
            f"AllocNodes=ALL Default={'YES' if name == DEFAULT_PARTITION else 'NO'} QoS=N/A",
            "DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO",
            "MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED",
            f"Nodes={hosts}",
            "PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO",
            "OverTimeLimit=NONE PreemptMode=REQUEUE",
            f"State=UP TotalCPUs={cores:g} TotalNodes={len(listed)} SelectTypeParameters=NONE",
            f"JobDefaults={NULL}",
            "DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED",
            f"TRES=cpu={cores:g},mem={format_memory(memory)},node={len(listed)},billing={cores:g}",
        ]
        for name in names or known
    ]


def config(client: Client) -> list[str]:
    """Return the settings that tools read."""
    daemon = client.daemon()
    host = os.uname().nodename
    settings = {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "ClusterName": CLUSTER,
        "DefMemPerNode": "UNLIMITED",
        "GresTypes": "gpu",
        "JobFileAppend": "0",
        "JobRequeue": "1",
        "KillWait": "30 sec",
        "MaxArraySize": "1000001",
        "MaxJobCount": str(MAX_JOBS),
        "MinJobAge": f"{int(ENDED_SECONDS)} sec",
        "PreemptMode": "REQUEUE",
        "SelectType": "select/cons_tres",
        "SlurmctldHost[0]": host,
        "SLURM_VERSION": VERSION,
    }
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    since = local_time(daemon.get("since"), now)
    lines = [f"{name:<23} = {value}" for name, value in sorted(settings.items())]
    return [
        f"Configuration data as of {now}",
        f"{'BOOT_TIME':<23} = {since}",
        *lines,
        "",
        f"Slurmctld(primary) at {host} is UP",
    ]
