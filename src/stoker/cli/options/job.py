"""The options that describe a job; sbatch's names are accepted."""

from __future__ import annotations

import os

from stoker.cli.options import Args, Option
from stoker.client.errors import UsageError

JOB = (
    Option("-G/--gpus", "N", "GPUs: 2, 0.5, 2.5, a100:2; 1..4 for an elastic job", key="gpus"),
    Option("--gpu-memory", "SIZE", "memory it uses on each GPU; other jobs may share the rest"),
    Option("--gpus-min-vram/--min-vram", "SIZE", "only GPUs with at least this much memory",
           key="gpus_min_vram"),
    Option("--gpu-model", "NAME", "only GPUs of this model"),
    Option("--use-gpus", "IDS", "only these GPUs: 0-3,7"),
    Option("--prefer-gpus", "IDS", "these GPUs if they are free, else others"),
    Option("--avoid-gpus", "IDS", "never these GPUs"),
    Option("--gpus-per-node", "N", "GPUs on each node"),
    Option("--gpus-per-task", "N", "GPUs for each task"),
    Option("--gres", "LIST", "GPUs in sbatch syntax: gpu[:model]:N"),
    Option("-c/--cpus-per-task/--cpus", "N", "CPU cores", key="cpus"),
    Option("--mem/--memory", "SIZE", "RAM: 500M, 16G", key="mem"),
    Option("--mem-per-cpu", "SIZE", "RAM per core"),
    Option("--mem-per-gpu", "SIZE", "RAM per GPU"),
    Option("-r/--resources", "MAP", "other resources: '{licence:1}'", key="resources"),
    Option("--resource", "NAME=N", "one other resource; repeatable", many=True),
    Option("--exclusive", "[=VALUE]", "allocate whole nodes"),
    Option("-t/--time", "TIME", "time limit: 90m, 1d12h, 30 (minutes), 12:00:00, 1-12"),
    Option("--time-request", "TIME", "accepted without effect; use --time"),
    Option("-J/--job-name/--name", "NAME", "job name", key="name"),
    Option("--label", "LABEL", "label to select jobs by: %LABEL; repeatable", many=True),
    Option("-g/--group", "NAME", "job group"),
    Option("--comment", "TEXT", "comment, shown by `show`"),
    Option("-o/--output", "FILE", "file for stdout; %j %A %a %x %u %N %t %% are replaced"),
    Option("-e/--error", "FILE", "file for stderr (default: the file of stdout)"),
    Option("--open-mode", "MODE", "append to these files (default) or truncate them at each start"),
    Option("-D/--chdir", "DIR", "working directory"),
    Option("--env", "K=V", "set an environment variable; repeatable", many=True),
    Option("--export", "LIST", "variables it inherits: ALL, NONE or names"),
    Option("--slurm-env", None, "set SLURM_* variables (default for scripts with #SBATCH lines)"),
    Option("--no-slurm-env", None, "set no SLURM_* variables"),
    Option("--priority", "N", "priority; higher starts first (0)"),
    Option("--nice", "[N]", "lower the priority by N (100)"),
    Option("-p/--partition/--queue", "NAME", "queue (partition)", key="queue"),
    Option("-q/--qos", "NAME", "accepted without effect"),
    Option("-A/--account", "NAME", "only sets SLURM_JOB_ACCOUNT"),
    Option("-d/--dependency", "LIST", "afterok:5,afterany:6; also afternotok, after, singleton"),
    Option("-a/--array", "RANGE", "job array: 0-15, 0-15:4, 1,5,9, 0-99%4 (4 at a time)"),
    Option("-b/--begin", "TIME", "earliest start: 16:00, now+2hours, 2026-12-01T08:00"),
    Option("--delay", "TIME", "earliest start, from now: 2h, 'friday 18:00'"),
    Option("--deadline", "TIME", "fail it if it cannot end by this time; terminate it then"),
    Option("-H/--hold/--stashed", None, "submit it held; `stoker release` lets it start",
           key="hold"),
    Option("--retries", "N", "on failure, run it again up to N times"),
    Option("--retry-on", "CAUSES", "retry only on exit:3,oom,lost (3 times unless --retries)"),
    Option("--requeue", None, "requeue it after a node failure or a preemption"),
    Option("--no-requeue", None, "never requeue it, and never preempt it"),
    Option("--signal", "SIG@SECS", "signal before time limit or preemption: USR1@120"),
    Option("--on-end", "CMD", "command to run on this host after the job ends"),
    Option("-N/--nodes", "N", "number of nodes"),
    Option("-n/--ntasks", "N", "number of tasks"),
    Option("--ntasks-per-node", "N", "tasks on each node"),
    Option("-C/--constraint", "EXPR", "accepted without effect; use --gpu-model or --nodelist"),
    Option("-w/--nodelist", "NAMES", "only these nodes"),
    Option("-x/--exclude", "NAMES", "never these nodes"),
    Option("--send", "PATH", "upload only PATH to SSH nodes (default: all); repeatable", many=True),
    Option("--no-send", None, "upload nothing; start in an empty directory"),
    Option("--bring", "PATH", "download PATH (default: all changed files); repeatable", many=True),
    Option("--no-bring", None, "download nothing but its output"),
    Option("--bring-into", "DIR", "directory to download into"),
    Option("--leave-out", "PATTERN", "exclude from transfers, .gitignore syntax; repeatable",
           many=True),
    Option(
        "--if-unreachable", "RULE", "restart:1h requeues it when its node is unreachable for 1 h"
    ),
    Option("--epochs", "N", "training job of N epochs"),
    Option("--batch-size", "N", "samples per step"),
    Option("--training-set-size", "N", "samples per epoch"),
    Option("--expect", "TIME", "expected training time: 3h"),
    Option("--snapshots-dir", "DIR",
           "directory in which each job gets a directory for checkpoints"),
    Option("--single-gpu", None, "never train on more than one GPU"),
    Option("--exclusive-gpu", None, "do not share its GPUs with other jobs"),
    Option("--image", "NAME", "run in a container of this image (podman or docker)"),
    Option("--mount", "SRC:DST[:ro]", "mount a directory in the container; repeatable", many=True),
    Option("--ports", "LIST", "publish container ports, HOST:CONTAINER: 31346:6006,..."),
    Option("--notify", "NAME[:WHEN]",
           "tell NAME about start,end,fail,requeue,alarm; repeatable", many=True),
    Option("--mail-type", "WHEN", "send e-mail: BEGIN,END,FAIL,REQUEUE,ALL"),
    Option("--mail-user", "ADDRESS", "to this address (default: the submitter)"),
    Option("--alarm", "KIND=WHEN",
           "idle=off, hung=1h, nan=cancel, idle=30m,mark; repeatable", many=True),
    Option("--pty", None, "run it in a terminal (only `run`)"),
)  # fmt: skip

