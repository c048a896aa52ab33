"""Edit the changeable fields of a pending job in $EDITOR."""

from __future__ import annotations

import os
import tomllib

from stoker.cli.output import clean
from stoker.client import fast_json
from stoker.client.errors import StokerError, UsageError
from stoker.wire import JsonObject

VIEW_FIELDS = ("name", "queue", "priority", "group", "comment")
REQUEST_FIELDS = {"gpus": "gpus", "cpus": "cpus", "mem": "memory", "gpu_model": "model",
                "gpus_min_vram": "min_vram", "gpu_memory": "gpu_memory"}  # fmt: skip
MEMORY_FIELDS = frozenset({"mem", "gpus_min_vram", "gpu_memory"})


def edit_in_editor(view: JsonObject) -> dict[str, object]:
    """Open an editor with a job's fields; return the changed options."""
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


def editable_fields(view: JsonObject) -> dict[str, str]:
    """Return the changeable fields as the user would type them."""
    request = view.get("request") or {}
    values = {key: view.get(key) for key in VIEW_FIELDS}
    for key, name in REQUEST_FIELDS.items():
        value = request.get(name)
        values[key] = f"{value}M" if value is not None and key in MEMORY_FIELDS else value
    limit = view.get("time_limit")
    values["time"] = None if limit is None else f"{limit:.0f}s"
    values["dependency"] = view.get("depends")
    return {key: "" if value is None else str(value) for key, value in values.items()}


def to_toml(view: JsonObject, values: dict[str, str]) -> str:
    """Return the fields as TOML."""
    command = clean((str(view.get("command") or "").splitlines() or [""])[0])
    lines = [
        f"# Job {view['label']}: {command}",
        "# Change the values between the quotes; an empty value is not set. Save and exit.",
    ]
    lines += [f"{key} = {fast_json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def changed_fields(before: dict[str, str], text: str) -> dict[str, object]:
    """Return the fields that the edited text changes."""
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
        with open(file.name, encoding="utf-8") as edited:
            return edited.read()
