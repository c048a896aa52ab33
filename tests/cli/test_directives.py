import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.directives import read
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
    args, unknown = read(SCRIPT)
    assert args.values == {
        "name": "train", "time": "10", "gpus": "1", "mem": "4G", "label": ["two words"]
    }  # fmt: skip
    assert unknown == ["--switches", "--hint"]


def test_strict_refuses_what_slurm_knows_and_we_do_not() -> None:
    with pytest.raises(UsageError, match="--switches --hint"):
        read(SCRIPT, strict=True)


@pytest.mark.parametrize("line", ["#STOKER --gpsu 1", "#STOKER gpus=1", "#STOKER --gpus"])
def test_a_mistake_in_our_own_lines_is_an_error(line: str) -> None:
    with pytest.raises(UsageError, match="In a #STOKER line"):
        read(f"#!/bin/sh\n{line}\n")


def test_a_quote_that_does_not_end_is_named() -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read("#SBATCH --comment='oops\n")


def test_only_the_beginning_of_a_long_file_is_read() -> None:
    filler = "# x\n" * 9000
    assert read(filler + "#SBATCH --gpus 1\n")[0].values == {}


def test_a_tab_may_follow_the_mark() -> None:
    assert read("#SBATCH\t--gpus=1\n")[0].values == {"gpus": "1"}


@given(st.text() | st.text().map(lambda text: "#SBATCH " + text.replace("\n", "\n#SBATCH ")))
def test_no_script_breaks_the_reader(text: str) -> None:
    with contextlib.suppress(StokerError):
        read(text)
