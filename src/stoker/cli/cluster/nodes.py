"""List nodes with their free resources and state; add, check and remove nodes and clusters.

An SSH node needs only sshd and sh. Add it by name and address (the address may be a host of your
~/.ssh/config), or with YAML files that have the keys username, ip, port and ssh_key_path. Adding a
known name changes its address.

A Slurm cluster (slurm://) is used through Slurm's own commands, here or on a login node (--ssh).
Every attempt becomes a Slurm job, of which --ahead may wait in Slurm's queue. With --pilot instead,
stoker keeps up to max allocations while jobs need them; each joins as a node and is released after
idle without jobs. With both, jobs that no allocation can run become Slurm jobs. Words after -- are
options of sbatch.

A Kubernetes cluster (kubernetes://) is used through the kubeconfig and kubectl of this host. Every
attempt becomes a pod; with --pilot instead, stoker keeps up to max pods while jobs need them, each
of which joins as a node. --volume names what pods have of this host's paths: PATH=pvc:CLAIM or
PATH=hostPath:/DIRECTORY. `nodes check` tests connection, rights, GPUs and volumes.
"""

from __future__ import annotations

import json
import os
import shlex

from stoker.cli import output
from stoker.cli.options import VERBOSE, WATCH, Args, Option, parse
from stoker.cli.output import table, times
from stoker.cli.output.progress import elapsed
from stoker.cli.output.table import Cell, Column
from stoker.cli.session import connect_without_start
from stoker.client.client import connect
from stoker.client.errors import StokerError, UsageError
from stoker.client.machine_files import NodeEntry, read_machine
from stoker.wire import JsonObject

USAGE = (
    "nodes [OPTIONS]",
    "nodes add NAME ssh://USER@HOST:PORT [--key FILE] [--shared]",
    "nodes add FILE.yaml ...",
    "nodes add NAME slurm:// [--ahead 8] [--ssh HOST] [-- SBATCH]",
    'nodes add NAME slurm:// --pilot "gpus=2 time=8h max=4 idle=5m" [--ahead 8] [-- SBATCH]',
    "nodes add NAME kubernetes:// [--context C] [--namespace N] [--image IMAGE] [--ahead 8]",
    'nodes add NAME kubernetes:// --pilot "gpus=4 image=IMAGE max=8 idle=5m" [--ahead 8]',
    "nodes check NAME",
    "nodes remove NAME ... [--force]",
)
OPTIONS = (
    Option("--key", "FILE", "add: SSH private key, if it is not in the ssh configuration"),
    Option("--pilot", "SHAPE", "add a cluster: gpus, vram, cores, mem, time of one; max, idle"),
    Option(
        "--ahead",
        "N",
        "add a cluster: attempts that may wait in its own queue",
    ),
    Option("--ssh", "HOST", "add slurm://: login node, if Slurm's commands are not here"),
    Option("--context", "NAME", "add kubernetes://: context of the kubeconfig"),
    Option("--namespace", "NAME", "add kubernetes://: namespace of the pods"),
    Option("--kubeconfig", "FILE", "add kubernetes://: another kubeconfig"),
    Option("--image", "IMAGE", "add kubernetes://: image of pods whose job names none"),
    Option("--volume", "PATH=VOL", "add kubernetes://: pvc:CLAIM or hostPath:/DIR", many=True),
    Option("--shared", None, "add: shares this host's file system; upload nothing"),
    Option("--force", None, "remove: abandon jobs that run there; add: accept a new address"),
    WATCH,
    Option("--no-header", None, "print no header line"),
    VERBOSE,
)
STATES = {"up": "green", "drained": "magenta", "unreachable": "red", "connecting": "yellow",
          "queued": "yellow"}  # fmt: skip
CHECKS = {"ok": "green", "unknown": "yellow", "failed": "red"}
KINDS = {"gpu": "GPU FREE", "cpu": "CPU FREE", "mem": "MEM FREE"}
"""The first resource columns, in this order."""


