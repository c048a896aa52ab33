"""The table of verbs: name, one-line help, group, aliases, module."""

from __future__ import annotations

GROUPS = {
    "Submit": {
        "feed": "run the commands on stdin, one per line, in the foreground",
        "submit": "submit a command, a script, an array or many lines; print the id",
        "run": "submit a command, follow its output, return its exit code",
        "sweep": "submit a parameter sweep; show, list and edit sweeps",
    },
    "Inspect": {
        "queue": "list running, pending and newly failed jobs (also: plain `stoker`)",
        "show": "show all details of a job or sweep",
        "why": "explain why a job is pending and when it is expected to start",
        "eta": "estimate when jobs start and end",
        "logs": "print a job's output; -f follows it",
        "metrics": "plot the metrics that a job reports",
        "wait": "wait for jobs to end; return their exit code",
        "history": "list finished jobs",
        "gpus": "list GPUs: utilisation, memory, jobs, other processes",
        "nodes": "list, add and remove nodes",
        "alarms": "list idle GPUs, hung jobs, NaN losses and faulty GPUs",
        "usage": "sum up GPU time, energy and waiting time by user, queue, day, ...",
        "top": "watch GPUs, queue and jobs live in the terminal",
        "ui": "open the web page; share it, list and end its sessions",
    },
    "Control": {
        "cancel": "cancel pending and running jobs",
        "kill": "send a signal to running jobs; default: end them at once",
        "pause": "suspend running jobs; they keep their GPUs",
        "resume": "continue paused jobs",
        "hold": "hold pending jobs",
        "release": "release held jobs",
        "retry": "requeue finished jobs",
        "edit": "change pending jobs; of running jobs, time limit and priority",
        "move": "change the order of pending jobs",
    },
    "Plan": {
        "simulate": "replay recorded jobs under several policies and compare them",
        "what-if": "predict the effect of another policy, more GPUs or a priority",
    },
    "Manage": {
        "policy": "show or set the scheduling policy of a queue",
        "limit": "list or set limits of users, groups and queues",
        "share": "list fair share between users; set weights of users and groups",
        "reserve": "reserve GPUs or nodes for a time; list and cancel reservations",
        "drain": "start no more jobs on a GPU or node",
        "undrain": "use a drained GPU or node again",
        "daemon": "start, stop, restart or inspect the daemon",
        "token": "create, list and revoke tokens for remote clients",
        "system": "one daemon for all users: install it, its status, move a queue to it",
        "notify": "notify of jobs, sweeps, GPUs; list targets; send a test message",
        "db": "back up the database",
        "mcp": "serve jobs, GPUs and logs to an MCP client over stdin and stdout",
        "compat": "commands of other tools, run by stoker: grass, auto, simple_gpu_...",
        "completion": "print the completion script for bash, zsh or fish",
    },
}
"""The verbs with their one-line help, by group."""

ALIASES = {
    **dict.fromkeys(("ls", "status", "ps", "list"), "queue"),
    **dict.fromkeys(("restart", "requeue"), "retry"),
    "add": "submit",
    "log": "logs",
    "info": "show",
    "explain": "why",
    "gpu": "gpus",
    "node": "nodes",
}
"""Names of the same verb in other schedulers."""

OTHER_TOOLS = {
    "sbatch": "submit", "squeue": "queue", "scancel": "cancel", "sinfo": "nodes", "srun": "run",
    "salloc": "run --pty", "sacct": "history", "scontrol": "show", "start": "submit",
    "enqueue": "submit", "qsub": "submit", "qstat": "queue", "qdel": "cancel",
    "remove": "cancel", "delete": "cancel", "stop": "cancel", "follow": "logs -f",
    "tail": "logs -f", "watch": "queue --watch", "clean": "history",
}  # fmt: skip
"""Commands of other tools with other arguments: the error message names our verb."""

VERBS = {verb: text for verbs in GROUPS.values() for verb, text in verbs.items()}


PACKAGES = {
    "submit": ("submit", "run", "sweep"),
    "inspect": (
        "queue", "show", "why", "eta", "logs", "metrics", "wait", "history", "alarms",
        "usage", "top", "ui",
    ),
    "control": (
        "cancel", "kill", "pause", "resume", "hold", "release", "retry", "edit", "move",
    ),
    "cluster": (
        "gpus", "nodes", "drain", "undrain", "policy", "limit", "reserve", "share", "simulate",
        "what-if",
    ),
    "admin": ("daemon", "token", "notify", "db", "completion", "__complete"),
}  # fmt: skip
MODULES = {
    verb: f"stoker.cli.{package}.{verb.lstrip('_').replace('-', '_')}"
    for package, verbs in PACKAGES.items()
    for verb in verbs
} | {
    "system": "stoker.cli.system.system",
    "feed": "stoker.feed.main", "compat": "stoker.compat.command", "mcp": "stoker.compat.mcp",
}  # fmt: skip
"""Verb -> the module with its `main(argv)`."""
