"""Start, stop, restart or inspect the daemon; submitting a job also starts it.

`stop` leaves jobs running; the next daemon recovers them. --drain waits for them to end, --cancel
cancels them. `run` stays in the foreground. `log` prints the daemon's log. `install` writes a
systemd user unit.
"""

from __future__ import annotations

import os
import sys

from stoker import places, wire
from stoker.cli import output
from stoker.cli.options import Args, Option, parse
from stoker.client.autostart import lock_holder
from stoker.client.client import Client, connect
from stoker.client.errors import DaemonUnreachable, StokerError, UsageError
from stoker.client.route import require_own, system_socket
from stoker.wire import JsonObject

USAGE = (
    "daemon start [--gpus 0,1] [--resources MAP] [--listen ADDRESS] [--db URL] [--foreground]",
    "daemon stop [--drain | --cancel]",
    "daemon restart [--gpus 0,1] [--resources MAP] [--listen ADDRESS] [--db URL]",
    "daemon status",
    "daemon log [-f] [-n N]",
    "daemon run [--gpus 0,1] [--resources MAP] [--listen ADDRESS] [--db URL]",
    "daemon install [--print]",
)
OPTIONS = (
    Option("--gpus", "IDS", "GPUs to use: 0,1,2; with declared memory: 0-3=24G"),
    Option("--gpu-memory-size", "SIZE", "memory of each GPU that --gpus declares: 24G"),
    Option("--resources", "MAP", "resources of this node: '{gpu:4,cpu:16,licence:[2]}'"),
    Option("--listen", "ADDRESS", "also serve the API here, with a token: 127.0.0.1:25647"),
    Option("--db", "URL", "database: sqlite, postgres, or postgresql://…"),
    Option("--idle-exit", "SECS", "stop after SECS without jobs"),
    Option("--foreground", None, "stay in the foreground"),
    Option("--drain", None, "stop: start no more jobs, wait for running jobs"),
    Option("--cancel", None, "stop: cancel running jobs"),
    Option("-f/--follow", None, "log: follow"),
    Option("-n/--tail/--lines", "N", "log: the last N lines (50; 0: all)", key="tail"),
    Option("--print", None, "install: print the unit, write nothing"),
)
STOP_SECONDS = 60.0
"""Time limit for a daemon to end."""
NOT_RUNNING = "no daemon is running"


def main(argv: list[str]) -> int:
    """Run an action, by default `status`."""
    if "--help" in argv or "-h" in argv:
        from stoker.cli.help import show

        return show("daemon")
    args = parse(OPTIONS, argv, verb="daemon")
    name = args.words[0] if args.words else "status"
    action = ACTIONS.get(name)
    if action is None or len(args.words) > 1:
        raise UsageError(
            f"There is no action '{output.clean(' '.join(args.words))}' of daemon. "
            "Use start, stop, restart, status, log, run or install."
        )
    return action(args)


def start(args: Args) -> int:
    """Start a daemon in the background."""
    require_own()
    if args.flag("foreground"):
        return run(args)
    running = _daemon_status()
    if running is not None:
        arguments = [*_daemon_arguments(args), *(["--db", "URL"] if args.text("db") else [])]
        if arguments:
            raise StokerError(
                f"A daemon is already running (pid {running['pid']}). To change its options: "
                f"stoker daemon restart {' '.join(arguments)}"
            )
        return output.report(
            running, f"stoker: the daemon is already running (pid {running['pid']})"
        )
    from stoker.client.autostart import start_daemon

    pid = start_daemon([*_daemon_arguments(args), *_pass_store(args)])
    return output.report(
        _daemon_status() or {"pid": pid}, f"stoker: started the daemon (pid {pid})"
    )


