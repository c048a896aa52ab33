"""Nodes of config.toml: read, checked, and compared with the nodes of the journal."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from core.scenario import Afar, node
from stoker.core import events as e
from stoker.core.model.units import BadValue
from stoker.daemon.nodes.configured import configured_node_events
from stoker.daemon.settings import ConfiguredCluster, ConfiguredNode, load

ANT = {"ant": ConfiguredNode("ssh://ant")}
MOVED = {"ant": ConfiguredNode("ssh://new")}


def read(home: Any, text: str) -> dict[str, ConfiguredNode]:
    (home / "config.toml").write_text(text)
    return load().nodes


def start(
    scenario: Afar, wanted: Mapping[str, ConfiguredNode] = MappingProxyType({})
) -> tuple[list[str], list[str]]:
    """Start a daemon with these nodes; return the kinds of its events, and warnings."""
    events, warnings = configured_node_events(scenario.state, wanted, "box", scenario.now)
    for event in events:
        scenario.tell(event)
    return [type(event).__name__ for event in events], warnings


def test_a_table_per_node(home: Any) -> None:
    text = '[nodes.gpu1]\naddress = "ssh://me@h:22"\nkey = "~/.ssh/id"\nshared = true\n'
    assert read(home, f'{text}[nodes."b.c"]\naddress = "c"\n') == {
        "gpu1": ConfiguredNode("ssh://me@h:22", "~/.ssh/id", shared=True),
        "b.c": ConfiguredNode("c"),
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodes = 3", "nodes: expected a table [nodes], got 3"),
        ("[nodes]\ngpu1 = 'ssh://me@h'", "nodes.gpu1: expected a table"),
        ("[nodes.gpu1]\naddress = 3", "nodes.gpu1.address: expected an address"),
        (
            "[nodes.gpu1]\naddres = 'h'",
            "'nodes.gpu1.addres' is not a known setting; did you mean address?",
        ),
        ("[nodes.gpu1]\naddress = 'a b'", 'nodes.gpu1.address: expected an address such as "ssh:'),
        ("[nodes.gpu1]\naddress = 'h:99999'", 'such as "ssh://me@host:22", got "h:99999"'),
        (
            "[nodes.gpu1]\naddress = 'h'\nkey = 'id'",
            "nodes.gpu1.key: expected the absolute path of a key",
        ),
        ("[nodes.gpu1]\naddress = 'h'\nshared = 1", "nodes.gpu1.shared: expected true or false"),
        ("[nodes.'x y']\naddress = 'h'", "is not a valid node name"),
    ],
)
def test_an_invalid_table_is_rejected_with_its_path(home: Any, text: str, expected: str) -> None:
    with pytest.raises(BadValue, match="config") as error:
        read(home, text)
    assert expected in str(error.value)


def test_a_node_is_added_changed_and_removed_with_the_file() -> None:
    scenario = Afar()
    assert start(scenario, ANT) == (["NodeAdded"], [])
    assert scenario.state.record.remotes["ant"].configured
    assert start(scenario, ANT) == ([], [])
    assert start(scenario, MOVED)[0] == ["NodeAdded"]
    assert scenario.state.record.remotes["ant"].address == "ssh://new"
    assert start(scenario) == (["NodeRemoved"], [])
    assert scenario.state.record.remotes == {}


def test_a_node_added_by_hand_stays_until_the_file_contains_it() -> None:
    scenario = Afar()
    scenario.add("ant")
    assert start(scenario) == ([], [])
    assert start(scenario, ANT) == (["NodeAdded"], [])
    assert start(scenario) == (["NodeRemoved"], [])


def test_the_local_node_in_a_shared_file_is_ignored() -> None:
    assert start(Afar(), {"box": ConfiguredNode("ssh://box", shared=True)}) == ([], [])


def test_a_node_with_running_jobs_is_neither_moved_nor_removed() -> None:
    scenario = Afar(gpus=0)
    start(scenario, ANT)
    scenario.add("ant", gpus=1)
    scenario.tell(e.NodeAdded(at=scenario.now, name="ant", address="ssh://ant", configured=True))
    job = scenario.submit()
    scenario.run(job)
    kinds, (warning,) = start(scenario)
    assert (kinds, f"Job {job} still runs on ant" in warning) == ([], True)
    kinds, (warning,) = start(scenario, MOVED)
    assert (kinds, "at ssh://new" in warning) == ([], True)
    scenario.exited(job)
    assert start(scenario) == (["NodeRemoved"], [])


# -- clusters ---------------------------------------------------------------------------

LAB = {"lab": ConfiguredCluster("gpus=2 time=1h", sbatch="-p gpu")}


def test_a_table_per_cluster(home: Any) -> None:
    text = '[clusters.lab]\npilot = "gpus=2 time=1h"\nsbatch = ["-p", "gpu"]\n'
    read(home, f'{text}[clusters.far]\nssh = "me@login"\nshared = true\n')
    assert load().clusters == {
        **LAB, "far": ConfiguredCluster(ssh="me@login", shared=True),
    }  # fmt: skip


KUBERNETES = """
[clusters.lab]
address = "kubernetes://"
context = "c"
namespace = "ml"
pilot = "gpus=1 image=i"
ahead = 3
pull_secrets = ["key"]
[clusters.lab.volumes]
"/home" = "pvc:homes"
[clusters.lab.priority_classes]
"10" = "high"
[[clusters.lab.tolerations]]
operator = "Exists"
"""


def test_a_kubernetes_cluster_has_tables_and_lists(home: Any) -> None:
    read(home, KUBERNETES)
    scenario = Afar()
    assert start(scenario, load().clusters) == (["NodeAdded"], [])
    added = scenario.state.record.remotes["lab"]
    assert (added.executor, added.address, added.shared) == ("kubernetes", "kubernetes://", False)
    assert added.options == {
        "context": "c", "namespace": "ml", "pilot": "gpus=1 image=i", "ahead": "3",
        "pull_secrets": '["key"]', "volumes": '{"/home": "pvc:homes"}',
        "priority_classes": '{"10": "high"}', "tolerations": '[{"operator": "Exists"}]',
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[clusters.lab]\npilot = 'gpus=2'", "clusters.lab: --pilot needs time="),
        ("[clusters.lab]\nsbatch = '-J x'", "clusters.lab.sbatch: expected options of sbatch"),
        ("[clusters.lab]\nssh = 'a b'", "clusters.lab.ssh: expected an address"),
        ("[clusters.lab]\naddress = 'k8s://'", 'clusters.lab.address: expected "slurm://" or'),
        (
            "[clusters.lab]\naddress = 'kubernetes://'\nssh = 'h'",
            "clusters.lab: A Kubernetes cluster has no option 'ssh'",
        ),
        ("[clusters.lab]\nimage = 'i'", "clusters.lab: A Slurm cluster has no option 'image'"),
        (
            "[clusters.lab]\naddress = 'kubernetes://'\n[clusters.lab.volumes]\n'/a' = 'nfs:b'",
            "clusters.lab: volumes: /a takes pvc:CLAIM",
        ),
        ("[clusters.a]\n[nodes.a]\naddress = 'h'", "clusters.a: [nodes.a] has the same name"),
    ],
)
def test_an_invalid_cluster_is_rejected_with_its_path(home: Any, text: str, expected: str) -> None:
    with pytest.raises(BadValue, match="config") as error:
        read(home, text)
    assert expected in str(error.value)


def test_a_cluster_is_added_as_by_the_command_and_removed_with_its_pilots() -> None:
    scenario = Afar()
    assert start(scenario, LAB) == (["NodeAdded"], [])
    added = scenario.state.record.remotes["lab"]
    assert (added.executor, added.address, added.shared) == ("slurm", "slurm://", True)
    assert added.options == {"pilot": "gpus=2 time=1h", "sbatch": "-p gpu"}
    assert start(scenario, LAB) == ([], [])
    options = {"cluster": "lab", "job": "stoker-1", "sbatch": ""}
    scenario.tell(e.NodeAdded(at=0.0, name="lab-1", executor="slurm-pilot", options=options))
    assert start(scenario) == (["NodeRemoved", "NodeRemoved"], [])
    assert not scenario.state.record.remotes


def test_a_cluster_without_pilots_gets_them_at_the_first_start_without_jobs() -> None:
    scenario = Afar(gpus=0)
    handed_over = {"lab": ConfiguredCluster(ahead=4)}
    start(scenario, handed_over)
    scenario.tell(e.NodeJoined(at=scenario.now, facts=node(1, name="lab")))
    scenario.reached("lab")
    job = scenario.submit()
    scenario.run(job)
    kinds, (warning,) = start(scenario, LAB)
    assert (kinds, f"Job {job} still runs on lab" in warning) == ([], True)
    scenario.exited(job)
    assert start(scenario, LAB) == (["NodeAdded"], [])
