"""`stoker what-if`: replay the daemon's own jobs without and with changes, and compare."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from stoker import wire
from stoker.core.model.units import BadValue
from stoker.core.policies.parameters import read_parameters
from stoker.core.policies.policy import POLICIES, DurationSource
from stoker.simulate.arguments import Options, html_path
from stoker.simulate.progress import ProgressLine
from stoker.simulate.report.page import html
from stoker.simulate.traces.cluster_size import node_facts, parse_cluster
from stoker.simulate.traces.files import count_jobs
from stoker.simulate.whatif import api_views, render
from stoker.simulate.whatif.api_views import WhatIfInput
from stoker.simulate.whatif.cluster_model import (
    ClusterModel,
    RecordedJob,
    cluster_from_input,
    jobs_from_input,
)
from stoker.simulate.whatif.history_replay import (
    Forecast,
    QueueReplay,
    add_nodes,
    feasible_requests,
    replay_history,
)
from stoker.simulate.whatif.render import WhatIfResult

PRIORITY_STEP = 1
"""`high` is this much above the highest priority of all jobs."""


class WhatIfArgs(Struct, kw_only=True):
    """The changes to evaluate, and how to report them."""

    policy: str | None
    parameters: dict[str, float]
    """Parameters of the policy that differ from its defaults."""
    policy_text: str
    """The policy as given."""
    add: list[str]
    remove: list[str]
    priorities: dict[str, str]
    """By job label."""
    json: bool
    html: Path | None


def what_if(options: Options, words: Sequence[str]) -> int:
    """Read the input from stdin and print what would change."""
    args = read_what_if_args(options, words)
    result = evaluate(api_views.read(sys.stdin.buffer.read()), args)
    if args.json:
        print(json.dumps(render.as_json(result), indent=2 if sys.stdout.isatty() else None))
    else:
        print("\n".join(render.lines(result)))
    if args.html is not None:
        if result.runs:
            notes = [result.assumptions, *result.notes]
            page = html(result.runs, f"what if: {result.change}", notes)
            args.html.write_text(page, encoding="utf-8")
            print(f"stoker: wrote {args.html}", file=sys.stderr)
        else:
            print("stoker: no report written: no job has ended", file=sys.stderr)
    return wire.EXIT_OK


def read_what_if_args(options: Options, words: Sequence[str]) -> WhatIfArgs:
    """Check all arguments; raise BadValue for the first that is wrong."""
    policy = options.text("policy")
    parameters = _reject_duplicates([_parameter(word) for word in words], "")
    if parameters and policy is None:
        raise BadValue("Parameters need --policy; example: --policy planner quantum=20m.")
    removed = [_value(text, "--remove", "node=NAME", "node")[1] for text in options.many("remove")]
    priorities = [_priority(text) for text in options.many("priority")]
    return WhatIfArgs(
        policy=policy,
        parameters=read_parameters(policy, parameters) if policy is not None else {},
        policy_text=" ".join([f"policy {policy}", *words]),
        add=options.many("add"),
        remove=list(dict.fromkeys(removed)),
        priorities=_reject_duplicates(priorities, "--priority: "),
        json=options.flag("json"),
        html=html_path(options.text("html")),
    )


def _reject_duplicates(pairs: list[tuple[str, str]], what: str) -> dict[str, str]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in values if names.count(name) > 1)
        raise BadValue(f"{what}{repeated} is given twice.")
    return values


def _parameter(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name or not value:
        raise BadValue(f"'{text}' cannot be read; write a parameter as NAME=VALUE.")
    return name, value


def _value(text: str, what: str, example: str, *names: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not value or name not in names:
        raise BadValue(f"{what} {text} cannot be read; write {what} {example}.")
    return name, value


def _priority(text: str) -> tuple[str, str]:
    job, _, value = text.rpartition("=")
    number = value.removeprefix("-").removeprefix("+")
    if not job or not (value in ("high", "low") or (number.isdecimal() and len(number) < 10)):
        raise BadValue(f"--priority {text} cannot be read; write 42=high, 42=low or 42=5.")
    return job, value


# -- evaluation --------------------------------------------------------------------------


def evaluate(whatif_input: WhatIfInput, args: WhatIfArgs) -> WhatIfResult:
    """Replay the history and the queue without and with the changes."""
    cluster = cluster_from_input(whatif_input)
    jobs, live, notes = jobs_from_input(whatif_input)
    changed = apply_changes(cluster, args)
    priorities = new_priorities(whatif_input, jobs, live, args.priorities)
    if args.policy in POLICIES and POLICIES[args.policy].durations is DurationSource.DECLARED:
        notes.append(f"{args.policy} uses stated durations; here it gets the actual ones.")
    requests = [job.request for job in jobs]
    feasible_now = feasible_requests(cluster, requests)
    feasible_then = feasible_requests(changed, requests)
    possible = [job for job in jobs if job.request in feasible_now]
    if len(possible) < len(jobs):
        notes.append(
            f"{count_jobs(len(jobs) - len(possible))} skipped: today's nodes cannot run them."
        )
    infeasible = [job for job in possible if job.request not in feasible_then]
    infeasible_ids = {job.id for job in infeasible}
    if not possible:
        raise BadValue(
            f"Nothing to replay: no job ended in {render.last_days(whatif_input.days)}, and no"
            " pending job can start; try a larger --days."
        )
    kept = [job for job in possible if job.id not in infeasible_ids]
    runs = []
    if any(job.state in wire.FINISHED for job in kept):
        with_segments = args.html is not None
        progress = ProgressLine(2 * len(kept), quiet=args.json)
        prioritized = _with_priorities(kept, priorities)
        runs = [
            replay_history(kept, cluster, "today", with_segments, progress),
            replay_history(prioritized, changed, short_label(args), with_segments, progress),
        ]
        progress.clear()
    ids = {job.id for job in possible}
    live = [job for job in live if job.id in ids]
    return WhatIfResult(
        change=describe_change(args),
        whatif_input=whatif_input,
        cluster=cluster,
        changed_cluster=changed,
        runs=runs,
        jobs=kept,
        live_jobs=live,
        before=QueueReplay(live, cluster).forecast() if live else {},
        after=_forecast_after(live, priorities, changed, infeasible_ids),
        infeasible=infeasible,
        notes=notes,
        assumptions=render.ASSUMPTIONS_TEXT,
    )


def _forecast_after(
    live: list[RecordedJob],
    priorities: dict[int, int],
    changed: ClusterModel,
    infeasible_ids: set[int],
) -> dict[int, Forecast]:
    feasible = _with_priorities([job for job in live if job.id not in infeasible_ids], priorities)
    forecasts = QueueReplay(feasible, changed).forecast() if feasible else {}
    return {job.id: forecasts.get(job.id, Forecast(start=None, end=None)) for job in live}


def _with_priorities(jobs: list[RecordedJob], priorities: dict[int, int]) -> list[RecordedJob]:
    return [
        replace(job, priority=priorities[job.id]) if job.id in priorities else job for job in jobs
    ]


def apply_changes(cluster: ClusterModel, args: WhatIfArgs) -> ClusterModel:
    """Return the cluster with the changes."""
    nodes, policies = list(cluster.nodes), cluster.policies
    for name in args.remove:
        if name not in {node.name for node in nodes}:
            known = ", ".join(node.name for node in cluster.nodes)
            raise BadValue(f"There is no reachable node '{name}'; reachable: {known}.")
        nodes = [node for node in nodes if node.name != name]
    for text in args.add:
        name, value = _value(text, "--add", "gpus=4 or --add node=2x8", "gpus", "node")
        if name == "gpus":
            if not (value.isdecimal() and 0 < int(value) <= 100_000):
                raise BadValue(
                    f"--add {text}: write a number of GPUs up to 100,000, as in --add gpus=4."
                )
            nodes = add_nodes(nodes, [node_facts("", int(value))], cluster.nodes)
        else:
            nodes = add_nodes(nodes, parse_cluster(value, "--add"), cluster.nodes)
    if args.policy is not None:
        policies = {"*": (args.policy, args.parameters)}
    return replace(cluster, nodes=nodes, policies=policies)


def new_priorities(
    whatif_input: WhatIfInput,
    jobs: Sequence[RecordedJob],
    live: Sequence[RecordedJob],
    requested: dict[str, str],
) -> dict[int, int]:
    """Return the requested priorities as numbers, by job id."""
    replayed, queued = {job.id for job in jobs}, {view.id for view in whatif_input.queue}
    for label in requested:
        ids = whatif_input.meant.get(label, ())
        if not replayed.isdisjoint(ids):
            continue
        if not queued.isdisjoint(ids):
            raise BadValue(
                f"--priority: {label} is held, before its begin time, or depends on such a job, so"
                " its priority has no effect; ask again when it can start."
            )
        raise BadValue(
            f"--priority: {label} did not run in {render.last_days(whatif_input.days)}; try a "
            "larger --days."
        )
    present = [job.priority for job in live] or [0]
    named = {"high": max(present) + PRIORITY_STEP, "low": min(present) - PRIORITY_STEP}
    return {
        id: named[value] if value in named else int(value)
        for label, value in requested.items()
        for id in whatif_input.meant.get(label, ())
    }


def describe_change(args: WhatIfArgs) -> str:
    """Return the changes as text."""
    parts = []
    if args.policy:
        parts.append(args.policy_text)
    parts += [f"{text.partition('=')[2]} more GPUs" if text.startswith("gpus=")
              else f"{text.partition('=')[2]} more nodes" for text in args.add]  # fmt: skip
    parts += [f"without {name}" for name in args.remove]
    parts += [f"job {job} with priority {value}" for job, value in args.priorities.items()]
    return ", ".join(parts)


def short_label(args: WhatIfArgs) -> str:
    """Return a label of the changes for tables."""
    text = describe_change(args)
    return text if len(text) <= 24 else "changed"
