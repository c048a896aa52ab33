"""Nodes as users see them: added, listed, unreachable, configured, removed."""

from pathlib import Path

import pytest

from e2e.daemon_fixture import DaemonFixture, as_json, until
from ssh.ssh_cluster import SshCluster
from ssh.ssh_host import SshHost

FOREVER = "until [ -e $HOME/go ]; do sleep 0.05; done"


def add(box: DaemonFixture, machine: SshHost, *more: str) -> str:
    done = box.stoker("nodes", "add", machine.name, machine.url, "--key", machine.key, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(box: DaemonFixture, *words: object) -> tuple[int, str]:
    done = box.stoker("nodes", *words)
    assert (done.stdout, done.stderr.count("\n")) == ("", 1), done.stderr
    return done.returncode, done.stderr


def nodes(box: DaemonFixture) -> dict[str, dict[str, object]]:
    return {view["name"]: view for view in as_json(box.stoker("nodes", "--json"))["nodes"]}


def make_unreachable(box: DaemonFixture, machine: SshHost) -> None:
    """Make a node unreachable and wait until the daemon knows it."""
    machine.stop_sshd()
    machine.kill_connections()
    until(lambda: nodes(box)[machine.name]["state"] == "unreachable")


def file_of(machine: SshHost, path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f"username: {machine.user}\nip: {machine.address}\nport: {machine.port}\n"
        f"ssh_key_path: {machine.key}\n"
    )
    return path


@pytest.fixture
def rich(daemon_and_cluster: tuple[DaemonFixture, SshCluster]) -> tuple[DaemonFixture, SshHost]:
    """A daemon without GPUs, and its node with two."""
    box, cluster = daemon_and_cluster
    machine = cluster.machine("rich", gpus=2)
    box.start("{cpu:2}")
    add(box, machine)
    return box, machine


# ------------------------------------------------------------------------------ adding


def test_a_node_is_added_with_its_resources_and_adding_it_again_changes_nothing(
    rich: tuple[DaemonFixture, SshHost],
) -> None:
    box, machine = rich
    assert "is up: 2 x Tesla T4" in add(box, machine)
    view = nodes(box)["rich"]
    assert (view["state"], view["why"], view["notes"]) == ("up", None, [])
    assert (view["address"], view["shared"], view["configured"]) == (machine.url, False, False)
    assert view["resources"]["gpu"] == {**view["resources"]["gpu"], "total": "2", "free": "2"}
    assert len(view["measured"]["gpus"]) == 2
    assert box.client.add_node("rich", machine.url, key=str(machine.key))["changed"] is False


def test_several_files_are_added_at_once_and_a_node_may_lack_bash(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    bare = cluster.machine("bare", bare=True)
    files = [file_of(machine, box.user / f"{machine.name}.yaml") for machine in (cluster.a, bare)]
    done = box.stoker("nodes", "add", *files)
    assert done.returncode == 0, done.stderr
    assert [line.split(" ")[:3] for line in done.stdout.splitlines()] == [
        ["a", "is", "up:"],
        ["bare", "is", "up:"],
    ]
    assert "bare: no bash" in done.stderr
    table = box.stoker("nodes").stdout
    assert "no bash: command lines run in sh" in table
    assert table.splitlines()[0].split()[-2:] == ["ADDRESS", "NOTE"]


def test_an_invalid_node_is_rejected_with_a_reason_and_not_added(
    rich: tuple[DaemonFixture, SshHost],
) -> None:
    box, machine = rich
    key = ("--key", machine.key)
    for name in ("x y", "-x", "a/b", "a,b", "ü", "x" * 65, ""):
        code, stderr = refused(box, "add", *key, "--", name, "ssh://me@elsewhere")
        assert (code, "is not a valid node name" in stderr) == (2, True), stderr
    for address in ("ssh://-oProxyCommand=sh", "http://x", "ssh://me@h:0", "me@h:99999", "a b"):
        code, stderr = refused(box, "add", "x", address)
        assert (code, address in stderr) == (2, True), stderr
    assert refused(box, "add", "x", "me@h", "--key", "nokey")[0] == 2
    assert refused(box, "add", "x")[0] == 2
    assert refused(box, "frob")[0] == 2
    code, stderr = refused(box, "add", "twin", machine.url, *key)
    assert (code, "is already node 'rich'" in stderr) == (1, True)
    without_user = machine.url.replace(
        machine.user, ""
    )  # the ssh configuration may have the same user
    assert (
        "is already node 'rich'"
        in refused(box, "add", "twin", without_user.replace("@", ""), *key)[1]
    )
    local = box.client.daemon()["node"]
    assert "is this node" in refused(box, "add", local, "me@h")[1]
    good = file_of(machine, box.user / "good.yaml")
    bad = box.user / "bad.yaml"
    bad.write_text("username: me\nip: h\nport: 22\nssh_key_path: nokey\n")
    assert refused(box, "add", good, bad)[0] == 2
    assert refused(box, "add", good, file_of(machine, box.user / "x" / "good.yaml"))[0] == 2
    assert list(nodes(box)) == [local, "rich"]


def test_a_node_that_rejects_our_key_is_added_and_works_once_it_accepts_it(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    cluster.a.refuse()
    code, stderr = refused(box, "add", "a", cluster.a.url, "--key", cluster.a.key)
    assert (code, "cannot be reached yet: " in stderr, "Permission denied" in stderr) == (
        1,
        True,
        True,
    )
    view = nodes(box)["a"]
    assert (view["state"], "Permission denied" in str(view["why"])) == ("unreachable", True)
    assert "Permission denied" in box.stoker("nodes").stdout
    code, stderr = box.refused("--gpus", "9", "--wrap", "true")
    assert (code, "a has not been reached yet (" in stderr) == (6, True)
    assert box.stoker("daemon", "status").stdout.count("\nunreachable a\n") == 1
    cluster.a.admit()
    assert "a is up" in add(box, cluster.a)


def test_a_node_may_be_a_host_of_the_ssh_configuration(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    assert box.stoker("nodes", "add", "a", cluster.a.alias).returncode == 0


# ------------------------------------------------------------------------------- removing


def test_an_address_changes_only_without_running_jobs_or_by_force(
    rich: tuple[DaemonFixture, SshHost],
) -> None:
    box, machine = rich
    job = box.submit("-w", "rich", "--wrap", f"{FOREVER}; exit 5")
    box.becomes(job, "RUNNING")
    code, stderr = refused(box, "add", "rich", machine.alias)
    assert (code, f"Job {job} still runs on rich" in stderr) == (1, True)
    assert box.stoker("nodes", "add", "rich", machine.alias, "--force").returncode == 0
    machine.sh("touch go")
    assert box.end_of(job)["result"] == 5
    assert nodes(box)["rich"]["address"] == machine.alias


def test_a_node_is_removed_only_without_running_jobs_or_by_force(
    rich: tuple[DaemonFixture, SshHost],
) -> None:
    box, _ = rich
    job = box.submit("-w", "rich", "--wrap", FOREVER)
    box.becomes(job, "RUNNING")
    code, stderr = refused(box, "remove", "rich")
    assert (code, f"Job {job} still runs on rich" in stderr) == (1, True)
    done = box.stoker("nodes", "remove", "rich", "--force")
    assert (done.returncode, "1 job abandoned there" in done.stderr) == (0, True)
    assert box.end_of(job)["state"] == "NODE_FAIL"
    assert list(nodes(box)) == [box.client.daemon()["node"]]
    assert refused(box, "remove", "rich")[0] == 3
    assert refused(box, "remove", box.client.daemon()["node"])[0] == 2
    assert refused(box, "remove")[0] == 2


# ------------------------------------------------------------------------- configuration


def test_nodes_of_the_configuration_are_added_and_removed_with_it(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    config = box.home / "config.toml"

    def start(*names: str) -> None:
        tables = [
            f'[nodes.{name}]\naddress = "{cluster.machine(name).url}"\nkey = "{cluster.key}"\n'
            for name in names
        ]
        config.write_text("grace = 1\n" + "".join(tables))
        done = box.stoker("daemon", "restart")
        assert done.returncode == 0, done.stderr

    start("a", "b")
    until(lambda: all(nodes(box)[name]["state"] == "up" for name in "ab"))
    assert nodes(box)["a"]["configured"] is True
    done = box.stoker("nodes", "remove", "b")
    assert (done.returncode, "config.toml defines b" in done.stderr) == (0, True)
    job = box.submit("-w", "a", "--wrap", FOREVER)
    box.becomes(job, "RUNNING")
    start("b")
    assert set(nodes(box)) >= {"a", "b"}
    stderr = box.stoker("submit", "--hold", "--wrap", "true").stderr
    assert f"Job {job} still runs on a, which is no longer in the configuration" in stderr
    cluster.a.sh("touch go")
    box.end_of(job)
    start("b")
    assert "a" not in nodes(box)
    assert nodes(box)["b"]["configured"] is True


# ------------------------------------------------------------------------------- unreachable nodes


def test_a_job_on_an_unreachable_node_is_shown_as_running_with_the_reason(
    rich: tuple[DaemonFixture, SshHost],
) -> None:
    box, machine = rich
    job = box.submit("--gpus", "1", "--wrap", FOREVER)
    assert box.becomes(job, "RUNNING")["unreachable"] is False
    make_unreachable(box, machine)
    view = box.job(job)
    assert (view["state"], view["unreachable"], view["nodes"]) == ("RUNNING", True, ["rich"])
    assert view["unreachable_since"]
    assert view["reason"] == "NodeUnreachable"
    assert "rich:0 (unreachable" in box.stoker("queue").stdout
    assert "RUNNING: rich has been unreachable for " in box.stoker("show", job).stdout
    assert "whether it runs is known when rich answers" in box.stoker("why", job).stdout
    assert "stoker nodes remove rich --force" in box.stoker("why", job).stdout
    gpus = box.client.gpus()["gpus"]
    assert [(gpu["state"], gpu["utilization"]) for gpu in gpus] == [("unreachable", None)] * 2
    assert [gpu_job["label"] for gpu_job in gpus[0]["jobs"]] == [job]
    done = box.stoker("submit", "--gpus", "1", "--dry-run", "--wrap", "true")
    assert "it stays pending for rich, which cannot be reached" in done.stderr
    waits = box.submit("--gpus", "1", "--wrap", "true")
    assert "rich is unreachable: " in box.stoker("why", waits).stdout
    assert "(waits for rich, unreachable for " in box.stoker("queue").stdout
    cancelled = box.submit("-w", "rich", "--hold", "--wrap", "true")
    assert "takes effect" not in box.stoker("cancel", cancelled).stderr
    stderr = box.stoker("kill", "-s", "USR2", job).stderr
    assert f"of {job} this takes effect when rich answers again" in stderr
    machine.start_sshd()
    machine.sh("touch go")
    assert box.end_of(job)["result"] == 0
    assert box.end_of(waits)["unreachable"] is False


# ---------------------------------------------------------------------------------- GPUs


def test_gpus_of_nodes_have_readings_and_names_that_drain_accepts(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    rich, poor = cluster.machine("rich", gpus=2), cluster.machine("poor", gpus=1)
    poor.gpus([{"utilization.gpu": 37, "memory.used": 4096, "temperature.gpu": 71}])
    box.start("{cpu:2}")
    for machine in (rich, poor):
        add(box, machine)
    gpus_by_name = {f"{gpu['node']}/{gpu['id']}": gpu for gpu in box.client.gpus()["gpus"]}
    assert list(gpus_by_name) == ["rich/0", "rich/1", "poor/0"]
    busy = gpus_by_name["poor/0"]
    figures = (busy["utilization"], busy["memory_used"], busy["temperature"], busy["state"])
    assert figures == (37, 4096, 71, "foreign")
    lines = box.stoker("gpus", "--no-header").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(gpus_by_name)
    done = box.stoker("drain", "0")
    assert (done.returncode, "rich/0 or poor/0" in done.stderr) == (2, True)
    for words, expected in (
        (["rich/0", "poor:0"], ["rich/0", "poor/0"]),
        (["1"], ["rich/1"]),
        (["rich"], ["rich/0", "rich/1"]),
    ):
        assert box.stoker("drain", *words).returncode == 0
        gpus = box.client.gpus()["gpus"]
        drained = [f"{gpu['node']}/{gpu['id']}" for gpu in gpus if gpu["state"] == "drained"]
        assert drained == expected
        assert box.stoker("undrain", "all").returncode == 0


def test_a_node_without_gpus_is_drained_as_a_whole_and_gpus_have_its_name(
    rich: tuple[DaemonFixture, SshHost], cluster: SshCluster
) -> None:
    box, _ = rich
    lines = box.stoker("gpus", "--no-header").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["rich/0", "rich/1"]
    add(box, cluster.b)
    assert box.stoker("drain", "b").stderr == "stoker: draining b\n"
    assert box.stoker("drain", "rich/0", "rich/1").returncode == 0
    assert {name: view["state"] for name, view in nodes(box).items() if name in ("rich", "b")} == {
        "rich": "up",  # its cores are still used
        "b": "drained",
    }
    assert box.stoker("undrain", "b").stderr == "stoker: using b again\n"
    assert nodes(box)["b"]["state"] == "up"


def test_devices_that_a_feed_names_are_those_of_the_local_node(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    box.start("{gpu:2,cpu:2}")
    add(box, cluster.machine("three", gpus=3))
    local = box.client.daemon()["node"]
    done = box.stoker("feed", "--gpus", "0,1", "--json", input="true\n" * 6)
    jobs = as_json(done)["jobs"]
    ran = box.client.jobs([f"{jobs['first']}-{jobs['last']}"])["jobs"]
    assert (len(ran), {view["node"] for view in ran}) == (6, {local})
    done = box.stoker("feed", "--gpus", "2", input="true\n")
    assert (done.returncode, "has no GPU 2; it has: 0, 1." in done.stderr) == (3, True)


def test_thresholds_of_foreign_use_apply_to_nodes_too(
    daemon_and_cluster: tuple[DaemonFixture, SshCluster],
) -> None:
    box, cluster = daemon_and_cluster
    poor = cluster.machine("poor", gpus=1)
    poor.gpus([{"utilization.gpu": 50}])
    (box.home / "config.toml").write_text("[foreign]\nleave_seconds = 0\n")
    box.start("{cpu:2}")
    add(box, poor)
    assert box.client.gpus()["gpus"][0]["state"] == "foreign"
    box.client.thresholds(load=0.9, memory=0.9, processes=False)
    until(lambda: box.client.gpus()["gpus"][0]["state"] == "free")


# ---------------------------------------------------------------------------- submitting


def test_a_submission_names_nodes(rich: tuple[DaemonFixture, SshHost]) -> None:
    box, _ = rich
    assert box.refused("-w", "nobody", "--wrap", "true") == (
        3,
        "stoker: There is no node 'nobody'; see stoker nodes.\n",
    )
    done = box.stoker("submit", "--gpus", "1", "--dry-run", "--wrap", "true")
    assert done.stderr == "stoker: this would start now on rich\n"
    code, stderr = box.refused("-w", "rich", "--gpus", "3", "--wrap", "true")
    assert (code, stderr.count("rich has 2 GPUs, not 3"), "asked for" in stderr) == (6, 1, False)
