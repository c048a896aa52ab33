"""Options of submit and edit, valid and invalid."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.model.spec import EarlySignal, Retry, Spec
from stoker.core.model.units import BadValue
from stoker.core.options.submit import (
    KNOWN_OPTIONS,
    ParseContext,
    ParsedOptions,
    parse_array,
    parse_options,
    parse_signal,
)

NOW = 1_700_000_000.0


def parsed(**options: Any) -> ParsedOptions:
    return parse_options(options, ParseContext(NOW, lambda word: [int(word)], lambda _: [3]))


def test_a_job_without_a_request_gets_one_core() -> None:
    request = parsed().request
    assert (request.cpus, request.gpus) == (1000, None)


def test_a_gpu_job_requests_no_cores() -> None:
    assert parsed(gpus="2").request.cpus == 0


@pytest.mark.parametrize(
    ("options", "amount", "model", "vram"),
    [
        ({"gpus": "0.5"}, 500, None, None),
        ({"gpus": "a100:2"}, 2000, "a100", None),
        ({"gpus": "24GB..:2"}, 2000, None, 24 * 1024),
        ({"gres": "gpu:v100:4"}, 4000, "v100", None),
        ({"gres": "gpu:3"}, 3000, None, None),
        ({"gpus_per_node": "2"}, 2000, None, None),
        ({"gpus_per_task": "1", "ntasks": "4"}, 4000, None, None),
        ({"gpu_model": "H100"}, 1000, "h100", None),
        ({"gpus": "2.5", "gpus_min_vram": "40G"}, 2500, None, 40 * 1024),
    ],
)
def test_ways_to_request_gpus(
    options: dict[str, str], amount: int, model: str | None, vram: int | None
) -> None:
    ask = parsed(**options).request.gpus
    assert ask is not None
    assert (ask.amount, ask.model, ask.min_vram) == (amount, model, vram)


def test_memory_per_gpu_and_per_core_is_multiplied() -> None:
    assert parsed(gpus="2", mem_per_gpu="8G").request.memory == 16 * 1024
    assert parsed(cpus="4", mem_per_cpu="1G").request.memory == 4 * 1024


def test_other_resources_are_named() -> None:
    assert parsed(resources="{licence:1, hdd:32.5}").request.named == (
        ("hdd", 32500), ("licence", 1000),
    )  # fmt: skip
    assert parsed(resources={"licence": 2}).request.named == (("licence", 2000),)


def test_devices_can_be_chosen_preferred_and_avoided() -> None:
    ask = parsed(gpus="1", use_gpus="0-2,7", prefer_gpus="2", avoid_gpus="0").request.gpus
    assert ask is not None
    assert (ask.required, ask.prefer, ask.avoid) == (("0", "1", "2", "7"), ("2",), ("0",))


def test_the_rest_of_an_sbatch_line() -> None:
    wanted = parsed(
        time="1-12", begin="now+1hour", signal="B:USR1@120", requeue=True, comment="x",
        label=["a", "b"], nice="5", dependency="afterok:7", qos="high", export="NONE",
        open_mode="truncate",
    )  # fmt: skip
    assert wanted.fields["limit"] == 36 * 3600
    assert wanted.begin_at == NOW + 3600
    assert wanted.fields["early_signal"] == EarlySignal(10, 120, to_script=True)
    assert parsed(signal="USR1").fields["early_signal"] == EarlySignal(10, 60)
    assert wanted.fields["retry"] == Retry(3, ("lost",))
    assert wanted.fields["truncate_output"]
    assert not parsed(open_mode="append").fields["truncate_output"]
    assert wanted.fields["labels"] == ("a", "b")
    assert wanted.priority == -5
    assert wanted.fields["dependency"].jobs() == {7}
    assert wanted.export == "NONE"
    assert wanted.warnings == ["--qos has no effect"]


def test_an_edit_changes_only_what_it_mentions() -> None:
    context = ParseContext(NOW, lambda word: [int(word)], lambda _: [3])
    before = parsed(gpus_per_node="2", nodes="3", nodelist="a,b,c,d", exclude="d").request
    spec = Spec(kind="line", user="u", directory="/", shell="sh", environment="", request=before,
                name="")  # fmt: skip
    assert parse_options({"priority": "5"}, context, spec).request == before
    after = parse_options({"nodelist": "b,c", "nodes": "2", "exclude": ""}, context, spec).request
    assert (after.nodes, after.node_count, after.not_nodes) == (("b", "c"), 2, ())
    assert after.gpus == before.gpus


def test_arrays() -> None:
    assert parse_array("0-15:4%2") == ((0, 4, 8, 12), 2)
    assert parse_array("1,3,7-9") == ((1, 3, 7, 8, 9), None)


@pytest.mark.parametrize(
    "options",
    [
        {"gpus": "two:three"}, {"gpus": "-1"}, {"gpus": "0.1234"}, {"time": "soon"}, {"mem": "x"},
        {"array": "5-1"}, {"array": "0-99999999"}, {"array": "1%0"}, {"nope": "1"},
        {"priority": "high"}, {"env": ["novalue"]}, {"signal": "USR9"}, {"retries": "-1"},
        {"retry_on": "moon"}, {"dependency": "sometime:4"}, {"dependency": "afterok:1,afterok:2?3"},
        {"queue": "a b"}, {"deadline": "now"}, {"use_gpus": ","}, {"use_gpus": "3-1"},
        {"resources": "{gpu:1}"}, {"resources": "licence"}, {"gres": "shard:2"}, {"ntasks": "0"},
        {"begin": "yesterday-ish"}, {"name": ["a"]}, {"open_mode": "x"}, {"nodes": "-3"},
        {"send": ["x"], "no_send": True}, {"bring": "x", "no_bring": "true"},
    ],
)  # fmt: skip
def test_invalid_options_are_rejected_with_a_sentence(options: dict[str, Any]) -> None:
    with pytest.raises(BadValue) as caught:
        parsed(**options)
    assert str(caught.value).endswith(".")


values = st.one_of(
    st.text(max_size=12), st.booleans(), st.integers(), st.floats(), st.none(),
    st.lists(st.text(max_size=5), max_size=3),
    st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2),
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(sorted(KNOWN_OPTIONS)), values, max_size=4))
def test_every_option_is_parsed_or_rejected(options: dict[str, Any]) -> None:
    try:
        wanted = parse_options(options, ParseContext(NOW, lambda _: [1], lambda _: []))
    except BadValue:
        return
    assert hash(wanted.request) is not None


@given(st.text(max_size=10))
def test_every_signal_is_parsed_or_rejected(text: str) -> None:
    with contextlib.suppress(BadValue):
        assert 0 < parse_signal(text) < 65


def test_a_job_that_cannot_end_by_its_deadline_is_rejected() -> None:
    with pytest.raises(BadValue, match="longer than the time until"):
        parsed(time="5m", deadline="now+1min")
