"""Specs for tests that record submissions themselves."""

from typing import Any

from msgspec.structs import replace

from stoker.core.launch.launch import Launch
from stoker.core.model.resources import GpuRequest, ResourceRequest
from stoker.core.model.spec import Spec

A100 = ResourceRequest(gpus=GpuRequest(1000, "a100"))


def spec_of(request: ResourceRequest | None = None, **fields: Any) -> Spec:
    """A spec with the parts that do not matter here filled in."""
    common: dict[str, Any] = {
        "kind": "line", "user": "ada", "directory": "/tmp", "shell": "/bin/sh",
        "environment": "none", "name": "job",
    }  # fmt: skip
    asked = request if request is not None else ResourceRequest(gpus=GpuRequest(1000))
    return Spec(request=asked, **{**common, **fields})


def launch_of(base: Launch | None = None, /, **fields: Any) -> Launch:
    """A launch with the parts that do not matter here filled in, or `base` with other fields.

    Fields that a launch does not have are those of its spec.
    """
    own = {name: fields.pop(name) for name in Launch.__struct_fields__ if name in fields}
    if base is not None:
        return replace(base, spec=replace(base.spec, **fields), **own)
    common: dict[str, Any] = {
        "job": 7, "attempt": 0, "argv": ("true",), "directory": "/", "extra": {}, "out": "/out",
        "err": None, "script": None, "gpus": (),
    }  # fmt: skip
    return Launch(spec=spec_of(**{"request": ResourceRequest(), **fields}), **{**common, **own})
