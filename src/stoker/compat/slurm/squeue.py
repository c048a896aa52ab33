"""squeue: jobs that are pending or running, and those that ended within five minutes."""

from __future__ import annotations

import time

from stoker.cli.options import Option, parse
from stoker.cli.output import times
from stoker.client.client import connect
from stoker.client.errors import UsageError
from stoker.compat.slurm.columns import squeue_columns as columns
from stoker.compat.slurm.columns.job_fields import (
    COMPACT_STATES,
    CURRENT_STATES,
    ENDED_SECONDS,
    MAX_JOBS,
    SlurmError,
    SlurmJobView,
    full_state,
    user_name,
)
from stoker.compat.slurm.columns.options import TABLE, chosen_format, print_head

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from stoker.cli.options import Args
    from stoker.wire import JsonObject

OPTIONS = (
    *TABLE,
    Option("-j/--jobs", "[=LIST]", "", key="jobs"),
    Option("-u/--user/--users", "USERS", "", key="user"),
    Option("--me", None, ""),
    Option("-n/--name", "NAMES", "", key="name"),
    Option("-w/--nodelist", "NAMES", "", key="nodelist"),
    Option("-A/--account/--accounts", "NAMES", "", key="account"),
    Option("-r/--array", None, "", key="array"),
    Option("--start", None, ""),
    Option("--local", None, ""),
    Option("--noconvert", None, ""),
    Option("-i/--iterate", "SECONDS", "", key="iterate"),
)
DEFAULT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
INVALID_FORMAT = "squeue: error: Invalid job format specification: "


def main(argv: list[str]) -> int:
    """Print the queue in Slurm's format."""
    args = parse(OPTIONS, _with_joined_ids(argv), verb="compat slurm")
    if args.words:
        raise UsageError(f"error: Unrecognized option: {args.words[0]}")
    seconds = args.number("iterate")
    while True:
        _print(args)
        if seconds is None:
            return 0
        time.sleep(max(seconds, 1.0))


def _print(args: Args) -> None:
    jobs = select_jobs(args)
    if args.flag("json"):
        from stoker.compat.slurm.columns.squeue_json import print_json

        print_json(jobs)
        return
    default = START if args.flag("start") else LONG if args.flag("long") else DEFAULT
    chosen = chosen_format(args, columns.NAMES, columns.CODES, default, INVALID_FORMAT)
    print_head(args, chosen)
    for job in jobs:
        print(chosen.row(job))


def _with_joined_ids(argv: list[str]) -> list[str]:
    """Return the words with `-j 8` as `--jobs=8`: without ids, -j means all jobs."""
    words: list[str] = []
    for word in argv:
        if words and words[-1] in ("-j", "--jobs", "--job") and not word.startswith("-"):
            words[-1] = f"--jobs={word}"
        else:
            words.append(word)
    return words


def select_jobs(args: Args) -> list[SlurmJobView]:
    """Return the jobs that the options select, in Slurm's order."""
    states = _states(args.text("states"))
    ids = args.values.get("jobs")
    wanted = {*ids.split(",")} - {""} if isinstance(ids, str) else set()
    is_folded = not args.flag("array") and not any("_" in id for id in wanted)
    jobs = [SlurmJobView(row) for row in _rows(is_folded, states, wanted)]
    if wanted:
        jobs = [job for job in jobs if job.ids & wanted]
        if not jobs and len(wanted) == 1:
            raise SlurmError("slurm_load_jobs error: Invalid job id specified")
    jobs = [job for job in jobs if states is None or {job.state, job.accounted_state} & states]
    jobs = [job for job in jobs if _is_selected(job, args)]
    if args.flag("start"):
        jobs = [job for job in jobs if job.is_pending]
    return _sorted(jobs, args.text("sort"))


def _rows(is_folded: bool, states: set[str] | None, wanted: set[str]) -> list[JsonObject]:
    """Return all current jobs, and with other states the jobs that ended not long ago."""
    client = connect()
    listed = client.jobs(limit=MAX_JOBS, arrays="1" if is_folded else None)["jobs"]
    if states is not None and states <= CURRENT_STATES and not wanted:
        return list(listed)
    since = time.time() - ENDED_SECONDS
    current = [
        row
        for row in listed
        if not row.get("ended_at") or (times.epoch(row["ended_at"]) or 0.0) >= since
    ]
    known = {row["id"] for row in current}
    ended = client.history(limit=MAX_JOBS, since=times.iso(since))["jobs"]
    return [*current, *(row for row in ended if row["id"] not in known)]


def _states(text: str | None) -> set[str] | None:
    """Return the named states, without names the current ones; None for all."""
    if text is None:
        return {*CURRENT_STATES}
    if text.lower() == "all":
        return None
    states = set()
    for word in text.split(","):
        name = full_state(word)
        if name not in COMPACT_STATES:
            raise UsageError(
                f"error: Invalid job state specified: {word}\n"
                f"squeue: error: Valid job states include: {','.join(COMPACT_STATES)}"
            )
        states.add(name)
    return states


def _is_selected(job: SlurmJobView, args: Args) -> bool:
    users = {*(args.text("user") or "").split(",")} - {""}
    if args.flag("me"):
        users.add(user_name())
    if users and not users & {job.job.get("user"), str(job.user_id)}:
        return False
    for key, value in (
        ("name", job.job.get("name")),
        ("partition", job.job.get("queue")),
        ("account", job.job.get("account")),
    ):
        wanted = args.text(key)
        if wanted is not None and value not in wanted.split(","):
            return False
    nodes = args.text("nodelist")
    return nodes is None or bool({*nodes.split(",")} & {*(job.job.get("nodes") or ())})


def _sorted(jobs: list[SlurmJobView], keys: str | None) -> list[SlurmJobView]:
    """Sort by partition and state (pending ones keep their order), or by `-S` codes: `i,-p`."""
    if keys is None:
        return sorted(jobs, key=_default_order)
    for word in reversed(keys.split(",")):
        code = word.lstrip("+-")
        key = _sort_key(code)
        if key is None:
            raise UsageError(f"error: Invalid sort specification: {word}")
        jobs = sorted(jobs, key=key, reverse=word.startswith("-"))
    return jobs


def _default_order(job: SlurmJobView) -> tuple[object, ...]:
    order = (0, 0) if job.is_pending else job.order
    return job.job.get("queue"), job.compact_state, *order


def _sort_key(code: str) -> Callable[[SlurmJobView], Any] | None:
    numbers: dict[str, Callable[[SlurmJobView], Any]] = {
        "i": lambda job: job.order, "A": lambda job: job.order, "F": lambda job: job.order,
        "p": lambda job: job.priority, "Q": lambda job: job.priority,
        "M": lambda job: job.elapsed, "S": lambda job: job.start or float("inf"),
        "e": lambda job: job.end or float("inf"), "V": lambda job: job.submitted or 0.0,
        "l": lambda job: job.time_limit or float("inf"),
        "L": lambda job: float("inf") if job.time_left is None else job.time_left,
        "C": lambda job: job.cores, "D": lambda job: job.node_count,
    }  # fmt: skip
    column = columns.CODES.get(code)
    return numbers.get(code) or (column.text if column is not None else None)
