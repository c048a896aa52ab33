"""All Python code in the guide runs and prints the documented output."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from e2e.daemon_fixture import DaemonFixture

GUIDE = (ROOT / "docs" / "python.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```\n```\n(.*?)```\n", GUIDE, re.DOTALL)


def test_every_snippet_has_its_output() -> None:
    assert len(SNIPPETS) == GUIDE.count("```python\n") >= 8


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_prints_the_output_in_the_guide(
    box: DaemonFixture, tmp_path: Path, number: int
) -> None:
    code, printed = SNIPPETS[number]
    script = tmp_path / "snippet.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == (printed, "", 0)
