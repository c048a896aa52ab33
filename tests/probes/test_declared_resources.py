import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.model.units import BadValue
from stoker.probes.declared_resources import (
    Declared,
    inherited_limit,
    limit,
    parse_gpus,
    parse_resources,
)
from stoker.probes.gpu_reading import GpuFacts


def gpu(index: int, uuid: str, parent: str | None = None) -> GpuFacts:
    return GpuFacts(
        index=index,
        uuid=uuid,
        model="M",
        memory=8192,
        vendor="nvidia",
        mig=parent is not None,
        parent=parent,
    )


GPUS = (gpu(0, "GPU-aa11"), gpu(1, "GPU-aa22"), gpu(2, "MIG-1", "GPU-b"), gpu(2, "MIG-2", "GPU-b"))


# --------------------------------------------------------------------------- --gpus


def test_gpus_keep_the_names_that_were_typed():
    names = [name for name, _ in parse_gpus("0, 3,GPU-8932f937,left").devices]
    assert names == ["0", "3", "GPU-8932f937", "left"]


def test_every_declared_gpu_is_one_whole_device():
    assert parse_gpus("0,1") == Declared(type="gpu", devices=(("0", 1000), ("1", 1000)))


@pytest.mark.parametrize("text", ["", ",", "0,,1", "0,0", "a b", "0,\x00", "\udcff", "x" * 200])
def test_gpus_that_make_no_sense_are_refused_in_one_sentence(text):
    with pytest.raises(BadValue) as refused:
        parse_gpus(text)
    message = str(refused.value)
    assert message.endswith(".")
    assert "\n" not in message
    message.encode()


def test_a_gpu_named_twice_is_refused_by_name():
    with pytest.raises(BadValue, match="names 2 twice"):
        parse_gpus("1,2,3,2")


# ---------------------------------------------------------------------- --resources


def test_all_the_ways_to_write_resources():
    text = """{
        gpu: {"2": 1, '4': .5},     // by name
        cpu: 16, mem: "64G",
        licence: [2], hdd: [32, 64],
        seat: 2,
    }"""
    assert parse_resources(text) == [
        Declared(type="gpu", devices=(("2", 1000), ("4", 500))),
        Declared(type="cpu", devices=(("pool", 16_000),), pool=True),
        Declared(type="mem", devices=(("pool", 65_536_000),), pool=True),
        Declared(type="licence", devices=(("0", 2000),)),
        Declared(type="hdd", devices=(("0", 32_000), ("1", 64_000))),
        Declared(type="seat", devices=(("0", 1000), ("1", 1000))),
    ]


def test_a_number_of_gpus_is_that_many_devices():
    (four,) = parse_resources("{gpu:4}")
    assert four.devices == (("0", 1000), ("1", 1000), ("2", 1000), ("3", 1000))
    assert parse_resources("{gpu:0}")[0].devices == ()


def test_memory_as_a_plain_number_is_mebibytes():
    assert parse_resources("{mem:65536}") == parse_resources('{mem:"64GiB"}')


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", "not JSON5"),
        ("{gpu:", "not JSON5"),
        ("[1]", "must be an object"),
        ("{gpu:true}", "not a number of devices"),
        ("{gpu:-1}", "not a number of devices"),
        ("{gpu:2.5}", "write gpu:4 for four devices"),
        ("{gpu:[-1]}", "not a capacity"),
        ("{gpu:[NaN]}", "not a capacity"),
        ("{gpu:[Infinity]}", "too large"),
        ("{gpu:[true]}", "not a number"),
        ("{gpu:['1']}", "not a number"),
        ("{gpu:[0.0001]}", "round it to thousandths"),
        ("{gpu:{'a b':1}}", "one word"),
        ("{gpu:{'':1}}", "one word"),
        ("{gpus:4}", "is written gpu"),
        ("{CPU:4}", "is written cpu"),
        ("{memory:4}", "is written mem"),
        ("{cpu:[4]}", "write cpu:16"),
        ("{cpu:{a:4}}", "write cpu:16"),
        ("{mem:'lots'}", "write 8G"),
        ("{mem:1.5}", "whole MiB"),
        ("{seat:100001}", r"write seat:\[100001\]"),
        ("{'no word':1}", "not a word"),
        ("{x:null}", "not a number of devices"),
        ("{x:[" + "9" * 5000 + "]}", "--resources|too large"),
        ("[" * 1000, "not JSON5"),
    ],
)
def test_resources_that_make_no_sense_are_refused_with_advice(text, advice):
    with pytest.raises(BadValue, match=advice) as refused:
        parse_resources(text)
    assert "\n" not in str(refused.value)


