"""sinfo: queues as partitions, and the states of the nodes."""

from __future__ import annotations

from stoker.cli.options import Option, parse
from stoker.client.client import connect
from stoker.compat.slurm.columns.formats import Column, fold_hosts
from stoker.compat.slurm.columns.job_fields import NULL, VERSION
from stoker.compat.slurm.columns.options import TABLE, chosen_format, print_head

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.cli.options import Args
    from stoker.client.client import Client
    from stoker.compat.slurm.columns.formats import Format
    from stoker.wire import JsonObject

OPTIONS = (
    *TABLE,
    Option("-n/--nodes", "NAMES", "", key="nodes"),
    Option("-N/--Node", None, "", key="by_node"),
    Option("-s/--summarize", None, "", key="summarize"),
    Option("-R/--list-reasons", None, "", key="reasons"),
    Option("-e/--exact", None, "", key="exact"),
    Option("-r/--responding", None, "", key="responding"),
    Option("-d/--dead", None, "", key="dead"),
)
DEFAULT = "%9P %.5a %.10l %.6D %.6t %N"
LONG = "%9P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N"
BY_NODE = "%10N %.5D %.9P %6t"
LONG_BY_NODE = "%10N %.5D %.9P %.11T %4c %.8z %.6m %.8d %.6w %.8f %20E"
SUMMARY = "%9P %.5a %.10l %.16F %N"
REASONS = "%20E %9u %19H %N"
INVALID_FORMAT = "Invalid node format specification: "
DEFAULT_PARTITION = "default"
LONG_STATES = {
    "idle": "idle", "mix": "mixed", "alloc": "allocated", "down*": "down*", "drain": "drained",
    "drng": "draining",
}  # fmt: skip


class Group:
    """Nodes of one partition that share a line."""

    def __init__(self, partition: str, nodes: list[JsonObject]) -> None:
        self.partition, self.nodes = partition, nodes

    @property
    def names(self) -> str:
        """The names of the nodes."""
        return fold_hosts([str(node["name"]) for node in self.nodes])

    @property
    def state(self) -> str:
        """The state that its nodes share."""
        return node_state(self.nodes[0]) if self.nodes else "n/a"

    @property
    def reason(self) -> str:
        """Why the nodes are not up."""
        return (str(self.nodes[0].get("why") or "") if self.nodes else "") or "none"

    def node_counts(self) -> tuple[int, int, int, int]:
        """Return how many nodes are allocated, idle, neither, and all."""
        states = [node_state(node) for node in self.nodes]
        idle = states.count("idle")
        allocated = states.count("mix") + states.count("alloc")
        return allocated, idle, len(states) - allocated - idle, len(states)

    def core_counts(self) -> str:
        """Return how many cores are allocated, idle, on nodes that are not up, and all."""
        counts = [0, 0, 0]
        for node in self.nodes:
            free, total = amounts(node, "cpu")
            if node["state"] == "up":
                counts[0] += int(total - free)
                counts[1] += int(free)
            else:
                counts[2] += int(total)
        return "/".join(map(str, [*counts, sum(counts)]))

    def resource(self, kind: str) -> str:
        """Return the amount of a resource on one node, with + if others have more."""
        totals = [amounts(node, kind)[1] for node in self.nodes] or [0.0]
        return f"{min(totals):g}{'+' if min(totals) != max(totals) else ''}"

    def used(self, kind: str) -> str:
        """Return how much of a resource is allocated on the first node."""
        free, total = amounts(self.nodes[0], kind) if self.nodes else (0.0, 0.0)
        return f"{total - free:g}"

    @property
    def free_memory(self) -> str:
        """Free memory of the nodes in MiB."""
        free = sorted({int(amounts(node, "mem")[0]) for node in self.nodes}) or [0]
        return str(free[0]) if len(free) == 1 else f"{free[0]}-{free[-1]}"

    @property
    def gres(self) -> str:
        """GPUs of one node."""
        gpus = amounts(self.nodes[0], "gpu")[1] if self.nodes else 0
        return f"gpu:{gpus:g}" if gpus else NULL


