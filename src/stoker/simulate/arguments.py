"""Arguments of `stoker simulate`, checked; the command line is parsed by `stoker.cli`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from msgspec import Struct

from stoker.core.model.resources import NodeFacts
from stoker.core.model.units import BadValue, parse_duration
from stoker.core.policies.parameters import read_parameters
from stoker.core.policies.policy import NAMES
from stoker.simulate.replay.assumptions import ReplayAssumptions
from stoker.simulate.traces.cluster_size import parse_cluster
from stoker.simulate.traces.columns import TIME_UNITS
from stoker.simulate.traces.detect import FORMATS

DEFAULT_POLICIES = "backfill,planner,srsf"
"""A usual policy, the policy of stoker, and a bound that needs all durations."""
MAX_DIGITS = 15
LIMIT_KINDS = ("none", "recorded", "exact", "guessed")


class Options:
    """Options by key, as the parser of the command line returns them."""

    def __init__(self, values: dict[str, str | bool | list[str]]) -> None:
        self.values = values

    def flag(self, key: str) -> bool:
        """Return True if a switch is set."""
        return bool(self.values.get(key))

    def text(self, key: str) -> str | None:
        """Return the value of an option, None if it was not given."""
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def text_or(self, key: str, default: str) -> str:
        """Return the value of an option, or its default."""
        text = self.text(key)
        return default if text is None else text

    def many(self, key: str) -> list[str]:
        """Return the values of an option that may be repeated."""
        value = self.values.get(key, [])
        return value if isinstance(value, list) else [str(value)]


class PolicyVariant(Struct, frozen=True):
    """A policy to compare, with parameters that differ from its defaults."""

    policy: str
    parameters: dict[str, float]


class SimulateArgs(Struct, kw_only=True):
    """What to simulate and how to report it."""

    traces: list[Path]
    variants: list[PolicyVariant]
    cluster: list[NodeFacts] | None
    """None: the nodes of the trace, or as many as the load needs."""
    size_by_load: bool
    """Compute the number of nodes from the load, even if the trace has nodes."""
    target_load: float
    by_queue: bool
    format: str | None
    time_unit: float | None
    """Seconds; None: as the column names say."""
    seed: int
    max_jobs: int | None
    assumptions: ReplayAssumptions
    limits: str | None
    html: Path | None
    json: bool
    baseline: str | None


def read_simulate_args(options: Options, traces: Sequence[str]) -> SimulateArgs:
    """Check all arguments; raise BadValue for the first that is wrong."""
    if not traces:
        raise BadValue("No trace file given; name at least one (formats: docs/traces.md).")
    format = options.text("format")
    if format is not None and format not in FORMATS:
        raise BadValue(f"Unknown --format {format}; choose one of {', '.join(FORMATS)}.")
    limits = options.text("limits")
    if limits is not None and limits not in LIMIT_KINDS:
        raise BadValue(f"Unknown --limits {limits}; choose one of {', '.join(LIMIT_KINDS)}.")
    cluster, load = options.text("cluster"), options.text("load")
    has_nodes = cluster not in (None, "auto")
    if has_nodes and load is not None:
        raise BadValue(
            "--load computes the number of nodes, so --cluster cannot be combined with it."
        )
    limits_only = limits not in (None, "none")
    estimates = options.text("estimates")
    if limits_only and estimates is not None:
        raise BadValue("--estimates and --limits cannot be combined; give one of them.")
    seed = parse_count(options.text_or("seed", "0"), "--seed")
    measured_after = parse_share(options.text_or("epochs_known", "5%"), "--epochs-known")
    variants = policy_variants(options.text_or("policy", DEFAULT_POLICIES), options.many("set"))
    baseline = options.text("base")
    names = dict.fromkeys(variant.policy for variant in variants)
    if baseline is not None and baseline not in names:
        raise BadValue(
            f"--base {baseline} is not one of the compared policies: {', '.join(names)}."
        )
    first = options.text("first")
    return SimulateArgs(
        traces=[Path(trace) for trace in traces],
        variants=variants,
        cluster=parse_cluster(cluster) if cluster is not None and has_nodes else None,
        size_by_load=cluster == "auto" or load is not None,
        target_load=0.8 if load is None else parse_share(load, "--load", 10.0),
        by_queue=options.flag("by_queue"),
        format=format,
        time_unit=parse_unit(options.text("time_unit")),
        seed=seed,
        max_jobs=parse_count(first, "--first", 1) if first is not None else None,
        assumptions=ReplayAssumptions(
            measured_after=measured_after,
            checkpoint_seconds=_seconds(options.text_or("checkpoint", "10m"), "--checkpoint"),
            restart_seconds=_seconds(options.text_or("restart", "60s"), "--restart"),
            non_preemptible=options.flag("no_preempt") or limits_only,
            time_limits_only=limits_only,
            estimate_error=parse_factor(estimates, "--estimates") if estimates else None,
            seed=seed,
        ),
        limits=limits,
        html=html_path(options.text("html")),
        json=options.flag("json"),
        baseline=baseline,
    )


def _seconds(text: str, what: str) -> float:
    return float(parse_duration(text, what))


def parse_unit(text: str | None) -> float | None:
    """Return the seconds of a unit of times, None if none is given."""
    if text is not None and text not in TIME_UNITS:
        raise BadValue(f"Unknown --time-unit {text}; choose one of {', '.join(TIME_UNITS)}.")
    return None if text is None else TIME_UNITS[text]


def policy_variants(policies: str, settings: Sequence[str]) -> list[PolicyVariant]:
    """Parse `fifo,planner` and settings; `planner.quantum=600,1200` makes two variants."""
    names = [name.strip() for name in policies.split(",") if name.strip()]
    for name in names:
        check_policy(name)
    values_of: dict[str, dict[str, list[float]]] = {}
    for setting in settings:
        name, parameter, values = _parse_setting(setting)
        if name not in names:
            raise BadValue(f"--set {setting} applies to {name}, which is not compared; add it to"
                           " --policy.")  # fmt: skip
        values_of.setdefault(name, {})[parameter] = values
    variants = []
    for name in dict.fromkeys(names):
        parameters = values_of.get(name, {})
        variants += [
            PolicyVariant(name, dict(zip(parameters, values, strict=True)))
            for values in product(*parameters.values())
        ]
    if not variants:
        raise BadValue(f"--policy is empty; choose from {', '.join(NAMES)}.")
    return variants


def check_policy(name: str) -> str:
    """Return the name of a policy; raise BadValue if there is none of that name."""
    if name not in NAMES:
        raise BadValue(f"There is no policy '{name}'; there are {', '.join(NAMES)}.")
    return name


def _parse_setting(text: str) -> tuple[str, str, list[float]]:
    name, equals, values = text.partition("=")
    policy, dot, parameter = name.strip().partition(".")
    if not equals or not dot:
        raise BadValue(f"--set {text} is not POLICY.PARAMETER=VALUE; write planner.quantum=1200.")
    check_policy(policy)
    try:
        return policy, parameter, [_value(policy, parameter, value) for value in values.split(",")]
    except BadValue as error:
        raise BadValue(f"--set {text}: {error}") from None


def _value(policy: str, parameter: str, text: str) -> float:
    """Parse a value like `stoker policy` does; a plain number for a duration is in seconds."""
    text = text.strip()
    value = float(text) if text.isdecimal() else text
    return read_parameters(policy, {parameter: value})[parameter]


def parse_share(text: str, what: str, max_share: float = 1.0) -> float:
    """Parse `5%` or `0.05`."""
    text = text.strip()
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value <= max_share:  # also rejects NaN
        raise BadValue(
            f"{what} {text} is not a share between 0 % and {max_share * 100:.0f} %; write for "
            "example 5% or 0.05."
        )
    return value


def parse_factor(text: str, what: str) -> float:
    """Parse a number from 1 to 1000."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 1000:  # also rejects NaN
        raise BadValue(f"{what} takes a factor from 1 to 1000, not '{text}'; write for example 2.")
    return value


def parse_count(text: str, what: str, minimum: int = 0) -> int:
    """Parse a whole number."""
    if text.isdecimal() and len(text) > MAX_DIGITS:
        raise BadValue(f"{what} takes a whole number of at most {MAX_DIGITS} digits, not '{text}'.")
    if not (text.isdecimal() and int(text) >= minimum):
        raise BadValue(f"{what} takes a whole number of at least {minimum}, not '{text}'.")
    return int(text)


def html_path(text: str | None) -> Path | None:
    """Return the path of the page; reject a missing directory before the simulation starts."""
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
