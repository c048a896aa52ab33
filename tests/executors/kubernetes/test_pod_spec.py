"""The objects of an attempt in the API."""

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from specs import A100, launch_of
from stoker.core.launch.launch import Launch
from stoker.core.model.job import AttemptId
from stoker.core.model.resources import DeviceAllocation, Placement
from stoker.core.model.spec import Container, FileTransfer, Mount
from stoker.executors.kubernetes.handover.library import build_library, library_volume
from stoker.executors.kubernetes.handover.pod_spec import (
    FINALIZER,
    PodIdentity,
    PodRequest,
    build_pod,
    build_service,
    build_tombstone,
    parse_attempt,
)
from stoker.executors.kubernetes.handover.pod_template import (
    PodTemplate,
    UnsupportedRequest,
    VolumeRule,
)
from stoker.executors.launch import training_library

IDENTITY = PodIdentity("abcdef0123456789", "lab", AttemptId(7, 2))
BOX = Container("img:1", in_job_directory=False)
TEMPLATE = PodTemplate("lab")
NO_FILES = FileTransfer(send=())
TRAINING = {"STOKER_TOKEN": "t", "JOB_UUID": "abcdef01-7", "NODELIST": "lab"}


def launch(**fields: Any) -> Launch:
    placement = Placement("lab", (
        DeviceAllocation("gpu", "*", 2000), DeviceAllocation("cpu", "*", 1500),
        DeviceAllocation("mem", "*", 4096),
    ))  # fmt: skip
    made = launch_of(
        attempt=2, argv=("python", "train.py"), directory="/home/u/work",
        extra={"STOKER_TOKEN": "t"}, out="o", placement=placement, container=BOX, transfer=NO_FILES,
        checkpoints="/home/u/snapshots/abcdef01-7", reports="/home/u/state/training/7.2",
    )  # fmt: skip
    return launch_of(made, **fields)


def build(
    template: PodTemplate = TEMPLATE, more: dict[str, Any] | None = None, **fields: Any
) -> Any:
    variables = [f"{name}={value}" for name, value in fields.get("extra", {"A": "1"}).items()]
    request = PodRequest(IDENTITY, launch(**fields), template, variables, 10.0, **(more or {}))
    return build_pod(request)


def main(pod: Any) -> Any:
    (container,) = pod["spec"]["containers"]
    return container


def sources(pod: Any) -> dict[str, Any]:
    """Return what is mounted where."""
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    return {
        mount["mountPath"]: {
            **{key: value for key, value in volumes[mount["name"]].items() if key != "name"},
            **({"subPath": mount["subPath"]} if "subPath" in mount else {}),
        }
        for mount in main(pod)["volumeMounts"]
    }


def test_a_pod_has_the_name_of_its_attempt_and_runs_once() -> None:
    pod = build()
    assert pod["metadata"]["name"] == "stoker-abcdef01-7-2"
    assert pod["metadata"]["finalizers"] == [FINALIZER]
    assert parse_attempt(pod["metadata"]["labels"]) == AttemptId(7, 2)
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert main(pod)["image"] == "img:1"
    assert main(pod)["command"][-2:] == ["python", "train.py"]
    assert replace(IDENTITY, rank=1).name == "stoker-abcdef01-7-2-1"


def test_the_pods_of_a_gang_are_one_group_for_kueue() -> None:
    template = PodTemplate("lab", queue="team", annotations={"a": "b"})
    placement = launch().placement
    assert placement is not None
    two = replace(placement, other_parts=(placement,))
    assert "annotations" not in build()["metadata"]
    metadata = [
        build_pod(
            PodRequest(replace(IDENTITY, rank=rank), launch(placement=two), template, [], 10.0)
        )["metadata"]
        for rank in range(2)
    ]  # fmt: skip
    for rank, each in enumerate(metadata):
        assert each["labels"]["kueue.x-k8s.io/queue-name"] == "team"
        assert each["labels"]["kueue.x-k8s.io/pod-group-name"] == "stoker-abcdef01-7-2"
        assert each["labels"]["stoker.dev/rank"] == str(rank)
        assert each["annotations"] == {
            "a": "b", "kueue.x-k8s.io/pod-group-total-count": "2",
            "kueue.x-k8s.io/retriable-in-group": "false",
        }  # fmt: skip
    single = build(template)["metadata"]
    assert not any("pod-group" in name for name in (*single["labels"], *single["annotations"]))


def test_memory_and_gpus_are_limits_and_cores_are_not() -> None:
    pod = build()
    assert main(pod)["resources"] == {
        "requests": {"cpu": "1500m", "memory": "4096Mi", "nvidia.com/gpu": "2"},
        "limits": {"memory": "4096Mi", "nvidia.com/gpu": "2"},
    }
    assert sources(pod)["/dev/shm"] == {"emptyDir": {"medium": "Memory", "sizeLimit": "4096Mi"}}


def test_nothing_is_expanded_by_the_kubelet() -> None:
    pod = build(argv=("sh", "-c", "echo $$ $(HOME) $x"), extra={"A": "$(B) $$"})
    assert main(pod)["command"][-1] == "echo $$$$ $$(HOME) $$x"
    assert main(pod)["env"][0] == {"name": "A", "value": "$$(B) $$$$"}
    assert not re.search(r"(?<!\$)\$(?!\$)", main(pod)["command"][2].replace("$$", ""))


def test_the_deadline_of_the_pod_is_after_that_of_the_job() -> None:
    assert build(limit=3600)["spec"]["activeDeadlineSeconds"] == 3600 + 10 + 900
    assert "activeDeadlineSeconds" not in build()["spec"]


def test_options_of_the_cluster_are_in_every_pod() -> None:
    template = PodTemplate(
        "lab", node_selector={"pool": "gpu"}, tolerations=({"key": "gpu", "operator": "Exists"},),
        pull_secrets=("registry",), priority_classes=((0, "low"), (10, "high")), queue="team",
        service_account="runner",
    )  # fmt: skip
    pod = build(template, priority=50)
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    spec = pod["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu"}
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert (spec["priorityClassName"], spec["serviceAccountName"]) == ("high", "runner")
    assert build(template, priority=3)["spec"]["priorityClassName"] == "low"
    assert "priorityClassName" not in build(template, priority=-1)["spec"]


def test_directories_are_mounted_by_the_longest_prefix() -> None:
    template = PodTemplate("lab", volumes=(
        VolumeRule("/home", claim="homes"), VolumeRule("/home/u/snapshots", path="/srv/snap"),
        VolumeRule("/home/u/data", claim="data", path="sets"),
    ))  # fmt: skip
    mounts = (
        Mount("/home/u/code", "/custom"),
        Mount("/home/u/data/x", "/data", optional=True, expected=True),
        Mount("/nowhere", "/more", optional=True),
    )
    pod = build(template, container=replace(BOX, mounts=mounts), extra=TRAINING)
    homes = {"persistentVolumeClaim": {"claimName": "homes"}}
    assert sources(pod)["/custom"] == homes | {"subPath": "u/code"}
    data = {"persistentVolumeClaim": {"claimName": "data"}}
    assert sources(pod)["/data"] == data | {"subPath": "sets/x"}
    snapshots = {"hostPath": {"path": "/srv/snap", "type": "Directory"}}
    assert sources(pod)["/snapshots"] == snapshots
    assert "/more" not in sources(pod)
    env = {each["name"]: each for each in main(pod)["env"]}
    assert env["STOKER_CHECKPOINT_DIR"]["value"] == "/snapshots/abcdef01-7"
    assert env["NODELIST"]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"container": None}, "jobs on lab run in containers: name an image with --image"),
        (
            {"container": replace(BOX, ports=((8080, 80),))},
            "port 8080 cannot be published: Kubernetes gives NodePorts from 30000 to 32767 only",
        ),
        (
            {"container": replace(BOX, mounts=(Mount("/home/u/code", "/custom"),))},
            "the directory /home/u/code is on this host only",
        ),
        ({"extra": TRAINING}, "the directory of the job's checkpoints /home/u/snapshots is on"),
        (
            {"container": Container("img"), "transfer": FileTransfer()},
            "the job's directory /home/u/work is on this host only",
        ),
        (
            {"request": A100},
            "no node of lab has the label nvidia.com/gpu.product with a100",
        ),
    ],
)
def test_what_the_cluster_cannot_run_is_refused_with_the_reason(
    fields: dict[str, Any], why: str
) -> None:
    with pytest.raises(UnsupportedRequest, match=re.escape(why)):
        build(**fields)


def test_a_model_is_one_of_the_products_of_the_nodes() -> None:
    products = ("NVIDIA-A100-SXM4-80GB", "Tesla-T4")
    pod = build(more={"products": products}, request=A100)
    rule = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (expression,) = rule["nodeSelectorTerms"][0]["matchExpressions"]
    assert expression["values"] == ["NVIDIA-A100-SXM4-80GB"]


def test_a_job_that_brings_no_files_has_an_empty_directory() -> None:
    pod = build(container=Container("img"))
    assert sources(pod)["/home/u/work"] == {"emptyDir": {}}
    assert main(pod)["workingDir"] == "/home/u/work"


def test_a_script_is_written_to_a_file_in_the_container() -> None:
    pod = build(
        more={"script": "#!/bin/sh\necho $1\n"}, argv=("/bin/bash", "/state/scripts/abc", "x"),
        script="abc",
    )  # fmt: skip
    assert main(pod)["command"][-2:] == ["/stoker/reports/.job", "x"]
    env = {each["name"]: each.get("value") for each in main(pod)["env"]}
    assert env["STOKER_SCRIPT_TEXT"] == "#!/bin/sh\necho $$1\n"
    with pytest.raises(UnsupportedRequest, match="more than 120 KiB"):
        build(more={"script": "#" * (121 << 10)})


def test_ports_are_those_of_a_service_that_belongs_to_the_pod() -> None:
    service = build_service(IDENTITY, "uid-1", ((31346, 6006),))
    assert service["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    assert service["spec"]["selector"] == IDENTITY.labels
    (port,) = service["spec"]["ports"]
    assert (port["nodePort"], port["targetPort"]) == (31346, 6006)


def test_a_tombstone_has_the_name_of_the_pod_and_is_never_scheduled() -> None:
    tombstone = build_tombstone(IDENTITY, "img")
    assert tombstone["metadata"]["name"] == IDENTITY.name
    assert tombstone["spec"]["schedulerName"] == "stoker.dev/none"
    assert "finalizers" not in tombstone["metadata"]


def test_the_training_library_fits_into_a_config_map(tmp_path: Path) -> None:
    library = build_library(training_library.provide(str(tmp_path)))
    assert sum(map(len, library["data"].values())) < 500_000
    paths = {item["path"] for item in library_volume(library)["configMap"]["items"]}
    assert "kubernetesdlprofile/kubeprofiler.py" in paths
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]+", key) for key in library["data"])