def amounts(node: JsonObject, kind: str) -> tuple[float, float]:
    """Return how much of a resource is free on a node, and how much there is."""
    held = (node.get("resources") or {}).get(kind)
    return (float(held["free"]), float(held["total"])) if held else (0.0, 0.0)


def node_state(node: JsonObject) -> str:
    """Return the state of a node in Slurm's short form."""
    if node["state"] == "drained":
        return "drng" if node.get("jobs") else "drain"
    if node["state"] != "up":
        return "down*"
    resources = node.get("resources") or {}
    is_used = any(amounts(node, kind)[0] < amounts(node, kind)[1] for kind in resources)
    if not is_used and not node.get("jobs"):
        return "idle"
    return "alloc" if amounts(node, "cpu")[0] <= 0 else "mix"


CODES = {
    "a": Column("AVAIL", "up"),
    "A": Column("NODES(A/I)", lambda group: "{}/{}".format(*group.node_counts())),
    "b": Column("ACTIVE_FEATURES", NULL),
    "B": Column("MAX_CPUS_PER_NODE", "UNLIMITED"),
    "c": Column("CPUS", lambda group: group.resource("cpu")),
    "C": Column("CPUS(A/I/O/T)", lambda group: group.core_counts()),
    "d": Column("TMP_DISK", "0"),
    "D": Column("NODES", lambda group: str(len(group.nodes))),
    "e": Column("FREE_MEM", lambda group: group.free_memory),
    "E": Column("REASON", lambda group: group.reason),
    "f": Column("AVAIL_FEATURES", NULL),
    "F": Column("NODES(A/I/O/T)", lambda group: "/".join(map(str, group.node_counts()))),
    "g": Column("GROUPS", "all"),
    "G": Column("GRES", lambda group: group.gres),
    "h": Column("OVERSUBSCRIBE", "NO"),
    "H": Column("TIMESTAMP", "Unknown"),
    "I": Column("PRIO_JOB_FACTOR", "1"),
    "l": Column("TIMELIMIT", "infinite"),
    "L": Column("DEFAULTTIME", "n/a"),
    "m": Column("MEMORY", lambda group: group.resource("mem")),
    "M": Column("PREEMPT_MODE", "REQUEUE"),
    "n": Column("HOSTNAMES", lambda group: group.names, whole_title=True),
    "N": Column("NODELIST", lambda group: group.names, whole_title=True),
    "o": Column("NODE_ADDR", lambda group: group.names, whole_title=True),
    "O": Column("CPU_LOAD", "N/A"),
    "p": Column("PRIO_TIER", "1"),
    "P": Column(
        "PARTITION",
        lambda group: group.partition + "*" * (group.partition == DEFAULT_PARTITION),
    ),
    "r": Column("ROOT", "no"),
    "R": Column("PARTITION", lambda group: group.partition),
    "s": Column("JOB_SIZE", "1-infinite"),
    "S": Column("ALLOCNODES", "all"),
    "t": Column("STATE", lambda group: group.state),
    "T": Column("STATE", lambda group: LONG_STATES.get(group.state, group.state)),
    "u": Column("USER", "Unknown"),
    "U": Column("USER", "Unknown"),
    "v": Column("VERSION", VERSION),
    "V": Column("CLUSTER", "N/A"),
    "w": Column("WEIGHT", "1"),
    "X": Column("SOCKETS", lambda group: group.resource("cpu")),
    "Y": Column("CORES", "1"),
    "z": Column("S:C:T", lambda group: f"{group.resource('cpu')}:1:1"),
    "Z": Column("THREADS", "1"),
}
"""All codes of Slurm 22.05."""
_NAMES_OF_CODES = {
    "allocnodes": "S", "available": "a", "cluster": "V", "cores": "Y", "cpus": "c",
    "cpusload": "O", "cpusstate": "C", "defaulttime": "L", "disk": "d", "features": "f",
    "features_act": "b", "freemem": "e", "gres": "G", "groups": "g", "maxcpuspernode": "B",
    "memory": "m", "nodeaddr": "o", "nodeai": "A", "nodeaiot": "F", "nodehost": "n",
    "nodelist": "N", "nodes": "D", "oversubscribe": "h", "partition": "P", "partitionname": "R",
    "preemptmode": "M", "priorityjobfactor": "I", "prioritytier": "p", "reason": "E", "root": "r",
    "share": "h", "size": "s", "socketcorethread": "z", "sockets": "X", "statecompact": "t",
    "statelong": "T", "threads": "Z", "time": "l", "timestamp": "H", "user": "u", "userlong": "U",
    "version": "v", "weight": "w",
}  # fmt: skip
NAMES = {
    **{name: CODES[code] for name, code in _NAMES_OF_CODES.items()},
    "allocmem": Column("ALLOCMEM", lambda group: group.used("mem")),
    "comment": Column("COMMENT", NULL),
    "extra": Column("EXTRA", NULL),
    "gresused": Column("GRES_USED", lambda group: f"gpu:{group.used('gpu')}"),
    "port": Column("PORT", "0"),
    "statecomplete": Column("STATECOMPLETE", lambda group: LONG_STATES[group.state].rstrip("*")),
}
SEPARATING = frozenset(CODES[code] for code in "abEfgGhHIlLMnopPrRstTuUvV")
"""Nodes with different values of these columns have lines of their own; others are summed up."""