def main(argv: list[str]) -> int:
    """List, add or remove nodes."""
    args = parse(OPTIONS, argv, verb="nodes")
    verb, words = (args.words[0], args.words[1:]) if args.words else ("list", [])
    if verb == "add":
        return _add(words, args)
    if verb == "check":
        return _check(words, args)
    if verb in ("remove", "rm"):
        return _remove(words, args)
    if verb != "list" or words:
        raise UsageError(
            f"There is no action '{output.clean(verb)}' of nodes. Use add, check, remove or list."
        )
    client = connect_without_start()
    if args.flag("watch"):
        from stoker.cli.session.live import watch

        return watch(args, client.nodes, lambda reply, _: _node_lines(reply, args))
    if args.flag("json"):
        output.emit(client.nodes())
    else:
        print("\n".join(_node_lines(client.nodes(), args)))
    return 0


# -- adding and removing ------------------------------------------------------------------


def _add(words: list[str], args: Args) -> int:
    options = _cluster_options(words, args)
    nodes = _parse_nodes(words[:2] if options is not None else words, args.text("key"))
    client = connect()
    shared, force = args.flag("shared"), args.flag("force")
    for name, address, key in nodes:
        more: dict[str, object] = {"key": key} if key else {}
        if options is not None:
            more["options"] = options
        reply = client.add_node(name, address, shared=shared, force=force, **more)
        if reply["configured"] and reply["changed"]:
            output.say(
                f"stoker: config.toml also defines {name}; that applies again at the next start"
            )
    names = [name for name, _, _ in nodes]
    with elapsed(f"reaching {', '.join(names)}"):
        reply = client.refresh_nodes(names)
    views = [view for view in reply["nodes"] if view["name"] in names]
    if args.flag("json"):
        output.emit({"nodes": views})
        return 0 if all(view["state"] in ("up", "drained") for view in views) else 1
    unreachable = []
    for view in views:
        if view["state"] in ("up", "drained"):
            print(f"{view['name']} is up: {inventory(view)}")
            for note in view["notes"]:
                output.say(f"stoker: {view['name']}: {output.clean(note)}")
        else:
            unreachable.append(f"{view['name']} cannot be reached yet: {_unreachable_reason(view)}")
    if unreachable:
        raise StokerError(
            f"Added, but {'; '.join(unreachable)}. The daemon keeps trying; see stoker nodes."
        )
    return 0


CLUSTER_OPTIONS = {
    "slurm://": ("pilot", "ahead", "ssh"),
    "kubernetes://": ("pilot", "ahead", "context", "namespace", "kubeconfig", "image"),
}
"""Options of a cluster by its address."""


def _cluster_options(words: list[str], args: Args) -> dict[str, str] | None:
    """Return the options of a cluster; None if something else is added."""
    names = dict.fromkeys(name for each in CLUSTER_OPTIONS.values() for name in each)
    given = {key: value for key in names if (value := args.text(key)) is not None}
    volumes = args.many("volume")
    scheme = next((each for each in CLUSTER_OPTIONS if words[1:] and words[1].startswith(each)), "")
    known = CLUSTER_OPTIONS.get(scheme, ())
    for option in [*given, *(["volume"] if volumes else [])]:
        if option not in known and (option != "volume" or scheme != "kubernetes://"):
            of = [each for each, options in CLUSTER_OPTIONS.items() if option in options]
            where = " or ".join(of or ["kubernetes://"])
            raise UsageError(f"--{option} is for clusters: nodes add NAME {where}")
    if not scheme:
        return None
    if scheme == "slurm://" and words[2:]:
        given["sbatch"] = shlex.join(words[2:])
    elif words[2:]:
        raise UsageError("Words after -- are options of sbatch; a Kubernetes cluster has none.")
    if "kubeconfig" in given:
        given["kubeconfig"] = os.path.abspath(os.path.expanduser(given["kubeconfig"]))
    if volumes:
        given["volumes"] = json.dumps(dict(_volume(each) for each in volumes))
    return given


