"""One daemon for all users of this machine: install, inspect and remove it; move a queue to it.

`install` and `uninstall` are for root; they show every change before they make it. `run` is for
machines without systemd. `adopt` is for every user: it moves the jobs that wait in the user's own
queue to the system daemon. docs/multi-user.md describes all of it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stoker import wire
from stoker.cli import output
from stoker.cli.options import Args, Option, parse
from stoker.cli.session import ask_yes_no, may_ask
from stoker.cli.system import files
from stoker.client.errors import PermissionDenied, StokerError, UsageError

if TYPE_CHECKING:
    from stoker.cli.system.install import Step

USAGE = (
    "system install [--print] [--yes]",
    "system status",
    "system run",
    "system adopt [--dry-run]",
    "system uninstall [--purge] [--force] [--print] [--yes]",
)
OPTIONS = (
    Option("--print", None, "install, uninstall: only show the changes"),
    Option("-y/--yes", None, "install, uninstall: make the changes without asking"),
    Option("--purge", None, "uninstall: remove jobs, logs, settings and accounts, too"),
    Option("--force", None, "uninstall: even while jobs run; they continue unattended"),
    Option("--dry-run", None, "adopt: only show what would be moved"),
)
RUNNING = ("RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED")


def main(argv: list[str]) -> int:
    """Run an action, by default `status`."""
    args = parse(OPTIONS, argv, verb="system")
    name = args.words[0] if args.words else "status"
    action = ACTIONS.get(name)
    if action is None or len(args.words) > 1:
        raise UsageError(
            f"There is no action '{output.clean(' '.join(args.words))}' of system. "
            f"Use {', '.join(ACTIONS)}."
        )
    return action(args)


def install(args: Args) -> int:
    """Make the changes that an installation for all users still needs."""
    from stoker.cli.system.install import installation_problem, missing

    _require_root("install")
    problem = installation_problem()
    if problem is not None:
        raise StokerError(problem)
    steps = list(missing())
    if not _carry_out(args, steps) or args.flag("print"):
        return wire.EXIT_OK
    if files.has_systemd():
        output.say("stoker: installed. Look at it with: stoker system status")
    else:
        output.say(
            "stoker: installed. There is no systemd here: start it with `stoker system run`, in "
            "the foreground or from an init script"
        )
    output.say(f"stoker: administrators are root and the group: usermod -aG {files.ADMIN_GROUP} …")
    return wire.EXIT_OK


def uninstall(args: Args) -> int:
    """Undo an installation; jobs, logs and settings stay unless --purge is given."""
    from stoker.cli.system.install import removal

    _require_root("uninstall")
    if not args.flag("force") and not args.flag("print"):
        _require_idle()
    _carry_out(args, list(removal(purge=args.flag("purge"))))
    return wire.EXIT_OK


def _require_idle() -> None:
    """Raise if jobs run, or if gate or daemon do and nothing here will stop them."""
    from stoker.cli.system import status as state

    if state.gate_pid() is None:
        if users := state.wait_for_users():
            raise StokerError(f"Jobs still run, of {', '.join(users)}. Anyway: --force")
        return
    counts = state.ask("/v1/daemon")["counts"]
    running = sum(counts.get(name, 0) for name in RUNNING)
    if running:
        raise StokerError(
            f"{output.counted(running, 'job')} still running: wait, cancel them "
            "(stoker cancel all), or let them continue unattended with --force."
        )
    if not files.has_systemd():
        raise StokerError("The gate is running: end `stoker system run` first.")


def _carry_out(args: Args, steps: list[Step]) -> bool:
    """Show the steps and carry them out if that is wanted; return whether none is left."""
    is_json, only_print = args.flag("json"), args.flag("print")
    if is_json:
        shown = [{"change": step.text, "content": step.content or None} for step in steps]
        output.emit({"changes": shown, "done": not only_print})
    elif not steps:
        output.say("stoker: nothing to change")
    for step in () if is_json else steps:
        print(step.text)
        if only_print and step.content:
            print("\n".join(f"    {line}" for line in step.content.splitlines()))
    if only_print or not steps:
        return not steps
    if not args.flag("yes") and not is_json and not (may_ask(args) and ask_yes_no("Go on?")):
        raise UsageError("Nothing was changed. To make these changes: --yes")
    for step in steps:
        step.apply()
    return True


def status(args: Args) -> int:
    """Print what runs; exit code 4 if gate or daemon does not."""
    from stoker.cli.system.status import collect, lines

    view = collect()
    if args.flag("json"):
        output.emit(view)
    else:
        print("\n".join(lines(view)))
    return wire.EXIT_OK if view["gate"] and view["daemon"] else wire.EXIT_UNREACHABLE


def run(args: Args) -> int:
    """Run gate and daemon in the foreground until SIGTERM or ^C."""
    from stoker.cli.system.run import supervise

    _require_root("run")
    if not os.path.exists(files.GATE_CONFIG):
        raise StokerError("No system daemon is installed here. Run: stoker system install")
    return supervise()


def move(args: Args) -> int:
    """Move the jobs that wait in this user's own queue to the system daemon."""
    from stoker.cli.system.move import move_queue

    return move_queue(dry_run=args.flag("dry_run"))


def _require_root(action: str) -> None:
    if os.geteuid() != 0:
        raise PermissionDenied(f"Only root may do this: sudo stoker system {action}")


ACTIONS = {
    "install": install, "status": status, "run": run, "adopt": move, "uninstall": uninstall,
}  # fmt: skip
