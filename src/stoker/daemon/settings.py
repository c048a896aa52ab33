"""config.toml as typed Structs; unknown or wrong keys are rejected with their path."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import asdict, fields

from stoker import places
from stoker.core.measurement.foreign_use import Thresholds
from stoker.core.model.alarm import ACTIONS, LIMITS, AlarmRule, AlarmRules, parse_words
from stoker.core.model.notification import parse_condition
from stoker.core.model.units import MAX_DURATION_SECONDS, BadValue, parse_amount, parse_duration
from stoker.daemon.identities import Identities
from stoker.daemon.listen_address import split
from stoker.daemon.rights import Private
from stoker.executors.clusters import KINDS
from stoker.executors.pilot_shape import parse_ahead
from stoker.executors.slurm.options import parse_options
from stoker.executors.ssh.address import parse_address

DOCUMENTATION = "see Configuration in the documentation"
MAX_NAME_LENGTH = 64


def _as_gpus(value: Any) -> str:
    ids = value if isinstance(value, list) else [value]
    return ",".join(map(str, convert(ids, list[int | str])))


def _as_resources(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(convert(value, dict[str, Any]))


def _as_seconds(value: Any) -> float:
    return float(value if type(value) is int else parse_duration(value))


def _as_rule(name: str, value: Any) -> AlarmRule:
    kind = name if name in LIMITS else f"gpu_{name}"
    if type(value) is int:
        return AlarmRule(kind, float(value))
    text = value if isinstance(value, str) else "on" if convert(value, bool) else "off"
    return parse_words(kind, text, name)


def _as_conditions(value: Any) -> tuple[str, ...]:
    for text in convert(value, list[str]):
        _, selector = parse_condition(text)
        if selector:
            raise ValueError(selector)
    return tuple(value)


def _as_clock(value: Any) -> str:
    if not re.fullmatch(r"([01]?\d|2[0-3]):[0-5]\d", convert(value, str)):
        raise ValueError(value)
    return str(value)


def _as_hours(value: Any) -> str:
    begin, _, end = convert(value, str).partition("-")
    return f"{_as_clock(begin.strip())}-{_as_clock(end.strip())}"


def _as_thousandths(value: Any) -> int:
    return parse_amount(str(convert(value, int | float | str)))


def _as_devices(value: Any) -> tuple[str, ...]:
    return tuple(map(str, convert(value, list[int | str])))


def _as_addresses(value: Any) -> list[str]:
    addresses = [value] if isinstance(value, str) else convert(value, list[str])
    for address in addresses:
        split(address)
    return addresses


def _as_node_address(value: Any) -> str:
    parse_address(convert(value, str))
    return str(value)


def _as_sbatch(value: Any) -> str:
    words = value if isinstance(value, str) else shlex.join(convert(value, list[str]))
    parse_options({"sbatch": words})
    return words


def _meta(expected: str, parse: Callable[[Any], Any] | None = None, **bounds: Any) -> Meta:
    """Describe a key: what an error message says was expected, and how the value is parsed."""
    return Meta(description=expected, extra={"parse": parse}, **bounds)


HostNames = Annotated[
    tuple[str, ...], _meta('a list of host names such as ["gpu1.lab.org"]', _as_devices)
]
Flag = Annotated[bool, _meta("true or false")]
Text = Annotated[str, _meta("text in quotes")]
Command = Annotated[str, _meta("a command in quotes")]
Priority = Annotated[int, _meta("a whole number", ge=-1_000_000_000, le=1_000_000_000)]
Count = Annotated[int, _meta("a whole number, 0 or more", ge=0, le=1_000_000_000)]
Number = Annotated[float, _meta("a number, 0 or more", ge=0)]
Seconds = Annotated[
    float, _meta('a duration such as "10s"', _as_seconds, ge=0, le=MAX_DURATION_SECONDS)
]
Rule = Annotated[
    AlarmRule,
    Meta(
        description=f'"off", "on", a duration such as "10m", one of {", ".join(ACTIONS)}, or both',
        extra={"parse_named": _as_rule},
    ),
]
UserNames = Annotated[tuple[str, ...], _meta('a list of user names such as ["ana"]', _as_devices)]
PrivateFields = Annotated[Private, _meta('"all", "logs" or "none"')]
Gpus = Annotated[str, _meta('GPU ids such as [0, 1] or "0,1", "all" or "none"', _as_gpus)]
Resources = Annotated[str, _meta("a table such as { licence = [2] }", _as_resources)]
Thousandths = Annotated[int, _meta("a number such as 2 or 0.5", _as_thousandths)]
Devices = Annotated[tuple[str, ...], _meta('a list of GPU ids such as ["0", "1"]', _as_devices)]
Addresses = Annotated[
    list[str], _meta('an address such as "127.0.0.1:25647", or a list of them', _as_addresses)
]
NodeAddress = Annotated[str, _meta('an address such as "ssh://me@host:22"', _as_node_address)]
Ahead = Annotated[str, _meta("a number such as 8", lambda value: str(parse_ahead(str(value))))]
PilotText = Annotated[str, _meta('a shape such as "gpus=2 time=8h max=4 idle=5m"')]
ClusterAddress = Annotated[
    Literal["slurm://", "kubernetes://"], _meta('"slurm://" or "kubernetes://"')
]
Json = Annotated[Any, _meta("a table or a list", lambda value: convert(value, dict | list))]
SbatchOptions = Annotated[
    str, _meta('options of sbatch such as "-p gpu -A account", or a list of them', _as_sbatch)
]
KeyPath = Annotated[str, _meta("the absolute path of a key (/ or ~), in quotes", pattern="^[/~]")]
Conditions = Annotated[
    tuple[str, ...],
    _meta('a list such as ["fail", "alarm idle", "before-limit 10m"]', _as_conditions),
]
TargetKind = Annotated[
    Literal[
        "webhook",
        "slack",
        "discord",
        "teams",
        "mattermost",
        "ntfy",
        "telegram",
        "email",
        "desktop",
        "command",
        "apprise",
    ],
    _meta(
        '"webhook", "slack", "discord", "teams", "mattermost", "ntfy", "telegram", "email",'
        ' "desktop", "command" or "apprise"'
    ),
]
Level = Annotated[
    Literal["debug", "info", "warning", "error"],
    _meta('"debug", "info", "warning" or "error"'),
]


class ForeignSettings(Struct, frozen=True):
    """[foreign]: when a GPU counts as used by foreign processes."""

    load: Number = Thresholds().load
    memory: Number = Thresholds().memory
    leave_seconds: Number = Thresholds().leave_seconds

    @property
    def thresholds(self) -> Thresholds:
        """The thresholds of the GPU monitor."""
        return Thresholds(**asdict(self))


class ApiSettings(Struct, frozen=True):
    """[api]: TCP ports beside the socket."""

    listen: Addresses = []
    names: HostNames = ()
    """Host names by which browsers reach a port of this daemon."""
    url: Text = ""
    """The address of the web page, for links in notifications."""


class MetricsSettings(Struct, frozen=True):
    """[metrics]: GET /metrics."""

    listen: Addresses = []
    """Ports that serve nothing else, with a token of their own."""
    open: Flag = False
    """Serve it on loopback ports without a token."""
    users: Flag = True
    """Have names of users as labels."""


class AccountingSettings(Struct, frozen=True):
    """[accounting]: prices for `stoker usage`."""

    price_gpu_hour: Number = 0.0
    price_kwh: Number = 0.0
    currency: Text = ""


class AlarmSettings(Struct, frozen=True):
    """[alarms], [queues.NAME.alarms]: after how long each kind is raised, and what follows."""

    idle: Rule | None = None
    unused: Rule | None = None
    over_requested: Rule | None = None
    hung: Rule | None = None
    nan: Rule | None = None
    loss_flat: Rule | None = None
    diverged: Rule | None = None
    log_silent: Rule | None = None
    hot: Rule | None = None
    ecc: Rule | None = None
    xid: Rule | None = None

    def rules(self, general: AlarmRules | None = None) -> AlarmRules:
        """Return the rules of all kinds; `general`: those of kinds that are not given."""
        given = (getattr(self, field) for field in self.__struct_fields__)
        return AlarmRules((rule for rule in given if rule is not None), general)


class NotifyTarget(Struct, frozen=True):
    """[notify.NAME]: where notifications go.

    A url, token, secret or password is written as it is, or as env:NAME, file:PATH or cmd:COMMAND.
    """

    kind: TargetKind
    on: Conditions = ()
    """What is sent about every job; jobs can ask for more with --notify."""
    url: Text = ""
    token: Text = ""
    """Of ntfy and telegram."""
    secret: Text = ""
    """Signs the body for a webhook."""
    to: Text = ""
    """Addresses of an email, or the chat of telegram."""
    sender: Text = ""
    smtp: Text = ""
    """`host:port`; without it, mail goes to sendmail."""
    user: Text = ""
    password: Text = ""
    command: Text = ""
    digest: Annotated[str, _meta('a time such as "18:00"', _as_clock)] = ""
    """Send everything at this time, as one message."""
    quiet: Annotated[str, _meta('hours such as "22:00-07:00"', _as_hours)] = ""
    """Send nothing in these hours, but after them."""
    limit: Count = 20
    """Deliveries per hour; what is more is sent as one."""
    logs: Flag | None = None
    """Whether the end of a job's output is sent; default: not to chats."""

    @property
    def with_logs(self) -> bool:
        """Whether messages have the end of the output."""
        return self.kind in {"email", "webhook", "command"} if self.logs is None else self.logs

    @property
    def lacks(self) -> str | None:
        """The key that it needs and does not have."""
        needed = {"email": ("to",), "desktop": (), "command": ("command",),
                  "telegram": ("token", "to")}.get(self.kind, ("url",))  # fmt: skip
        return next((key for key in needed if not getattr(self, key)), None)


