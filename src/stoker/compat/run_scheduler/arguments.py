"""What was typed behind `run-scheduler`, checked before anybody is asked."""

from __future__ import annotations

import os

from stoker.cli.output import clean
from stoker.client.errors import UsageError
from stoker.compat.execute_batch.arguments import ONE, SWITCH, BatchArguments
from stoker.compat.execute_batch.arguments import read as take_apart

PROGRAM = "run-scheduler"
VALUES = (
    "--image_name", "--script_path", "--custom_dir", "--snapshots_dir", "--batch_size",
    "--training_set_size", "--max_epochs", "--is_single_gpu", "--disable_gpu_sharing",
    "--estimated_memory", "--port_mapping", "--est_nhours", "--nodes", "--gpus_per_node",
)  # fmt: skip
KINDS = {**dict.fromkeys(VALUES, ONE), "--json": SWITCH, "--help": SWITCH, "-h": SWITCH}
YES, NO = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no"})


class RunSchedulerArguments:
    """One submission."""

    def __init__(self, words: BatchArguments) -> None:
        self.help = bool(words.switches & {"-h", "--help"})
        self.json = "--json" in words.switches
        if self.help:
            return
        given = words.ones
        self.name = _name(words.free)
        self.image = _image(given)
        self.script = _filled(given, "--script_path") or ""
        if not self.script:
            raise UsageError("No script given. Add: --script_path PATH")
        self.custom = _directory(given, "--custom_dir", os.R_OK | os.X_OK)
        self.snapshots = _directory(given, "--snapshots_dir", os.W_OK | os.X_OK)
        self.batch_size = _number(given, "--batch_size")
        self.set_size = _number(given, "--training_set_size")
        self.epochs = _number(given, "--max_epochs")
        self.single = _truth(given, "--is_single_gpu", usually=True)
        self.alone = _truth(given, "--disable_gpu_sharing", usually=False)
        self.memory = _number(given, "--estimated_memory", least=0)
        self.nodes = _number(given, "--nodes") or 1
        self.gpus_per_node = _number(given, "--gpus_per_node")
        self.ports = _ports(given)
        self.seconds = _hours(given)
        if self.ports and self.image is None:
            raise UsageError("--port_mapping is for a container; give --image_name too.")
        if self.image is not None and ":" in (self.custom or ""):
            shown = clean(self.custom or "")
            raise UsageError(
                f"--custom_dir {shown} has a colon in its name, which containers do not support."
            )
        self.written = _written(given)

    def sizes(self) -> dict[str, str]:
        """Return what the script is told, and how long it is thought to take."""
        found = {
            "batch_size": self.batch_size,
            "training_set_size": self.set_size,
            "epochs": self.epochs,
            "expect": f"{self.seconds}s" if self.seconds is not None else None,
            "snapshots_dir": self.snapshots,
        }
        return {key: str(value) for key, value in found.items() if value is not None}


def read(argv: list[str]) -> RunSchedulerArguments:
    """Take a command line apart; --image-name is --image_name."""
    return RunSchedulerArguments(take_apart([_underlined(word) for word in argv], KINDS, PROGRAM))


def _underlined(word: str) -> str:
    name, equals, value = word.partition("=")
    spelled = "--" + name[2:].replace("-", "_")
    return spelled + equals + value if name.startswith("--") and spelled in KINDS else word


def _written(given: dict[str, str]) -> str:
    from shlex import join

    return join([word for pair in given.items() for word in pair])


def _name(words: list[str]) -> str:
    if not words or not words[0].strip():
        raise UsageError(
            "No job name given. The name is the last argument: "
            "run-scheduler --script_path train.py my_experiment"
        )
    if len(words) > 1:
        raise UsageError(f"A job has one name, the last argument; unexpected: {clean(words[1])!r}.")
    return words[0]


def _filled(given: dict[str, str], name: str) -> str | None:
    text = given.get(name)
    if text is not None and not text.strip():
        raise UsageError(f"{name} is empty.")
    return text


def _image(given: dict[str, str]) -> str | None:
    name = _filled(given, "--image_name")
    if name is not None and (name.startswith("-") or name.split() != [name]):
        raise UsageError(f"--image_name {clean(name)!r} is not the name of an image.")
    return name


def _directory(given: dict[str, str], name: str, access: int) -> str | None:
    text = _filled(given, name)
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


def _number(given: dict[str, str], name: str, least: int = 1) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    digits = text.strip()
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 9) or int(digits) < least:
        wants = "a number of MiB" if name == "--estimated_memory" else "a whole number above 0"
        raise UsageError(f"{name} takes {wants}, not {clean(text)!r}.")
    return int(digits)


def _truth(given: dict[str, str], name: str, *, usually: bool) -> bool:
    text = given.get(name)
    if text is None:
        return usually
    word = text.strip().lower()
    if word not in YES | NO:
        raise UsageError(f"{name} takes true or false, not {clean(text)!r}.")
    return word in YES


def _hours(given: dict[str, str]) -> int | None:
    text = given.get("--est_nhours")
    if text is None:
        return None
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 1 < hours <= 24 * 365:
        raise UsageError(f"--est_nhours takes a number of hours above 1, not {clean(text)!r}.")
    return round(hours * 3600)


def _ports(given: dict[str, str]) -> str | None:
    text = given.get("--port_mapping")
    if text is None:
        return None
    outside = set()
    for pair in text.split(","):
        ports = pair.strip().split(":")
        whole = all(port.isascii() and port.isdecimal() and len(port) <= 5 for port in ports)
        if len(ports) != 2 or not whole or not all(0 < int(port) < 65536 for port in ports):
            raise UsageError(
                f"--port_mapping {clean(text)!r} is not understood; write 31346:6006,31347:8888."
            )
        if int(ports[0]) in outside:
            raise UsageError(f"--port_mapping {clean(text)!r} has port {ports[0]} twice.")
        outside.add(int(ports[0]))
    return text
