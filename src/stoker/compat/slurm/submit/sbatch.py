"""sbatch: submit a batch script; print its id as Slurm does."""

from __future__ import annotations

import os

from stoker.cli import output
from stoker.cli.options.submission import build_submission, read_bytes
from stoker.client.client import connect
from stoker.client.errors import StokerError, UsageError
from stoker.compat.slurm.submit.given_options import join_words, split_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.cli.options import Args, Value
    from stoker.wire import JsonObject

NO_SCRIPT = """\
error: This does not look like a batch script.  The first
sbatch: error: line must start with #! followed by the path to an interpreter.
sbatch: error: For instance: #!/bin/sh"""


def main(argv: list[str]) -> int:
    """Submit a script, stdin or --wrap LINE."""
    given, script = split_options(argv)
    words = join_words([option for option in given if not option.is_ignored], script)
    submission, args = build_submission(words, "compat slurm", _what, _defaults)
    by_name = {option.name: option.value for option in given}
    quiet = bool({"-Q", "--quiet"} & {*by_name})
    cluster = by_name.get("--clusters") or by_name.get("-M")
    ignored = {option.name for option in given if option.is_ignored} - {"--clusters", "-M"}
    if ignored and not quiet:
        output.say(f"sbatch: options without effect: {' '.join(sorted(ignored))}")
    client = connect()
    try:
        reply = client.submit(submission)
    except StokerError as error:
        error.message = f"error: Batch job submission failed: {error.message}"
        raise
    for text in () if quiet else reply.get("warnings") or ():
        output.say(f"sbatch: {text}")
    if args.flag("dry_run"):
        from stoker.cli.submit.submit import start_text

        output.say(f"sbatch: the job would {start_text(reply)}")
        return 0
    id = str(reply["first"])
    if "--parsable" in by_name:
        print(f"{id};{cluster}" if cluster else id, flush=True)
    elif not quiet:
        more = f" on cluster {cluster}" if cluster else ""
        print(f"Submitted batch job {id}{more}", flush=True)
    if args.flag("wait"):
        from stoker.cli.session.follow import wait_to_end

        return wait_to_end(client, str(reply["label"]))
    return 0


def _what(args: Args) -> JsonObject:
    """Return the script to run: a file, stdin, or a line in /bin/sh."""
    line = args.text("wrap")
    if line is not None:
        if args.words:
            raise UsageError("error: Script arguments not permitted with --wrap option")
        return {"script": f"#!/bin/sh\n{line}\n", "script_name": "wrap", "args": []}
    path = args.words[0] if args.words else "-"
    if path != "-" and not os.path.isfile(path):
        raise UsageError(f"error: Unable to open file {path}")
    data = read_bytes(path)
    if not data:
        raise UsageError("error: Batch script is empty!")
    name = "sbatch" if path == "-" else os.path.basename(path)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if not text.startswith("#!"):
        raise UsageError(NO_SCRIPT)
    return {"script": text, "script_name": name, "args": args.words[1:]}


def _defaults(what: JsonObject, args: Args) -> dict[str, Value]:
    """Return what sbatch assumes and stoker does not."""
    return {
        "slurm_env": True,
        "name": str(what["script_name"]),
        "open_mode": "truncate",
        "output": "slurm-%A_%a.out" if args.text("array") else "slurm-%j.out",
    }
