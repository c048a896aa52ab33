"""RunSchedulerArguments: the arguments of `run-scheduler`, checked."""

from __future__ import annotations

import os

from stoker.cli.output import clean
from stoker.client.errors import UsageError
from stoker.compat.arguments import ONE, SWITCH, Arguments, read_arguments, whole_number

PROGRAM = "run-scheduler"
VALUES = (
    "--image_name", "--script_path", "--custom_dir", "--snapshots_dir", "--batch_size",
    "--training_set_size", "--max_epochs", "--is_single_gpu", "--disable_gpu_sharing",
    "--estimated_memory", "--port_mapping", "--est_nhours", "--nodes", "--gpus_per_node",
)  # fmt: skip
KINDS = {**dict.fromkeys(VALUES, ONE), "--json": SWITCH}
YES, NO = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no"})


class RunSchedulerArguments:
    """Arguments of one submission."""

    def __init__(self, arguments: Arguments) -> None:
        self.json = "--json" in arguments.switches
        values = arguments.values
        self.name = _name(arguments.words)
        self.image = _image(values)
        self.script = _non_empty(values, "--script_path") or ""
        if not self.script:
            raise UsageError("No script values. Add: --script_path PATH")
        self.custom = _directory(values, "--custom_dir", os.R_OK | os.X_OK)
        self.snapshots = _directory(values, "--snapshots_dir", os.W_OK | os.X_OK)
        self.batch_size = _number(values, "--batch_size")
        self.set_size = _number(values, "--training_set_size")
        self.epochs = _number(values, "--max_epochs")
        self.single = _boolean(values, "--is_single_gpu", default=True)
        self.alone = _boolean(values, "--disable_gpu_sharing", default=False)
        self.memory = _number(values, "--estimated_memory", minimum=0)
        self.nodes = _number(values, "--nodes") or 1
        self.gpus_per_node = _number(values, "--gpus_per_node")
        self.ports = _ports(values)
        self.seconds = _hours(values)
        if self.ports and self.image is None:
            raise UsageError("--port_mapping is for a container; give --image_name too.")
        if self.image is not None and ":" in (self.custom or ""):
            shown = clean(self.custom or "")
            raise UsageError(
                f"--custom_dir {shown} has a colon in its name, which containers do not support."
            )
        self.written = _option_text(values)

    def sizes(self) -> dict[str, str]:
        """Return the training options of the submission."""
        options = {
            "batch_size": self.batch_size,
            "training_set_size": self.set_size,
            "epochs": self.epochs,
            "expect": f"{self.seconds}s" if self.seconds is not None else None,
            "snapshots_dir": self.snapshots,
        }
        return {key: str(value) for key, value in options.items() if value is not None}


def read_run_arguments(argv: list[str]) -> RunSchedulerArguments:
    """Parse a command line; `-` and `_` are equal in option names."""
    return RunSchedulerArguments(
        read_arguments([_with_underscores(word) for word in argv], KINDS, PROGRAM)
    )


def _with_underscores(word: str) -> str:
    name, equals, value = word.partition("=")
    spelled = "--" + name[2:].replace("-", "_")
    return spelled + equals + value if name.startswith("--") and spelled in KINDS else word


def _option_text(values: dict[str, str]) -> str:
    from shlex import join

    return join([word for pair in values.items() for word in pair])


def _name(arguments: list[str]) -> str:
    if not arguments or not arguments[0].strip():
        raise UsageError(
            "No job name values. The name is the last argument: "
            "run-scheduler --script_path train.py my_experiment"
        )
    if len(arguments) > 1:
        raise UsageError(
            f"A job has one name, the last argument; unexpected: {clean(arguments[1])!r}."
        )
    return arguments[0]


def _non_empty(values: dict[str, str], name: str) -> str | None:
    text = values.get(name)
    if text is not None and not text.strip():
        raise UsageError(f"{name} is empty.")
    return text


def _image(values: dict[str, str]) -> str | None:
    name = _non_empty(values, "--image_name")
    if name is not None and (name.startswith("-") or name.split() != [name]):
        raise UsageError(f"--image_name {clean(name)!r} is not the name of an image.")
    return name


def _directory(values: dict[str, str], name: str, access: int) -> str | None:
    text = _non_empty(values, name)
    if text is None:
        return None
    path = os.path.abspath(os.path.expanduser(text))
    shown = clean(path)
    if not os.path.isdir(path):
        raise UsageError(f"{name} {shown} is not a directory.")
    if not os.access(path, access):
        what = "written to" if access & os.W_OK else "read"
        raise UsageError(f"{name} {shown} cannot be {what} by you.")
    return path


def _number(values: dict[str, str], name: str, minimum: int = 1) -> int | None:
    return whole_number(name, values[name], minimum) if name in values else None


def _boolean(values: dict[str, str], name: str, *, default: bool) -> bool:
    text = values.get(name)
    if text is None:
        return default
    word = text.strip().lower()
    if word not in YES | NO:
        raise UsageError(f"{name} takes true or false, not {clean(text)!r}.")
    return word in YES


def _hours(values: dict[str, str]) -> int | None:
    text = values.get("--est_nhours")
    if text is None:
        return None
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 1 < hours <= 24 * 365:
        raise UsageError(f"--est_nhours takes a number of hours above 1, not {clean(text)!r}.")
    return round(hours * 3600)


def _ports(values: dict[str, str]) -> str | None:
    text = values.get("--port_mapping")
    if text is None:
        return None
    outside = set()
    for pair in text.split(","):
        ports = pair.strip().split(":")
        are_numbers = all(port.isascii() and port.isdecimal() and len(port) <= 5 for port in ports)
        if len(ports) != 2 or not are_numbers or not all(0 < int(port) < 65536 for port in ports):
            raise UsageError(
                f"--port_mapping {clean(text)!r} is not valid: write HOST:CONTAINER, ports from"
                " 1 to 65535, as 31346:6006,31347:8888."
            )
        if int(ports[0]) in outside:
            raise UsageError(f"--port_mapping {clean(text)!r} has port {ports[0]} twice.")
        outside.add(int(ports[0]))
    return text
