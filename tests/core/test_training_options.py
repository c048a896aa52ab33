"""Options of training jobs: sizes, GPUs, containers."""

from typing import Any

import pytest

from stoker.core.model.resources import GpuRequest, ResourceRequest
from stoker.core.model.spec import Container, Mount, Spec, Training
from stoker.core.model.units import BadValue
from stoker.core.options.submit import ParseContext, ParsedOptions, parse_options
from stoker.core.options.training import (
    MAX_GPUS_PER_NODE,
    parse_gpu_range,
    parse_mount,
    parse_ports,
)

CONTEXT = ParseContext(1_700_000_000.0, lambda word: [int(word)], lambda _: [3])


def parsed(**options: Any) -> ParsedOptions:
    return parse_options(options, CONTEXT)


def gpus(**options: Any) -> GpuRequest | None:
    return parsed(**options).request.gpus


def spec(**options: Any) -> Spec:
    """A job that was submitted with these options."""
    wanted = parsed(**options)
    fields = {key: value for key, value in wanted.fields.items() if value is not None}
    return Spec(
        kind="line", user="u", directory="/", shell="sh", environment="", request=wanted.request,
        **{"name": "", **fields},
    )  # fmt: skip


def edited(before: Spec, **options: Any) -> ParsedOptions:
    return parse_options(options, CONTEXT, before)


def test_training_options() -> None:
    wanted = parsed(
        epochs="10", batch_size="64", training_set_size="50000", expect="3h", snapshots_dir="/s/"
    )
    assert wanted.fields["training"] == Training(
        epochs=10, batch_size=64, set_size=50_000, expected=3 * 3600, snapshots="/s"
    )


