"""Reads JSON5 into exact amounts: what a queue has, and what a job asks for."""

from __future__ import annotations

from stoker.client.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

POOLS = ("cpu", "mem")
"""Types that are pools of the machine; a queue's own devices of that name are another type."""
BROUGHT = "queue-"
THOUSAND = 1000
MOST_DEVICES = 10_000
MOST = 999_999_999
LONGEST_TEXT = 1 << 20
MEANT = {"gpus": "gpu", "GPU": "gpu", "GPUs": "gpu", "GPUS": "gpu", "Gpu": "gpu"}
"""Under another name a job would get the device, but not see it: CUDA is told of `gpu` only."""

Device = tuple[str, str, int]
"""Type, name, and capacity in thousandths."""


def capacities(text: str, what: str) -> list[Device]:
    """Read what a queue has, in any of the three forms."""
    found: list[Device] = []
    for kind, value in _object(text, what).items():
        _check_type(kind)
        if isinstance(value, list):
            named = [(str(place), _capacity(kind, one, LIST)) for place, one in enumerate(value)]
        elif isinstance(value, dict):
            named = [(_name(kind, name), _capacity(kind, one, DICT)) for name, one in value.items()]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            named = [(str(place), THOUSAND) for place in range(_count(kind, value))]
        else:
            raise UsageError(
                f"{kind}: {_shown(value)}: Unsupported resource capacity. "
                "It should be int, list, or dictionary."
            )
        found += [(kind, name, capacity) for name, capacity in named]
        if len(found) > MOST_DEVICES:
            raise UsageError(
                _too_many(kind, len(value) if isinstance(value, list | dict) else value)
            )
    return found


def requirement(text: str) -> dict[str, int]:
    """Read what a job asks for: one amount by type, in thousandths."""
    plain = _plain(text)
    found: dict[str, int] = {}
    for kind, value in (_object(text, "--json") if plain is None else plain).items():
        _check_type(kind)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(
                f"{kind}: {_shown(value)} is not an amount; a job requests one number per type, "
                "such as {gpu:0.5,RAM:256}."
            )
        found[kind] = thousandths(kind, value)
    return {kind: amount for kind, amount in found.items() if amount}


def thousandths(kind: str, value: float) -> int:
    """Return an exact amount; the shortest text of a float is what was typed."""
    if not 0 <= value <= MOST:  # written so that NaN is refused too
        raise UsageError(
            f"{kind}: {_shown(value)} is not an amount; write a number from 0 to {MOST}, "
            "such as 0.5."
        )
    whole, _, part = repr(value).partition(".")
    part = part.rstrip("0")
    if not (whole + part).isdecimal() or len(part) > 3:
        raise UsageError(f"{kind}: {_shown(value)} has more than three decimals; round it.")
    return int(whole) * THOUSAND + int(part.ljust(3, "0"))


def written(amount: int) -> str:
    """Write thousandths as a person would type them."""
    whole, part = divmod(amount, THOUSAND)
    return f"{whole}.{part:03}".rstrip("0") if part else str(whole)


def read_back(text: str) -> int:
    """Return the thousandths of an amount as the daemon writes it."""
    whole, _, part = text.partition(".")
    return int(whole or 0) * THOUSAND + int((part or "0").ljust(3, "0"))


def number(text: str) -> int | float:
    """Return an amount as the daemon writes it, as a JSON number."""
    return float(text) if "." in text else int(text)


def inside(kind: str) -> str:
    """Return the type under which the daemon knows a queue's own devices."""
    return BROUGHT + kind if kind in POOLS else kind


def outside(kind: str) -> str:
    """Return the type that was typed."""
    return kind.removeprefix(BROUGHT) if kind.removeprefix(BROUGHT) in POOLS else kind


# ----------------------------------------------------------------------- what may be written

LIST, DICT = "List has a non-number", "dict value is not a number"


def _check_type(kind: str) -> None:
    letters = kind.replace("_", "a").replace("-", "a").replace(".", "a")
    first = kind[:1].isalpha() or kind[:1] == "_"
    if not (kind.isascii() and letters.isalnum() and first) or len(kind) > 50:
        raise UsageError(
            f"{_shown(kind)} is not a resource type; use letters, digits, '_', '-' and '.'."
        )
    if kind in MEANT:
        raise UsageError(f"The resource type {kind} is written {MEANT[kind]}.")
    if outside(kind) != kind:
        raise UsageError(f"The resource type {kind} is written {outside(kind)}.")


