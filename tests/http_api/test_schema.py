"""The published schema: every reference resolves, and docs/api.md shows the job view as it is."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from stoker.daemon.routes.app import ROUTES
from stoker.daemon.routes.openapi import document
from stoker.schema.job import JobView

API_PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_every_reply_has_a_schema_and_every_reference_resolves() -> None:
    published = document()
    schemas = published["components"]["schemas"]
    assert references(published) == {f"#/components/schemas/{name}" for name in schemas}
    assert {"JobView", "GpuView", "NodeView", "SweepView", "ErrorReply"} <= set(schemas)
    for route in ROUTES:
        operation = published["paths"][f"/v1{route.path}"][route.method.lower()]
        ((media, content),) = operation["responses"]["200"]["content"].items()
        assert ("schema" in content) == (media == "application/json"), route.path
        assert ("requestBody" in operation) == (route.method == "POST"), route.path


def test_the_documented_job_view_has_all_fields() -> None:
    section = API_PAGE.read_text().partition("## Job view")[2]
    block = re.search(r"```json\n(.*?)```", section, re.DOTALL)
    assert block is not None
    example = json.loads(block[1].replace('"..."', "null"))
    assert msgspec.to_builtins(msgspec.convert(example, JobView[str])) == example


def test_every_route_is_documented() -> None:
    text = API_PAGE.read_text()
    verbs = re.search(r"`POST /v1/(\w+(?:\|\w+)+)`", text)
    assert verbs is not None
    grouped = {f"/{verb}" for verb in verbs[1].split("|")}
    missing = [
        f"{route.method} {route.path}"
        for route in ROUTES
        if route.path not in grouped and f"{route.method} /v1{route.path}" not in text
    ]
    assert missing == []
