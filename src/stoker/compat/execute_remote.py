"""execute_remote: run one command on an SSH node and show its output."""

from __future__ import annotations

import os
import sys

from stoker.client.errors import StokerError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.client.client import Client
    from stoker.compat.arguments import Arguments
    from stoker.compat.execute_batch.job_locks import JobLocks
    from stoker.compat.execute_batch.node_lease import LeasedNode

NAME = "execute_remote"
HELP = """\
  execute_remote --machine machine.yaml 'python train.py'

Runs one command on a machine, under its bash and with its ~/.bashrc. Its output is shown while it
runs; paths given with --copy-backwards are copied to ./job_results/NAME/. The command sees all
GPUs of the machine: no resources are reserved for it.

Options
  --machine M               a file with username, ip, port and ssh_key_path, here or in
                            ~/.local/var (required)
  --copy-forward PATH ...   paths to copy to the machine (./)
  --copy-backwards PATH ... paths to copy back (none)
  --job-name NAME           name of the job (24 random digits)
  --verbose                 print the job id
  -h, --help                show this help

Exit: the exit code of the command; 1 after ^C or if it could not be run; 2 usage error."""


def main(argv: list[str]) -> int:
    """Run a command and return its exit code."""
    from stoker.compat.arguments import MANY, ONE, SWITCH, read_arguments

    kinds = {
        "--machine": ONE, "--copy-forward": MANY, "--copy-backwards": MANY, "--job-name": ONE,
        "--verbose": SWITCH,
    }  # fmt: skip
    arguments = read_arguments(argv, kinds, NAME)
    command = _command(arguments)
    if "--machine" not in arguments.values:
        raise UsageError("the following arguments are required: --machine")
    name = arguments.values.get("--job-name") or os.urandom(12).hex().upper()
    if "/" in name or name in (".", "..") or not name.isprintable():
        raise UsageError(f"--job-name {name!r} cannot be the name of a directory.")
    try:
        return _run(arguments, command, name)
    except KeyboardInterrupt:
        return 1


def _command(arguments: Arguments) -> str:
    """Return the command: the last word, also after an option with several values."""
    if not arguments.words:
        last = [values for values in arguments.lists.values() if values][-1:]
        arguments.words = [last[0].pop()] if last else []
    if len(arguments.words) != 1:
        raise UsageError(
            "Put the whole command in quotes: execute_remote --machine machine.yaml 'ls -l'"
            if arguments.words
            else "No command given. Example: execute_remote --machine machine.yaml 'ls -l'"
        )
    if not arguments.words[0].strip():
        raise UsageError("The command is empty.")
    return arguments.words[0]


def _run(arguments: Arguments, command: str, name: str) -> int:
    from stoker.client.client import connect
    from stoker.compat.execute_batch.job_locks import JobLocks
    from stoker.compat.execute_batch.lines import RESULTS, create_results_directory
    from stoker.compat.execute_batch.node_lease import NodeLease
    from stoker.compat.execute_batch.transfer_options import transfer_options

    directory = os.path.join(RESULTS, name)
    _reject_existing_results(directory, name)
    options = {
        **transfer_options(
            arguments.lists.get("--copy-forward", ["./"]),
            arguments.lists.get("--copy-backwards", []),
        ),
        "name": name,
        "client": NAME,
        "verbatim": True,
        "cpus": "0",
    }
    client = connect()
    locks = JobLocks(client)
    lease = NodeLease(client, [arguments.values["--machine"]], NAME)
    try:
        lease.acquire()
        options["bring_into"] = os.path.join(create_results_directory(), name).replace("%", "%%")
        _lock_name(locks, name)
        try:
            _reject_existing_results(
                directory, name
            )  # another process may have had the name until now
            id = _submit(client, lease.nodes[0], command, options)
        except StokerError:
            locks.release(name)
            raise
        if "--verbose" in arguments.switches:
            from stoker.cli import output

            output.say(f"{NAME}: job {id} on {lease.nodes[0].address}: {command}")
        code = _follow(client, str(id))
        os.makedirs(directory, exist_ok=True)
        locks.release(name)
        _report_missing(options, directory, lease.nodes[0])
        return code
    finally:
        lease.release()


def _reject_existing_results(directory: str, name: str) -> None:
    if os.path.lexists(directory):
        raise StokerError(
            f"results for job '{name}' already exist, move or remove files before continuing"
        )


def _lock_name(locks: JobLocks, name: str) -> None:
    """Lock the job name."""
    from stoker.compat.execute_batch.job_locks import ANOTHER_PROCESS

    holder = locks.acquire(name)
    if holder is not None:
        by = "by another command" if holder == ANOTHER_PROCESS else f"as job {holder}"
        raise StokerError(
            f"job '{name}' is being run {by}; wait until it ends, or choose another --job-name"
        )


def _report_missing(options: dict[str, Any], directory: str, node: LeasedNode) -> None:
    """Report the paths that were not brought back."""
    from stoker.cli import output
    from stoker.compat.execute_batch.transfer_options import missing_results

    for path in [] if node.view["shared"] else missing_results(options, directory):
        output.say(f"{NAME}: --copy-backwards {path}: the command wrote nothing there")


def _submit(client: Client, node: LeasedNode, command: str, options: dict[str, Any]) -> int:
    from stoker import places
    from stoker.client.submit_environment import current_directory, shell, umask

    logs = places.logs_dir().replace("%", "%%")
    # The command sees all GPUs; a job without allocated GPUs would see none.
    line = f"unset CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES; {command}"
    reply = client.submit(
        {
            "what": {"line": line},
            "options": {**options, "nodelist": node.node, "error": f"{logs}/%j.err"},
            "directory": current_directory(),
            "environment": {},  # the local environment is not valid on another host
            "shell": shell(),
            "umask": umask(),
        }
    )
    return int(reply["first"])


def _follow(client: Client, label: str) -> int:
    """Copy the output until the job ends; return its exit code. ^C also cancels the job."""
    import signal
    from threading import Thread

    from stoker.cli import output
    from stoker.client import reconnect

    def copy(stream: str) -> None:
        target = sys.stdout.buffer if stream == "out" else sys.stderr.buffer
        try:
            reconnect.copy(reconnect.follow_attempts(client, label, 0, stream=stream), target)
        except (StokerError, OSError):
            if stream == "out":
                raise  # one error message is enough

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    errors = Thread(target=copy, args=("err",), daemon=True)
    errors.start()
    try:
        copy("out")
        view = reconnect.wait(client, [label])["jobs"][0]
    except KeyboardInterrupt:
        _end(client, label)
        return 1
    except BrokenPipeError:
        _end(client, label)
        raise
    errors.join()
    if view["exit_code"] is None:
        output.say(f"{NAME}: {output.clean(view['cause'])}")
    elif view["termination_note"]:
        output.say(f"{NAME}: {output.clean(view['termination_note'])}")
    return int(view["result"])


def _end(client: Client, label: str) -> None:
    """Cancel a job; kill it on the next ^C; then leave it to the daemon."""
    from stoker.client import reconnect

    for action in (client.cancel, client.kill):
        try:
            action([label])
            reconnect.wait(client, [label])
        except KeyboardInterrupt:
            continue
        return
