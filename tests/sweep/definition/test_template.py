"""From a template and parameters to the command that is run."""

import json
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.sweep.definition.definition import InvalidSweep, check
from stoker.sweep.definition.template import command_of, doubts

PARAMS = {"lr": 0.0001, "flag": True, "off": False, "opt.name": "a b", "none": None, "dims": [1, 2]}


def sweep(params: dict, **command: object) -> dict:
    parameters = {name: {"value": value} for name, value in params.items()}
    return check({"method": "grid", "parameters": parameters, **command}, "sweep.yaml")


def words(*command: str, params: dict | None = None) -> list[str] | str:
    params = PARAMS if params is None else params
    return command_of(sweep(params, command=list(command)), params)


def line(text: str, **params: object) -> str:
    found = command_of(sweep(params, line=text), params)
    assert isinstance(found, str)
    return found


def said(params: dict, **command: object) -> str:
    with pytest.raises(InvalidSweep) as caught:
        sweep(params, **command)
    assert "\n" not in str(caught.value)
    return str(caught.value)


ARGS = [
    "--lr=0.0001",
    "--flag=True",
    "--off=False",
    "--opt.name=a b",
    "--none=None",
    "--dims=[1, 2]",
]


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("${args}", ARGS),
        ("${args_no_boolean_flags}", [ARGS[0], "--flag", *ARGS[3:]]),
        ("${args_no_hyphens}", [word.removeprefix("--") for word in ARGS]),
        ("${args_no_equals}",
         ["--lr", "0.0001", "--flag", "True", "--off", "False", "--opt.name", "a b", "--none",
          "None", "--dims", "[1, 2]"]),
        ("${no_args}", []),
        ("${env}", ["/usr/bin/env", *ARGS]),
        ("${interpreter}", ["python", *ARGS]),
        ("plain", ["plain", *ARGS]),
        ("$${HOME}", ["${HOME}", *ARGS]),
        ("${args_json}",
         [('{"dims":[1,2],"flag":true,"lr":0.0001,"none":null,"off":false,'
          '"opt":{"name":"a b"}}')]),
    ],
)  # fmt: skip
def test_each_macro_becomes_its_words(word: str, found: list[str]) -> None:
    assert words("x", word) == ["x", *found]


def test_json_is_nested_as_the_parameters_were(tmp_path) -> None:
    params = {"optimizer.lr": 0.1, "optimizer.betas.first": 0.9, "seed": 1, "a": 1, "a.b": 2}
    found = {"optimizer": {"lr": 0.1, "betas": {"first": 0.9}}, "seed": 1, "a": 1, "a.b": 2}
    assert json.loads(words("x", "${args_json}", params=params)[1]) == found
    command = words("cat", "${args_json_file}", params=params)
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "STOKER_PARAMS": "flat"}
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, check=True)
    assert json.loads(done.stdout) == found


def test_a_misspelt_field_is_doubted() -> None:
    definition = sweep({"lr": 1}, command=["t", "{lrr}", "{lr}", "{gpu}", "{}", '{"a": 1}', "{x}"])
    assert doubts(definition, filled_in="x:2") == [
        "{lrr} in the command is not a parameter and is left unchanged; parameters: lr."
    ]


def test_parameters_come_in_the_order_of_the_definition() -> None:
    definition = sweep({"b": 1, "a": 2}, command=["t"])
    assert command_of(definition, {"a": 2, "b": 1}) == ["t", "--b=1", "--a=2"]


def test_what_nothing_names_is_added_in_the_manner_of_the_command() -> None:
    params = {"lr": 0.1, "bs": 16}
    assert words("t", "--lr={lr}", params=params) == ["t", "--lr=0.1", "--bs=16"]
    assert words("t", "lr=${param:lr}", params=params) == ["t", "lr=0.1", "bs=16"]
    assert words("t", "--lr", "${param:lr}", "${no_args}", params=params) == ["t", "--lr", "0.1"]


def test_a_parameter_in_a_word() -> None:
    params = {"lr": 0.25, "opt.name": "a,b", "none": None}
    assert words("t", "--x={lr:.3f}/{opt.name!r}", "${no_args}", params=params) == [
        "t", "--x=0.250/'a,b'",
    ]  # fmt: skip
    assert words("--n=${param:none}", "n=${param:none}", "${no_args}", params=params) == [
        "--n=None", "n=null",
    ]  # fmt: skip
    assert words("--o=${param:opt.name}", "o=${param:opt.name}", "${no_args}", params=params) == [
        "--o=a,b", "o='a,b'",
    ]  # fmt: skip


def test_braces_that_name_no_parameter_are_the_words_own() -> None:
    params = {"lr": 1}
    kept = ["find", "{}", '{"a": {"b": 1}}', "{gpu}", "{lr", "}", "x{other}y", "$HOME", "${", "$"]
    assert words(*kept, "{{lr}}", '{"a":{lr}}', params=params) == [*kept, "{lr}", '{"a":1}']


def test_values_are_never_read_as_templates() -> None:
    params = {"a": "${args}", "b": "{a}", "c": "$${x}"}
    assert words("t", "{a}", "${param:b}", params=params) == ["t", "${args}", "{a}", "--c=$${x}"]


