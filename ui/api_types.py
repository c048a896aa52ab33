"""Write src/api.d.ts: the types of the HTTP API, from its OpenAPI document."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from stoker.daemon.routes.openapi import document

TARGET = Path(__file__).parent / "src" / "api.d.ts"
SIMPLE = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean",
          "null": "null"}  # fmt: skip


def type_name(schema_name: str) -> str:
    """Return the name of an interface: `stoker.schema.gpu.Thresholds` becomes GpuThresholds."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"\W+", schema_name)
                   if part not in {"stoker", "schema"})  # fmt: skip


def type_of(schema: dict[str, Any]) -> str:
    """Return the TypeScript type of a JSON schema."""
    if "$ref" in schema:
        return type_name(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(map(type_of, schema["anyOf"])))
    if "enum" in schema:
        return " | ".join(f'"{value}"' for value in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        if "prefixItems" in schema:
            return f"[{', '.join(map(type_of, schema['prefixItems']))}]"
        item = type_of(schema.get("items", {}))
        return f"({item})[]" if " " in item else f"{item}[]"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"Record<string, {type_of(values) if isinstance(values, dict) else 'unknown'}>"
    return SIMPLE.get(kind or "", "unknown")


def interfaces(document: dict[str, Any]) -> str:
    """Return the text of the file: one interface per object of the document."""
    lines = ["// Written by ui/api_types.py from /v1/openapi.json; do not edit."]
    for name, schema in sorted(document["components"]["schemas"].items()):
        if schema.get("type") != "object" or "properties" not in schema:
            continue
        lines += ["", f"export interface {type_name(name)} {{"]
        for field, value in schema["properties"].items():
            key = field if re.fullmatch(r"\w+", field) else f'"{field}"'
            lines.append(f"  {key}: {type_of(value)};")
        lines.append("}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    text = interfaces(document())
    if sys.argv[1:] == ["--check"]:
        if TARGET.read_text() != text:
            sys.exit("ui/src/api.d.ts differs from the API. Run `make ui-types`.")
    else:
        TARGET.write_text(text)