def _volume(text: str) -> tuple[str, str]:
    path, equals, source = text.partition("=")
    if not equals:
        raise UsageError(
            f"--volume takes PATH=pvc:CLAIM or PATH=hostPath:/DIRECTORY, not '{text}'."
        )
    return path, source


def _parse_nodes(words: list[str], key: str | None) -> list[NodeEntry]:
    """Return the nodes to add; all are checked before the first is added."""
    files = [word for word in words if word.endswith((".yaml", ".yml"))]
    if files and len(files) == len(words):
        if key is not None:
            raise UsageError("A node file names its key; do not give --key.")
        nodes = [read_machine(path) for path in files]
    elif len(words) == 2 and not files:
        nodes = [(words[0], words[1], key)]
    else:
        raise UsageError(
            "Write stoker nodes add NAME ADDRESS, with ssh://me@host:22, slurm:// or kubernetes://,"
            " or the names of node files."
        )
    names = [name for name, _, _ in nodes]
    duplicates = [name for name in names if names.count(name) > 1]
    if duplicates:
        raise UsageError(
            f"Two files are named {duplicates[0]}; their nodes would have the same name."
        )
    checked: list[NodeEntry] = []
    for name, address, path in nodes:
        if path is not None and not os.path.isfile(os.path.expanduser(path)):
            raise UsageError(f"There is no key at {output.clean(path)}.")
        absolute = os.path.abspath(path) if path and not path.startswith("~") else path
        checked.append((name, address, absolute))
    return checked


def inventory(view: JsonObject) -> str:
    """Return GPUs, cores and free memory of a node; of a cluster, what it provides."""
    if view.get("shape"):
        title = {"slurm": "Slurm", "kubernetes": "Kubernetes"}.get(str(view["kind"]), view["kind"])
        return f"a {title} cluster; {view['shape']}"
    measured = view["measured"] or {}
    models: dict[str, int] = {}
    for gpu in measured.get("gpus", ()):
        models[str(gpu["model"])] = models.get(str(gpu["model"]), 0) + 1
    parts = [f"{count} x {output.clean(model)}" for model, count in models.items()] or ["no GPU"]
    parts.append(output.counted(int(measured.get("cores") or 0), "core"))
    parts.append(f"{measured.get('memory_available', 0) / 1024:.0f} GiB of memory free")
    return ", ".join(parts)


def _check(words: list[str], args: Args) -> int:
    """Check clusters; exit with 1 if something is missing."""
    if len(words) != 1:
        raise UsageError("Write stoker nodes check NAME.")
    client = connect()
    with elapsed(f"checking {words[0]}"):
        reply = client.check_node(words[0])
    if args.flag("json"):
        output.emit(reply)
    else:
        columns = [Column("CHECK"), Column("STATE"), Column("RESULT")]
        rows = [
            [str(check["what"]), Cell(check["state"], CHECKS[check["state"]]),
             output.clean(check["text"])]
            for check in reply["checks"]
        ]  # fmt: skip
        header = not args.flag("no_header")
        print("\n".join(table.render(columns, rows, header=header)))
        if reply["rbac"]:
            output.say("stoker: the missing rights, for kubectl apply -f - by an administrator:")
            print(f"\n{reply['rbac']}", end="")
    return 1 if any(check["state"] == "failed" for check in reply["checks"]) else 0


def _remove(names: list[str], args: Args) -> int:
    if not names:
        raise UsageError("Write stoker nodes remove NAME.")
    client = connect()
    replies = [client.remove_node(name, force=args.flag("force")) for name in names]
    if args.flag("json"):
        output.emit({"removed": replies})
        return 0
    for reply in replies:
        name, lost = reply["name"], reply["lost"]
        abandoned = f"; {output.counted(len(lost), 'job')} abandoned there" if lost else ""
        output.say(f"stoker: removed {name}{abandoned}")
        if reply["configured"]:
            output.say(
                f"stoker: config.toml defines {name}: remove it there too, or the next daemon adds"
                " it again"
            )
    return 0


# -- the list -----------------------------------------------------------------------------


