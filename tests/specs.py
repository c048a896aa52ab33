"""Specs for tests that record submissions themselves."""

from typing import Any

from stoker.core.job import Spec
from stoker.core.request import GpuAsk, Request


def spec_of(request: Request | None = None, **fields: Any) -> Spec:
    """A spec with the parts that do not matter here filled in."""
    common: dict[str, Any] = {
        "kind": "line", "user": "ada", "directory": "/tmp", "shell": "/bin/sh",
        "environment": "none", "name": "job",
    }  # fmt: skip
    asked = request if request is not None else Request(gpus=GpuAsk(1000))
    return Spec(request=asked, **{**common, **fields})