class StoreSettings(Struct, frozen=True):
    """[store]: the database."""

    url: Text | None = None
    patience: Seconds = 30.0
    """How long a database server may be unreachable before the daemon stops."""


class ContainerSettings(Struct, frozen=True):
    """[containers]."""

    engine: Text = ""
    """The container engine; empty: the first that is installed."""


class LogSettings(Struct, frozen=True):
    """[log]: the daemon's log."""

    level: Level = "info"


class MultiUserSettings(Struct, frozen=True):
    """[multiuser]: users of a system daemon."""

    admin_group: Text = "stoker-admin"
    """Unix group of the administrators; root is one in any case."""
    private: PrivateFields = "all"
    """What users do not see of the jobs of others."""
    users_dir: Text = "/var/lib/stoker-users"
    """Where each user's logs and scripts are; `users_dir` of gate.toml."""
    locks_dir: Text = "/run/stoker/gpus"
    """Where the locks of GPUs are."""


class GroupSettings(Struct, frozen=True):
    """[groups.NAME]: a Unix group of users of a system daemon."""

    leaders: UserNames = ()
    """May see and change the jobs of its members."""


class QueueLimits(Struct, frozen=True):
    """[queues.NAME]."""

    max_running: Count | None = None
    max_gpus: Thousandths | None = None
    priority: Priority = 0
    strict: Flag = False
    devices: Devices = ()
    alarms: AlarmSettings = AlarmSettings()


