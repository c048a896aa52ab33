"""Nodes: added, removed, refreshed, listed."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from core.scenario import node
from daemon.handler_fixture import HandlerFixture
from stoker.core import events as e
from stoker.core.model.resources import DeviceFacts
from stoker.daemon.handlers import nodes
from stoker.daemon.nodes.configured import configured_names
from stoker.schema.requests import AddNode, RemoveNode


class RemoteStub:
    """The status of a remote node."""

    def __init__(self, **fields: Any) -> None:
        self.is_up, self.error, self.why, self.up_since = True, None, None, 900.0
        self.reading: Any = None
        self.free_cores = 3.5
        self.executor = SimpleNamespace(allocation=None)
        self.__dict__.update(fields)


class RegistryStub:
    """Remote nodes with their status, and the refreshes that were requested."""

    def __init__(self, **nodes: RemoteStub) -> None:
        self.nodes = nodes
        self.refreshed: list[str] = []
        self.local = SimpleNamespace(notes=[])

    def refresh(self, names: list[str]) -> None:
        self.refreshed += names

    def when_refreshed(self, names: list[str], callback: Callable[[], None]) -> None:
        if all(self.nodes[name].is_up for name in names):
            callback()

    def gpu_statistics(self, name: str) -> dict[str, Any]:
        return {"uuid": {"node": name}}


def registry(**machines: RemoteStub) -> Any:
    return RegistryStub(**machines)


@pytest.fixture
def ant(handlers: HandlerFixture) -> HandlerFixture:
    """With the node `ant`, which is up."""
    handlers.ask(partial(nodes.add, handlers.context, AddNode("ant", "ssh://me@ant")))
    handlers.apply(
        e.NodeJoined(at=handlers.now, facts=node(4, name="ant")),
        e.NodeReached(at=handlers.now, node="ant"),
    )
    return handlers


def test_a_node_is_added_changed_and_removed(handlers: HandlerFixture) -> None:
    context = handlers.context
    context.configured_nodes = lambda: ["ant"]
    body = AddNode("ant", "ssh://me@ant")
    reply = handlers.ask(partial(nodes.add, context, body))
    assert (reply["new"], reply["changed"], reply["configured"]) == (True, True, True)
    reply = handlers.ask(partial(nodes.add, context, body))
    assert (reply["new"], reply["changed"], handlers.kinds()) == (False, False, [])
    assert handlers.ask(partial(nodes.add, context, AddNode("ant", "ssh://me@new")))["changed"]
    reply = handlers.ask(partial(nodes.remove, context, RemoveNode("ant")))
    assert (reply["lost"], reply["configured"]) == ([], True)
    assert handlers.state.record.remotes == {}


@pytest.mark.parametrize(
    ("body", "code", "word"),
    [
        (AddNode("box", "ssh://me@ant"), "usage", "this node"),
        (AddNode("a b", "ssh://me@ant"), "usage", "name"),
        (AddNode("bee", "ssh://a b"), "usage", "address"),
        (AddNode("bee", "ssh://bee", key="/no/such"), "not_found", "key"),
        (AddNode("bee", "ssh://me@ant"), "failed", "'ant'"),
        (AddNode("bee", "ssh://ant:22"), "failed", "'ant'"),
    ],
)
def test_a_node_that_cannot_be_meant_is_rejected(
    ant: HandlerFixture, body: AddNode, code: str, word: str
) -> None:
    ant.rejects(partial(nodes.add, ant.context, body), code, word)


def test_another_user_or_port_is_another_node(ant: HandlerFixture) -> None:
    for name, address in (("bee", "ssh://you@ant"), ("cat", "ssh://me@ant:2222")):
        assert ant.ask(partial(nodes.add, ant.context, AddNode(name, address)))["new"]


def test_a_node_with_running_jobs_is_moved_or_removed_only_with_force(ant: HandlerFixture) -> None:
    job = ant.submit(gpus="4")
    moved = AddNode("ant", "ssh://me@new")
    ant.rejects(partial(nodes.add, ant.context, moved), "failed", "--force")
    ant.rejects(partial(nodes.remove, ant.context, RemoveNode("ant")), "failed", "--force")
    assert ant.ask(partial(nodes.add, ant.context, AddNode("ant", "ssh://me@new", force=True)))[
        "changed"
    ]
    reply = ant.ask(partial(nodes.remove, ant.context, RemoveNode("ant", force=True)))
    assert reply["lost"] == [job]
    assert ant.kinds()[:2] == ["AttemptLost", "NodeRemoved"]


def test_the_local_node_and_unknown_nodes_cannot_be_removed(handlers: HandlerFixture) -> None:
    handlers.rejects(
        partial(nodes.remove, handlers.context, RemoveNode("box")), "usage", "this node"
    )
    handlers.rejects(partial(nodes.remove, handlers.context, RemoveNode("bee")), "not_found", "bee")


def test_a_refresh_covers_the_named_nodes_or_all(ant: HandlerFixture) -> None:
    remote = registry(ant=RemoteStub(), bee=RemoteStub(is_up=False))
    replies: list[str] = []
    ant.ask(partial(nodes.refresh, remote, ["ant"], lambda: replies.append("ant")))
    assert (remote.refreshed, replies) == (["ant"], ["ant"])
    ant.ask(partial(nodes.refresh, remote, [], lambda: replies.append("all")))
    assert remote.refreshed == ["ant", "ant", "bee"]
    assert replies == ["ant"], "bee has not answered"
    ant.rejects(partial(nodes.refresh, remote, ["cat"], replies.clear), "not_found", "cat")
    remote.refreshed.clear()
    nodes.refresh_reachable(remote)
    assert remote.refreshed == ["ant"]


def test_readings_and_errors_of_gpus_come_from_nodes_that_are_up() -> None:
    remote = registry(ant=RemoteStub(error="driver gone"), bee=RemoteStub(is_up=False))
    assert nodes.gpu_readings(remote, "ant") == {"uuid": {"node": "ant"}}
    assert nodes.gpu_readings(remote, "bee") == nodes.gpu_readings(remote, "cat") == {}
    assert nodes.gpu_notes(remote, None) == ["ant: driver gone"]
    assert nodes.gpu_notes(remote, "local")[0] == "local"


def test_nodes_are_listed_with_their_state(ant: HandlerFixture) -> None:
    class Reading:
        cores, load1, memory_total, memory_available, disk_free = 8, 0.5, 64, 32, 100
        tools = frozenset({"tar"})

        class reading:  # noqa: N801 - a field
            facts = (DeviceFacts("0", index=0),)
            use = ()

    remote = registry(ant=RemoteStub(reading=Reading, error="driver gone"))
    box, view = ant.ask(partial(nodes.list_nodes, remote, 500.0))["nodes"]
    assert (box["name"], box["state"], box["address"], box["measured"]) == ("box", "up", None, None)
    assert (view["name"], view["state"], view["measured"]["cores"]) == ("ant", "up", 8)
    assert [word for note in view["notes"] for word in ("bash", "driver") if word in note] == [
        "driver",
        "bash",
    ]
    assert nodes.summary(remote, ant.state)["machines"] == ["ant"]


@pytest.mark.parametrize(("why", "state"), [("no route", "unreachable"), (None, "connecting")])
def test_a_node_that_cannot_be_reached_says_why(
    ant: HandlerFixture, why: str | None, state: str
) -> None:
    ant.apply(e.NodeUnreachable(at=ant.now, node="ant", why="no route", boot=ant.now))
    remote = registry(ant=RemoteStub(why=why))
    _, view = ant.ask(partial(nodes.list_nodes, remote, 500.0))["nodes"]
    assert (view["state"], view["why"]) == (state, "no route")
    assert nodes.summary(remote, ant.state)[state] == ["ant"]


def test_a_drained_and_a_closed_node_are_shown_so(ant: HandlerFixture) -> None:
    devices = tuple(
        ("ant", device.type, device.name) for device in ant.state.cluster.nodes["ant"].devices()
    )
    ant.apply(
        e.DevicesDrained(at=ant.now, devices=devices, reason=""),
        e.NodeCordoned(at=ant.now, node="ant", why="disk full"),
    )
    _, view = ant.ask(partial(nodes.list_nodes, registry(ant=RemoteStub()), 500.0))["nodes"]
    assert view["state"] == "drained"
    assert "disk full" in view["notes"][0]


def test_names_of_configured_nodes_are_read_from_the_file(home: Any) -> None:
    (home / "config.toml").write_text('[nodes.ant]\naddress = "ssh://ant"\n')
    assert list(configured_names()) == ["ant"]
    (home / "config.toml").write_text("[nodes.ant]\n")
    assert list(configured_names()) == []


# -- clusters ---------------------------------------------------------------------------

PILOT = {"pilot": "gpus=2 time=1h"}


def test_a_cluster_is_added_and_changed(handlers: HandlerFixture) -> None:
    context = handlers.context
    body = AddNode("lab", "slurm://", options=PILOT)
    reply = handlers.ask(partial(nodes.add, context, body))
    assert (reply["new"], reply["changed"]) == (True, True)
    assert not handlers.ask(partial(nodes.add, context, body))["changed"]
    other = AddNode("lab", "slurm://", options={**PILOT, "sbatch": "-p gpu"})
    assert handlers.ask(partial(nodes.add, context, other))["changed"]
    added = handlers.state.record.remotes["lab"]
    assert (added.executor, added.shared) == ("slurm", True)
    far = AddNode("far", "slurm://", options={**PILOT, "ssh": "me@login"})
    handlers.ask(partial(nodes.add, context, far))
    assert not handlers.state.record.remotes["far"].shared


@pytest.mark.parametrize(
    ("body", "code", "word"),
    [
        (AddNode("lab", "slurm://login", options=PILOT), "usage", "--ssh"),
        (AddNode("lab", "slurm://", options={"pilot": "gpus=2"}), "usage", "time="),
        (AddNode("lab", "slurm://", options={**PILOT, "ssh": "a b"}), "usage", "address"),
        (AddNode("lab", "slurm://", key="/k", options=PILOT), "usage", "ssh configuration"),
        (AddNode("ant", "slurm://", options=PILOT), "failed", "choose another name"),
        (AddNode("bee", "ssh://me@bee", options=PILOT), "usage", "no such options"),
        (AddNode("lab", "kubernets://"), "usage", "kubernetes://"),
    ],
)
def test_a_cluster_that_cannot_be_added_is_rejected(
    ant: HandlerFixture, body: AddNode, code: str, word: str
) -> None:
    ant.rejects(partial(nodes.add, ant.context, body), code, word)


@pytest.mark.parametrize(
    ("before", "name"), [({"ahead": "4"}, "lab"), (PILOT, "lab-1"), (PILOT, "lab-jobs")]
)
def test_a_cluster_with_jobs_neither_gets_nor_loses_its_pilots(
    handlers: HandlerFixture, before: dict[str, str], name: str
) -> None:
    context, after = handlers.context, {"ahead": "4"} if before is PILOT else PILOT
    handlers.ask(partial(nodes.add, context, AddNode("lab", "slurm://", options=before)))
    if name != "lab":
        kind = "slurm-jobs" if name == "lab-jobs" else "slurm-pilot"
        options = {"cluster": "lab"}
        handlers.apply(e.NodeAdded(at=handlers.now, name=name, executor=kind, options=options))
    handlers.apply(
        e.NodeJoined(at=handlers.now, facts=node(4, name=name)),
        e.NodeReached(at=handlers.now, node=name),
    )
    job = handlers.submit(gpus="4")
    change = partial(nodes.add, context, AddNode("lab", "slurm://", options=after))
    handlers.rejects(change, "failed", f"Job {job} still runs on lab; wait for it to end")
    handlers.exit(job)
    assert handlers.ask(change)["changed"]
    assert list(handlers.state.record.remotes) == ["lab"]


def test_only_a_kubernetes_cluster_can_be_checked(ant: HandlerFixture) -> None:
    remote = registry(ant=RemoteStub())
    for name in ("box", "ant"):
        ant.rejects(partial(nodes.check, remote, name), "usage", "no Kubernetes cluster")
    ant.rejects(partial(nodes.check, remote, "cat"), "not_found", "cat")
