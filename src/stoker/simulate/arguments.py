"""What was typed after `stoker simulate`, read once and checked."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NoReturn

from msgspec import Struct

from stoker.core.cluster import NodeFacts
from stoker.core.policy.parameters import read_parameters
from stoker.core.policy.rules import NAMES
from stoker.core.units import BadValue, parse_duration
from stoker.simulate.replay.replay import ReplayAssumptions
from stoker.simulate.traces.cluster_size import machines
from stoker.simulate.traces.detect import FORMATS

USUAL = "backfill,planner,srsf"
"""What most labs do, what we would do, and what somebody could do who knew every duration."""
_DIGITS = 15
"""Of a whole number."""
LIMITS = ("none", "recorded", "exact", "guessed")


class PolicyVariant(Struct, frozen=True):
    """One of the policies to compare, with the parameters that are not its own."""

    policy: str
    parameters: dict[str, float]


class SimulateArgs(Struct, kw_only=True):
    """What is to be simulated, and how to tell it."""

    traces: list[Path]
    variants: list[PolicyVariant]
    cluster: list[NodeFacts] | None
    """None: the trace's own, or as many as keep it busy."""
    size_by_load: bool
    """Machines are counted by the load, even where the trace has some."""
    target_load: float
    by_queue: bool
    format: str | None
    seed: int
    max_jobs: int | None
    assumptions: ReplayAssumptions
    limits: str | None
    html: Path | None
    json: bool
    baseline: str | None


class Parser(argparse.ArgumentParser):
    """One sentence instead of a usage text: the help is the command's own."""

    def error(self, message: str) -> NoReturn:
        """What cannot be read."""
        raise BadValue(f"{message[:1].upper()}{message[1:]}. See: {self.prog}")


def parser(verb: str) -> Parser:
    """A parser of our own kind, with the options that every verb has."""
    made = Parser(prog=f"stoker help {verb}", add_help=False, allow_abbrev=False)
    for name in ("--json", "--color", "--no-color"):
        made.add_argument(name, action="store_true")
    return made


def asked(argv: Sequence[str]) -> SimulateArgs:
    """Read it all, or say in one sentence what is wrong."""
    given = _parser().parse_intermixed_args(argv)
    if not given.traces:
        raise BadValue("No trace file given; name at least one (formats: docs/traces.md).")
    if given.format is not None and given.format not in FORMATS:
        raise BadValue(f"Unknown --format {given.format}; choose one of {', '.join(FORMATS)}.")
    if given.limits is not None and given.limits not in LIMITS:
        raise BadValue(f"Unknown --limits {given.limits}; choose one of {', '.join(LIMITS)}.")
    sized = given.cluster == "auto" or given.load is not None
    if given.cluster not in (None, "auto") and given.load is not None:
        raise BadValue(
            "--load computes the number of nodes, so --cluster cannot be combined with it."
        )
    blind = given.limits not in (None, "none")
    if blind and given.estimates is not None:
        raise BadValue("--estimates and --limits cannot be combined; give one of them.")
    seed = whole(given.seed, "--seed") if given.seed is not None else 0
    known = share(given.epochs_known, "--epochs-known")
    chosen = contenders(given.policy, given.set)
    base = given.base
    if base is not None and base not in {each.policy for each in chosen}:
        names = ", ".join(dict.fromkeys(each.policy for each in chosen))
        raise BadValue(f"--base {base} is not one of the compared policies: {names}.")
    return SimulateArgs(
        traces=[Path(each) for each in given.traces],
        variants=chosen,
        cluster=machines(given.cluster) if given.cluster not in (None, "auto") else None,
        size_by_load=sized,
        target_load=0.8 if given.load is None else share(given.load, "--load", 10.0),
        by_queue=given.by_queue,
        format=given.format,
        seed=seed,
        max_jobs=whole(given.first, "--first", 1) if given.first is not None else None,
        assumptions=ReplayAssumptions(
            measured_after=known,
            checkpoint_seconds=float(parse_duration(given.checkpoint, "--checkpoint")),
            restart_seconds=float(parse_duration(given.restart, "--restart")),
            non_preemptible=given.no_preempt or blind,
            time_limits_only=blind,
            estimate_error=factor(given.estimates, "--estimates") if given.estimates else None,
            seed=seed,
        ),
        limits=given.limits,
        html=page(given.html),
        json=given.json,
        baseline=base,
    )