class ConfiguredNode(Struct, frozen=True):
    """[nodes.NAME]: an SSH node."""

    address: NodeAddress
    key: KeyPath | None = None
    shared: Flag = False


class ConfiguredCluster(Struct, frozen=True):
    """[clusters.NAME]: a Slurm or Kubernetes cluster."""

    pilot: PilotText | None = None
    address: ClusterAddress = "slurm://"
    ahead: Ahead | None = None
    shared: Flag = False
    # of Slurm
    ssh: NodeAddress | None = None
    sbatch: SbatchOptions | None = None
    priority_options: Json = None
    # of Kubernetes
    context: Text | None = None
    namespace: Text | None = None
    kubeconfig: Text | None = None
    image: Text | None = None
    volumes: Json = None
    priority_classes: Json = None
    node_selector: Json = None
    tolerations: Json = None
    pull_secrets: Json = None
    queue: Text | None = None
    service_account: Text | None = None
    report_address: Text | None = None
    runtime_class: Text | None = None
    pinned_pods: Flag | None = None

    @property
    def kind(self) -> str:
        """The kind of its node."""
        return self.address.removesuffix("://")

    @property
    def options(self) -> dict[str, str]:
        """The options of its node; tables and lists are JSON."""
        given = {
            name: value
            for name, value in asdict(self).items()
            if value not in (None, "", [], {}) and name not in ("address", "shared")
        }
        return {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in given.items()
        }


class Settings(Struct, frozen=True):
    """All settings; command-line options override them."""

    gpus: Gpus | None = None
    resources: Resources | None = None
    grace: Seconds = 10.0
    on_end: Command | None = None
    on_empty: Command | None = None
    secrets_days: Count = 14
    foreign: ForeignSettings = ForeignSettings()
    api: ApiSettings = ApiSettings()
    metrics: MetricsSettings = MetricsSettings()
    accounting: AccountingSettings = AccountingSettings()
    alarms: AlarmSettings = AlarmSettings()
    store: StoreSettings = StoreSettings()
    containers: ContainerSettings = ContainerSettings()
    log: LogSettings = LogSettings()
    notify: dict[str, NotifyTarget] = {}
    multiuser: MultiUserSettings = MultiUserSettings()
    groups: dict[str, GroupSettings] = {}
    queues: dict[str, QueueLimits] = {}
    nodes: dict[str, ConfiguredNode] = {}
    clusters: dict[str, ConfiguredCluster] = {}

    @property
    def queue_alarms(self) -> dict[str, AlarmRules]:
        """The rules of alarms of the queues that have others than [alarms]."""
        general = self.alarms.rules()
        return {
            name: queue.alarms.rules(general)
            for name, queue in self.queues.items()
            if queue.alarms != AlarmSettings()
        }

    @property
    def identities(self) -> Identities:
        """The users of a system daemon."""
        leaders = {name: group.leaders for name, group in self.groups.items()}
        return Identities(self.multiuser.admin_group, self.multiuser.private, leaders)


