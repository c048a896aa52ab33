"""run-scheduler: submit a training script, with or without a container."""

from __future__ import annotations

import os

from stoker.client.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.compat.run_scheduler.arguments import RunSchedulerArguments

NAME = "run-scheduler"
"""`client` of jobs submitted with this command."""
PYTHON = "command -v python || command -v python3 || echo python3"
"""Finds the Python interpreter on the node of a script without an image."""
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
  --estimated_memory MIB       memory to reserve on each GPU; 0: no GPU
  --port_mapping LIST          ports of the node and of the container: 31346:6006,...
  --nodes N                    number of nodes; sets MASTER_ADDR and TF_CONFIG (1)
  --gpus_per_node N            GPUs on each node (1)
  --est_nhours HOURS           estimated duration in hours, more than 1
  --json                       print JSON
  -h, --help                   show this help

~/datasets of the node is mounted as /data. On SSH nodes, --custom_dir is uploaded, and changes are
copied back. See also scheduler-state, scheduler-get-logs and scheduler-cancel-job."""


def main(argv: list[str]) -> int:
    """Submit a script and print its id."""
    from stoker.compat.run_scheduler.arguments import read_run_arguments

    args = read_run_arguments(argv)
    submission = _submission(args)
    from stoker.cli import output
    from stoker.client.client import connect

    output.wants_json = args.json
    if hint := _path_hint(args):
        output.say(f"{NAME}: {output.clean(hint)}")
    client = connect()
    reply = client.submit(submission)
    for warning in reply.get("warnings") or ():
        output.say(f"{NAME}: {output.clean(warning)}")
    view = client.jobs([str(reply["first"])])["jobs"][0]
    full_id = view["training"]["uuid"]
    if args.json:
        output.emit({"id": full_id, "job": view["id"], "name": view["name"]})
    else:
        print(full_id)
    return 0


def _submission(args: RunSchedulerArguments) -> dict[str, Any]:
    from stoker.cli.options.environment import job_environment
    from stoker.client.submit_environment import current_directory, shell, umask

    return {
        "what": _command(args),
        "options": {
            **_files(args),
            "name": args.name,
            "client": NAME,
            # The options, for scheduler-state --extended.
            "comment": args.written,
            "distributed": True,
            "verbatim": True,
            # No cores are reserved: all jobs share them.
            "cpus": "0",
            "no_threads": True,
            **args.sizes(),
            **_gpus(args),
            **_container(args),
        },
        "directory": _directory(args, current_directory()),
        "environment": job_environment(os.environ),
        "shell": shell() if args.image is not None else "/bin/sh",
        "umask": umask(),
    }


def _gpus(args: RunSchedulerArguments) -> dict[str, Any]:
    """Return the GPU options: number, sharing and memory."""
    options: dict[str, Any] = {}
    if args.nodes > 1:
        options["nodes"] = str(args.nodes)
    if args.memory == 0:
        return {**options, "gpus": "0"}
    if args.nodes > 1 or args.gpus_per_node is not None:
        options["gpus_per_node"] = str(args.gpus_per_node or 1)
    else:
        options |= {"single_gpu": True} if args.single else {"gpus": "1.."}
    if args.alone:
        options["exclusive_gpu"] = True
    if args.memory is not None:
        options["gpu_memory"] = f"{args.memory}M"
    else:
        options["gpu_if_any"] = True  # no GPU was requested explicitly
    return options


def _container(args: RunSchedulerArguments) -> dict[str, Any]:
    if args.image is None:
        return {}
    mounts = [f"{os.path.expanduser('~')}/datasets:/data:optional"]
    if args.custom is not None:
        mounts.append(f"{args.custom}:/custom")
    options: dict[str, Any] = {"image": args.image, "mount": mounts, "workdir": "image"}
    if args.ports:
        options["ports"] = args.ports
    return options


def _command(args: RunSchedulerArguments) -> dict[str, Any]:
    """Return the command; without an image it uses the Python of its node."""
    if args.image is not None:
        return {"argv": ["python", args.script]}
    from shlex import quote

    from stoker.client.submit_environment import current_directory

    path, directory = os.path.abspath(_local_script(args)), _directory(args, current_directory())
    # A path below the job's directory is relative, so that it is valid on every node.
    if path.startswith(f"{directory.rstrip('/')}/"):
        path = os.path.relpath(path, directory)
    return {"line": f'exec "$({PYTHON})" {quote(path)}'}


def _directory(args: RunSchedulerArguments, cwd: str) -> str:
    """Return the job's directory, which is uploaded to other nodes; it contains --custom_dir."""
    custom = args.custom
    if custom is None or (args.image is None and f"{custom}/".startswith(f"{cwd.rstrip('/')}/")):
        return cwd
    return custom


def _files(args: RunSchedulerArguments) -> dict[str, Any]:
    """Return options that send no files if the container does not mount the directory."""
    if args.image is not None and args.custom is None:
        return {"no_send": True, "no_bring": True}
    return {}


def _path_hint(args: RunSchedulerArguments) -> str | None:
    """Return a hint if a script in a container is given by its local path."""
    path = os.path.abspath(os.path.expanduser(args.script))
    if args.image is None or args.custom is None or not path.startswith(f"{args.custom}/"):
        return None
    inside = "/custom" + path.removeprefix(args.custom)
    if os.path.normpath(args.script) == inside or not os.path.isfile(path):
        return None
    return f"In the container, {path} is {inside}: use that path for this file."


def _local_script(args: RunSchedulerArguments) -> str:
    """Return the local path of a script without a container; /custom is --custom_dir."""
    path = os.path.expanduser(args.script)
    inside = os.path.normpath(path)
    if inside.startswith("/custom/"):
        if args.custom is not None:
            path = args.custom + inside.removeprefix("/custom")
        elif not os.path.exists(path):
            raise UsageError(f"--script_path {args.script} is below /custom: give --custom_dir.")
    if not os.path.isfile(path):
        raise UsageError(f"--script_path {path}: there is no such file.")
    return path
