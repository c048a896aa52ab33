"""Hydra's overrides on a command line, compared with Hydra itself; and --param."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.sweep.definition.definition import InvalidSweep, check
from stoker.sweep.definition.template import command_of
from stoker.sweep.hydra_values import read, written
from stoker.sweep.notations.overrides import param_option, split

HYDRA = OverridesParser.create()


def swept(word: str) -> dict:
    """The parameter that a word of a command becomes."""
    words, parameters = split(["train", word])
    assert words == ["train", "x=${param:x}"]
    return parameters["x"]


def said(*words: str) -> str:
    with pytest.raises(InvalidSweep) as caught:
        split(["train", *words])
    return str(caught.value)


@pytest.mark.parametrize(
    ("word", "spec"),
    [
        ("x=0.1,0.01", {"values": [0.1, 0.01]}),
        ("x=adam, sgd", {"values": ["adam", "sgd"]}),
        ("x=true,null,1e-4,007", {"values": [True, None, 0.0001, "007"]}),
        ("x='a,b',\"c d\",'it\\'s'", {"values": ["a,b", "c d", "it's"]}),
        ("x=a\\,b,c", {"values": ["a,b", "c"]}),
        ("x=[1,2],[3]", {"values": [[1, 2], [3]]}),
        ("x={a:1,b:[x]},{a:2}", {"values": [{"a": 1, "b": ["x"]}, {"a": 2}]}),
        ("x='1',2", {"values": ["1", 2]}),
        ("x=choice(0,1e-4)", {"values": [0, 0.0001]}),
        ("x=choice(a)", {"values": ["a"]}),
        ("x=range(0,5)", {"values": [0, 1, 2, 3, 4]}),
        ("x=range(5)", {"values": [0, 1, 2, 3, 4]}),
        ("x=range(5,0,-2)", {"values": [5, 3, 1]}),
        ("x=range(start=1,stop=7,step=3)", {"values": [1, 4]}),
        ("x=range(0,1,0.25)", {"values": [0.0, 0.25, 0.5, 0.75]}),
        ("x=range(0,0.4,0.1)", {"values": [0.0, 0.1, 0.2, 0.3]}),
        ("x=interval(0,1)", {"distribution": "uniform", "min": 0, "max": 1}),
        ("x=interval(start=0,end=1)", {"distribution": "uniform", "min": 0, "max": 1}),
        ("x=tag(log, interval(1e-5,0.1))",
         {"distribution": "log_uniform", "min": 1e-5, "max": 0.1}),
        ("x=int(interval(1,8))", {"distribution": "int_uniform", "min": 1, "max": 8}),
        ("x=tag(log,int(interval(1,8)))", {"distribution": "int_log_uniform", "min": 1, "max": 8}),
        ("x=tag(a,b,choice(1,2))", {"values": [1, 2]}),
        ("x=sort(3,1,2)", {"values": [1, 2, 3]}),
        ("x=sort(range(0,3),reverse=true)", {"values": [2, 1, 0]}),
        ("x=float(1,2)", {"values": [1.0, 2.0]}),
        ("x=str(choice(1,true))", {"values": ["1", "true"]}),
        ("x=log_uniform(1e-5,0.1)", {"distribution": "log_uniform", "min": 1e-5, "max": 0.1}),
        ("x=http://a/b?c=d,e", {"values": ["http://a/b?c=d", "e"]}),
        ("x=${a.b},c", {"values": ["${a.b}", "c"]}),
    ],
)  # fmt: skip
def test_a_sweep_in_a_word(word: str, spec: dict) -> None:
    found = swept(word)
    assert found == spec
    if "values" in spec:
        assert list(map(type, found["values"])) == list(map(type, spec["values"]))


@pytest.mark.parametrize(
    "word",
    [
        "x=0.1,0.01", "x='a,b',\"c d\"", "x=[1,2],[3]", "x=range(0,5)", "x=range(5,0,-2)",
        "x=choice(0,1e-4)", "x=range(0,1,0.25)", "x=sort(3,1,2)", "x=a\\,b,c", "x={a:1},{a:2}",
        "x=null,true,1_000,-.5,1.", "x=a b , c\td", "x=sort(range(0,3),reverse=true)",
        "x='\\\\',\"a\\\\\\\"b\"", "x=None,nullx,00", "x=float(1,2)", "x=int(choice(1.0,2.0))",
        "x=a:b,c/d,@e,%f,*", "x=${a},${b:c,d}", "x=str(choice(1,2))", "x=bool(choice(true,0))",
    ],
)  # fmt: skip
def test_hydra_sees_the_same_values(word: str) -> None:
    theirs = [_plain(value) for value in HYDRA.parse_override(word).sweep_iterator()]
    ours = swept(word)["values"]
    assert ours == theirs
    assert list(map(type, ours)) == list(map(type, theirs))


def _plain(value: object) -> object:
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
TRICKY = st.text("abe01.-+_'\"\\,()[]{}:=$ \tnul\n")
SCALARS = (
    st.none() | st.booleans() | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False) | TEXTS | TRICKY
    | st.sampled_from(["null", "True", "nan", "-inf", "1e-4", "007", "None", "", " ", "${a}"])
)  # fmt: skip
KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]*", fullmatch=True).filter(
    lambda key: key.lower() not in {"true", "false", "null", "inf", "nan"}
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@given(VALUES)
def test_what_is_written_is_read_back_by_hydra(value: object) -> None:
    words, _ = split(["train", "+a.b=1,2"])
    definition = {"command": words, "parameters": {"a.b": {"value": value}}}
    word = command_of(definition, {"a.b": value})[1]
    override = HYDRA.parse_override(word)
    found = override.value()
    assert (found, type(found)) == (value, type(value))
    assert (override.get_key_element(), override.is_sweep_override()) == ("+a.b", False)


@settings(max_examples=50)
@given(VALUES)
def test_what_is_written_is_read_back_by_us(value: object) -> None:
    found = read(written(value))
    assert found == [value]
    assert type(found[0]) is type(value)


@given(TEXTS | TRICKY)
def test_no_text_breaks_the_reader(value: str) -> None:
    words = ["train", f"x={value}"]
    try:
        kept, parameters = split(words)
    except InvalidSweep:
        assert value in said(*words[1:])
    else:
        assert len(kept) == 2
        assert parameters.keys() <= {"x"}


def test_the_command_of_the_manual() -> None:
    words, parameters = split(
        ["python", "train.py", "lr=0.1,0.01", "seed=range(0,2)", "wd=choice(0,1e-4)", "db=mysql"]
    )
    assert words == [
        "python", "train.py", "lr=${param:lr}", "seed=${param:seed}", "wd=${param:wd}", "db=mysql",
    ]  # fmt: skip
    definition = check({"method": "grid", "parameters": parameters, "command": words})
    assert command_of(definition, {"lr": 0.1, "seed": 0, "wd": 0.0001}) == [
        "python", "train.py", "lr=0.1", "seed=0", "wd=0.0001", "db=mysql",
    ]  # fmt: skip


def test_prefixes_and_packages_come_back() -> None:
    words, parameters = split(["t", "+a=1,2", "++b.c=3,4", "~d", "~e=1,2", "db@src=x,y", "g/h=1,2"])
    assert words == [
        "t", "+a=${param:a}", "++b.c=${param:b.c}", "~d", "~e=1,2", "db@src=${param:db@src}",
        "g/h=${param:g/h}",
    ]  # fmt: skip
    assert list(parameters) == ["a", "b.c", "db@src", "g/h"]


@pytest.mark.parametrize(
    "words",
    [
        ["FOO=a,b", "train"],
        ["FOO=a,b", "BAR=c,d", "train", "--x=a,b", "-o", "a,b"],
        ["env", "-i", "FOO=a,b", "python", "t.py"],
        ["train", "db=mysql", "shape=(3,3)", "f=g(1,2)", "list=[1,2]", "d={lr:1,b:2}", "e="],
        ["train", "x=shuffle([1,2])", "x=sort([2,1])", "x=int(3.5)", "x='a,b'"],
        ["train", "a,b", "=a,b", "1=a,b", "x", "a b=1,2", "[1,2"],
        [],
    ],
)
def test_what_is_no_sweep_stays_as_it_is(words: list[str]) -> None:
    assert split(words) == (words, {})


def test_interpolations_of_hydra_are_no_macros_of_ours() -> None:
    words, parameters = split(["t", "x=1,2", "dir=${hydra:runtime.cwd}/${args_json}"])
    assert words[2] == "dir=$${hydra:runtime.cwd}/${args_json}"
    definition = check({"method": "grid", "parameters": parameters, "command": words})
    assert command_of(definition, {"x": 1})[2] == 'dir=${hydra:runtime.cwd}/{"x":1}'


@pytest.mark.parametrize(
    "word",
    ["hydra.run.dir=outputs/${oc.env:STOKER_SWEEP_ID}/${oc.env:STOKER_TRIAL}",
     "hydra.run.dir=outputs/${now:%Y-%m-%d}/${hydra.job.num}", "a=${oc.env:USER,nobody}"],
)  # fmt: skip
def test_directories_of_hydra_pass_through_unharmed(word: str) -> None:
    words, parameters = split(["python", "t.py", "lr=1,2", word])
    definition = check({"method": "grid", "parameters": parameters, "command": words})
    assert command_of(definition, {"lr": 1}) == ["python", "t.py", "lr=1", word]


def test_tables_of_hydra_are_no_fields_of_ours() -> None:
    words, parameters = split(["t", "lr=1,2", "opt={lr:1}"])
    definition = check({"method": "grid", "parameters": parameters, "command": words})
    assert command_of(definition, {"lr": 2}) == ["t", "lr=2", "opt={lr:1}"]


def test_shuffled_values_have_the_same_order_each_time() -> None:
    first = swept("x=shuffle(range(0,20))")["values"]
    assert sorted(first) == list(range(20)) != first
    assert swept("x=shuffle(range(0,20))")["values"] == first


@pytest.mark.parametrize(
    ("word", "keyword"),
    [
        ("x=1,", "x=1,: a value is missing"),
        ("x=1,,2", "x=1,,2: a value is missing"),
        ("x=range(0,5", "x=range(0,5: a ) is missing"),
        ("x=range(0,5,0)", "x=range(0,5,0): the step of range() is 0"),
        ("x=range(5,0)", "x=range(5,0): range() has 0 values"),
        ("x=range(1e6)", "x=range(1e6): range() has 1,000,000 values"),
        ("x=range(a)", "x=range(a): range() takes numbers"),
        ("x=range(1,stop=2,end=3)", "x=range(1,stop=2,end=3): range() takes start, stop, step"),
        ("x=glob(*)", "x=glob(*): glob() needs Hydra's own config groups"),
        ("x=1,range(3)", "x=1,range(3): range() cannot be combined with other values"),
        ("x='a,b", "x='a,b: the quote ' is never closed"),
        ("x='a',b'c',(d", "x='a',b'c',(d: ( must be quoted or escaped with a backslash"),
        ("x='a'b,c", "x='a'b,c: 'b,c' found where a comma was expected"),
        ("x=inf,1", "x=inf,1: inf is not a value to sweep over"),
        ("x=interval(0)", "x=interval(0): interval() takes two numbers"),
        ("x=interval(a,b)", "x=interval(a,b): x.min is 'a'"),
        ("x=tag(log)", "x=tag(log): the last argument of tag() must be a sweep"),
        ("x=sort(a,1)", "x=sort(a,1): sort() cannot compare texts and numbers"),
        ("x=str(interval(0,1))", "x=str(interval(0,1)): str() cannot be applied to uniform"),
    ],
)  # fmt: skip
def test_a_sweep_that_cannot_be_read_is_refused(word: str, keyword: str) -> None:
    assert keyword in said(word)


def test_a_name_that_is_swept_twice_is_refused() -> None:
    assert said("a=1,2", "+a=3,4") == "+a=3,4: a is swept twice; once is enough."


@pytest.mark.parametrize(
    ("text", "name", "spec"),
    [
        ("lr=0.1,0.01", "lr", {"values": [0.1, 0.01]}),
        ("lr=0.1", "lr", {"value": 0.1}),
        ("lr=log_uniform(1e-5,0.1)", "lr",
         {"distribution": "log_uniform", "min": 1e-5, "max": 0.1}),
        ("n=int_uniform(1,8)", "n", {"distribution": "int_uniform", "min": 1, "max": 8}),
        ("x=uniform(0,1)", "x", {"distribution": "uniform", "min": 0, "max": 1}),
        ("x=uniform(max=1,min=0)", "x", {"distribution": "uniform", "min": 0, "max": 1}),
        ("x=normal(0,1)", "x", {"distribution": "normal", "mu": 0, "sigma": 1}),
        ("x=normal()", "x", {"distribution": "normal", "mu": 0, "sigma": 1}),
        ("x=q_uniform(0,10,2)", "x", {"distribution": "q_uniform", "min": 0, "max": 10, "q": 2}),
        ("x=range(0,10,2)", "x", {"values": [0, 2, 4, 6, 8]}),
        ("x=choice(a,b)", "x", {"values": ["a", "b"]}),
        ("a.b=x=y,z", "a.b", {"values": ["x=y", "z"]}),
        ("x=it's,fine", "x", {"values": ["it's", "fine"]}),
        ("x='f(1)'", "x", {"value": "f(1)"}),
        ("v=1.10,1_000,null,1e-4", "v", {"values": ["1.10", "1_000", "null", 1e-4]}),
        ("v=choice(1.10,[007])", "v", {"values": ["1.10", ["007"]]}),
        ("x=uniform(0.10,1_0)", "x", {"distribution": "uniform", "min": 0.1, "max": 10}),
    ],
)  # fmt: skip
def test_param_is_read(text: str, name: str, spec: dict) -> None:
    assert param_option(text) == (name, spec)


@pytest.mark.parametrize(
    ("text", "keyword"),
    [
        ("lr", "--param lr: NAME=VALUE,VALUE or NAME=uniform(0,1) was expected"),
        ("lr=", "--param lr=: a value was expected after the ="),
        ("l r=1", "--param l r=1: it has the name 'l r'"),
        ("x=f(1)",
         "--param x=f(1): f() is not known"),
        ("x=loguniform(1,2)",
         "--param x=loguniform(1,2): loguniform() is not known"),
        ("x=uniform(1,0)", "--param x=uniform(1,0): x.min is 1"),
        ("x=uniform(1)", "--param x=uniform(1): x has no max"),
        ("x=uniform(1,2,3)", "--param x=uniform(1,2,3): uniform() takes min, max"),
        ("x=(1", "--param x=(1: ( must be quoted or escaped with a backslash"),
        ("x='a", "--param x='a: the quote ' is never closed"),
        ("x=" + "[" * 50, "--param x=" + "[" * 50 + ": it is nested more than 20 deep."),
    ],
)  # fmt: skip
def test_a_param_that_cannot_be_read_is_refused(text: str, keyword: str) -> None:
    with pytest.raises(InvalidSweep) as caught:
        param_option(text)
    assert keyword in str(caught.value)
