"""`grass enqueue`: add a job to a queue."""

from __future__ import annotations

import os

from stoker.cli import output
from stoker.client.client import connect
from stoker.client.errors import StokerError, UsageError
from stoker.compat.arguments import EACH, ONCE, Arguments, read_arguments
from stoker.compat.grass import queues
from stoker.compat.grass.resources import (
    daemon_type,
    format_amount,
    grass_type,
    parse_amount,
    parse_requirement,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

USAGE = """\
  grass enqueue QUEUE [--json JSON5] [--cwd DIR] [-e NAME=VALUE]... [--] COMMAND...

Add a job to a queue and print its id. It runs without a shell, in this directory and with this
environment. {gpu} (or another requested type) is replaced by the names of its devices.

  --json JSON5          requested resources: {gpu:0.5}, {gpu:2.5,RAM:256}; default: none
  --cwd DIR             working directory
  -e, --env NAME=VALUE  environment variable; may be repeated. NAME=VALUE words before the
                        command are variables too
"""
OPTIONS = {"--json": ONCE, "--cwd": ONCE, "--env": EACH}


def main(argv: list[str]) -> int:
    """Submit the job and print its id."""
    args = read_arguments(argv, OPTIONS, "grass enqueue", before_command=1)
    if len(args.words) < 2:
        raise UsageError(
            "No queue or command given. Example: "
            "grass enqueue q1 --json '{gpu:0.5}' -- python train.py"
        )
    variables = [_assignment(text) for text in args.lists.get("--env", [])]
    command = args.words[1:]
    while command and _is_assignment(command[0]):
        variables.append(command.pop(0))
    if not command:
        raise UsageError("Variables are given, but no command after them.")
    needs = parse_requirement(args.values.get("--json") or "{}")
    submission = _submission(args, variables, command)
    client = connect()
    queue = queues.find_queue(client, args.words[0])
    _check_possible(queue, needs)
    submission["options"] |= _job_options(queue["name"], needs)
    try:
        reply = client.submit(submission)
    except StokerError as error:
        raise queues.translate_error(error) from None
    for warning in reply.get("warnings") or ():
        output.say(f"grass: {output.clean(warning)}")
    print(reply["label"])
    return 0


def _assignment(text: str) -> str:
    if not _is_assignment(text):
        raise UsageError(f"--env {output.clean(text)!r} is not an assignment; write NAME=VALUE.")
    return text


def _is_assignment(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isascii() and name.isidentifier()


def _submission(args: Arguments, variables: list[str], command: list[str]) -> dict[str, Any]:
    from stoker.cli.options.environment import job_environment
    from stoker.cli.options.submission import absolute_path
    from stoker.client.submit_environment import current_directory, shell, umask

    given = args.values.get("--cwd")
    directory = absolute_path(os.path.expanduser(given)) if given else current_directory()
    names = dict.fromkeys(text.partition("=")[0] for text in variables)
    return {
        "what": {"argv": command},
        "directory": directory,
        "environment": job_environment(os.environ),
        "shell": shell(),
        "umask": umask(),
        # Only the names: values may be secrets, and a comment is readable for all.
        "options": {"env": variables, **({"comment": f"env: {' '.join(names)}"} if names else {})},
    }


def _job_options(queue: str, needs: dict[str, int]) -> dict[str, Any]:
    """Return the submit options of a job; cores are accounted by queues that have them."""
    options: dict[str, Any] = {"queue": queue, "client": queues.NAME, "cpus": "0"}
    if "gpu" in needs:
        options["gpus"] = format_amount(needs["gpu"])
    named = {
        daemon_type(kind): format_amount(amount) for kind, amount in needs.items() if kind != "gpu"
    }
    if named:
        options["resources"] = named
    return options


def _check_possible(queue: dict[str, Any], needs: dict[str, int]) -> None:
    """Reject a request that the queue can never satisfy."""
    has: dict[str, list[int]] = {}
    for device in queue["resources"]:
        has.setdefault(grass_type(device["type"]), []).append(parse_amount(device["capacity"]))
    for kind, amount in needs.items():
        sizes = has.get(kind)
        if not sizes:
            offer = f"it has {', '.join(has)}" if has else "it has no devices"
            raise UsageError(f"Queue {queue['name']} has no {kind}: {offer}.")
        unit = all(size == 1000 for size in sizes)
        available = sum(sizes) if unit else max(sizes)
        if amount > available:
            part = "in total" if unit else "on its largest device, and a job gets one device"
            raise UsageError(
                f"Queue {queue['name']} can never allocate {format_amount(amount)} {kind}: "
                f"it has {format_amount(available)} {part}."
            )