@pytest.mark.parametrize(
    ("command", "keyword"),
    [
        (["${arg}"],
         "sweep.yaml: command has ${arg}"),
        (["${param:bs}"], "sweep.yaml: ${param:bs} is not a parameter"),
        (["${program}"], "sweep.yaml: command has ${program}, but the definition has no program"),
        (["${envvar:A B}"], "sweep.yaml: ${envvar:A B} is not the name of a variable"),
        (["sh", "-c", "train ${args}"],
         "sweep.yaml: ${args} expands to several words"),
        (["{lr:d}"],
         "sweep.yaml: {lr:d} has a format that 0.1, a value of lr, cannot take"),
        (["{lr!x}"], "sweep.yaml: {lr!x} has a conversion that is not !r, !s or !a"),
        (["{lr:>99999}"], "sweep.yaml: {lr:>99999} is too wide"),
    ],
)  # fmt: skip
def test_a_command_that_cannot_be_filled_in_is_refused(command: list[str], keyword: str) -> None:
    assert keyword in said({"lr": 0.1}, command=command)


def test_formats_are_tried_on_what_a_distribution_gives() -> None:
    for distribution, works in (("int_uniform", True), ("uniform", False), ("q_uniform", True)):
        raw = {
            "method": "random",
            "parameters": {"n": {"distribution": distribution, "min": 1, "max": 8}},
            "command": ["t", "{n:03d}"],
        }
        if works:
            assert command_of(check(raw), {"n": 7}) == ["t", "007"]
        else:
            with pytest.raises(InvalidSweep, match="format"):
                check(raw)


# ------------------------------------------------------------------------------- lines


@pytest.mark.parametrize(
    ("text", "params", "found"),
    [
        ("t --lr {lr}", {"lr": 0.0001}, "t --lr 0.0001"),
        ("t {a} {b:>4}", {"a": "x.y,z:/@%+=-", "b": 7}, "t x.y,z:/@%+=- '   7'"),
        ("t {a}", {"a": "a b"}, "t 'a b'"),
        ("t {a}", {"a": ""}, "t ''"),
        ("t {a}", {"a": "it's"}, "t 'it'\\''s'"),
        ('t "{a}"', {"a": 'a "b" $c'}, 't "a \\"b\\" \\$c"'),
        ("t '{a}'", {"a": "it's"}, "t 'it'\\''s'"),
        ("t {a} | awk '{{print $1}}' > ${{X}}-${HOME}", {"a": 1},
         "t 1 | awk '{print $1}' > ${X}-${HOME}"),
        ("t --gpu {gpu} {a}", {"a": 1}, "t --gpu {gpu} 1"),
        ("t ${args} | tee x", {"a": "b c", "d": 1}, "t '--a=b c' --d=1 | tee x"),
        ("t ${param:a}", {"a": "b c"}, "t 'b c'"),
    ],
)  # fmt: skip
def test_a_line_is_filled_in(text: str, params: dict, found: str) -> None:
    assert line(text, **params) == found


@pytest.mark.parametrize(
    ("text", "keyword"),
    [
        ("t {lr}",
         "sweep.yaml: line does not contain {bs}, so several trials would run the same command"),
        ("t {lr} {bs} {x}",
         "sweep.yaml: line has {x}, which is not a parameter"),
        ("t {lr} {bs} {", "sweep.yaml: line has an unpaired {"),
        ("t {lr} {bs} {}",
         "sweep.yaml: line has {}, which is not a parameter"),
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_filled_in_is_refused(text: str, keyword: str) -> None:
    assert keyword in said({"lr": 0.1, "bs": 16}, line=text)


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


@settings(max_examples=10)
@given(st.lists(TEXTS, min_size=30, max_size=30))
def test_a_shell_hands_the_values_over_as_they_are(values: list[str]) -> None:
    params = {f"p{i}": value for i, value in enumerate(values)}
    template = " ".join(
        ("{%s}", "'<{%s}>'", '"<{%s}>"')[i % 3] % name for i, name in enumerate(params)
    )
    done = subprocess.run(
        ["sh", "-c", line(f"printf '%s\\0' {template}", **params)],
        capture_output=True, check=True,
    )  # fmt: skip
    expected = [value if i % 3 == 0 else f"<{value}>" for i, value in enumerate(values)]
    assert done.stdout.decode().split("\0")[:-1] == expected


# --------------------------------------------------- words that only a shell can make


def test_a_file_with_the_parameters_is_made_by_a_shell(tmp_path) -> None:
    params = {"lr": 0.1, "name": "a 'b'"}
    command = words("FOO=1", "sh", "-c", 'cat "$1"; echo "$FOO$2"', "", "${args_json_file}",
                    "x y", params=params)  # fmt: skip
    assert isinstance(command, str)
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    environment["STOKER_PARAMS"] = '{"lr":0.1,"name":"a \'b\'"}'
    done = subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, check=True
    )
    found, _, rest = done.stdout.rpartition("}")
    assert json.loads(found + "}") == params
    assert rest == "1x y\n"


def test_a_variable_is_left_for_the_shell() -> None:
    command = words("printf", "%s|", "--dir=${envvar:DIR}/it's", "${args}", params={"lr": 0.1})
    assert command == "exec printf '%s|' --dir=\"${DIR?}\"'/it'\\''s' --lr=0.1"
    done = subprocess.run(
        ["sh", "-c", command], env={"DIR": "a b"}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "--dir=a b/it's|--lr=0.1|"
    unset = subprocess.run(
        ["sh", "-c", command], env={}, capture_output=True, text=True, check=False
    )
    assert unset.returncode != 0
    assert "DIR" in unset.stderr
