"""Options of Kubernetes clusters, of their pilots, and the pods that come of them."""

import json
import re

import pytest

from stoker.core.model.units import BadValue
from stoker.executors.clusters import KINDS, kind_of_address
from stoker.executors.kubernetes.handover.pod_template import VolumeRule
from stoker.executors.kubernetes.options import (
    cluster_addition,
    describe,
    parse_options,
    parse_pilot,
    parse_volumes,
)
from stoker.executors.kubernetes.pilot import agent_variables
from stoker.executors.kubernetes.pilot_pod import build_pilot

PILOT = "gpus=a100:4 image=img cores=8 mem=32G max=8 idle=10m time=8h vram=40G"


def test_a_shape_has_all_its_words() -> None:
    shape = parse_pilot(PILOT)
    assert (shape.gpus, shape.model, shape.image) == (4, "a100", "img")
    assert (shape.cores, shape.memory, shape.gpu_memory) == (8, 32768, 40960)
    assert (shape.max_pilots, shape.idle_seconds, shape.seconds) == (8, 600, 28800)


def test_a_pod_without_a_time_limit_runs_any_job() -> None:
    shape = parse_pilot("image=img")
    assert shape.usable_seconds == float("inf")
    assert shape.node_facts("n").max_seconds == 0
    assert parse_pilot("image=img time=1h").node_facts("n").max_seconds == 3420


def test_a_pod_has_a_core_for_each_gpu() -> None:
    assert parse_pilot("image=img").cores == 1
    assert parse_pilot("image=img gpus=4").cores == 4
    assert parse_pilot("image=img gpus=4 cores=2").cores == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpus=4", "--pilot needs image="),
        ("image=i gpus=x", "gpus takes a whole number"),
        ("image=i gpus=1 gpus=2", "gpus is given twice"),
        ("image=i nodes=2", "'nodes=2' is not one of gpus, image, time, max"),
        ("image=i gpus", "gpus needs a value; write gpus=VALUE"),
        ("image=", "image needs a value; write image=VALUE"),
        ("image=i time=1m", "time= must be at least"),
        ("image=i gpus=a/b:2", "'a/b' is not a value of the label"),
    ],
)
def test_a_wrong_shape_is_rejected(text: str, message: str) -> None:
    with pytest.raises(BadValue, match=re.escape(message)):
        cluster_addition("lab", {"pilot": text}, False, 0.0)


def test_the_image_of_the_cluster_is_that_of_its_pilots() -> None:
    assert parse_options({"pilot": "gpus=1", "image": "img"}).pilot.image == "img"


def test_volumes_are_claims_or_directories_of_nodes() -> None:
    given = {"/home": "pvc:homes", "/data": "pvc:sets/a", "/scratch": "hostPath:/mnt"}
    assert parse_volumes(given) == (
        VolumeRule("/home", "homes"),
        VolumeRule("/data", "sets", "a"),
        VolumeRule("/scratch", path="/mnt"),
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"volumes": '{"home": "pvc:a"}'}, "'home' is not an absolute path"),
        ({"volumes": '{"/home": "nfs:a"}'}, "/home takes pvc:CLAIM"),
        ({"volumes": '{"/home": "pvc:a/../b"}'}, "/home takes pvc:CLAIM"),
        ({"volumes": "{"}, "volumes is not valid JSON"),
        ({"tolerations": "{}"}, "tolerations must be a list"),
        ({"tolerations": '[{"colour": "red"}]'}, "must be a table with key"),
        ({"priority_classes": '{"high": "a"}'}, "'high' is not a priority"),
        ({"node_selector": '{"a": "b c"}'}, "is not the value of a label"),
        ({"pull_secrets": '["A B"]'}, "is not a name that Kubernetes accepts"),
        ({"namespace": "A"}, "namespace: 'A' is not a name"),
        ({"ahead": "0"}, "--ahead takes a whole number"),
        ({"sbatch": "-p x"}, "has no option 'sbatch'"),
    ],
)
def test_wrong_options_are_rejected(options: dict[str, str], message: str) -> None:
    with pytest.raises(BadValue, match=re.escape(message)):
        parse_options(options)


@pytest.mark.parametrize("name", ["Lab", "a_b", "x" * 31])
def test_the_name_of_a_cluster_must_fit_into_names_of_pods(name: str) -> None:
    with pytest.raises(BadValue, match="cannot be the name"):
        cluster_addition(name, {"pilot": "image=i"}, False, 0.0)