def load() -> Settings:
    """Read the configuration files; the later one wins key by key."""
    merged: dict[str, Any] = {}
    for path in places.config_paths():
        if os.path.exists(path):
            import tomllib

            try:
                with open(path, "rb") as file:
                    _check_owner(path, os.fstat(file.fileno()))
                    merged.update(tomllib.load(file))
            except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
                raise BadValue(f"{path} cannot be read: {error}; {DOCUMENTATION}.") from None
    settings: Settings = _decode(Settings, merged, "")
    for kind, names in (("nodes", settings.nodes), ("clusters", settings.clusters)):
        for name in names:
            try:
                check_name(name)
            except BadValue as error:
                raise BadValue(f"config.toml: {kind}: {error}") from None
    for name, target in settings.notify.items():
        if target.lacks is not None:
            raise _bad(f"notify.{name}.{target.lacks}", f"missing; {target.kind} needs it")
    for name, cluster in settings.clusters.items():
        try:
            KINDS[cluster.kind].addition(name, cluster.options, cluster.shared, 0.0)
        except BadValue as error:
            raise BadValue(f"config.toml: clusters.{name}: {error}") from None
    for name in settings.clusters.keys() & settings.nodes:
        raise _bad(f"clusters.{name}", f"[nodes.{name}] has the same name")
    return settings


def check_system_settings(settings: Settings) -> None:
    """Reject settings that a daemon of all users cannot have: it has no rights elsewhere."""
    for kind in ("nodes", "clusters"):
        if getattr(settings, kind):
            raise BadValue(
                f"config.toml: [{kind}] is for daemons of one user: in this version the daemon of"
                " all users runs jobs on its own machine only."
            )


def _check_owner(path: str, status: os.stat_result) -> None:
    """Reject a file that other users can write: the commands in it run as this user."""
    if status.st_uid not in (0, os.getuid()):
        raise BadValue(f"{path} belongs to user {status.st_uid}, not to you. Remove or replace it.")
    has_private_group = status.st_gid == status.st_uid  # the default of many systems
    if status.st_mode & (0o002 if has_private_group else 0o022):
        raise BadValue(f"{path} can be changed by other users. Run: chmod go-w {path}")


def _decode(kind: Any, value: Any, path: str) -> Any:
    """Return a value of the file as this type; an error names the key by its whole path."""
    if get_origin(kind) is dict:
        tables = _table(value, path)
        return {name: _decode(get_args(kind)[1], tables[name], f"{path}.{name}") for name in tables}
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _decode_struct(kind, _table(value, path), path)
    meta = _meta_of(kind)
    extra = meta.extra or {}
    parse, parse_named = extra.get("parse"), extra.get("parse_named")
    try:
        if parse_named is not None:
            return parse_named(path.rpartition(".")[2], value)
        return convert(parse(value) if parse else value, kind)
    except (ValidationError, ValueError, TypeError, AttributeError, OverflowError):
        raise _bad(path, f"expected {meta.description}, got {_shown(value)}") from None


def _decode_struct(kind: type[Struct], table: dict[str, Any], path: str) -> Struct:
    known = {field.name: field for field in fields(kind)}
    dot = f"{path}." if path else ""
    for name in table:
        if name not in known:
            raise _unknown(f"{dot}{name}", name, list(known))
    for field in known.values():
        if field.required and field.name not in table:
            raise _bad(f"{dot}{field.name}", f"missing; {_meta_of(field.type).description}")
    return kind(**{name: _decode(known[name].type, table[name], dot + name) for name in table})


def _table(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _bad(path, f"expected a table [{path}], got {_shown(value)}")
    return value


def _meta_of(kind: Any) -> Meta:
    """Return the description of a type; that of `X | None` is that of X."""
    types = get_args(kind) if type(None) in get_args(kind) else (kind,)
    return next(meta for part in types for meta in get_args(part)[1:] if isinstance(meta, Meta))


def _bad(path: str, why: str) -> BadValue:
    return BadValue(f"config.toml: {path}: {why}.")


def _unknown(path: str, name: str, known: list[str]) -> BadValue:
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; {DOCUMENTATION}."
    return BadValue(f"config.toml: '{path}' is not a known setting{hint}")


def _shown(value: Any) -> str:
    """Return a value nearly as written in the file, shortened if it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:60]}…"


def check_name(name: str) -> str:
    """Return a node's name if it can be used in paths and lists; reject any other."""
    if not re.fullmatch(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_NAME_LENGTH - 1}}}", name):
        raise BadValue(
            f"'{name[:80]}' is not a valid node name; use up to {MAX_NAME_LENGTH} letters, digits"
            " and _ . -, starting with a letter or a digit."
        )
    return name
