"""scancel: cancel or signal jobs; prints nothing if that works."""

from __future__ import annotations

from stoker.cli import output
from stoker.cli.options import Option, parse
from stoker.client.client import connect
from stoker.client.errors import NotFound, UsageError
from stoker.compat.slurm.columns.job_fields import SlurmError, full_state, signal_number
from stoker.compat.slurm.columns.options import COMMON, FILTERS
from stoker.compat.slurm.squeue import select_jobs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.cli.options import Args
    from stoker.client.client import Client

OPTIONS = (
    Option("-n/--name/--jobname", "NAME", "", key="name"),
    Option("-u/--user", "USER", "", key="user"),
    Option("--me", None, ""),
    Option("-w/--nodelist", "NAMES", "", key="nodelist"),
    Option("-s/--signal", "NAME", "", key="signal"),
    Option("-b/--batch", None, "", key="batch"),
    Option("-f/--full", None, "", key="full"),
    Option("-i/--interactive", None, "", key="interactive"),
    Option("-H/--hurry", None, "", key="hurry"),
    Option("-Q/--quiet", None, "", key="quiet"),
    Option("-A/--account", "NAME", "", key="account"),
    *FILTERS,
    *COMMON,
)
SELECTING = ("name", "user", "me", "states", "partition", "nodelist", "account")
STATES = ("PENDING", "RUNNING", "SUSPENDED")


def main(argv: list[str]) -> int:
    """Cancel the named jobs, those that the filters select, or those that both do."""
    args = parse(OPTIONS, argv, verb="compat slurm")
    signal = _signal(args.text("signal"))
    ids = [id for word in args.words for id in expand_id(word)]
    if any(args.values.get(key) for key in SELECTING):
        ids = _filtered(args, ids)
    elif not ids:
        raise UsageError("error: No job identification provided")
    if not ids:
        return 0
    client = connect()
    if signal is None:
        _cancel(client, ids)
        return 0
    sent = [_send_signal(client, id, signal, args) for id in ids]
    return 0 if all(sent) else 1


def _cancel(client: Client, ids: list[str]) -> None:
    """Cancel jobs; Slurm says nothing about a job that it does not know."""
    try:
        client.cancel(ids)
    except NotFound:
        for id in ids if len(ids) > 1 else ():
            _cancel(client, [id])


def _signal(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return signal_number(text)
    except KeyError:
        raise SlurmError(f"Unknown job signal: {text}") from None


def _filtered(args: Args, ids: list[str]) -> list[str]:
    """Return the jobs that the filters select, among the named ones if there are any."""
    state = args.text("states")
    if state is not None and full_state(state) not in STATES:
        raise SlurmError(
            f"Invalid job state specified: {state}\n"
            "Valid job states are PENDING, RUNNING, and SUSPENDED"
        )
    args.values["array"] = True
    return [job.id for job in select_jobs(args) if not ids or job.ids & {*ids}]


def _send_signal(client: Client, id: str, signal: int, args: Args) -> bool:
    """Send a signal to a running job; return False if there is none."""
    try:
        reply = client.act("kill", [id], signal=str(signal), to_script=args.flag("batch"))
    except NotFound:
        reply = {"done": []}
    if not reply["done"] and not args.flag("quiet"):
        output.say(f"scancel: error: Kill job error on job id {id}: Invalid job id specified")
    return bool(reply["done"])


def expand_id(word: str) -> list[str]:
    """Return the jobs of `42`, `42_3`, `42_[1-3,7]` or the step `42.0`."""
    job = word.partition(".")[0]
    array, bracket, members = job.partition("_[")
    if not bracket:
        if not job.replace("_", "", 1).isdecimal():
            raise UsageError(f"error: Invalid job id {word}")
        return [job]
    ids = []
    for part in members.rstrip("]").partition("%")[0].split(","):
        low, dash, high = part.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise UsageError(f"error: Invalid job id {word}")
        ids += [f"{array}_{index}" for index in range(int(low), int(high or low) + 1)]
    return ids
