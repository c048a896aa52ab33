"""Resource requests, parsed from text."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.model.resources import (
    GpuRequest,
    ResourceRequest,
    describe,
    parse_gpus,
    parse_names,
)
from stoker.core.model.units import BadValue


@pytest.mark.parametrize(
    ("text", "ask"),
    [
        ("2", GpuRequest(2000)),
        ("0.5", GpuRequest(500)),
        ("0", GpuRequest(0)),
        ("a100:2", GpuRequest(2000, model="a100")),
        ("A100", GpuRequest(1000, model="a100")),
        ("3090:0.5", GpuRequest(500, model="3090")),
        ("rtx a6000:1", GpuRequest(1000, model="rtx a6000")),
        ("a100|H100:2", GpuRequest(2000, models=("a100", "h100"))),
        ("a100|a100", GpuRequest(1000, model="a100")),
        ("24GB..:2", GpuRequest(2000, min_vram=24576)),
        ("24G+:1", GpuRequest(1000, min_vram=24576)),
    ],
)
def test_gpus(text: str, ask: GpuRequest):
    assert parse_gpus(text) == ask


@pytest.mark.parametrize(
    "text", ["", ":", ":2", "a100:", "a100:x", "1.2.3", "-1", "a/b", "4-8", "a100|", "|:2"]
)
def test_invalid_gpu_requests_are_rejected(text: str):
    with pytest.raises(BadValue):
        parse_gpus(text)


@given(st.text(max_size=12))
def test_every_text_is_a_gpu_request_or_rejected_with_a_sentence(text: str):
    with contextlib.suppress(BadValue):
        assert parse_gpus(text).amount >= 0


@pytest.mark.parametrize(
    ("text", "names"),
    [("0,2", ("0", "2")), ("0-3", ("0", "1", "2", "3")), ("0-1, 7", ("0", "1", "7")),
     ("GPU-abc,0", ("GPU-abc", "0")), ("1,1", ("1",))],
)  # fmt: skip
def test_names(text: str, names: tuple[str, ...]):
    assert parse_names(text, "--gpus") == names


@pytest.mark.parametrize(("text", "why"), [("", "names no device"), ("3-1", "is reversed")])
def test_invalid_device_lists_are_rejected(text: str, why: str):
    with pytest.raises(BadValue, match=why):
        parse_names(text, "--gpus")


def test_a_request_in_words():
    ask = GpuRequest(2500, model="a100", min_vram=24000)
    request = ResourceRequest(gpus=ask, cpus=4000, memory=100, named=(("licence", 1000),))
    words = "2.5 a100 GPUs with 24000 MiB, 4 cores, 100 MiB of RAM, 1 licence"
    assert describe(request) == words
    assert describe(ResourceRequest()) == "nothing"
    assert describe(ResourceRequest(exclusive=True)) == "a whole node"
