"""What is typed about a training job: its sizes, its GPUs, its image."""

from typing import Any

import pytest

from stoker.core.job import Container, Mount, Spec, Training
from stoker.core.options import Context, Wanted, read
from stoker.core.request import GpuAsk, Request
from stoker.core.training_options import ALL_OF_A_MACHINE, parse_ask, parse_mount, parse_ports
from stoker.core.units import BadValue

CONTEXT = Context(1_700_000_000.0, lambda word: [int(word)], lambda _: [3])


def asked(**options: Any) -> Wanted:
    return read(options, CONTEXT)


def gpus(**options: Any) -> GpuAsk | None:
    return asked(**options).request.gpus


def spec(**options: Any) -> Spec:
    """A job that was submitted with these options."""
    wanted = asked(**options)
    fields = {key: value for key, value in wanted.fields.items() if value is not None}
    return Spec(
        kind="line", user="u", directory="/", shell="sh", environment="", request=wanted.request,
        **{"name": "", **fields},
    )  # fmt: skip


def edited(before: Spec, **options: Any) -> Wanted:
    return read(options, CONTEXT, before)


def test_a_training_job_says_what_it_is() -> None:
    wanted = asked(
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
def test_any_of_these_makes_it_one(options: dict[str, Any]) -> None:
    assert asked(**options).fields["training"] is not None


def test_other_jobs_are_none() -> None:
    wanted = asked(gpus="2", gpu_memory="4G")
    assert "training" not in wanted.fields
    assert wanted.request.gpus == GpuAsk(2000, memory=4096)


# --------------------------------------------------------------------------------- GPUs


def test_it_takes_as_many_gpus_as_there_are_and_shares_them() -> None:
    assert gpus(epochs="3") == GpuAsk(1000, beside=True, most=ALL_OF_A_MACHINE)


def test_without_epochs_nobody_could_tell_what_more_gpus_are_worth() -> None:
    assert gpus(batch_size="3") == GpuAsk(1000, beside=True)


def test_single_gpu_is_one_and_no_more() -> None:
    assert gpus(epochs="3", single_gpu=True) == GpuAsk(1000, beside=True)
    assert gpus(epochs="3", single_gpu=True, gpus="1", gpu_memory="2G") == GpuAsk(
        1000, memory=2048, beside=True
    )
    for many in ("2", "1..4"):
        with pytest.raises(BadValue, match="contradict"):
            asked(single_gpu=True, gpus=many)


def test_exclusive_gpu_shares_nothing() -> None:
    assert gpus(exclusive_gpu=True, gpus="2") == GpuAsk(2000)
    with pytest.raises(BadValue, match="whole GPUs"):
        asked(exclusive_gpu=True, gpus="0.5")


def test_a_part_of_a_gpu_is_what_it_always_was() -> None:
    assert gpus(epochs="3", gpus="0.5") == GpuAsk(500)


def test_no_gpu_at_all() -> None:
    wanted = asked(epochs="3", gpus="0")
    assert (wanted.request.gpus, wanted.request.cpus) == (None, 1000)


def test_a_number_of_gpus_is_that_number() -> None:
    assert gpus(epochs="3", gpus="2") == GpuAsk(2000, beside=True)


@pytest.mark.parametrize(
    ("text", "ask"),
    [
        ("1..4", GpuAsk(1000, most=4000)),
        ("2..2", GpuAsk(2000)),
        ("2..", GpuAsk(2000, most=ALL_OF_A_MACHINE)),
        ("a100:1..8", GpuAsk(1000, model="a100", most=8000)),
        ("24GB..:1..4", GpuAsk(1000, min_vram=24 * 1024, most=4000)),
        ("24GB..:2", GpuAsk(2000, min_vram=24 * 1024)),
        ("24GB..", GpuAsk(1000, min_vram=24 * 1024)),
        ("0.5", GpuAsk(500)),
    ],
)
def test_a_range_of_gpus(text: str, ask: GpuAsk) -> None:
    assert parse_ask(text) == ask


@pytest.mark.parametrize("text", ["4..1", "0.5..2", "0..4", "1..2.5", "1...4", "..4"])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(BadValue, match="--gpus"):
        parse_ask(text)


def test_machines_have_equal_parts() -> None:
    assert gpus(epochs="3", nodes="2") == GpuAsk(1000, beside=True)
    with pytest.raises(BadValue, match="one node only"):
        asked(gpus="2..4", nodes="2")


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
def test_who_also_runs_without_a_gpu(options: dict[str, Any], also_without: bool) -> None:
    assert asked(**options).needs_no_gpu is also_without


# -------------------------------------------------------------------------------- edits


def test_an_edit_keeps_what_it_does_not_mention() -> None:
    before = spec(epochs="3", batch_size="8", image="img", mount=["/a:/b"])
    wanted = edited(before, priority="5")
    assert wanted.request == before.request
    assert not {"training", "container", "restartable"} & set(wanted.fields)


def test_an_edit_changes_one_thing() -> None:
    before = spec(epochs="3", batch_size="8", exclusive_gpu=True)
    wanted = edited(before, epochs="9")
    assert wanted.fields["training"] == Training(epochs=9, batch_size=8)
    assert wanted.request == before.request
    assert edited(before, expect="").fields["training"] == before.training


def test_an_edit_of_the_gpus() -> None:
    before = spec(epochs="3")
    assert edited(before, gpus="2").request.gpus == GpuAsk(2000, beside=True)
    assert edited(before, single_gpu=True).request.gpus == GpuAsk(1000, beside=True)
    assert edited(before, exclusive_gpu=True).request.gpus == GpuAsk(1000, most=ALL_OF_A_MACHINE)
    alone = spec(epochs="3", exclusive_gpu=True)
    assert edited(alone, gpus="2").request.gpus == GpuAsk(2000)
    assert edited(alone, exclusive_gpu=False).request.gpus == GpuAsk(
        1000, beside=True, most=ALL_OF_A_MACHINE
    )


def test_an_edit_makes_a_training_job_of_another() -> None:
    assert edited(spec(gpus="2"), epochs="3").request.gpus == GpuAsk(2000, beside=True)
    assert edited(spec(), epochs="3").request == Request(cpus=1000)


def test_an_edit_of_the_image() -> None:
    before = spec(image="img", mount=["/a:/b"], ports="1:2")
    assert edited(before, image="other").fields["container"] == Container(
        "other", (Mount("/a", "/b"),), ((1, 2),)
    )
    assert edited(before, ports="").fields["container"].ports == ()


# --------------------------------------------------------------------------- containers


def test_an_image() -> None:
    found = asked(image="host:5000/a/b:1", mount=["/a:/b", "/c:/d:ro"], ports="80:8080,81:8081")
    assert found.fields["container"] == Container(
        "host:5000/a/b:1",
        (Mount("/a", "/b"), Mount("/c", "/d", read_only=True)),
        ((80, 8080), (81, 8081)),
    )
    assert asked(image="a", workdir="image").fields["container"].here is False
    assert parse_mount("/a:/b/:ro,optional") == Mount("/a", "/b", read_only=True, optional=True)


@pytest.mark.parametrize(
    "text",
    ["", "/a", "/a:", ":/b", "a:/b", "/a:b", "/a:/b:rx", "/a:/b:ro,rw", "/a:/", "/a:/../b",
     "/a:/snapshots", "/a:/stoker/lib", "/a:/b:ro:x"],
)  # fmt: skip
def test_what_is_no_mount(text: str) -> None:
    with pytest.raises(BadValue, match="--mount"):
        parse_mount(text)


@pytest.mark.parametrize(
    "text", ["80", "80:", ":80", "0:80", "80:65536", "80:81,", "a:b", "1:2,1:3"]
)
def test_what_are_no_ports(text: str) -> None:
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
def test_nonsense_is_refused_with_a_sentence(options: dict[str, Any]) -> None:
    with pytest.raises(BadValue) as error:
        asked(**options)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


def test_an_empty_image_is_no_image() -> None:
    for before in (None, spec(image="img")):
        with pytest.raises(BadValue, match="--image is empty"):
            asked(image="") if before is None else edited(before, image="")


def test_requeue_lets_it_be_ended_to_make_room() -> None:
    assert asked(requeue=True).fields["restartable"] is True
    assert asked(no_requeue=True).fields["restartable"] is False
    assert "restartable" not in asked(retries="2").fields


# ------------------------------------------------------------------------- making room


@pytest.mark.parametrize(
    ("options", "restartable", "steady"),
    [
        ({}, False, False),
        ({"requeue": True}, True, False),
        ({"no_requeue": True}, False, True),
        ({"requeue": True, "no_requeue": True}, False, True),
    ],
)
def test_who_may_be_asked_to_make_room(
    options: dict[str, Any], restartable: bool, steady: bool
) -> None:
    found = spec(**options)
    assert (found.restartable, found.steady) == (restartable, steady)


def test_an_edit_changes_who_may_be_asked() -> None:
    fields = edited(spec(no_requeue=True), requeue=True).fields
    assert (fields["restartable"], fields["steady"]) == (True, False)
    assert "steady" not in edited(spec(no_requeue=True), gpus="2").fields