@pytest.mark.parametrize(
    "options",
    [{"epochs": "3"}, {"batch_size": "3"}, {"training_set_size": "3"}, {"expect": "2h"},
     {"single_gpu": True}, {"exclusive_gpu": True}, {"snapshots_dir": "/s"}],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_options_that_make_a_training_job(options: dict[str, Any]) -> None:
    assert parsed(**options).fields["training"] is not None


def test_other_jobs_are_not_training_jobs() -> None:
    wanted = parsed(gpus="2", gpu_memory="4G")
    assert "training" not in wanted.fields
    assert wanted.request.gpus == GpuRequest(2000, memory=4096)


# --------------------------------------------------------------------------------- GPUs


def test_a_training_job_is_elastic_and_shareable_by_default() -> None:
    assert gpus(epochs="3") == GpuRequest(1000, shareable=True, max_amount=MAX_GPUS_PER_NODE)


def test_without_epochs_a_training_job_is_not_elastic() -> None:
    assert gpus(batch_size="3") == GpuRequest(1000, shareable=True)


def test_single_gpu_is_one_and_no_more() -> None:
    assert gpus(epochs="3", single_gpu=True) == GpuRequest(1000, shareable=True)
    assert gpus(epochs="3", single_gpu=True, gpus="1", gpu_memory="2G") == GpuRequest(
        1000, memory=2048, shareable=True
    )
    for many in ("2", "1..4"):
        with pytest.raises(BadValue, match="contradict"):
            parsed(single_gpu=True, gpus=many)


def test_exclusive_gpu_shares_nothing() -> None:
    assert gpus(exclusive_gpu=True, gpus="2") == GpuRequest(2000)
    with pytest.raises(BadValue, match="whole GPUs"):
        parsed(exclusive_gpu=True, gpus="0.5")


def test_a_fraction_of_a_gpu_is_not_shareable() -> None:
    assert gpus(epochs="3", gpus="0.5") == GpuRequest(500)


def test_no_gpu_at_all() -> None:
    wanted = parsed(epochs="3", gpus="0")
    assert (wanted.request.gpus, wanted.request.cpus) == (None, 1000)


def test_a_number_of_gpus_is_that_number() -> None:
    assert gpus(epochs="3", gpus="2") == GpuRequest(2000, shareable=True)


@pytest.mark.parametrize(
    ("text", "ask"),
    [
        ("1..4", GpuRequest(1000, max_amount=4000)),
        ("2..2", GpuRequest(2000)),
        ("2..", GpuRequest(2000, max_amount=MAX_GPUS_PER_NODE)),
        ("a100:1..8", GpuRequest(1000, model="a100", max_amount=8000)),
        ("24GB..:1..4", GpuRequest(1000, min_vram=24 * 1024, max_amount=4000)),
        ("24GB..:2", GpuRequest(2000, min_vram=24 * 1024)),
        ("24GB..", GpuRequest(1000, min_vram=24 * 1024)),
        ("0.5", GpuRequest(500)),
    ],
)
def test_a_range_of_gpus(text: str, ask: GpuRequest) -> None:
    assert parse_gpu_range(text) == ask


@pytest.mark.parametrize(
    ("text", "is_training"),
    [("1..4", True), ("a100:1..", True), ("24GB..:1..4", True), ("24GB..:2", False), ("2", False)],
)
def test_a_range_of_gpus_makes_a_training_job(text: str, is_training: bool) -> None:
    options = parsed(gpus=text)
    assert (options.fields.get("training") is not None) is is_training
    assert options.request.gpus is not None
    assert not options.request.gpus.shareable


@pytest.mark.parametrize("text", ["4..1", "0.5..2", "0..4", "1..2.5", "1...4", "..4"])
def test_invalid_ranges_are_rejected(text: str) -> None:
    with pytest.raises(BadValue, match="--gpus"):
        parse_gpu_range(text)


def test_a_request_for_several_nodes_is_not_elastic() -> None:
    assert gpus(epochs="3", nodes="2") == GpuRequest(1000, shareable=True)
    with pytest.raises(BadValue, match="one node only"):
        parsed(gpus="2..4", nodes="2")


@pytest.mark.parametrize(
    ("options", "also_without"),
    [
        ({"epochs": "3"}, True), ({"epochs": "3", "exclusive_gpu": True}, True),
        ({"single_gpu": True}, False), ({"epochs": "3", "gpus": "1"}, False),
        ({"epochs": "3", "gpu_memory": "2G"}, False), ({"epochs": "3", "gpu_model": "a"}, False),
        ({"single_gpu": True, "gpu_if_any": True}, True), ({"gpus": "1"}, False), ({}, False),
    ],
    ids=str,
)  # fmt: skip
def test_jobs_that_may_run_without_a_gpu(options: dict[str, Any], also_without: bool) -> None:
    assert parsed(**options).needs_no_gpu is also_without


# -------------------------------------------------------------------------------- edits


def test_an_edit_keeps_what_it_does_not_mention() -> None:
    before = spec(epochs="3", batch_size="8", image="img", mount=["/a:/b"])
    wanted = edited(before, priority="5")
    assert wanted.request == before.request
    assert not {"training", "container", "requeueable"} & set(wanted.fields)


def test_an_edit_changes_one_thing() -> None:
    before = spec(epochs="3", batch_size="8", exclusive_gpu=True)
    wanted = edited(before, epochs="9")
    assert wanted.fields["training"] == Training(epochs=9, batch_size=8)
    assert wanted.request == before.request
    assert edited(before, expect="").fields["training"] == before.training


def test_an_edit_of_the_gpus() -> None:
    before = spec(epochs="3")
    assert edited(before, gpus="2").request.gpus == GpuRequest(2000, shareable=True)
    assert edited(before, single_gpu=True).request.gpus == GpuRequest(1000, shareable=True)
    assert edited(before, exclusive_gpu=True).request.gpus == GpuRequest(
        1000, max_amount=MAX_GPUS_PER_NODE
    )
    alone = spec(epochs="3", exclusive_gpu=True)
    assert edited(alone, gpus="2").request.gpus == GpuRequest(2000)
    assert edited(alone, exclusive_gpu=False).request.gpus == GpuRequest(
        1000, shareable=True, max_amount=MAX_GPUS_PER_NODE
    )


def test_an_edit_can_make_a_training_job() -> None:
    assert edited(spec(gpus="2"), epochs="3").request.gpus == GpuRequest(2000, shareable=True)
    assert edited(spec(), epochs="3").request == ResourceRequest(cpus=1000)


def test_an_edit_of_the_image() -> None:
    before = spec(image="img", mount=["/a:/b"], ports="1:2")
    assert edited(before, image="other").fields["container"] == Container(
        "other", (Mount("/a", "/b"),), ((1, 2),)
    )
    assert edited(before, ports="").fields["container"].ports == ()


# --------------------------------------------------------------------------- containers


def test_an_image() -> None:
    found = parsed(image="host:5000/a/b:1", mount=["/a:/b", "/c:/d:ro"], ports="80:8080,81:8081")
    assert found.fields["container"] == Container(
        "host:5000/a/b:1",
        (Mount("/a", "/b"), Mount("/c", "/d", read_only=True)),
        ((80, 8080), (81, 8081)),
    )
    assert parsed(image="a", workdir="image").fields["container"].in_job_directory is False
    assert parse_mount("/a:/b/:ro,optional") == Mount("/a", "/b", read_only=True, optional=True)


@pytest.mark.parametrize(
    "text",
    ["", "/a", "/a:", ":/b", "a:/b", "/a:b", "/a:/b:rx", "/a:/b:ro,rw", "/a:/", "/a:/../b",
     "/a:/snapshots", "/a:/stoker/lib", "/a:/b:ro:x"],
)  # fmt: skip
def test_invalid_mounts_are_rejected(text: str) -> None:
    with pytest.raises(BadValue, match="--mount"):
        parse_mount(text)


@pytest.mark.parametrize(
    "text", ["80", "80:", ":80", "0:80", "80:65536", "80:81,", "a:b", "1:2,1:3"]
)
def test_invalid_ports_are_rejected(text: str) -> None:
    with pytest.raises(BadValue, match="--ports"):
        parse_ports(text)


@pytest.mark.parametrize(
    "options",
    [
        {"mount": ["/a:/b"]}, {"ports": "1:2"}, {"image": "-v"}, {"image": "a b"},
        {"image": "a", "mount": ["/a:/b", "/c:/b"]}, {"epochs": "0"}, {"epochs": "many"},
        {"epochs": "-1"}, {"epochs": "1.5"}, {"batch_size": "9" * 20}, {"expect": "0"},
        {"expect": "soon"}, {"snapshots_dir": "here"}, {"image": "a" * 600},
    ],
    ids=str,
)  # fmt: skip
def test_invalid_options_are_rejected_with_a_sentence(options: dict[str, Any]) -> None:
    with pytest.raises(BadValue) as error:
        parsed(**options)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


def test_an_empty_image_is_no_image() -> None:
    for before in (None, spec(image="img")):
        with pytest.raises(BadValue, match="--image is empty"):
            parsed(image="") if before is None else edited(before, image="")


def test_requeue_makes_a_job_requeueable() -> None:
    assert parsed(requeue=True).fields["requeueable"] is True
    assert parsed(no_requeue=True).fields["requeueable"] is False
    assert "requeueable" not in parsed(retries="2").fields


# ------------------------------------------------------------------------- preemption


@pytest.mark.parametrize(
    ("options", "requeueable", "non_preemptible"),
    [
        ({}, False, False),
        ({"requeue": True}, True, False),
        ({"no_requeue": True}, False, True),
        ({"requeue": True, "no_requeue": True}, False, True),
    ],
)
def test_preemptible_jobs(
    options: dict[str, Any], requeueable: bool, non_preemptible: bool
) -> None:
    found = spec(**options)
    assert (found.requeueable, found.non_preemptible) == (requeueable, non_preemptible)


def test_an_edit_changes_preemptibility() -> None:
    fields = edited(spec(no_requeue=True), requeue=True).fields
    assert (fields["requeueable"], fields["non_preemptible"]) == (True, False)
    assert "non_preemptible" not in edited(spec(no_requeue=True), gpus="2").fields