def _node_lines(reply: JsonObject, args: Args) -> list[str]:
    """Return the lines of the table, with address and note if they fit."""
    nodes, verbose = reply["nodes"], args.flag("verbose")
    header, width = not args.flag("no_header"), table.terminal_width()
    for more in (("ADDRESS", "NOTE"), ("NOTE",), ()):
        columns, rows = node_table(nodes, more, verbose=verbose)
        full_lines = table.render(columns, rows, header=header, coloured=False)
        if width is None or max(map(table.display_width, full_lines), default=0) <= width:
            break
    lines = table.render(columns, rows, header=header, width=width)
    if more:
        return lines
    notes = [f"{node['name']}: {note}" for node in nodes if (note := _note(node, verbose))]
    return [*lines, "", *notes]


def node_table(
    nodes: list[JsonObject], more: tuple[str, ...] = (), *, verbose: bool = False
) -> tuple[list[Column], list[list[str]]]:
    """Return columns and rows: one column per kind of resource, then `more`."""
    present = dict.fromkeys(kind for node in nodes for kind in node.get("resources") or {})
    kinds = [*(kind for kind in KINDS if kind in present), *(k for k in present if k not in KINDS)]
    if not any(node.get("address") for node in nodes):  # a node that has none may have a note
        more = ("NOTE",) if more and any(node.get("notes") for node in nodes) else ()
    columns = [Column("NODE"), Column("STATE"), Column("SINCE")]
    columns += [Column(KINDS.get(kind) or f"{kind.upper()} FREE", right=True) for kind in kinds]
    columns += [Column("JOBS", right=True), *(Column(title) for title in more)]
    rows = []
    for node in nodes:
        held, state = node.get("resources") or {}, str(node["state"])
        last = {"ADDRESS": str(node.get("address") or "this machine"), "NOTE": _note(node, verbose)}
        rows.append(
            [
                f"{'  ' if node.get('cluster') else ''}{node['name']}",
                Cell(state, STATES.get(state, "")),
                times.list_time(node.get("since"), verbose),
                *(_amounts(kind, held.get(kind), state) for kind in kinds),
                str(node.get("jobs", 0)),
                *(last[title] for title in more),
            ]
        )
    return columns, rows


def _amounts(kind: str, held: JsonObject | None, state: str) -> str:
    """Return free and total: `1/2`, `7.5/8`, `22/24G`; `-/2` if unknown."""
    if held is None:
        return "-"
    scale, unit = (1024, "G") if kind == "mem" else (1, "")
    known = state not in ("unreachable", "connecting", "queued")
    free = _short_number(float(held["free"]) / scale) if known else "-"
    return f"{free}/{_short_number(float(held['total']) / scale)}{unit}"


def _short_number(amount: float) -> str:
    """Return an amount, below 10 with one decimal."""
    return f"{round(amount, 1 if amount < 10 else None):g}"


def _note(node: JsonObject, verbose: bool) -> str:
    if node.get("why"):
        return output.clean(node["why"]) if verbose else _unreachable_reason(node)
    notes = [_pilots(counts, node.get("kind"))] if (counts := node.get("pilots")) else []
    if end := (node.get("allocation") or {}).get("end"):
        notes.append(f"{times.relative(end).removeprefix('in ')} left")
    return output.clean("; ".join([*notes, *(node.get("notes") or ())]))


def _pilots(counts: JsonObject, kind: object) -> str:
    """Return how many allocations a cluster has."""
    waiting = "waiting in Slurm's queue" if kind == "slurm" else "pending"
    running = output.counted(int(counts["running"]), "pilot")
    queued = f", {counts['queued']} {waiting}" if counts["queued"] else ""
    return f"{running}{queued}"


def _unreachable_reason(node: JsonObject) -> str:
    """Return why a node is unreachable, without its address."""
    text = output.clean(node.get("why") or "it has not answered yet").removeprefix("ssh: ")
    if text.startswith("connect to host "):
        text = text.partition(": ")[2] or text
    return text.rstrip(".").strip()
