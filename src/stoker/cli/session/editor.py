"""A queued job as text in $EDITOR: what a person may change, and only that."""

from __future__ import annotations

import os
import tomllib

from stoker.cli.output import clean
from stoker.client import fast_json
from stoker.client.errors import StokerError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VIEW_FIELDS = ("name", "queue", "priority", "group", "comment")
REQUEST_FIELDS = {"gpus": "gpus", "cpus": "cpus", "mem": "memory", "gpu_model": "model",
                "gpus_min_vram": "min_vram", "gpu_memory": "gpu_memory"}  # fmt: skip
MEMORY_FIELDS = frozenset({"mem", "gpus_min_vram", "gpu_memory"})


def edit_in_editor(view: dict[str, Any]) -> dict[str, object]:
    """Open an editor on a job's fields; return the options that were changed."""
    before = editable_fields(view)
    text = to_toml(view, before)
    while True:
        text = _run_editor(text)
        try:
            return changed_fields(before, text)
        except UsageError as error:
            answer = input(f"stoker: {error.message} Edit again? [Y/n] ")
            if answer.strip().lower() in {"n", "no"}:
                raise


def editable_fields(view: dict[str, Any]) -> dict[str, str]:
    """Return what may be changed, as a person would type it."""
    request = view.get("request") or {}
    found = {key: view.get(key) for key in VIEW_FIELDS}
    for key, name in REQUEST_FIELDS.items():
        value = request.get(name)
        found[key] = f"{value}M" if value is not None and key in MEMORY_FIELDS else value
    limit = view.get("time_limit")
    found["time"] = None if limit is None else f"{limit:.0f}s"
    found["dependency"] = view.get("depends")
    return {key: "" if value is None else str(value) for key, value in found.items()}


def to_toml(view: dict[str, Any], values: dict[str, str]) -> str:
    """Write the fields as TOML."""
    command = clean((str(view.get("command") or "").splitlines() or [""])[0])
    lines = [
        f"# Job {view['label']}: {command}",
        "# Change the values between the quotes; an empty value is not set. Save and exit.",
    ]
    lines += [f"{key} = {fast_json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def changed_fields(before: dict[str, str], text: str) -> dict[str, object]:
    """Return what differs between the fields and the edited text."""
    try:
        after = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"The edited text cannot be parsed: {error}.") from None
    unknown = [key for key in after if key not in before]
    if unknown:
        raise UsageError(f"There is no field {unknown[0]!r}.")
    return {key: str(value) for key, value in after.items() if str(value) != before[key]}


def _run_editor(text: str) -> str:
    import shlex
    import subprocess
    import tempfile

    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.NamedTemporaryFile("w+", suffix=".toml", prefix="stoker-") as file:
        file.write(text)
        file.flush()
        try:
            code = subprocess.call([*shlex.split(command), file.name])
        except FileNotFoundError:
            raise StokerError(f"The editor {command!r} was not found. Set $EDITOR.") from None
        if code:
            raise StokerError(f"The editor ended with code {code}; nothing was changed.")
        with open(file.name, encoding="utf-8") as again:
            return again.read()
