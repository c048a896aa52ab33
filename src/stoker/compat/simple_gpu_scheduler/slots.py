"""Slots of simple_gpu_scheduler: one GPU or a group of GPUs each."""

from __future__ import annotations

from stoker.client.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLE = "write --gpus 0 1 2"
NAME = "simple_gpu_scheduler"
THOUSAND = 1000


class Slot:
    """GPUs as given by --gpus, and the submit options that request them."""

    __slots__ = ("name", "options")

    def __init__(self, name: str, share: int) -> None:
        self.name = name
        self.options: dict[str, object] = {
            "use_gpus": name,
            "explicit": True,
            "share": f"{share / THOUSAND:.3f}",
            "client": NAME,
            "verbatim": True,
        }

    @property
    def devices(self) -> list[str]:
        """Return the names of the GPUs."""
        return self.name.split(",")


def parse_slots(argv: Sequence[str]) -> list[Slot]:
    """Parse the command line; return a slot per GPU or group, in the given order."""
    names = [_check_name(name) for name in _names(_values(argv))]
    counts: dict[str, int] = {}
    for name in names:
        for device in name.split(","):
            counts[device] = counts.get(device, 0) + 1
    # A GPU in several slots is shared by as many commands; amounts are thousandths.
    shares = [THOUSAND // max(counts[device] for device in name.split(",")) for name in names]
    return [Slot(name, max(share, 1)) for name, share in zip(names, shares, strict=True)]


def _values(argv: Sequence[str]) -> list[str]:
    """Return the values of --gpus."""
    values: list[str] | None = None
    for word in argv:
        option, equals, attached = word.partition("=")
        if len(option) > 2 and "--gpus".startswith(option):
            if values is not None:
                raise UsageError(f"--gpus is given twice; {EXAMPLE}.")
            values = [attached] if equals else []
        elif word.startswith("-") and not word[1:].isdecimal():
            raise UsageError(f"There is no option {word}. See: {NAME} --help")
        elif values is None:
            raise UsageError(
                f"Unexpected argument {word!r}; GPUs go after --gpus, commands are read from stdin."
            )
        else:
            values.append(word)
    if values is None:
        raise UsageError(f"Which GPUs? Type: {NAME} --gpus 0 1 2 < commands.txt")
    return values


def _names(values: list[str]) -> list[str]:
    """Return slot names: one word is a list of GPUs; of several, each is a GPU or a group."""
    tidy = [",".join(part.strip() for part in value.split(",")).strip(",") for value in values]
    # `--gpus 0, 1, 2` and `--gpus 0 , 1` are lists with blanks.
    words = [name for name, value in zip(tidy, values, strict=True) if name or "," not in value]
    if not words:
        raise UsageError(f"--gpus has no GPU; {EXAMPLE}.")
    return words[0].split(",") if len(words) == 1 else words


def _check_name(name: str) -> str:
    """Return the name of a slot; raise UsageError if it is invalid."""
    devices = name.split(",")
    if not all(devices):
        raise UsageError(f"--gpus has an empty name; {EXAMPLE}.")
    for device in devices:
        first, dash, last = device.partition("-")
        if dash and first.isdecimal() and last.isdecimal():
            raise UsageError(f"--gpus {device} is a range; name each GPU: {EXAMPLE}.")
        if not device.isprintable() or any(map(str.isspace, device)):
            raise UsageError(f"--gpus {device!r} is not a GPU; {EXAMPLE}, without quotes.")
    if len(set(devices)) < len(devices):
        raise UsageError(f"--gpus {name} has a GPU twice in one group; {EXAMPLE}.")
    return name