@given(st.integers(0, 10**9))
def test_every_thousandth_is_read_exactly(thousandths):
    whole, part = divmod(thousandths, 1000)
    (declared,) = parse_resources(f"{{disk:[{whole}.{part:03d}],cpu:1}}")[:1]
    assert declared.devices == (("0", thousandths),)


@given(st.floats(min_value=0, max_value=1000))
def test_a_number_is_exact_or_refused(value):
    try:
        (declared,) = parse_resources(f"{{disk:[{value!r}]}}")
    except BadValue:
        assert len(repr(value).partition(".")[2]) > 3 or "e" in repr(value)
    else:
        assert declared.devices[0][1] / 1000 == value


@given(st.text())
def test_any_text_is_read_or_refused(text):
    for parse in (parse_gpus, parse_resources):
        try:
            parse(text)
        except BadValue as refused:
            str(refused).encode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["gpu", "cpu", "mem", "x", ""]), JSON))
def test_any_object_is_read_or_refused(value):
    try:
        found = parse_resources(json.dumps(value))
    except BadValue as refused:
        str(refused).encode()
    else:
        assert all(capacity >= 0 for one in found for _, capacity in one.devices)


# ------------------------------------------------------------- CUDA_VISIBLE_DEVICES


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("0,1", ("0", "1")),
        (" 2 , GPU-a ", ("2", "GPU-a")),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("0,-1,1", ("0",)),
        ("0,,1", ("0",)),
    ],
)
def test_an_inherited_limit_names_gpus(value, names):
    assert inherited_limit({"CUDA_VISIBLE_DEVICES": value}) == names


def test_without_the_variable_there_is_no_limit():
    assert inherited_limit({}) is None


@pytest.mark.parametrize(
    ("names", "uuids"),
    [
        (("1", "0"), ["GPU-aa22", "GPU-aa11"]),
        (("GPU-aa2",), ["GPU-aa22"]),
        (("0", "7", "1"), ["GPU-aa11"]),  # stops at the first invalid
        (("GPU-aa",), []),  # not unique
        (("0", "GPU-aa11", "1"), ["GPU-aa11"]),  # named twice
        (("MIG-2",), ["MIG-2"]),
        (("2",), ["MIG-1", "MIG-2"]),
        (("GPU-b",), ["MIG-1", "MIG-2"]),
        (("9" * 5000,), []),
        ((), []),
    ],
)
def test_a_limit_chooses_gpus_as_cuda_would(names, uuids):
    assert [gpu.uuid for gpu in limit(GPUS, names)] == uuids


def test_a_range_of_gpus_is_that_many_gpus() -> None:
    assert [name for name, _ in parse_gpus("0-2,7").devices] == ["0", "1", "2", "7"]
    with pytest.raises(BadValue):
        parse_gpus("3-1")


def test_the_memory_of_declared_gpus() -> None:
    found = parse_gpus("0-1=24G,2,big=80G")
    assert [name for name, _ in found.devices] == ["0", "1", "2", "big"]
    assert found.memory == {"0": 24576, "1": 24576, "big": 81920}
    (gpu,) = parse_resources('{gpu:{"0":{memory:"16G"},"1":1}}')
    assert (gpu.devices, gpu.memory) == ((("0", 1000), ("1", 1000)), {"0": 16384})


@pytest.mark.parametrize(
    "text", ['{gpu:{a:{memory:"x"}}}', "{gpu:{a:{memory:0}}}", '{gpu:{a:{size:"1G"}}}',
             '{licence:{a:{memory:"1G"}}}'],
)  # fmt: skip
def test_memory_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        parse_resources(text)
    with pytest.raises(BadValue):
        parse_gpus("0=lots")
