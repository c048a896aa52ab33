"""The options that describe a job; sbatch's spelling is accepted throughout."""

from __future__ import annotations

import os

from stoker.cli.options import Args, Option
from stoker.client.errors import UsageError

JOB = (
    Option("-G/--gpus", "N", "GPUs: 2, 0.5, 2.5, a100:2; 1..4 is any number of these", key="gpus"),
    Option("--gpu-memory", "SIZE", "memory it needs on each GPU, so that others may share it"),
    Option("--gpus-min-vram/--min-vram", "SIZE", "only GPUs with this much", key="gpus_min_vram"),
    Option("--gpu-model", "NAME", "only GPUs of this model"),
    Option("--use-gpus", "IDS", "only these GPUs: 0-3,7"),
    Option("--prefer-gpus", "IDS", "these GPUs first, if free"),
    Option("--avoid-gpus", "IDS", "never these GPUs"),
    Option("--gpus-per-node", "N", "GPUs on each machine"),
    Option("--gpus-per-task", "N", "GPUs for each task"),
    Option("--gres", "LIST", "gpu[:model]:N, as sbatch has it"),
    Option("-c/--cpus-per-task/--cpus", "N", "CPU cores", key="cpus"),
    Option("--mem/--memory", "SIZE", "RAM: 500M, 16G", key="mem"),
    Option("--mem-per-cpu", "SIZE", "RAM per core"),
    Option("--mem-per-gpu", "SIZE", "RAM per GPU"),
    Option("-r/--resources", "MAP", "other resources: '{licence:1}'", key="resources"),
    Option("--resource", "NAME=N", "one other resource; may be repeated", many=True),
    Option("--exclusive", "[=WHO]", "the whole machine"),
    Option("-t/--time", "TIME", "time limit: 90m, 1d12h, 30 (minutes), 12:00:00, 1-12"),
    Option("--time-request", "TIME", "start only if this much time remains"),
    Option("-J/--job-name/--name", "NAME", "what to call it", key="name"),
    Option("--label", "LABEL", "mark it (select with %LABEL); may be repeated", many=True),
    Option("-g/--group", "NAME", "a group of jobs"),
    Option("--comment", "TEXT", "a note"),
    Option("-o/--output", "FILE", "where stdout goes; %j %A %a %x %u %N %t %% are filled in"),
    Option("-e/--error", "FILE", "where stderr goes, if not to the same place"),
    Option("-D/--chdir", "DIR", "run in this directory"),
    Option("--env", "K=V", "set a variable; may be repeated", many=True),
    Option("--export", "LIST", "ALL, NONE or NAMES: which variables it inherits"),
    Option("--slurm-env", None, "set SLURM_* variables (default for scripts with #SBATCH lines)"),
    Option("--no-slurm-env", None, "set no SLURM_* variables"),
    Option("--priority", "N", "larger is more urgent (0)"),
    Option("--nice", "[N]", "lower its priority (by 100)"),
    Option("-p/--partition/--queue", "NAME", "which queue", key="queue"),
    Option("-q/--qos", "NAME", "quality of service"),
    Option("-A/--account", "NAME", "whom to charge"),
    Option("-d/--dependency", "LIST", "afterok:5,afterany:6; afternotok, after, singleton"),
    Option("-a/--array", "RANGE", "many of the same: 0-15, 0-15:4, 1,5,9, 0-99%4"),
    Option("-b/--begin", "TIME", "not before: 16:00, now+2hours, 2026-12-01T08:00"),
    Option("--delay", "TIME", "not before this much time has passed, or 'friday 18:00'"),
    Option("--deadline", "TIME", "give up if it cannot end by then"),
    Option("-H/--hold/--stashed", None, "queue it, but do not start it", key="hold"),
    Option("--retries", "N", "run it again up to N times"),
    Option("--retry-on", "CAUSES", "after which ends: exit:3,oom,lost; 3 times without --retries"),
    Option("--requeue", None, "run it again when its machine fails, or when it had to make room"),
    Option("--no-requeue", None, "never run it again by itself, and never ask it to make room"),
    Option("--signal", "SIG@SECS", "warn it before its time is up, or to make room: USR1@120"),
    Option("--on-end", "CMD", "run this command when it has ended"),
    Option("-N/--nodes", "N", "machines"),
    Option("-n/--ntasks", "N", "tasks"),
    Option("--ntasks-per-node", "N", "tasks on each machine"),
    Option("-C/--constraint", "EXPR", "machines with these features: a&b|c"),
    Option("-w/--nodelist", "NAMES", "only these machines"),
    Option("-x/--exclude", "NAMES", "never these machines"),
    Option(
        "--send",
        "PATH",
        "what goes along to another machine, if not all; may be repeated",
        many=True,
    ),
    Option("--no-send", None, "start in an empty directory there"),
    Option(
        "--bring", "PATH", "what comes back whole, if not all that changed; repeatable", many=True
    ),
    Option("--no-bring", None, "nothing comes back but its output"),
    Option("--bring-into", "DIR", "where it comes back to"),
    Option(
        "--leave-out", "PATTERN", "what goes neither way, as in .gitignore; repeatable", many=True
    ),
    Option(
        "--if-unreachable",
        "RULE",
        "restart:1h runs it elsewhere if its machine is silent that long",
    ),
    Option("--epochs", "N", "a training job of so many epochs"),
    Option("--batch-size", "N", "how many samples make a step"),
    Option("--training-set-size", "N", "how many samples make an epoch"),
    Option("--expect", "TIME", "how long you think it trains: 3h"),
    Option("--snapshots-dir", "DIR", "where its checkpoints lie, in a directory of its own"),
    Option("--single-gpu", None, "it can train on one GPU only"),
    Option("--exclusive-gpu", None, "no other job on its GPUs"),
    Option("--image", "NAME", "run in a container of this image (podman or docker)"),
    Option(
        "--mount", "SRC:DST[:ro]", "a directory of yours in the container; repeatable", many=True
    ),
    Option("--ports", "LIST", "ports of the machine and of the container: 31346:6006,..."),
    Option("--mail-type", "WHEN", "mail at these events"),
    Option("--mail-user", "WHO", "mail to"),
    Option("--pty", None, "give it a terminal (with `run`)"),
)

