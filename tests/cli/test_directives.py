import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.options.directives import read_directives
from stoker.client.errors import StokerError, UsageError

SCRIPT = """#!/bin/bash
# a comment
#SBATCH --job-name=train   # not part of it
#SBATCH -t 10 -G 2
#SBATCH --switches=1 --hint nomultithread --mem 4G
##SBATCH --mem=8G

#STOKER --gpus 1 --label 'two words'
#\tindented comment
echo hello
#SBATCH --time=99
"""


def test_lines_before_the_first_command_are_read() -> None:
    args, unknown = read_directives(SCRIPT)
    assert args.values == {
        "name": "train", "time": "10", "gpus": "1", "mem": "4G", "label": ["two words"],
        "slurm_env": True,
    }  # fmt: skip
    assert unknown == ["--switches", "--hint"]


@pytest.mark.parametrize(
    ("option", "meant"),
    [("--tiem=10", "--time"), ("--gpu=2", "--gpus"), ("--nodelst=a", "--nodelist"), ("-Z", None)],
)
def test_an_option_that_sbatch_does_not_have_is_an_error(option: str, meant: str | None) -> None:
    with pytest.raises(UsageError, match=option.partition("=")[0]) as error:
        read_directives(f"#!/bin/sh\n#SBATCH {option}\ntrue\n")
    if meant is not None:
        assert f"Did you mean {meant}?" in error.value.message


def test_a_word_that_is_not_an_option_is_an_error() -> None:
    with pytest.raises(UsageError, match="'gpus=2'"):
        read_directives("#SBATCH gpus=2\n")


def test_only_sbatch_lines_ask_for_slurm_variables() -> None:
    assert "slurm_env" not in read_directives("#STOKER --gpus 1\n")[0].values
    assert read_directives("#SBATCH -G 1\n#STOKER --no-slurm-env\n")[0].flag("no_slurm_env")


def test_strict_refuses_options_without_effect() -> None:
    with pytest.raises(UsageError, match="--switches --hint"):
        read_directives(SCRIPT, strict=True)


@pytest.mark.parametrize("line", ["#STOKER --gpsu 1", "#STOKER gpus=1", "#STOKER --gpus"])
def test_a_mistake_in_our_own_lines_is_an_error(line: str) -> None:
    with pytest.raises(UsageError, match="In a #STOKER line"):
        read_directives(f"#!/bin/sh\n{line}\n")


def test_a_quote_that_does_not_end_is_named() -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_directives("#SBATCH --comment='oops\n")


def test_only_the_beginning_of_a_long_file_is_read() -> None:
    filler = "# x\n" * 9000
    assert read_directives(filler + "#SBATCH --gpus 1\n")[0].values == {}


def test_a_tab_may_follow_the_mark() -> None:
    assert read_directives("#SBATCH\t--gpus=1\n")[0].values == {"gpus": "1", "slurm_env": True}


@given(st.text() | st.text().map(lambda text: "#SBATCH " + text.replace("\n", "\n#SBATCH ")))
def test_no_script_breaks_the_reader(text: str) -> None:
    with contextlib.suppress(StokerError):
        read_directives(text)
