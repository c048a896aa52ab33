"""PodVolumes: the volumes of one pod, and where they are mounted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from stoker.executors.kubernetes.handover.pod_template import UnsupportedRequest, VolumeRule


class PodVolumes:
    """Collects volumes and mounts."""

    def __init__(self, rules: Sequence[VolumeRule], cluster: str) -> None:
        self.rules = sorted(rules, key=lambda rule: len(rule.prefix), reverse=True)
        self.cluster = cluster
        self.volumes: list[dict[str, Any]] = []
        self.mounts: list[dict[str, Any]] = []
        self._names: dict[str, str] = {}
        """Names of volumes by what they are."""

    def add(self, name: str, mount: str, read_only: bool = False, **source: Any) -> None:
        """Mount a volume of its own."""
        self.volumes.append({"name": name, **source})
        self._mount(name, mount, read_only)

    def add_path(self, path: str, mount: str, what: str, read_only: bool = False) -> None:
        """Mount a directory of this host by the rules; raise UnsupportedRequest without one."""
        path = os.path.normpath(path)
        rule = next((rule for rule in self.rules if _is_below(path, rule.prefix)), None)
        if rule is None:
            raise UnsupportedRequest(
                f"{what} {path} is on this host only: no volume of {self.cluster} is known that"
                f" has it. Name one when the cluster is added:"
                f" stoker nodes add {self.cluster} kubernetes:// --volume PATH=pvc:CLAIM"
            )
        below = os.path.relpath(path, rule.prefix)
        below = os.path.normpath(f"{rule.path}/{below}") if rule.path else below
        if rule.claim:
            sub_path = below.lstrip("/") if below != "." else ""
            source = {"persistentVolumeClaim": {"claimName": rule.claim}}
            self._mount(self._volume(rule.claim, source), mount, read_only, sub_path)
        else:  # a missing directory is an error: an empty one would hide that the node is wrong
            source = {"hostPath": {"path": below, "type": "Directory"}}
            self._mount(self._volume(below, source), mount, read_only)

    def _volume(self, key: str, source: dict[str, Any]) -> str:
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = f"files-{len(self._names)}"
            self.volumes.append({"name": name, **source})
        return name

    def _mount(self, name: str, mount: str, read_only: bool, sub_path: str = "") -> None:
        if any(each["mountPath"] == mount for each in self.mounts):
            return
        more: dict[str, Any] = {"subPath": sub_path} if sub_path else {}
        if read_only:
            more["readOnly"] = True
        self.mounts.append({"name": name, "mountPath": mount, **more})


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix.rstrip('/')}/")