def _parser() -> Parser:
    made = parser("simulate")
    made.add_argument("traces", nargs="*")
    made.add_argument("--policy", default=USUAL)
    for name in ("--cluster", "--load", "--format", "--seed", "--first", "--limits", "--html"):
        made.add_argument(name)
    made.add_argument("--set", action="append", default=[])
    made.add_argument("--epochs-known", default="5%")
    made.add_argument("--estimates")
    made.add_argument("--checkpoint", default="10m")
    made.add_argument("--restart", default="60s")
    made.add_argument("--base")
    for name in ("--by-queue", "--no-preempt", "--list-policies"):
        made.add_argument(name, action="store_true")
    return made


def contenders(policies: str, settings: Sequence[str]) -> list[PolicyVariant]:
    """Read `fifo,planner` and `planner.quantum=600,1200`, which makes two planners."""
    names = [name.strip() for name in policies.split(",") if name.strip()]
    for name in names:
        known_policy(name)
    chosen: dict[str, dict[str, list[float]]] = {}
    for setting in settings:
        name, parameter, values = _setting(setting)
        if name not in names:
            raise BadValue(f"--set {setting} applies to {name}, which is not compared; add it to"
                           " --policy.")  # fmt: skip
        chosen.setdefault(name, {})[parameter] = values
    found = []
    for name in dict.fromkeys(names):
        parameters = chosen.get(name, {})
        found += [
            PolicyVariant(name, dict(zip(parameters, each, strict=True)))
            for each in product(*parameters.values())
        ]
    if not found:
        raise BadValue(f"--policy is empty; choose from {', '.join(NAMES)}.")
    return found


def known_policy(name: str) -> str:
    """The name of a policy, if it is one."""
    if name not in NAMES:
        raise BadValue(f"There is no policy '{name}'; there are {', '.join(NAMES)}.")
    return name


def _setting(text: str) -> tuple[str, str, list[float]]:
    name, equals, typed = text.partition("=")
    policy, dot, parameter = name.strip().partition(".")
    if not equals or not dot:
        raise BadValue(f"--set {text} is not POLICY.PARAMETER=VALUE; write planner.quantum=1200.")
    known_policy(policy)
    try:
        return policy, parameter, [_value(policy, parameter, each) for each in typed.split(",")]
    except BadValue as error:
        raise BadValue(f"--set {text}: {error}") from None


def _value(policy: str, parameter: str, text: str) -> float:
    """A figure as `stoker policy` takes it; of a duration, a bare number is seconds."""
    text = text.strip()
    said = float(text) if text.isdecimal() else text
    return read_parameters(policy, {parameter: said})[parameter]


def share(text: str, what: str, most: float = 1.0) -> float:
    """Read `5%` or `0.05`."""
    text = text.strip()
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value <= most:  # written so that NaN is refused too
        raise BadValue(
            f"{what} {text} is not a share between 0 % and {most * 100:.0f} %; write for example "
            "5% or 0.05."
        )
    return value


def factor(text: str, what: str) -> float:
    """Read a number from 1 on."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 1000:  # written so that NaN is refused too
        raise BadValue(f"{what} takes a factor from 1 to 1000, not '{text}'; write for example 2.")
    return value


def whole(text: str, what: str, least: int = 0) -> int:
    """Read a whole number."""
    if text.isdecimal() and len(text) > _DIGITS:
        raise BadValue(f"{what} takes a whole number of at most {_DIGITS} digits, not '{text}'.")
    if not (text.isdecimal() and int(text) >= least):
        raise BadValue(f"{what} takes a whole number of at least {least}, not '{text}'.")
    return int(text)


def page(text: str | None) -> Path | None:
    """Where the page is to be written; a folder that is not there is better known before."""
    if text is None:
        return None
    if not text.strip():
        raise BadValue("--html takes the name of a file, as in --html report.html.")
    path = Path(text)
    if path.is_dir():
        raise BadValue(f"--html {text} is a directory; name a file in it.")
    if not path.absolute().parent.is_dir():
        raise BadValue(f"--html {text}: there is no directory {path.parent}; create it first.")
    return path
