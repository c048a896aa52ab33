"""The agent's `start` request."""

import pytest
from msgspec.structs import replace

from specs import launch_of
from stoker.executors.agent import start_command as orders

LAUNCH = launch_of(
    job=1, argv=("/bin/sh", "-c", "echo hi"), directory="/d", is_shell_line=True,
    extra={"STOKER_TOKEN": "here.1.0", "STOKER_GPUS": "0"},
)  # fmt: skip


def stored(_: str) -> bytes:
    return b"A=1\0B={gpu}\0C=3\0no.name=4"


def test_only_requested_variables_are_sent() -> None:
    launch = launch_of(
        LAUNCH, exported_variables=("A", "B", "no.name"), placeholders={"{gpu}": "0,1"}
    )
    assert orders.variables(launch, stored) == [
        "A=1", "B=0,1", "STOKER_TOKEN=here.1.0.", "STOKER_GPUS=0",
    ]  # fmt: skip
    assert orders.variables(LAUNCH, lambda _: None) == ["STOKER_TOKEN=here.1.0.", "STOKER_GPUS=0"]


def test_a_missing_environment_is_reported() -> None:
    with pytest.raises(KeyError, match="no longer stored"):
        orders.variables(launch_of(LAUNCH, exported_variables=("A",)), lambda _: None)


def test_argv_of_a_line_a_command_and_a_script() -> None:
    assert orders.command(LAUNCH, "/there", bash=True) == ("echo hi",)
    words = replace(LAUNCH, is_shell_line=False, argv=("python", "x.py"))
    assert orders.command(words, "/there", bash=True) == ("python", "x.py")
    script = replace(words, script="abc", argv=("/bin/sh", "/here/abc", "1"))
    assert orders.command(script, "/there", bash=True) == ("bash", "/there/abc", "1")
    assert orders.command(script, "/there", bash=False) == ("sh", "/there/abc", "1")
    program = replace(script, argv=("/here/abc", "1"))
    assert orders.command(program, "/there", bash=True) == ("/there/abc", "1")
