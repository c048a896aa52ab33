"""The lines that tell a job's own figures. Each is written at once: the file is the record."""

from __future__ import annotations

from stoker.training.coerce import number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ROOM = 3800
"""Bytes of names and numbers; the line must go into the file in one piece."""
TEXT, NAME = 100, 512
"""Characters of a text that is told beside numbers, and of a name."""
NAMES = 4096
"""Names whose spelling is remembered."""

_spelt: dict[str, str] = {}


def lines(epoch: int, at: float, step: object, metrics: Mapping[str, object]) -> list[str]:
    """These figures: in one line, or in several where one does not hold them all."""
    head = f'{{"k":"metrics","e":{epoch},"t":{at:.3f},{_step(step)}"v":{{'
    found: list[str] = []
    told: list[str] = []
    room = ROOM
    for name, value in metrics.items():
        figure = _figure(value)
        if figure is None:
            continue
        pair = f"{_spelt.get(name) or _spell(name)}:{figure}"
        if len(pair) >= room and told:
            found.append(f"{head}{','.join(told)}}}}}")
            told, room = [], ROOM
        room -= len(pair) + 1
        told.append(pair)
    if told:
        found.append(f"{head}{','.join(told)}}}}}")
    return found


def _figure(value: object) -> str | None:
    if isinstance(value, str):
        return _quoted(value) if len(value) <= TEXT else None
    figure = value if type(value) is float else number(value)
    if figure is None:
        return None
    if figure - figure == 0:
        return repr(figure)
    return "NaN" if figure != figure else "Infinity" if figure > 0 else "-Infinity"  # noqa: PLR0124


def _step(step: object) -> str:
    """Where in the training it is, if that was said: whole numbers stay whole."""
    if step is None:
        return ""
    if type(step) is int and abs(step) < 1 << 53:
        return f'"s":{step},'
    figure = number(step)
    if figure is None or figure - figure != 0:
        return ""
    return f'"s":{int(figure)},' if figure.is_integer() else f'"s":{figure!r},'


def _spell(name: object) -> str:
    if len(_spelt) >= NAMES:
        _spelt.clear()
    spelt = _quoted(str(name)[:NAME])
    if isinstance(name, str):
        _spelt[name] = spelt
    return spelt


def _quoted(text: str) -> str:
    from json import dumps

    return dumps(text)