SUBMIT = (
    Option("--each-line", "FILE", "submit one job per line of FILE (- is stdin)"),
    Option("--wrap", "LINE", "shell command line to run"),
    Option("-W/--wait", None, "wait for the job to end; return its exit code"),
    Option("-f/--follow", None, "follow its output; return its exit code"),
    Option("--test-only/--dry-run", None, "validate only, and print when it would start"),
    Option("--parsable/--quiet/-Q", None, "print only the job id", key="quiet"),
    Option("--strict", None, "fail on #SBATCH options that have no effect"),
    Option("-v/--verbose", None, "print more detail"),
)

CLIENT_KEYS = frozenset(option.key for option in SUBMIT) | {"json", "color", "no_color"}
"""Options of the command itself, which are not sent to the daemon."""


def job_options(args: Args) -> dict[str, object]:
    """Return the options of a job as in the API's `options`."""
    options: dict[str, object] = {
        key: value
        for key, value in args.values.items()
        if key not in CLIENT_KEYS and key != "resource"
    }
    if options.get("nice") is True:
        options["nice"] = "100"
    into = args.text("bring_into")
    if into is not None:
        directory = os.getcwd().replace("%", "%%")  # only % in the option is replaced
        options["bring_into"] = os.path.normpath(os.path.join(directory, os.path.expanduser(into)))
    if snapshots := args.text("snapshots_dir"):
        options["snapshots_dir"] = os.path.abspath(os.path.expanduser(snapshots))
    if args.many("mount"):
        options["mount"] = [_with_absolute_source(text) for text in args.many("mount")]
    named = args.many("resource")
    if named:
        options["resources"] = _merge_resources(args.text("resources"), named)
    return options


def _with_absolute_source(text: str) -> str:
    """Return a mount with the absolute path of its source."""
    source, colon, target = text.partition(":")
    if not source or not colon:
        return text  # the daemon rejects it with a message
    return f"{os.path.abspath(os.path.expanduser(source))}:{target}"


def _merge_resources(mapping: str | None, named: list[str]) -> str:
    """Add `--resource licence=1` entries to a mapping as in --resources."""
    parts = [(mapping or "").strip().removeprefix("{").removesuffix("}").strip().rstrip(",")]
    for entry in named:
        name, equals, amount = entry.partition("=")
        if not equals or not name.strip() or not amount.strip():
            raise UsageError(f"--resource takes NAME=N, not {entry!r}.")
        parts.append(f"{_quoted(name.strip())}:{amount.strip()}")
    return "{" + ",".join(part for part in parts if part) + "}"


def _quoted(name: str) -> str:
    return name if name.isidentifier() else f'"{name}"'
