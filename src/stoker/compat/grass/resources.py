"""Parse JSON5 into exact amounts: devices of a queue, requests of a job."""

from __future__ import annotations

from stoker.client.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

POOLS = ("cpu", "mem")
"""Types that are resources of the node; a queue's devices of that name are another type."""
QUEUE_PREFIX = "queue-"
THOUSAND = 1000
MAX_DEVICES = 10_000
MAX_AMOUNT = 999_999_999
MAX_TEXT_LENGTH = 1 << 20
CORRECT_TYPE = {"gpus": "gpu", "GPU": "gpu", "GPUs": "gpu", "GPUS": "gpu", "Gpu": "gpu"}
"""Under another name a job could not use the device: CUDA gets only `gpu` devices."""

Device = tuple[str, str, int]
"""Type, name, and capacity in thousandths."""


def parse_capacities(text: str, what: str) -> list[Device]:
    """Parse the devices of a queue in any of the three forms."""
    parsed: list[Device] = []
    for kind, value in _parse_json5(text, what).items():
        _check_type(kind)
        if isinstance(value, list):
            named = [(str(index), _capacity(kind, one, LIST)) for index, one in enumerate(value)]
        elif isinstance(value, dict):
            named = [(_name(kind, name), _capacity(kind, one, DICT)) for name, one in value.items()]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            named = [(str(index), THOUSAND) for index in range(_count(kind, value))]
        else:
            raise UsageError(
                f"{kind}: {_shown(value)}: Unsupported resource capacity. "
                "It should be int, list, or dictionary."
            )
        parsed += [(kind, name, capacity) for name, capacity in named]
        if len(parsed) > MAX_DEVICES:
            raise UsageError(
                _too_many(kind, len(value) if isinstance(value, list | dict) else value)
            )
    return parsed


def parse_requirement(text: str) -> dict[str, int]:
    """Parse the request of a job: thousandths by type."""
    plain = _parse_simple(text)
    parsed: dict[str, int] = {}
    for kind, value in (_parse_json5(text, "--json") if plain is None else plain).items():
        _check_type(kind)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(
                f"{kind}: {_shown(value)} is not an amount; a job requests one number per type, "
                "such as {gpu:0.5,RAM:256}."
            )
        parsed[kind] = thousandths(kind, value)
    return {kind: amount for kind, amount in parsed.items() if amount}


def thousandths(kind: str, value: float) -> int:
    """Return an exact amount in thousandths; repr() of a float is what the user wrote."""
    if not 0 <= value <= MAX_AMOUNT:  # also rejects NaN
        raise UsageError(
            f"{kind}: {_shown(value)} is not an amount; write a number from 0 to {MAX_AMOUNT}, "
            "such as 0.5."
        )
    units, _, part = repr(value).partition(".")
    part = part.rstrip("0")
    if not (units + part).isdecimal() or len(part) > 3:
        raise UsageError(f"{kind}: {_shown(value)} has more than three decimals; round it.")
    return int(units) * THOUSAND + int(part.ljust(3, "0"))


def format_amount(amount: int) -> str:
    """Format thousandths as a decimal number."""
    units, part = divmod(amount, THOUSAND)
    return f"{units}.{part:03}".rstrip("0") if part else str(units)


def parse_amount(text: str) -> int:
    """Parse an amount of the daemon into thousandths."""
    units, _, part = text.partition(".")
    return int(units or 0) * THOUSAND + int((part or "0").ljust(3, "0"))


def number(text: str) -> int | float:
    """Parse an amount of the daemon into a JSON number."""
    return float(text) if "." in text else int(text)


def daemon_type(kind: str) -> str:
    """Return the daemon's type for a queue's own devices."""
    return QUEUE_PREFIX + kind if kind in POOLS else kind


def grass_type(kind: str) -> str:
    """Return the grass type for a type of the daemon."""
    return kind.removeprefix(QUEUE_PREFIX) if kind.removeprefix(QUEUE_PREFIX) in POOLS else kind


# ------------------------------------------------------------------------------- validation

LIST, DICT = "List has a non-number", "dict value is not a number"


def _check_type(kind: str) -> None:
    letters = kind.replace("_", "a").replace("-", "a").replace(".", "a")
    first = kind[:1].isalpha() or kind[:1] == "_"
    if not (kind.isascii() and letters.isalnum() and first) or len(kind) > 50:
        raise UsageError(
            f"{_shown(kind)} is not a resource type; use letters, digits, '_', '-' and '.'."
        )
    if kind in CORRECT_TYPE:
        raise UsageError(f"The resource type {kind} is written {CORRECT_TYPE[kind]}.")
    if grass_type(kind) != kind:
        raise UsageError(f"The resource type {kind} is written {grass_type(kind)}.")


def _count(kind: str, value: float) -> int:
    if not isinstance(value, int) or value < 0:
        raise UsageError(
            f"{kind}: {_shown(value)}: It should be a single integer (the number of devices), "
            f"or a list such as [0.5] for one device of that capacity."
        )
    if value > MAX_DEVICES:
        raise UsageError(_too_many(kind, value))
    return value


def _too_many(kind: str, value: object) -> str:
    return (
        f"{kind}: {_shown(value)} devices are too many; a queue has at most {MAX_DEVICES}. "
        f"One device of a capacity is written {kind}:[512]."
    )


def _capacity(kind: str, value: object, complaint: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{kind}: {complaint}: {_shown(value)}. Write numbers, such as 32 or 0.5.")
    return thousandths(kind, value)


def _name(kind: str, name: str) -> str:
    # A comma or a space would break CUDA_VISIBLE_DEVICES and every list of names.
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
    except ValueError:  # Python cannot print numbers with thousands of digits
        return "a number that long"
    text = text.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= 60 else text[:57] + "..."


# ------------------------------------------------------------------------------------ JSON5


def _parse_simple(text: str) -> dict[str, object] | None:
    """Parse the usual `{gpu:0.5,cpu:2}` without pyjson5 (its import takes 20 ms), else None."""
    text = text.strip()
    if not (text.isascii() and text.startswith("{") and text.endswith("}")):
        return None
    parsed: dict[str, object] = {}
    for part in text[1:-1].split(","):
        name, _, value = (piece.strip() for piece in part.partition(":"))
        digits = value.replace(".", "", 1)
        if not name.isidentifier() or name in parsed or not digits.isdecimal() or len(value) > 15:
            return None
        if value[0] == "0" and value[1:2].isdecimal():
            return None
        parsed[name] = float(value) if "." in value else int(value)
    return parsed


def _parse_json5(text: str, what: str) -> dict[str, object]:
    """Parse a JSON5 object; reject repeated names."""
    import pyjson5

    example = "write for example '{gpu:4,cpu:16}'"
    if len(text) > MAX_TEXT_LENGTH:
        raise UsageError(f"{what} is longer than {MAX_TEXT_LENGTH} characters.")
    try:
        value = pyjson5.decode(text, maxdepth=3)
    except pyjson5.Json5NestingTooDeep:
        raise UsageError(f"{what} is nested too deeply; {example}.") from None
    except (pyjson5.Json5Exception, ValueError):  # ValueError: thousands of digits
        raise UsageError(f"{what} {_shown(text)} is not JSON5; {example}.") from None
    if not isinstance(value, dict):
        raise UsageError(f"{what} {_shown(text)} is not an object; {example}.")
    for twice in _repeated_names(text, pyjson5.decode):
        raise UsageError(f"{what} names {_shown(twice)} twice; write it once.")
    return value


def _repeated_names(text: str, decode: object) -> Iterable[str]:
    """Yield names that occur twice in one object, where a parser keeps only the last."""
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