def stop(args: Args) -> int:
    """Stop the daemon and wait until its process has ended."""
    if args.flag("drain") and args.flag("cancel"):
        raise UsageError("Give --drain or --cancel, not both.")
    mode = "drain" if args.flag("drain") else "cancel" if args.flag("cancel") else "leave"
    running = _daemon_status()
    if running is None:
        holder = lock_holder()
        if holder is None:
            require_own()
        text = NOT_RUNNING if holder is None else _stop_by_signal(holder, mode)
        stopped = {} if holder is None else {"pid": holder}
        return output.report({"running": [], **stopped, "text": text}, f"stoker: {text}")
    pid = int(running["pid"])
    reply = _stop_and_wait(pid, mode, quiet=args.flag("json"))
    count = len(reply.get("running") or ())
    text = f"stoker: stopped the daemon (pid {pid}){_jobs_text(mode, count)}"
    return output.report({**reply, "pid": pid}, text)


def _stop_by_signal(pid: int, mode: str = "leave") -> str:
    """Stop a daemon that does not answer by a signal; its jobs continue."""
    import signal

    if mode != "leave" or not _is_daemon(pid):
        raise DaemonUnreachable(_not_answering_text(pid))
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return NOT_RUNNING
    try:
        signal.pidfd_send_signal(fd, signal.SIGTERM)
        _wait_for_end(fd, pid, STOP_SECONDS)
    finally:
        os.close(fd)
    return (
        f"stopped the daemon (pid {pid}), which did not answer; the next daemon recovers its jobs"
    )


def _not_answering_text(pid: int) -> str:
    """Return what to do about a daemon that holds the state lock and does not answer."""
    path = places.socket_path()
    missing = "" if os.path.exists(path) else f" at {path}, which is missing"
    command = "stoker daemon stop" if _is_daemon(pid) else f"kill {pid}"
    return (
        f"A daemon is running (pid {pid}) but does not answer{missing}. Wait a moment; if it "
        f"still does not answer, stop it with `{command}`: its jobs continue, and the next daemon "
        "recovers them."
    )


def _is_daemon(pid: int) -> bool:
    """Return True for a daemon; `stoker feed` holds the state lock as well."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"stoker.daemon" in file.read().split(b"\0")
    except OSError:
        return False


def _jobs_text(mode: str, count: int) -> str:
    """Return what happens to the jobs that were running."""
    if not count or mode == "drain":
        return ""
    jobs = output.counted(count, "job")
    if mode == "cancel":
        return f"; {jobs} {'was' if count == 1 else 'were'} cancelled"
    return (
        f"; {jobs} {'continues' if count == 1 else 'continue'}, "
        f"and the next daemon recovers {'it' if count == 1 else 'them'}"
    )


def restart(args: Args) -> int:
    """Replace the daemon; running jobs continue and are recovered."""
    require_own()
    running = _daemon_status()
    if running is not None:
        gpus, resources = _gpus(args), args.text("resources")
        # The daemon does not stop if a new one could not start.
        check = {"check": True, "gpus": gpus, "resources": resources}
        if args.text("listen") is not None:
            check["listen"] = args.text("listen")
        if args.text("db") is not None:
            check["db"] = _store_option(args)
        _stop_and_wait(int(running["pid"]), "leave", quiet=True, **check)
    elif (holder := lock_holder()) is not None:
        _stop_by_signal(holder)
    return start(args)


def status(args: Args) -> int:
    """Print the status of the daemon; exit code 4 if none runs."""
    running = _daemon_status() if system_socket() is None else connect(autostart=False).daemon()
    if running is None:
        holder = lock_holder()
        raise DaemonUnreachable(
            "No daemon is running. Submitting a job starts it."
            if holder is None
            else _not_answering_text(holder)
        )
    if args.flag("json"):
        return output.emit(running)
    from stoker.cli.output.job_table import counts_text, field_text
    from stoker.cli.output.times import absolute, relative

    for key, value in running.items():
        if value in (None, [], {}):
            continue
        shown = field_text(value)
        if key == "since":
            shown = f"{relative(value)} ({absolute(value)})"
        elif key == "counts":
            shown = counts_text(value)
        elif key in ("warnings", "faults"):
            shown = f"\n{'':<12}".join(output.clean(text) for text in value)
        print(f"{key.replace('_', ' '):<11} {shown}")
    return 0


def log(args: Args) -> int:
    """Print the log of this host's daemons, whether or not one runs."""
    from stoker.cli.admin.daemon_log import show

    if args.flag("json") and args.flag("follow"):
        raise UsageError("--json and --follow cannot be combined.")
    if system_socket() is not None:
        raise StokerError(
            "The log of the system daemon is for administrators: journalctl -u stokerd, or "
            "/var/lib/stoker. The log of your own daemon: STOKER_MODE=own stoker daemon log"
        )
    return show(args.count("tail"), follow=args.flag("follow"))


