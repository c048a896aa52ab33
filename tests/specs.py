"""Specs for tests that record submissions themselves."""

from typing import Any

from stoker.core.model.resources import GpuRequest, ResourceRequest
from stoker.core.model.spec import Spec


def spec_of(request: ResourceRequest | None = None, **fields: Any) -> Spec:
    """A spec with the parts that do not matter here filled in."""
    common: dict[str, Any] = {
        "kind": "line", "user": "ada", "directory": "/tmp", "shell": "/bin/sh",
        "environment": "none", "name": "job",
    }  # fmt: skip
    asked = request if request is not None else ResourceRequest(gpus=GpuRequest(1000))
    return Spec(request=asked, **{**common, **fields})
