"""Tools and their arguments, described by JSON Schema."""

from __future__ import annotations

from stoker.wire import JsonObject

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_TEXT = 10_000
MAX_ITEMS = 100
TYPES: dict[str, Any] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
    "array": (list,), "object": (dict,),
}  # fmt: skip


class InvalidArguments(Exception):
    """The arguments of a tool call do not fit its schema, or are not allowed."""


class Tool:
    """A tool: its description, and the function that it calls."""

    def __init__(
        self, name: str, description: str, call: Callable[[JsonObject], JsonObject],
        properties: dict[str, JsonObject], required: tuple[str, ...] = (),
        *, writes: bool = False, destructive: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.description, self.call = name, description, call
        self.properties, self.required = properties, required
        self.writes, self.destructive = writes, destructive

    def description_for_client(self) -> JsonObject:
        """Return the tool as `tools/list` has it."""
        hints: JsonObject = {"readOnlyHint": not self.writes, "openWorldHint": False}
        if self.writes:  # each takes a key: repeating a call changes nothing more
            hints |= {"destructiveHint": self.destructive, "idempotentHint": True}
        schema: JsonObject = {
            "type": "object", "properties": self.properties, "additionalProperties": False,
        }  # fmt: skip
        if self.required:
            schema["required"] = list(self.required)
        return {
            "name": self.name, "description": self.description, "inputSchema": schema,
            "annotations": hints,
        }  # fmt: skip


def text(description: str, **more: object) -> JsonObject:
    """Return the schema of a text argument."""
    return {"type": "string", "description": description, "maxLength": MAX_TEXT, **more}


def whole(description: str, minimum: int = 0, maximum: int = 1_000_000) -> JsonObject:
    """Return the schema of a whole number."""
    return {
        "type": "integer", "description": description, "minimum": minimum, "maximum": maximum,
    }  # fmt: skip


def number(description: str, maximum: float = 100_000) -> JsonObject:
    """Return the schema of a number from 0."""
    return {"type": "number", "description": description, "minimum": 0, "maximum": maximum}


def switch(description: str) -> JsonObject:
    """Return the schema of a switch."""
    return {"type": "boolean", "description": description}


def several(description: str, item: JsonObject, minimum: int = 0) -> JsonObject:
    """Return the schema of a list."""
    return {
        "type": "array", "description": description, "items": item, "minItems": minimum,
        "maxItems": MAX_ITEMS,
    }  # fmt: skip


def check_arguments(tool: Tool, arguments: Any) -> JsonObject:
    """Return the arguments of a call; raise InvalidArguments if they do not fit the schema."""
    if not isinstance(arguments, dict):
        raise InvalidArguments("The arguments must be an object.")
    for name in tool.required:
        if name not in arguments:
            raise InvalidArguments(f"{tool.name}: {name} is missing.")
    for name, value in arguments.items():
        schema = tool.properties.get(name)
        if schema is None:
            known = ", ".join(tool.properties) or "none"
            raise InvalidArguments(
                f"{tool.name}: there is no argument {name[:50]!r}; there are: {known}."
            )
        _check(f"{tool.name}: {name}", value, schema)
    return arguments


def _check(what: str, value: Any, schema: JsonObject) -> None:
    kind = schema["type"]
    is_bool = isinstance(value, bool)
    if not isinstance(value, TYPES[kind]) or is_bool != (kind == "boolean"):
        raise InvalidArguments(f"{what} must be of type {kind}.")
    if "enum" in schema and value not in schema["enum"]:
        raise InvalidArguments(f"{what} must be one of {', '.join(schema['enum'])}.")
    if kind == "string" and len(value) > schema["maxLength"]:
        raise InvalidArguments(f"{what} is longer than {schema['maxLength']} characters.")
    if kind in {"integer", "number"} and not schema["minimum"] <= value <= schema["maximum"]:
        raise InvalidArguments(f"{what} must be {schema['minimum']} to {schema['maximum']}.")
    if kind == "array":
        if not schema["minItems"] <= len(value) <= schema["maxItems"]:
            raise InvalidArguments(
                f"{what} must have {schema['minItems']} to {schema['maxItems']} entries."
            )
        for entry in value:
            _check(f"{what}[]", entry, schema["items"])
    if kind == "object" and len(value) > MAX_ITEMS:
        raise InvalidArguments(f"{what} has more than {MAX_ITEMS} entries.")