def _count(kind: str, value: float) -> int:
    if not isinstance(value, int) or value < 0:
        raise UsageError(
            f"{kind}: {_shown(value)}: It should be a single integer (the number of devices), "
            f"or a list such as [0.5] for one device of that capacity."
        )
    if value > MOST_DEVICES:
        raise UsageError(_too_many(kind, value))
    return value


def _too_many(kind: str, value: object) -> str:
    return (
        f"{kind}: {_shown(value)} devices are too many; a queue has at most {MOST_DEVICES}. "
        f"One device of a capacity is written {kind}:[512]."
    )


def _capacity(kind: str, value: object, complaint: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{kind}: {complaint}: {_shown(value)}. Write numbers, such as 32 or 0.5.")
    return thousandths(kind, value)


def _name(kind: str, name: str) -> str:
    # A comma or a space inside would break CUDA_VISIBLE_DEVICES, and every list of names.
    if not name or not name.isprintable() or any(char in " ,{}" for char in name):
        raise UsageError(
            f"{kind}: the device name {_shown(name)} must be one word without spaces, commas "
            "and braces."
        )
    if len(name) > 128:
        raise UsageError(f"{kind}: the device name {_shown(name)} is longer than 128 characters.")
    return name


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write numbers of thousands of digits
        return "a number that long"
    text = text.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= 60 else text[:57] + "..."


# ------------------------------------------------------------------------------- JSON5 itself


def _plain(text: str) -> dict[str, object] | None:
    """Read the usual `{gpu:0.5,cpu:2}` without the 20 ms of importing pyjson5; None: ask that."""
    text = text.strip()
    if not (text.isascii() and text.startswith("{") and text.endswith("}")):
        return None
    found: dict[str, object] = {}
    for part in text[1:-1].split(","):
        name, _, value = (piece.strip() for piece in part.partition(":"))
        digits = value.replace(".", "", 1)
        if not name.isidentifier() or name in found or not digits.isdecimal() or len(value) > 15:
            return None
        if value[0] == "0" and value[1:2].isdecimal():
            return None
        found[name] = float(value) if "." in value else int(value)
    return found


def _object(text: str, what: str) -> dict[str, object]:
    """Read one JSON5 object in which no name comes twice."""
    import pyjson5

    example = "write for example '{gpu:4,cpu:16}'"
    if len(text) > LONGEST_TEXT:
        raise UsageError(f"{what} is longer than {LONGEST_TEXT} characters.")
    try:
        value = pyjson5.decode(text, maxdepth=3)
    except pyjson5.Json5NestingTooDeep:
        raise UsageError(f"{what} is nested too deeply; {example}.") from None
    except (pyjson5.Json5Exception, ValueError):  # ValueError: thousands of digits
        raise UsageError(f"{what} {_shown(text)} is not JSON5; {example}.") from None
    if not isinstance(value, dict):
        raise UsageError(f"{what} {_shown(text)} is not an object; {example}.")
    for twice in _repeated(text, pyjson5.decode):
        raise UsageError(f"{what} names {_shown(twice)} twice; write it once.")
    return value


def _repeated(text: str, decode: object) -> Iterable[str]:
    """Find names that stand twice in one object, of which a parser keeps the last only."""
    import re

    assert callable(decode)
    token = re.compile(
        r"""//[^\n\r\u2028\u2029]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'"""
        r"""|[{}\[\]:,]|[^\s{}\[\]:,"'/]+""",
        re.DOTALL,
    )
    open_: list[set[str]] = []
    before = ""
    for word in token.findall(text):
        if word.startswith(("//", "/*")):
            continue
        if word in "{[":
            open_.append(set())
        elif word in "}]":
            open_.pop()
        elif word == ":":
            name = next(iter(decode(f"{{{before}:0}}")))
            if name in open_[-1]:
                yield name
            open_[-1].add(name)
        before = word
