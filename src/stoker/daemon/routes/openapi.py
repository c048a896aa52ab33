"""The API's own description, made from the same types that check its requests."""

from __future__ import annotations

from typing import Any

import msgspec

from stoker import __version__, wire
from stoker.schema import requests as r

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "exit"],
            "properties": {
                "code": {"type": "string", "enum": sorted(wire.ERRORS)},
                "message": {"type": "string"},
                "exit": {"type": "integer"},
            },
        }
    },
}

GETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "/jobs": ("The queue, or selected jobs",
        ("select", "state", "user", "queue", "client", "limit", "tail", "fold", "arrays", "hook",
         "estimate")),
    "/sweeps": ("Unfinished sweeps, or all of them", ("all",)),
    "/sweeps/{sweep}": ("A sweep with all its trials", ()),
    "/eta": ("Expected start and end of jobs", ("select", "limit")),
    "/jobs/{selector}/why": ("Why a job is pending or in its current state", ()),
    "/jobs/{selector}/log": (
        "A job's output, raw", ("stream", "follow", "tail", "since", "offset", "attempt", "part"),
    ),
    "/jobs/{selector}/metrics": ("The metrics that a job has reported", ("names", "points")),
    "/gpus": ("GPUs and their use", ()),
    "/nodes": ("Every machine", ()),
    "/queues": ("Named queues", ()),
    "/policies": ("The policies of the queues, and all policies", ()),
    "/history": (
        "Finished jobs",
        ("select", "state", "user", "name", "queue", "client", "since", "until", "limit"),
    ),
    "/daemon": ("Status of the daemon", ()),
    "/events": ("All events, as server-sent events", ("after",)),
    "/openapi.json": ("This document", ()),
}  # fmt: skip

POSTS: dict[str, tuple[str, type]] = {
    "/jobs": ("Submit jobs", r.Submit),
    "/sweeps": ("Create a sweep, or continue one", r.Sweep),
    "/sweeps/{sweep}": ("Change a sweep", r.ChangeSweep),
    "/nodes": ("Add an SSH node, or change its address", r.AddNode),
    "/nodes/remove": ("Remove an SSH node", r.RemoveNode),
    "/nodes/refresh": ("All nodes and their state", r.RefreshNodes),
    "/wait": ("Wait until jobs have finished", r.Wait),
    "/cancel": ("Cancel jobs", r.Cancel),
    "/kill": ("Send a signal to jobs, or end them at once", r.Kill),
    "/pause": ("Suspend running jobs", r.Pause),
    "/resume": ("Continue suspended jobs", r.Resume),
    "/hold": ("Hold pending jobs", r.Hold),
    "/release": ("Release held jobs", r.Release),
    "/retry": ("Requeue finished jobs", r.Retry),
    "/edit": ("Change pending jobs", r.Edit),
    "/move": ("Change the queue position", r.Move),
    "/jobs/dismiss": ("Dismiss failures", r.Dismiss),
    "/drain": ("Drain devices", r.Drain),
    "/undrain": ("Undrain devices", r.Undrain),
    "/queues": ("Define a named queue", r.Queue),
    "/policies": ("Set the policy of a queue, or of all", r.Policy),
    "/history/hide": ("Hide earlier jobs from the history of a client", r.HideHistory),
    "/daemon/stop": ("Stop the daemon", r.Stop),
    "/backup": ("Copy the database", r.Backup),
    "/listen": ("Open a TCP port; only over the socket", r.Listen),
    "/thresholds": ("Change when a GPU counts as used by other processes", r.Thresholds),
}

DELETES: dict[str, tuple[str, str]] = {
    "/queues": ("Delete a named queue", "name"),
    "/listen": ("Close a TCP port; only over the socket", "address"),
}

NUMBERS = {"limit", "tail", "since", "offset", "attempt", "after", "points"}


def document() -> dict[str, Any]:
    """The OpenAPI description of every route."""
    bodies = [kind for _, kind in POSTS.values()]
    schemas, components = msgspec.json.schema_components(
        bodies, ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for path, (text, query) in GETS.items():
        parameters: list[dict[str, Any]] = [_query(path, name) for name in query]
        parameters += _in(path)
        paths.setdefault(wire.PREFIX + path, {})["get"] = _operation(path, text, parameters)
    for (path, (text, _)), schema in zip(POSTS.items(), schemas, strict=True):
        operation = _operation(path, text, _in(path))
        operation["requestBody"] = {
            "required": True, "content": {"application/json": {"schema": schema}},
        }  # fmt: skip
        paths.setdefault(wire.PREFIX + path, {})["post"] = operation
    for path, (text, name) in DELETES.items():
        parameter = {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        paths[f"{wire.PREFIX}{path}/{{{name}}}"] = {"delete": _operation(path, text, [parameter])}
    return {
        "openapi": "3.1.0",
        "info": {"title": "stoker", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _in(path: str) -> list[dict[str, Any]]:
    """What stands in braces in a path."""
    return [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
        for part in path.split("/")
        if part.startswith("{")
    ]


def _query(path: str, name: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if name in NUMBERS and path != "/history":
        schema = {"type": "integer", "minimum": 0, "maximum": 10**12}
    elif name == "limit":
        schema = {"type": "integer", "minimum": 0, "maximum": 10**6}
    elif name == "select":
        schema = {"type": "array", "items": {"type": "string"}}
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _operation(path: str, text: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    kinds = {"/jobs/{selector}/log": "application/octet-stream", "/events": "text/event-stream"}
    kind = kinds.get(path, "application/json")
    failure = {
        "description": "What happened, and what to do",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    # 401: at a TCP port, without its token.
    statuses = sorted({"401", *(str(status) for status, _ in wire.ERRORS.values())})
    return {
        "summary": text,
        "parameters": parameters,
        "responses": {
            "200": {"description": text, "content": {kind: {}}},
            **dict.fromkeys(statuses, failure),
        },
    }