def run(args: Args) -> int:
    """Run the daemon in the foreground, in place of this process."""
    from stoker.client.autostart import daemon_command

    require_own()
    sys.stdout.flush()
    command = daemon_command(*_daemon_arguments(args), *_pass_store(args))
    os.execv(command[0], command)


def install(args: Args) -> int:
    """Write a systemd user unit, which starts the daemon after a reboot."""
    from stoker.cli.admin.systemd_unit import install_unit

    if args.text("db") is not None:
        raise UsageError(
            "Every user can read a systemd unit. Set the database in config.toml instead: "
            '[store] url = "postgresql://…"'
        )
    return install_unit(_daemon_arguments(args), only_print=args.flag("print"))


ACTIONS = {action.__name__: action for action in (start, stop, restart, status, log, run, install)}


def _client() -> Client:
    client = Client()  # the user's own of this host, even if STOKER_SERVER is set
    client.check_version = False  # these commands must work across any two versions
    return client


def _daemon_status() -> JsonObject | None:
    try:
        return _client().daemon()
    except DaemonUnreachable:
        return None


def _daemon_arguments(args: Args) -> list[str]:
    """Return the arguments for the daemon."""
    arguments = []
    for name in ("gpus", "resources", "listen", "idle-exit"):
        value = _gpus(args) if name == "gpus" else args.text(name.replace("-", "_"))
        if value is not None:
            arguments += [f"--{name}", value]
    return arguments


def _gpus(args: Args) -> str | None:
    """Return --gpus, with the memory from --gpu-memory-size."""
    gpus, size = args.text("gpus"), args.text("gpu_memory_size")
    if size is None:
        return gpus
    if not gpus or gpus in {"all", "none"}:
        raise UsageError(
            f"--gpu-memory-size needs declared GPUs: --gpus 0,1 --gpu-memory-size {size}"
        )
    return ",".join(name if "=" in name else f"{name}={size}" for name in gpus.split(","))


def _store_option(args: Args) -> str | None:
    """Return the store in --db; `postgres` means STOKER_DB if that is set."""
    value = args.text("db")
    return os.environ.get("STOKER_DB") or value if value == "postgres" else value


def _pass_store(args: Args) -> list[str]:
    """Pass the store to the daemon by a variable: other users can read a command line."""
    value = _store_option(args)
    if value is None:
        return []
    os.environ[wire.STORE_OPTION_VARIABLE] = value
    return ["--db", "-"]


def _stop_and_wait(pid: int, mode: str, *, quiet: bool, **check: object) -> JsonObject:
    """Stop the daemon and return when its process has ended."""
    try:
        fd = os.pidfd_open(pid)  # from now on, the pid cannot be reused
    except ProcessLookupError:
        return {"running": [], "text": ""}
    try:
        reply = _client().stop(mode, **check)
        count = len(reply.get("running") or ())
        if mode == "drain" and count and not quiet:
            output.say(f"stoker: waiting for {output.counted(count, 'running job')} to end")
        _wait_for_end(fd, pid, None if mode == "drain" else STOP_SECONDS)
    finally:
        os.close(fd)
    return reply


def _wait_for_end(fd: int, pid: int, seconds: float | None) -> None:
    import select

    if not select.select([fd], [], [], seconds)[0]:
        raise StokerError(
            f"The daemon (pid {pid}) has not stopped yet. Its log: {places.daemon_log()}"
        )
