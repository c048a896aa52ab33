"""What `stoker what-if` does: the lab's own jobs under today's rules, and under changed ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from stoker import wire
from stoker.core.policy.parameters import read_parameters
from stoker.core.policy.rules import POLICIES, Knows
from stoker.core.units import BadValue
from stoker.simulate.arguments import page, parser
from stoker.simulate.progress import ProgressLine
from stoker.simulate.report import write
from stoker.simulate.traces.cluster_size import box, machines
from stoker.simulate.traces.files import many
from stoker.simulate.whatif import api_views as lab_views
from stoker.simulate.whatif import cluster_model as labs
from stoker.simulate.whatif import render as whatif_told
from stoker.simulate.whatif.api_views import Facts
from stoker.simulate.whatif.cluster_model import ClusterModel, RecordedJob
from stoker.simulate.whatif.history_replay import Forecast, QueueReplay, added, can_run, past
from stoker.simulate.whatif.render import WhatIfResult

STEP = 1
"""So much higher than all others is `high`."""


class Question(Struct, kw_only=True):
    """What is to be different."""

    policy: str | None
    parameters: dict[str, float]
    """Of that policy, those that are not its own."""
    said: str
    """The policy as it was typed."""
    add: list[str]
    remove: list[str]
    priorities: dict[str, str]
    """By what jobs are called."""
    json: bool
    html: Path | None


def what_if(args: Sequence[str]) -> int:
    """Read the facts from stdin, and tell what would change."""
    question = asked(args)
    facts = lab_views.read(sys.stdin.buffer.read())
    answer = answered(facts, question)
    if question.json:
        print(json.dumps(whatif_told.as_json(answer), indent=2 if sys.stdout.isatty() else None))
    else:
        print("\n".join(whatif_told.lines(answer)))
    if question.html is not None:
        if answer.runs:
            notes = [answer.assumptions, *answer.notes]
            write(question.html, answer.runs, f"what if: {answer.change}", notes)
            print(f"stoker: wrote {question.html}", file=sys.stderr)
        else:
            print("stoker: no report written: no job has ended", file=sys.stderr)
    return wire.EXIT_OK


def asked(args: Sequence[str]) -> Question:
    """Read what was typed."""
    made = parser("what-if")
    made.add_argument("facts", choices=["-"])
    made.add_argument("parameters", nargs="*")
    for name in ("--policy", "--days", "--html"):
        made.add_argument(name)
    for name in ("--add", "--remove", "--priority"):
        made.add_argument(name, action="append", default=[])
    given = made.parse_intermixed_args(args)
    said = _once([_parameter(each) for each in given.parameters], "")
    if said and given.policy is None:
        raise BadValue("Parameters need --policy; example: --policy planner quantum=20m.")
    return Question(
        policy=given.policy,
        parameters=read_parameters(given.policy, said) if given.policy is not None else {},
        said=" ".join([f"policy {given.policy}", *given.parameters]),
        add=given.add,
        remove=list(
            dict.fromkeys(_value(each, "--remove", "node=NAME", "node")[1] for each in given.remove)
        ),
        priorities=_once([_priority(each) for each in given.priority], "--priority: "),
        json=given.json,
        html=page(given.html),
    )


def _once(given: list[tuple[str, str]], what: str) -> dict[str, str]:
    found = dict(given)
    if len(found) < len(given):
        twice = next(name for name in found if [each for each, _ in given].count(name) > 1)
        raise BadValue(f"{what}{twice} is given twice.")
    return found


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


# -- what would be different -------------------------------------------------------------


def answered(facts: Facts, question: Question) -> WhatIfResult:
    """Play it both ways."""
    lab = labs.lab_of(facts)
    every, today, notes = labs.jobs_of(facts)
    then = changed(lab, question)
    raised = priorities(facts, every, today, question.priorities)
    if question.policy in POLICIES and POLICIES[question.policy].knows is Knows.SAID:
        notes.append(f"{question.policy} uses stated durations; here it gets the actual ones.")
    requests = [job.request for job in every]
    now_fits, then_fits = can_run(lab, requests), can_run(then, requests)
    possible = [job for job in every if job.request in now_fits]
    if len(possible) < len(every):
        notes.append(f"{many(len(every) - len(possible))} skipped: today's nodes cannot run them.")
    lost = [job for job in possible if job.request not in then_fits]
    gone = {job.id for job in lost}
    if not possible:
        raise BadValue(
            f"Nothing to replay: no job ended in {whatif_told.last(facts.days)}, and no pending job"
            " can start; try a larger --days."
        )
    kept = [job for job in possible if job.id not in gone]
    runs = []
    if any(job.state in wire.FINISHED for job in kept):
        drawn, meter = question.html is not None, ProgressLine(2 * len(kept), quiet=question.json)
        runs = [past(kept, lab, "today", drawn, meter),
                past(_raised(kept, raised), then, short(question), drawn, meter)]  # fmt: skip
        meter.clear()
    ids = {job.id for job in possible}
    todays = [job for job in today if job.id in ids]
    before = QueueReplay(todays, lab).forecast() if todays else {}
    after = _after(todays, raised, then, gone)
    return WhatIfResult(
        change=told(question), facts=facts, cluster=lab, changed_cluster=then, runs=runs, jobs=kept,
        live_jobs=todays, before=before, after=after, infeasible=lost, notes=notes,
        assumptions=whatif_told.ASSUMED,
    )  # fmt: skip


def _after(
    todays: list[RecordedJob], raised: dict[int, int], then: ClusterModel, gone: set[int]
) -> dict[int, Forecast]:
    left = _raised([job for job in todays if job.id not in gone], raised)
    found = QueueReplay(left, then).forecast() if left else {}
    return {job.id: found.get(job.id, Forecast(start=None, end=None)) for job in todays}


def _raised(jobs: list[RecordedJob], raised: dict[int, int]) -> list[RecordedJob]:
    return [
        replace(job, priority=raised[job.id]) if job.id in raised else job for job in jobs
    ]  # fmt: skip


def changed(lab: ClusterModel, question: Question) -> ClusterModel:
    """The lab as it would be."""
    nodes, policies = list(lab.nodes), lab.policies
    for name in question.remove:
        if name not in {each.name for each in nodes}:
            known = ", ".join(each.name for each in lab.nodes)
            raise BadValue(f"There is no reachable node '{name}'; reachable: {known}.")
        nodes = [each for each in nodes if each.name != name]
    for text in question.add:
        name, value = _value(text, "--add", "gpus=4 or --add node=2x8", "gpus", "node")
        if name == "gpus":
            if not (value.isdecimal() and 0 < int(value) <= 100_000):
                raise BadValue(
                    f"--add {text}: write a number of GPUs up to 100,000, as in --add gpus=4."
                )
            nodes = added(nodes, [box("", int(value))], lab.nodes)
        else:
            nodes = added(nodes, machines(value, "--add"), lab.nodes)
    if question.policy is not None:
        policies = {"*": (question.policy, question.parameters)}
    return replace(lab, nodes=nodes, policies=policies)


def priorities(
    facts: Facts, every: Sequence[RecordedJob], today: Sequence[RecordedJob], wanted: dict[str, str]
) -> dict[int, int]:
    """Numbers for what was typed, by the ids of jobs."""
    known, waiting = {job.id for job in every}, {view.id for view in facts.queue}
    for label in wanted:
        meant = facts.meant.get(label, ())
        if not known.isdisjoint(meant):
            continue
        if not waiting.isdisjoint(meant):
            raise BadValue(
                f"--priority: {label} is held, before its begin time, or depends on such a job, so"
                " its priority has no effect; ask again when it can start."
            )
        raise BadValue(
            f"--priority: {label} did not run in {whatif_told.last(facts.days)}; try a "
            "larger --days."
        )
    others = [job.priority for job in today] or [0]
    words = {"high": max(others) + STEP, "low": min(others) - STEP}
    return {
        id: words[value] if value in words else int(value)
        for label, value in wanted.items()
        for id in facts.meant.get(label, ())
    }


def told(question: Question) -> str:
    """The question in words."""
    parts = []
    if question.policy:
        parts.append(question.said)
    parts += [f"{each.partition('=')[2]} more GPUs" if each.startswith("gpus=")
              else f"{each.partition('=')[2]} more nodes" for each in question.add]  # fmt: skip
    parts += [f"without {each}" for each in question.remove]
    parts += [f"job {job} with priority {value}" for job, value in question.priorities.items()]
    return ", ".join(parts)


def short(question: Question) -> str:
    """A name for it in tables."""
    text = told(question)
    return text if len(text) <= 24 else "changed"
