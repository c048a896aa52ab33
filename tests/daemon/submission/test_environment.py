"""The environment block of a job: what `--export` and `--env` leave of the submitter's."""

import pytest

from stoker.core.model.units import BadValue
from stoker.core.options.submit import ParseContext, parse_options
from stoker.daemon.submission.environment import build_environment, search_path

CONTEXT = ParseContext(1000.0, lambda _: [], lambda _: [])
GIVEN = {
    "PATH": "/bin", "HOME": "/home/ada", "LR": "0.1", "TERM": "xterm", "SHLVL": "2",
    "STOKER_JOB_ID": "7", "STOKER_HOME": "/state",
}  # fmt: skip


def names(**options: object) -> dict[str, str]:
    block = build_environment(GIVEN, parse_options(options, CONTEXT)).decode()
    return dict(entry.split("=", 1) for entry in block.split("\0"))


def test_all_is_exported_but_the_terminal_and_the_job_of_the_submitter() -> None:
    assert names() == {
        "PATH": "/bin", "HOME": "/home/ada", "LR": "0.1", "STOKER_HOME": "/state",
        "PYTHONUNBUFFERED": "1",
    }  # fmt: skip


def test_an_interactive_job_keeps_the_type_of_the_terminal() -> None:
    assert names(pty=True)["TERM"] == "xterm"


@pytest.mark.parametrize(
    ("export", "expected"),
    [
        ("NONE", {"PATH", "HOME"}), ("LR", {"PATH", "HOME", "LR"}),
        ("LR=3,NOSUCH", {"PATH", "HOME", "LR"}), ("ALL,A=1", {"PATH", "HOME", "LR", "A"}),
    ],
)  # fmt: skip
def test_export_selects_variables(export: str, expected: set[str]) -> None:
    exported = names(export=export)
    assert set(exported) - {"PYTHONUNBUFFERED", "STOKER_HOME"} == expected
    if export.startswith("LR="):
        assert exported["LR"] == "3"


def test_env_overrides_what_is_exported() -> None:
    assert names(env=["LR=2", "PYTHONUNBUFFERED=0"])["LR"] == "2"


def test_a_variable_that_cannot_be_passed_is_rejected() -> None:
    with pytest.raises(BadValue, match="cannot be passed"):
        build_environment({"A": "x\0y"}, parse_options({}, CONTEXT))


def test_the_search_path_has_a_default() -> None:
    assert search_path(b"A=1\0PATH=/x") == "/x"
    assert search_path(b"A=1")
