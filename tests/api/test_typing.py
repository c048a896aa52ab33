"""A type checker accepts the API and finds misspelt names."""

import subprocess
import sys
from pathlib import Path

from conftest import ROOT


def test_a_script_is_typed(tmp_path: Path) -> None:
    script = Path(__file__).with_name("typed_script.py")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), str(script)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout
