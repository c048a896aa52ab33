"""The manifests of packaging/kubernetes, on a real API server."""

import json
import re
from pathlib import Path

import jsonschema_rs
import pytest
from ruamel.yaml import YAML

from conftest import ROOT
from kubernetes.control_plane import KubernetesCluster
from stoker.executors.kubernetes.checks import EVENT_RIGHTS, HANDOVER_RIGHTS, PILOT_RIGHTS

PACKAGING = ROOT / "packaging/kubernetes"
MANIFESTS = PACKAGING / "manifests"


def manifests(image: str = "stoker", job_image: str = "image") -> str:
    """Return all manifests with these images."""
    texts = [path.read_text() for path in sorted(MANIFESTS.glob("*.yaml"))]
    return "\n---\n".join(texts).replace("STOKER_IMAGE", image).replace("JOB_IMAGE", job_image)


@pytest.mark.proof
def test_a_server_accepts_all_manifests(kubernetes_cluster: KubernetesCluster) -> None:
    output = kubernetes_cluster.kubectl("apply", "--dry-run=server", "-f", "-", input=manifests())
    kinds = {line.split("/")[0] for line in output.splitlines()}
    assert kinds == {
        "configmap", "deployment.apps", "networkpolicy.networking.k8s.io", "serviceaccount",
        "persistentvolumeclaim", "role.rbac.authorization.k8s.io", "service",
        "rolebinding.rbac.authorization.k8s.io",
    }  # fmt: skip


def test_the_role_has_the_rights_that_are_checked(tmp_path: Path) -> None:
    rules = re.findall(
        r'apiGroups: \[""\]\n +resources: \[([\w/]+)\]\n +verbs: \[([^]]+)\]',
        (MANIFESTS / "rbac.yaml").read_text(),
    )
    granted = {("", resource): set(verbs.split(", ")) for resource, verbs in rules}
    for wanted in (PILOT_RIGHTS, HANDOVER_RIGHTS, EVENT_RIGHTS):
        for resource, verbs in wanted.items():
            assert set(verbs) <= granted[resource]


def test_the_configuration_in_the_manifests_is_valid(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stoker.daemon import settings

    text = manifests().partition("config.toml: |\n")[2].partition("\n---")[0]
    (home / "config.toml").write_text(re.sub(r"^    ", "", text, flags=re.MULTILINE))
    loaded = settings.load()
    assert loaded.clusters["here"].kind == "kubernetes"
    assert loaded.clusters["here"].options == {
        "pilot": "gpus=1 image=image max=4 idle=5m", "ahead": "20", "image": "image",
        "report_address": "stoker:25647",
    }  # fmt: skip


def test_the_values_of_the_chart_satisfy_its_schema_and_occur_in_the_manifests() -> None:
    """There is no helm here that could render its template."""
    values = YAML(typ="safe").load(PACKAGING / "values.yaml")
    schema = json.loads((PACKAGING / "values.schema.json").read_text())
    jsonschema_rs.validate(schema, values)
    assert set(values) == set(schema["required"])
    chart = YAML(typ="safe").load(PACKAGING / "Chart.yaml")
    assert (chart["apiVersion"], chart["name"], chart["type"]) == ("v2", "stoker", "application")
    template = (PACKAGING / "templates/manifests.yaml").read_text()
    replaced = re.findall(r'replace "([^"]+)"', template)
    assert len(replaced) == len(values)
    plain = "".join(path.read_text() for path in MANIFESTS.glob("*.yaml"))
    assert all(word in plain for word in replaced)
    assert all(f".Values.{name}" in template for name in values)
    assert "{{" not in plain
