"""`run-scheduler`: a training script, in a container or without one, measured and preemptible."""

from __future__ import annotations

import os

from stoker.client.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.compat.run_scheduler.arguments import RunSchedulerArguments

NAME = "run-scheduler"
"""What jobs that came through here carry."""
PYTHON = "command -v python || command -v python3 || echo python3"
"""Finds the interpreter on the node that a script without an image runs on."""
HELP = """\
  run-scheduler --image_name IMAGE --script_path /custom/train.py --custom_dir ~/code \\
                --max_epochs 10 --batch_size 64 --training_set_size 50000 my_experiment

Submits a training script and prints the job id. The script runs as `python SCRIPT_PATH`. The
scheduler chooses its number of GPUs, may let it share GPUs with other such jobs, and may preempt
it at the end of an epoch; it then resumes later from its snapshot.

  --image_name IMAGE           run in a container of this image; without it, directly
  --script_path PATH           path of the script in the container (required)
  --custom_dir DIR             directory to mount as /custom
  --snapshots_dir DIR          directory to mount as /snapshots
  --batch_size N               sets BATCH_SIZE
  --training_set_size N        samples per epoch; sets TRAINING_SET_SIZE
  --max_epochs N               sets EPOCHS_TO_BE_DONE
  --is_single_gpu BOOL         at most one GPU (true)
  --disable_gpu_sharing BOOL   do not share its GPUs (false)
  --estimated_memory MIB       total GPU memory of the job; 0: no GPU
  --port_mapping LIST          ports of the node and of the container: 31346:6006,...
  --nodes N                    number of nodes; sets MASTER_ADDR and TF_CONFIG (1)
  --gpus_per_node N            GPUs on each node (1)
  --est_nhours HOURS           estimated duration in hours, more than 1
  --json                       print JSON
  -h, --help                   show this help

~/datasets of the node is mounted as /data. On SSH nodes, --custom_dir is uploaded, and changes are
copied back. See also scheduler-state, scheduler-get-logs and scheduler-cancel-job."""


def main(argv: list[str]) -> int:
    """Queue a script."""
    from stoker.compat.run_scheduler.arguments import read

    typed = read(argv)
    if typed.help:
        print(HELP)
        return 0
    submission = _submission(typed)
    from stoker.cli import output
    from stoker.client.client import connect

    output.wants_json = typed.json
    if hint := _misplaced(typed):
        output.say(f"{NAME}: {output.clean(hint)}")
    client = connect()
    reply = client.submit(submission)
    for warning in reply.get("warnings") or ():
        output.say(f"{NAME}: {output.clean(warning)}")
    view = client.jobs([str(reply["first"])])["jobs"][0]
    unique = view["training"]["uuid"]
    if typed.json:
        output.emit({"id": unique, "job": view["id"], "name": view["name"]})
    else:
        print(unique)
    return 0


def _submission(typed: RunSchedulerArguments) -> dict[str, Any]:
    from stoker.cli.options.submission import job_environment
    from stoker.client.submit_environment import current_directory, shell, umask

    return {
        "what": _command(typed),
        "options": {
            **_files(typed),
            "name": typed.name,
            "client": NAME,
            # What was typed, for scheduler-state --extended.
            "comment": typed.written,
            "distributed": True,
            "verbatim": True,
            # Cores are a pool that all share; nothing of it is set aside.
            "cpus": "0",
            "no_threads": True,
            **typed.sizes(),
            **_gpus(typed),
            **_container(typed),
        },
        "directory": _directory(typed, current_directory()),
        "environment": job_environment(os.environ),
        "shell": shell() if typed.image is not None else "/bin/sh",
        "umask": umask(),
    }


def _gpus(typed: RunSchedulerArguments) -> dict[str, Any]:
    """Which GPUs: one or as many as there are, shared or not, and how much of their memory."""
    found: dict[str, Any] = {}
    if typed.nodes > 1:
        found["nodes"] = str(typed.nodes)
    if typed.memory == 0:
        return {**found, "gpus": "0"}
    if typed.nodes > 1 or typed.gpus_per_node is not None:
        found["gpus_per_node"] = str(typed.gpus_per_node or 1)
    else:
        found |= {"single_gpu": True} if typed.single else {"gpus": "1.."}
    if typed.alone:
        found["exclusive_gpu"] = True
    if typed.memory is not None:
        found["gpu_memory"] = f"{typed.memory}M"
    else:
        found["gpu_if_any"] = True  # nothing was said of a GPU
    return found


def _container(typed: RunSchedulerArguments) -> dict[str, Any]:
    if typed.image is None:
        return {}
    mounts = [f"{os.path.expanduser('~')}/datasets:/data:optional"]
    if typed.custom is not None:
        mounts.append(f"{typed.custom}:/custom")
    found: dict[str, Any] = {"image": typed.image, "mount": mounts, "workdir": "image"}
    if typed.ports:
        found["ports"] = typed.ports
    return found


def _command(typed: RunSchedulerArguments) -> dict[str, Any]:
    """Return what runs: without an image, the Python of the node that it runs on."""
    if typed.image is not None:
        return {"argv": ["python", typed.script]}
    from shlex import quote

    from stoker.client.submit_environment import current_directory

    path, directory = os.path.abspath(_here(typed)), _directory(typed, current_directory())
    # A path below the job's directory is relative, so that it is right on every node.
    if path.startswith(f"{directory.rstrip('/')}/"):
        path = os.path.relpath(path, directory)
    return {"line": f'exec "$({PYTHON})" {quote(path)}'}


def _directory(typed: RunSchedulerArguments, here: str) -> str:
    """Return the job's directory, which goes along to other nodes: with --custom_dir in it."""
    custom = typed.custom
    if custom is None or (typed.image is None and f"{custom}/".startswith(f"{here.rstrip('/')}/")):
        return here
    return custom


def _files(typed: RunSchedulerArguments) -> dict[str, Any]:
    """Send nothing where the container sees nothing of the job's directory."""
    if typed.image is not None and typed.custom is None:
        return {"no_send": True, "no_bring": True}
    return {}


def _misplaced(typed: RunSchedulerArguments) -> str | None:
    """Say where a script is in the container, if it was named by where it is here."""
    path = os.path.abspath(os.path.expanduser(typed.script))
    if typed.image is None or typed.custom is None or not path.startswith(f"{typed.custom}/"):
        return None
    inside = "/custom" + path.removeprefix(typed.custom)
    if os.path.normpath(typed.script) == inside or not os.path.isfile(path):
        return None
    return f"In the container, {path} is {inside}: use that path for this file."


def _here(typed: RunSchedulerArguments) -> str:
    """Return where the script lies when there is no container: /custom is the directory named."""
    path = os.path.expanduser(typed.script)
    inside = os.path.normpath(path)
    if inside.startswith("/custom/"):
        if typed.custom is not None:
            path = typed.custom + inside.removeprefix("/custom")
        elif not os.path.exists(path):
            raise UsageError(f"--script_path {typed.script} is below /custom: give --custom_dir.")
    if not os.path.isfile(path):
        raise UsageError(f"--script_path {path}: there is no such file.")
    return path
