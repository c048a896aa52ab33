"""scontrol: show jobs, nodes, partitions and the configuration; requeue, hold, release, update."""

from __future__ import annotations

import os

from stoker.cli import output
from stoker.client.client import connect
from stoker.client.errors import NotFound, StokerError, UsageError
from stoker.compat.slurm.columns.job_fields import SlurmError
from stoker.compat.slurm.scancel import expand_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.client.client import Client
    from stoker.wire import JsonObject

SWITCHES = {
    "-o", "--oneliner", "-Q", "--quiet", "-a", "--all", "-d", "-dd", "--details", "--local",
    "--hide", "-v", "--verbose",
}  # fmt: skip
EDITS = {
    "account": "account", "comment": "comment", "cpuspertask": "cpus", "deadline": "deadline",
    "dependency": "dependency", "eligibletime": "begin", "excnodelist": "exclude", "gres": "gres",
    "jobname": "name", "minmemorynode": "mem", "name": "name", "nice": "nice",
    "nodelist": "nodelist", "numcpus": "cpus", "numnodes": "nodes", "numtasks": "ntasks",
    "partition": "queue", "priority": "priority", "reqcores": "cpus", "reqnodelist": "nodelist",
    "starttime": "begin", "timelimit": "time", "tres-per-node": "gres", "trespernode": "gres",
}  # fmt: skip
"""Fields of `scontrol update`, and the options of `stoker edit` that they mean."""
NO_ENTITY = (
    'No valid entity in update command\nInput line must include "NodeName", "PartitionName",'
    ' "Reservation", "JobId", or "SlurmctldDebug"'
)


def main(argv: list[str]) -> int:
    """Run one request."""
    words = [word for word in argv if word not in SWITCHES]
    if not words:
        raise UsageError("error: name a request, such as show job 42")
    verb, *rest = words
    verb = verb.lower()
    if verb == "version":
        from stoker.compat.slurm.columns.job_fields import VERSION

        print(f"slurm {VERSION}")
        return 0
    if verb == "ping":
        connect().daemon()
        print(f"Slurmctld(primary) at {os.uname().nodename} is UP")
        return 0
    if verb == "show":
        return _show(rest, bool({"-o", "--oneliner"} & {*argv}))
    if verb == "update":
        return _update(connect(), rest)
    if verb not in ("requeue", "hold", "uhold", "release", "suspend", "resume", "top"):
        raise SlurmError(f"invalid keyword: {verb}")
    ids = [id for word in rest for part in _split_ids(word) for id in expand_id(part)]
    if not ids:
        raise UsageError(f"too few arguments for keyword:{verb}")
    client = connect()
    return max(_act(client, verb, id) for id in ids)


def _split_ids(text: str) -> list[str]:
    """Split a list of ids at commas outside brackets."""
    return [text] if "[" in text else [part for part in text.split(",") if part]


def _act(client: Client, verb: str, id: str) -> int:
    """Change one job; report in Slurm's words what could not be changed."""
    try:
        reply = _request(client, verb, id)
    except NotFound:
        output.say(f"Invalid job id specified for job {id}")
        return 1
    for skipped in reply["skipped"]:
        why = str(skipped["why"])
        if verb == "requeue" and "pending" in why:
            why = "Job is pending execution"
        output.say(f"{why} for job {skipped['label']}")
    return 1 if reply["skipped"] and not reply["done"] else 0


def _request(client: Client, verb: str, id: str) -> JsonObject:
    if verb == "requeue":
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the job itself may call this
        return client.retry([id], running=True)
    if verb == "top":
        return client.move([id], "first")
    names = {"hold": "hold", "uhold": "hold", "release": "release", "suspend": "pause"}
    return client.act(names.get(verb, "resume"), [id])


def _update(client: Client, words: list[str]) -> int:
    pairs = [word.partition("=") for word in words]
    fields = {name.lower(): value for name, _, value in pairs}
    id = fields.pop("jobid", None) or fields.pop("job", None)
    if id is None:
        return _update_node(client, fields)
    options: dict[str, str] = {}
    for name, _, value in pairs:
        key = name.lower()
        if key in ("jobid", "job"):
            continue
        if key not in EDITS:
            raise SlurmError(
                f"Update of this parameter is not supported: {name}={value}\nRequest aborted"
            )
        options[EDITS[key]] = value.removeprefix("gres:") if EDITS[key] == "gres" else value
    code = 0
    for job in expand_id(id):
        try:
            skipped = client.edit([job], options)["skipped"]
        except StokerError as error:
            raise SlurmError(f"{error.message} for job {job}") from None
        for entry in skipped:
            output.say(f"{entry['why']} for job {entry['label']}")
        code = max(code, int(bool(skipped)))
    return code


def _update_node(client: Client, fields: dict[str, str]) -> int:
    """Drain or resume nodes: `NodeName=n1 State=DRAIN Reason=fan`."""
    names, state = fields.get("nodename"), fields.get("state", "").lower()
    if names is None:
        raise SlurmError(NO_ENTITY)
    if state in ("drain", "down"):
        client.drain(names.split(","), fields.get("reason"))
    elif state in ("resume", "undrain", "idle"):
        client.undrain(names.split(","))
    else:
        raise SlurmError("only State=DRAIN and State=RESUME of a node can be set")
    return 0


def _show(words: list[str], one_line: bool) -> int:
    what, equals, id = words[0].partition("=") if words else ("", "", "")
    what = what.lower()
    names = [id] if equals else words[1:]
    if what in ("hostnames", "hostname", "hostlist", "hostlistsorted"):
        return _show_hosts(what, names)
    from stoker.compat.slurm import scontrol_show as show

    client = connect()
    if what in ("job", "jobs", "jobid"):
        records = show.jobs(client, names)
        if not records:
            print("No jobs in the system")
    elif what in ("node", "nodes"):
        records = show.nodes(client, names)
    elif what in ("partition", "partitions", "part"):
        records = show.partitions_of(client, names)
    elif what == "config":
        print("\n".join(show.config(client)))
        return 0
    else:
        raise SlurmError(f"invalid entity:{what} for keyword:show ")
    for record in records:
        print(" ".join(record) if one_line else "\n   ".join(record) + "\n")
    return 0


def _show_hosts(what: str, words: list[str]) -> int:
    """Run the script that does this inside jobs, too."""
    from stoker.executors import slurm_tools

    path = os.path.join(next(iter(slurm_tools.__path__)), "scontrol")
    os.execv("/bin/sh", ["sh", path, "show", what, *words])
