"""The verbs: what each is for, and which file holds it."""

from __future__ import annotations

GROUPS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Run things",
        (
            ("feed", "run the commands on stdin, one per line, in the foreground"),
            ("submit", "queue a command, a script, an array or many lines; print the id"),
            ("run", "queue a command, follow its output, return its exit code"),
            ("sweep", "queue a command with many parameters; show, list and edit sweeps"),
        ),
    ),
    (
        "Look",
        (
            ("queue", "what runs, what waits, what failed (also: just `stoker`)"),
            ("show", "everything about a job"),
            ("why", "why a job waits, and when it should start"),
            ("eta", "when jobs should start and end"),
            ("logs", "a job's output; -f follows it"),
            ("metrics", "the figures that a job has reported, as curves"),
            ("wait", "wait for jobs to end; return their exit code"),
            ("history", "jobs of the past"),
            ("gpus", "one line per GPU: use, memory, whose job, whose foreign process"),
            ("nodes", "machines and what is free on them"),
        ),
    ),
    (
        "Change",
        (
            ("cancel", "take jobs off the queue, or end them"),
            ("kill", "send a signal to running jobs; without one, end them at once"),
            ("pause", "stop running jobs in place"),
            ("resume", "let paused jobs go on"),
            ("hold", "keep queued jobs from starting"),
            ("release", "let held jobs start"),
            ("retry", "run finished jobs again"),
            ("edit", "change queued jobs"),
            ("move", "change the order of queued jobs"),
        ),
    ),
    (
        "Plan",
        (
            ("simulate", "replay recorded jobs under several policies, and compare them"),
            ("what-if", "what another policy, more GPUs or another priority would change"),
        ),
    ),
    (
        "Manage",
        (
            ("policy", "by what queues are worked off; choose another policy"),
            ("drain", "start nothing more on a GPU"),
            ("undrain", "use a drained GPU again"),
            ("daemon", "start, stop, restart, status, log, run, install"),
            ("db", "back up the database"),
            ("door", "the commands of other tools, run by stoker: grass, auto, simple_gpu_..."),
            ("completion", "print the completion script for bash, zsh or fish"),
        ),
    ),
)

ALIASES = {
    "ls": "queue",
    "status": "queue",
    "ps": "queue",
    "list": "queue",
    "add": "submit",
    "log": "logs",
    "info": "show",
    "explain": "why",
    "restart": "retry",
    "requeue": "retry",
    "gpu": "gpus",
    "node": "nodes",
}
"""Names that other schedulers use for the same thing."""

ELSEWHERE = {
    "sbatch": "submit", "squeue": "queue", "scancel": "cancel", "sinfo": "nodes", "srun": "run",
    "salloc": "run --pty", "sacct": "history", "scontrol": "show", "start": "submit",
    "enqueue": "submit", "qsub": "submit", "qstat": "queue", "qdel": "cancel",
    "remove": "cancel", "delete": "cancel", "stop": "cancel", "follow": "logs -f",
    "tail": "logs -f", "top": "queue --watch", "watch": "queue --watch", "clean": "history",
}  # fmt: skip
"""Commands of other tools whose arguments differ: they are answered with the verb to use."""

VERBS = {verb: text for _, verbs in GROUPS for verb, text in verbs}
HIDDEN = frozenset({"__complete"})


def module_of(verb: str) -> str:
    """Return the module that holds a verb's `main(argv)`."""
    if verb == "feed":
        return "stoker.feed.main"
    if verb == "door":
        return "stoker.frontdoors.door"
    return f"stoker.cli.{verb.lstrip('_').replace('-', '_')}"
