"""The OpenAPI document, generated from the route table and the schema."""

from __future__ import annotations

from typing import Any

import msgspec

from stoker import __version__, wire
from stoker.daemon.routes.app import ROUTES, ApiRoute
from stoker.schema.daemon import ErrorReply

MAX_NUMBER = 10**12
QUERY_SCHEMAS: dict[type, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER},
    list: {"type": "array", "items": {"type": "string"}},
}


def document() -> dict[str, Any]:
    """Return the OpenAPI description of every route."""
    types = [ErrorReply, *(route.reply for route in ROUTES if not isinstance(route.reply, str))]
    types += [route.body for route in ROUTES if not isinstance(route.body, str | None)]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(map(str, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        operations = paths.setdefault(wire.PREFIX + route.path, {})
        operations[route.method.lower()] = _operation(route, schema_of)
    # Times are text in replies: `JobView[str]` is simply a JobView.
    text = msgspec.json.encode({"paths": paths, "schemas": components}).decode()
    described = msgspec.json.decode(text.replace("_str_", "").replace("[str]", ""))
    return {
        "openapi": "3.1.0",
        "info": {"title": "stoker", "version": __version__},
        "paths": described["paths"],
        "components": {
            "schemas": described["schemas"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: ApiRoute, schema_of: dict[str, Any]) -> dict[str, Any]:
    is_stream = isinstance(route.reply, str)
    media = route.reply if is_stream else "application/json"
    content = {} if is_stream else {"schema": schema_of[str(route.reply)]}
    failure = {
        "description": "What happened, and what to do",
        "content": {"application/json": {"schema": schema_of[str(ErrorReply)]}},
    }
    # 401: at a TCP port, without its token.
    statuses = sorted({"401", *(str(status) for status, _ in wire.ERRORS.values())})
    summary = (route.handler.__doc__ or route.path).partition("\n")[0].rstrip(".")
    operation: dict[str, Any] = {
        "summary": summary,
        "parameters": [
            *(_parameter("query", name, QUERY_SCHEMAS[kind]) for name, kind in route.query.items()),
            *(
                _parameter("path", part[1:-1], QUERY_SCHEMAS[str])
                for part in route.path.split("/")
                if part.startswith("{")
            ),
        ],
        "responses": {
            "200": {"description": summary, "content": {media: content}},
            **dict.fromkeys(statuses, failure),
        },
    }
    if route.body is not None:
        is_stream = isinstance(route.body, str)
        media = route.body if is_stream else "application/json"
        content = {} if is_stream else {"schema": schema_of[str(route.body)]}
        operation["requestBody"] = {"required": True, "content": {media: content}}
    return operation


def _parameter(place: str, name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": schema}
