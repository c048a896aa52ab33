"""execute_remote: runs one command on a machine over SSH, and shows here what it prints."""

from __future__ import annotations

import os
import sys

from stoker.client.errors import StokerError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stoker.client.client import Client
    from stoker.compat.execute_batch.arguments import BatchArguments
    from stoker.compat.execute_batch.job_locks import JobLocks
    from stoker.compat.execute_batch.node_lease import Member

DOOR = "execute_remote"
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
    """Run a command."""
    from stoker.compat.execute_batch.arguments import MANY, ONE, SWITCH, read

    kinds = {
        "--machine": ONE, "--copy-forward": MANY, "--copy-backwards": MANY, "--job-name": ONE,
        "--verbose": SWITCH, "--help": SWITCH, "-h": SWITCH,
    }  # fmt: skip
    words = read(argv, kinds, DOOR)
    if words.switches & {"-h", "--help"}:
        print(HELP)
        return 0
    command = _command(words)
    if "--machine" not in words.ones:
        raise UsageError("the following arguments are required: --machine")
    name = words.ones.get("--job-name") or os.urandom(12).hex().upper()
    if "/" in name or name in (".", "..") or not name.isprintable():
        raise UsageError(f"--job-name {name!r} cannot be the name of a directory.")
    try:
        return _run(words, command, name)
    except KeyboardInterrupt:
        return 1


def _command(words: BatchArguments) -> str:
    """The command is the last word, also behind an option that takes any number of them."""
    if not words.free:
        last = [each for each in words.lists.values() if each][-1:]
        words.free = [last[0].pop()] if last else []
    if len(words.free) != 1:
        raise UsageError(
            "Put the whole command in quotes: execute_remote --machine machine.yaml 'ls -l'"
            if words.free
            else "No command given. Example: execute_remote --machine machine.yaml 'ls -l'"
        )
    if not words.free[0].strip():
        raise UsageError("The command is empty.")
    return words.free[0]


def _run(words: BatchArguments, command: str, name: str) -> int:
    from stoker.client.client import connect
    from stoker.compat.execute_batch.job_locks import JobLocks
    from stoker.compat.execute_batch.lines import RESULTS, make_results
    from stoker.compat.execute_batch.node_lease import NodeLease
    from stoker.compat.execute_batch.transfer_options import travel

    directory = os.path.join(RESULTS, name)
    _insist_on_no_results(directory, name)
    options = {
        **travel(
            words.lists.get("--copy-forward", ["./"]), words.lists.get("--copy-backwards", [])
        ),
        "name": name, "client": DOOR, "verbatim": True, "cpus": "0",
    }  # fmt: skip
    client = connect()
    claims = JobLocks(client)
    party = NodeLease(client, [words.ones["--machine"]], DOOR)
    try:
        party.join()
        options["bring_into"] = os.path.join(make_results(), name).replace("%", "%%")
        _claim(claims, name)
        try:
            _insist_on_no_results(directory, name)  # somebody may have had the name until now
            id = _submit(client, party.members[0], command, options)
        except StokerError:
            claims.release(name)
            raise
        if "--verbose" in words.switches:
            from stoker.cli import output

            output.say(f"{DOOR}: job {id} on {party.members[0].address}: {command}")
        code = _follow(client, str(id))
        os.makedirs(directory, exist_ok=True)
        claims.release(name)
        _complain(options, directory, party.members[0])
        return code
    finally:
        party.leave()


def _insist_on_no_results(directory: str, name: str) -> None:
    if os.path.lexists(directory):
        raise StokerError(
            f"results for job '{name}' already exist, move or remove files before continuing"
        )


def _claim(claims: JobLocks, name: str) -> None:
    """Have a name for this run alone."""
    from stoker.compat.execute_batch.job_locks import ANOTHER

    holder = claims.take(name)
    if holder is not None:
        by = "by another command" if holder == ANOTHER else f"as job {holder}"
        raise StokerError(
            f"job '{name}' is being run {by}; wait until it ends, or choose another --job-name"
        )


def _complain(options: dict[str, Any], directory: str, member: Member) -> None:
    """Say what was to come back and has not."""
    from stoker.cli import output
    from stoker.compat.execute_batch.transfer_options import brought_nothing

    for path in [] if member.view["shared"] else brought_nothing(options, directory):
        output.say(f"{DOOR}: --copy-backwards {path}: the command wrote nothing there")


def _submit(client: Client, member: Member, command: str, options: dict[str, Any]) -> int:
    from stoker import places
    from stoker.client.submit_environment import current_directory, shell, umask

    logs = places.logs_dir().replace("%", "%%")
    # The machine as it is: a job without GPUs in our books would see none.
    line = f"unset CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES; {command}"
    reply = client.submit(
        {
            "what": {"line": line},
            "options": {**options, "nodelist": member.node, "error": f"{logs}/%j.err"},
            "directory": current_directory(),
            "environment": {},  # nothing of ours means anything there
            "shell": shell(),
            "umask": umask(),
        }
    )
    return int(reply["first"])


def _follow(client: Client, label: str) -> int:
    """Copy what it prints until it ends; its code. It ends with us, on the machine too."""
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
                raise  # of the two, one complaint is enough

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
        output.say(f"{DOOR}: {output.clean(view['cause'])}")
    elif view["termination_note"]:
        output.say(f"{DOOR}: {output.clean(view['termination_note'])}")
    return int(view["result"])


def _end(client: Client, label: str) -> None:
    """Ask it to end; at the next ^C, do not wait for it to; then leave it to the daemon."""
    from stoker.client import reconnect

    for act in (client.cancel, client.kill):
        try:
            act([label])
            reconnect.wait(client, [label])
        except KeyboardInterrupt:
            continue
        return
