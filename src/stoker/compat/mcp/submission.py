"""The arguments of tools that submit jobs, and the submission they make."""

from __future__ import annotations

import os

from stoker.client import submit_environment
from stoker.compat.mcp import tool as t
from stoker.compat.mcp.limits import minutes
from stoker.compat.mcp.tool import InvalidArguments
from stoker.wire import JsonObject

OPTION_PROPERTIES = {
    "name": t.text("name of the job"),
    "directory": t.text("absolute path to run in; default: where this server was started"),
    "gpus": t.number("number of GPUs: 0, 0.5, 2 (0)", 1000),
    "gpu_memory": t.text("GPU memory it needs: 10G; allows sharing a GPU"),
    "gpu_model": t.text("only this model: a100, or a100|h100"),
    "cpus": t.number("cores", 10_000),
    "mem": t.text("RAM: 32G"),
    "hours": t.number("time limit in hours; the job is ended after it", 87_600),
    "queue": t.text("queue"),
    "labels": t.several("labels to find it by", t.text("label")),
    "env": {"type": "object", "description": "environment variables, NAME: text"},
    "after": t.several("start after these jobs have succeeded", t.text("job id")),
    "retries": t.whole("how often to start it again if it fails", 0, 100),
}
SUBMIT_PROPERTIES = {
    "command": t.text("shell command line"),
    **OPTION_PROPERTIES,
    "array": t.text("run it once per index, in STOKER_ARRAY_INDEX: 0-9 or 1,3,7"),
}
PLAIN = ("name", "gpu_memory", "gpu_model", "mem", "queue", "array")


def submission(given: JsonObject, what: JsonObject | None = None) -> JsonObject:
    """Return the request body of a submission."""
    directory = given.get("directory")
    if directory is not None and not os.path.isabs(directory):
        raise InvalidArguments("directory must be an absolute path.")
    environment, _ = submit_environment.environment(os.environ)
    fields = submit_environment.submit_fields(environment, directory)
    if directory is not None:
        fields["directory"] = directory
    return {
        **fields,
        "options": job_options(given),
        **(what or {"what": {"line": given["command"]}}),
    }


def job_options(given: JsonObject) -> dict[str, object]:
    """Return the options of the API for the arguments of a call."""
    options: dict[str, object] = {name: given[name] for name in PLAIN if given.get(name)}
    for name in ("gpus", "cpus"):
        if given.get(name):
            options[name] = f"{given[name]:g}"
    if "hours" in given:
        options["time"] = minutes(given["hours"])
    if given.get("labels"):
        options["label"] = given["labels"]
    if given.get("env"):
        options["env"] = {name: str(text) for name, text in given["env"].items()}
    if given.get("after"):
        options["dependency"] = "afterok:" + ":".join(given["after"])
    if given.get("retries"):
        options["retries"] = str(given["retries"])
    return options