def main(argv: list[str]) -> int:
    """Print partitions and nodes in Slurm's format."""
    args = parse(OPTIONS, argv, verb="compat slurm")
    client = connect()
    chosen = chosen_format(args, NAMES, CODES, _default(args), INVALID_FORMAT)
    print_head(args, chosen)
    nodes = [node for node in client.nodes()["nodes"] if _is_selected(node, args)]
    wanted = args.text("partition")
    names = [name for name in partitions(client) if wanted is None or name in wanted.split(",")]
    for group in _groups(names, nodes, chosen, args.flag("by_node")):
        print(chosen.row(group))
    return 0


def _default(args: Args) -> str:
    """Return the codes that are printed without a format."""
    if args.flag("reasons"):
        return REASONS
    if args.flag("summarize"):
        return SUMMARY
    if args.flag("by_node"):
        return LONG_BY_NODE if args.flag("long") else BY_NODE
    return LONG if args.flag("long") else DEFAULT


def partitions(client: Client) -> list[str]:
    """Return the names of the queues, the default one first."""
    names = [str(queue["name"]) for queue in client.queues()["queues"]]
    return list(dict.fromkeys([DEFAULT_PARTITION, *names]))


def _is_selected(node: JsonObject, args: Args) -> bool:
    names, states = args.text("nodes"), args.text("states")
    state = node_state(node)
    if names is not None and node["name"] not in names.split(","):
        return False
    if args.flag("reasons") and not node.get("why"):
        return False
    if (args.flag("dead") and state != "down*") or (args.flag("responding") and state == "down*"):
        return False
    if states is None or states.lower() == "all":
        return True
    own = {state, LONG_STATES[state], state.rstrip("*")}
    return bool(own & {word.strip().lower() for word in states.split(",")})


def _groups(
    names: list[str], nodes: list[JsonObject], chosen: Format, by_node: bool
) -> list[Group]:
    """Return the lines: nodes share one if the separating columns of the format agree."""
    groups: dict[tuple[str, ...], Group] = {}
    columns = [part.column for part in chosen.parts if not isinstance(part, str)]
    separating = [column for column in columns if column in SEPARATING]
    pairs = [(name, node) for name in names for node in nodes]
    if by_node:
        pairs.sort(key=lambda pair: str(pair[1]["name"]))
    for name, node in pairs:
        single = Group(name, [node])
        key = tuple(column.text(single) for column in separating)
        group = groups.setdefault((*key, str(node["name"]) if by_node else ""), Group(name, []))
        if node not in group.nodes:
            group.nodes.append(node)
    return list(groups.values())
