"""sacct: jobs with their states and resources, ended ones included."""

from __future__ import annotations

from stoker.cli.options import Option, parse
from stoker.cli.output import times
from stoker.client.client import connect
from stoker.client.errors import NotFound, UsageError
from stoker.compat.slurm.columns.formats import fold_numbers
from stoker.compat.slurm.columns.job_fields import (
    COMPACT_STATES,
    MAX_JOBS,
    SlurmError,
    SlurmJobView,
    full_state,
    user_name,
)
from stoker.compat.slurm.columns.options import COMMON
from stoker.compat.slurm.columns.sacct_fields import FIELDS, Step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from stoker.cli.options import Args
    from stoker.client.client import Client
    from stoker.compat.slurm.columns.sacct_fields import Field
    from stoker.wire import JsonObject

OPTIONS = (
    Option("-X/--allocations", None, "", key="allocations"),
    Option("-P/--parsable2", None, "", key="parsable2"),
    Option("-p/--parsable", None, "", key="parsable"),
    Option("-n/--noheader", None, "", key="noheader"),
    Option("-o/--format", "FIELDS", "", key="format"),
    Option("-j/--jobs", "IDS", "", key="jobs", many=True),
    Option("-S/--starttime", "TIME", "", key="starttime"),
    Option("-E/--endtime", "TIME", "", key="endtime"),
    Option("-s/--state", "STATES", "", key="state"),
    Option("--name", "NAMES", "", key="name"),
    Option("-u/--user/--uid", "USERS", "", key="user"),
    Option("-r/--partition", "NAMES", "", key="partition"),
    Option("-N/--nodelist", "NAMES", "", key="nodelist"),
    Option("-a/--allusers", None, "", key="allusers"),
    Option("-D/--duplicates", None, "", key="duplicates"),
    Option("-l/--long", None, "", key="long"),
    Option("-b/--brief", None, "", key="brief"),
    Option("--units", "UNIT", "", key="units"),
    Option("--noconvert", None, ""),
    Option("--delimiter", "TEXT", "", key="delimiter"),
    Option("-e/--helpformat", None, "", key="helpformat"),
    Option("-A/--accounts/--account", "NAMES", "", key="accounts"),
    Option("-T/--truncate", None, "", key="truncate"),
    Option("-L/--allclusters", None, "", key="allclusters"),
    *COMMON,
)
DEFAULT = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
BRIEF = "JobID,State,ExitCode"
LONG = (
    "JobID,JobIDRaw,JobName,Partition,MaxVMSize,MaxRSS,AveCPU,NTasks,AllocCPUS,Elapsed,State,"
    "ExitCode,ReqMem,AllocTRES"
)


def main(argv: list[str]) -> int:
    """Print the accounting of jobs in Slurm's format."""
    args = parse(OPTIONS, argv, verb="compat slurm")
    if args.flag("helpformat"):
        _print_names()
        return 0
    default = BRIEF if args.flag("brief") else LONG if args.flag("long") else DEFAULT
    fields = [_field(word) for word in (args.text("format") or default).split(",") if word]
    rows = [step for job in _select(args) for step in _steps(job, args)]
    if args.flag("parsable2") or args.flag("parsable"):
        lines = _parsable(fields, rows, args)
    else:
        lines = _table(fields, rows, header=not args.flag("noheader"))
    for line in lines:
        print(line)
    return 0


def _print_names() -> None:
    names = [field.name for field in FIELDS.values()]
    for start in range(0, len(names), 4):
        print("".join(name.ljust(20) for name in names[start : start + 4]).rstrip())


def _field(word: str) -> tuple[Field, int]:
    """Return a field and its width: `JobName%30`, `State%-20` for one that is aligned left."""
    name, _, size = word.strip().partition("%")
    field = FIELDS.get(name.lower())
    if field is None:
        raise UsageError(f'error: Invalid field requested: "{name}"')
    return field, int(size) if size.lstrip("-").isdecimal() and int(size) else field.width


def _parsable(fields: Sequence[tuple[Field, int]], rows: Sequence[Step], args: Args) -> list[str]:
    """Return lines of values with a delimiter; -p also ends the line with one."""
    delimiter = args.text("delimiter") or "|"
    end = delimiter if args.flag("parsable") else ""
    lines = [[field.value(row) for field, _ in fields] for row in rows]
    if not args.flag("noheader"):
        lines.insert(0, [field.name for field, _ in fields])
    return [delimiter.join(line) + end for line in lines]


