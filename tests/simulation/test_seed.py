"""Derandomised tests do the same thing in every run, whatever else was imported or ran before."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.json import encode

from specs import spec_of
from stoker.daemon.context import content_hash


def drawn() -> list[int]:
    found: list[int] = []

    @settings(max_examples=200, derandomize=True, database=None)
    @given(st.integers(0, 10**6))
    def note(number: int) -> None:
        found.append(number)

    note()
    return found


def test_what_is_drawn_does_not_depend_on_imported_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = drawn()
    path = tmp_path / "full_of_numbers.py"
    path.write_text(f"NUMBERS = {list(range(1000, 9000, 100))}\n")
    spec = spec_from_file_location("full_of_numbers", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "full_of_numbers", module)
    assert drawn() == before


def test_the_names_of_specs_do_not_depend_on_the_process() -> None:
    program = """
from msgspec.json import encode
from specs import spec_of
from stoker.daemon.context import content_hash
print(content_hash(encode(spec_of())))
"""
    printed = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[1])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    ]
    assert printed == [content_hash(encode(spec_of()))] * 2