def test_a_pilot_has_what_its_cluster_and_shape_say() -> None:
    options = parse_options({
        "pilot": PILOT, "queue": "team", "pull_secrets": '["key"]',
        "volumes": '{"/home": "pvc:homes", "/data": "hostPath:/srv"}',
        "node_selector": '{"pool": "gpu"}', "tolerations": '[{"operator": "Exists"}]',
        "priority_classes": '{"0": "low", "5": "high"}',
    })  # fmt: skip
    pod = build_pilot("p", "0123456789ab", "lab", options)
    assert pod["metadata"]["labels"] == {
        "stoker.dev/install": "01234567", "stoker.dev/cluster": "lab", "stoker.dev/pilot": "true",
        "kueue.x-k8s.io/queue-name": "team",
    }  # fmt: skip
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert container["image"] == "img"
    assert container["resources"] == {
        "requests": {"cpu": "8", "memory": "32768Mi", "nvidia.com/gpu": "4"},
        "limits": {"memory": "32768Mi", "nvidia.com/gpu": "4"},
    }
    assert spec["nodeSelector"] == {"pool": "gpu", "nvidia.com/gpu.product": "a100"}
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["imagePullSecrets"] == [{"name": "key"}]
    assert (spec["priorityClassName"], spec["activeDeadlineSeconds"]) == ("low", 28800)
    assert spec["restartPolicy"] == "Never"
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"/stoker", "/dev/shm", "/home", "/data"}
    # The kubelet would replace $(NAME) by a variable of the container.
    assert "$(" not in container["command"][2].replace("$$", "")


def test_the_variables_of_the_agent_describe_the_gpus_of_its_pod() -> None:
    assert agent_variables("p", parse_pilot("image=i gpus=2 vram=1G")) == {
        "STOKER_PILOT": "p", "PILOT_CORES": "2", "PILOT_GPUS": "0,1", "PILOT_GPU_MEMORY": "1024",
    }  # fmt: skip


def test_what_a_cluster_provides_is_described() -> None:
    text = (
        "up to 3 pods of 2 GPUs, 2 cores, deleted after 5 min without jobs; a pod for each attempt"
        " that these cannot run, at most 5 pending"
    )
    words = {"pilot": "gpus=2 vram=8G image=i max=3", "ahead": "5"}
    assert describe(parse_options(words)) == text
    words["pilot"] = "gpus=2 image=i max=3"
    assert describe(parse_options(words)).startswith(f"{text}; without vram=")
    assert describe(parse_options({})) == "one pod per attempt, at most 8 to 200 of them pending"


def test_a_pilot_is_a_node_of_its_cluster() -> None:
    kind = kind_of_address("kubernetes://")
    assert kind is KINDS["kubernetes"]
    cluster = cluster_addition("lab", {"pilot": "image=i", "volumes": json.dumps({})}, True, 1.0)
    pilot = kind.pilot(cluster, "lab-1", "0123456789", 2.0)
    assert (pilot.name, pilot.executor, pilot.shared) == ("lab-1", "kubernetes-pilot", True)
    assert pilot.cluster == "lab"
    assert pilot.options["job"].startswith("stoker-01234567-lab-")
    assert pilot.is_allocation


@pytest.mark.parametrize("address", ["stoker:25647", "10.0.0.1:1", "[fd00::1]:443", "a.b-c.org:9"])
def test_pods_reach_the_daemon_at_an_address(address: str) -> None:
    assert parse_options({"report_address": address}).report_address == address


@pytest.mark.parametrize("address", ["stoker", "https://x:1", "x:0", "x:70000", ":1", "a b:1"])
def test_another_address_is_refused(address: str) -> None:
    with pytest.raises(BadValue, match="report_address takes HOST:PORT, not"):
        parse_options({"report_address": address})


def test_all_pods_of_a_cluster_have_its_runtime_class() -> None:
    options = parse_options({"pilot": "image=img", "runtime_class": "nvidia"})
    pilot = build_pilot("name", "install", "lab", options)
    assert pilot["spec"]["runtimeClassName"] == "nvidia"
    assert options.template("lab").runtime_class == "nvidia"


@pytest.mark.parametrize(
    ("words", "pins"),
    [
        ({"pilot": "image=img"}, True),
        ({"pilot": "image=img", "pinned_pods": "false"}, False),
        ({"image": "img"}, False),
    ],
)
def test_jobs_with_an_image_run_beside_pilots_where_there_are_any(
    words: dict[str, str], pins: bool
) -> None:
    assert parse_options(words).pins_pods == pins


def test_a_wrong_switch_is_rejected() -> None:
    with pytest.raises(BadValue, match="pinned_pods is true or false"):
        parse_options({"image": "img", "pinned_pods": "yes"})