def _table(fields: Sequence[tuple[Field, int]], rows: Sequence[Step], *, header: bool) -> list[str]:
    """Return columns; a value that is too long ends with +, a title is cut off."""
    widths = [width for _, width in fields]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(-width) if width < 0 else cell.rjust(width)
            for cell, width in zip(cells, widths, strict=True)
        )
        return "".join(f"{cell} " for cell in padded)

    def fit(cell: str, width: int) -> str:
        size = abs(width)
        return cell if len(cell) <= size else f"{cell[: size - 1]}+"

    lines = []
    if header:
        lines.append(line([field.name[: abs(width)] for field, width in fields]))
        lines.append(line(["-" * abs(width) for width in widths]))
    lines += [line([fit(field.value(row), width) for field, width in fields]) for row in rows]
    return lines


def _steps(job: SlurmJobView, args: Args) -> list[Step]:
    if args.flag("allocations") or job.is_pending or job.start is None:
        return [Step(job)]
    return [Step(job), Step(job, "batch"), Step(job, "extern")]


def _select(args: Args) -> list[SlurmJobView]:
    client = connect()
    ids = ",".join(args.many("jobs"))
    rows = _named(client, ids) if ids else _all(client, args)
    jobs = [SlurmJobView(row) for row in rows]
    users = None if args.flag("allusers") or ids else {user_name()}
    if args.text("user"):
        users = {*(args.text("user") or "").split(",")}
    states = _states(args.text("state"))
    jobs = [
        job
        for job in jobs
        if (users is None or users & {job.job.get("user"), str(job.user_id)})
        and (states is None or job.accounted_state in states)
        and _is_listed(args.text("name"), [job.job.get("name")])
        and _is_listed(args.text("partition"), [job.job.get("queue")])
        and _is_listed(args.text("accounts"), [job.job.get("account")])
        and _is_listed(args.text("nodelist"), job.job.get("nodes") or [])
    ]
    return sorted(jobs, key=lambda job: job.order)


def _states(text: str | None) -> set[str] | None:
    if text is None:
        return None
    states = {full_state(word) for word in text.split(",")}
    for state in states:
        if state not in COMPACT_STATES:
            raise SlurmError(f"sacct: fatal: unrecognized job state value: {state}")
    return states


def _is_listed(wanted: str | None, values: Sequence[str | None]) -> bool:
    return wanted is None or bool({*wanted.split(",")} & {*values})


def _named(client: Client, ids: str) -> list[JsonObject]:
    """Return the named jobs; all members of a named array; unknown ids are left out."""
    rows: dict[int, JsonObject] = {}
    for word in ids.split(","):
        id = word.strip().partition(".")[0].partition("_[")[0]
        if not id:
            continue
        try:
            found = client.jobs([id], limit=MAX_JOBS)["jobs"]
        except NotFound:
            continue
        if "_" not in id:
            found = _fold_pending(found)
        rows.update((row["id"], row) for row in found)
    return list(rows.values())


def _fold_pending(rows: list[JsonObject]) -> list[JsonObject]:
    """Return jobs with the pending members of each array as one row: `42_[3-9]`."""
    pending: dict[int, list[JsonObject]] = {}
    for row in rows:
        if row["state"] == "PENDING" and (row.get("array") or {}).get("index") is not None:
            pending.setdefault(row["array"]["id"], []).append(row)
    folded = {row["id"] for members in pending.values() for row in members}
    kept = [row for row in rows if row["id"] not in folded]
    for array, members in pending.items():
        indexes = fold_numbers(sorted(row["array"]["index"] for row in members))
        label = f"{array}_[{indexes}]" if len(members) > 1 else members[0]["label"]
        kept.append({**members[0], "members": {"label": label, "count": len(members)}})
    return kept


def _all(client: Client, args: Args) -> list[JsonObject]:
    """Return the jobs that existed in the given time; by default since midnight."""
    begin = times.parse_time(args.text("starttime") or "today")
    end = times.parse_time(args.text("endtime") or "now")
    listed = client.jobs(limit=MAX_JOBS, arrays="1")["jobs"]
    current = [row for row in listed if not row.get("ended_at")]
    known = {row["id"] for row in current}
    ended = client.history(limit=MAX_JOBS, since=times.iso(max(begin, 0.0)))["jobs"]
    rows = [*current, *(row for row in ended if row["id"] not in known)]
    return [row for row in rows if (times.epoch(row.get("submitted_at")) or 0.0) <= end + 1.0]