SUBMIT = (
    Option("--each-line", "FILE", "one job per line of FILE (- is stdin); # lines are skipped"),
    Option("--wrap", "LINE", "the shell line to run"),
    Option("-W/--wait", None, "wait for the end and return the job's code"),
    Option("-f/--follow", None, "follow its output, then return its code"),
    Option("--test-only/--dry-run", None, "check it and say when it would start", key="dry_run"),
    Option("--parsable/--quiet/-Q", None, "the id and nothing else", key="quiet"),
    Option("--strict", None, "a #SBATCH option without effect here is an error"),
    Option("-v/--verbose", None, "say more"),
)

CLIENT_KEYS = frozenset(option.key for option in SUBMIT) | {"json", "color", "no_color"}
"""What concerns this command and is not sent."""


def job_options(args: Args) -> dict[str, object]:
    """Return what was typed about the job, as the API's `options` has it."""
    found: dict[str, object] = {
        key: value
        for key, value in args.values.items()
        if key not in CLIENT_KEYS and key != "resource"
    }
    if found.get("nice") is True:
        found["nice"] = "100"
    into = args.text("bring_into")
    if into is not None:
        here = os.getcwd().replace("%", "%%")  # what is filled in is what was typed
        found["bring_into"] = os.path.normpath(os.path.join(here, os.path.expanduser(into)))
    if args.text("snapshots_dir"):
        found["snapshots_dir"] = os.path.abspath(
            os.path.expanduser(args.text("snapshots_dir") or "")
        )
    if args.many("mount"):
        found["mount"] = [_mount(text) for text in args.many("mount")]
    named = args.many("resource")
    if named:
        found["resources"] = _resources(args.text("resources"), named)
    return found


def _mount(text: str) -> str:
    """Write a mount with the full name of the directory that is meant."""
    source, colon, rest = text.partition(":")
    if not source or not colon:
        return text  # the daemon says what is wrong with it
    return f"{os.path.abspath(os.path.expanduser(source))}:{rest}"


def _resources(mapping: str | None, named: list[str]) -> str:
    """Write `--resource licence=1` in the form that --resources has."""
    parts = [(mapping or "").strip().removeprefix("{").removesuffix("}").strip().rstrip(",")]
    for entry in named:
        name, equals, amount = entry.partition("=")
        if not equals or not name.strip() or not amount.strip():
            raise UsageError(f"--resource takes NAME=N, not {entry!r}.")
        parts.append(f"{_quoted(name.strip())}:{amount.strip()}")
    return "{" + ",".join(part for part in parts if part) + "}"


def _quoted(name: str) -> str:
    return name if name.isidentifier() else f'"{name}"'
