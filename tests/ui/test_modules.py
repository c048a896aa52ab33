"""The modules of the web page without a browser, and the files that were built from them."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UI = ROOT / "ui"
DIST = ROOT / "src" / "stoker" / "ui" / "dist"
FIRST_LOAD_BYTES = 60_000
ALL_BYTES = 100_000
REPORT_BYTES = 50_000
LOADED_LATER = ("chart-", "history-", "plan-", "settings-")
needs_node = pytest.mark.needs("node", "ui/node_modules/.installed")


def run(*args: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(args, cwd=UI, capture_output=True, text=True, timeout=60, check=False)


def compressed(names: list[str]) -> int:
    return sum(len(gzip.compress((DIST / name).read_bytes(), 9)) for name in names)


def test_the_built_page_belongs_to_its_sources() -> None:
    done = run(sys.executable, "check.py")
    assert done.returncode == 0, done.stderr


def test_a_changed_file_is_found(tmp_path: Path) -> None:
    """The check copes with a tree of its own, so that it is known to fail."""
    for path in [*UI.glob("*.*"), *(UI / "src").rglob("*"), *DIST.iterdir()]:
        if path.is_file():
            target = tmp_path / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    check = str(tmp_path / "ui" / "check.py")
    assert run(sys.executable, check).returncode == 0
    style = next((tmp_path / "src/stoker/ui/dist").glob("*.css"))
    style.write_bytes(style.read_bytes() + b" ")
    assert f"{style.name} was changed" in run(sys.executable, check).stderr
    (tmp_path / "ui" / "src" / "main.tsx").write_text("")
    assert "make ui" in run(sys.executable, check).stderr


def test_types_of_the_api_are_current() -> None:
    done = run(sys.executable, "api_types.py", "--check")
    assert done.returncode == 0, done.stderr


def test_the_page_is_small() -> None:
    names = list(json.loads((DIST / "manifest.json").read_text())["files"])
    reports = [name for name in names if name.startswith("report-")]
    pages = sorted(set(names) - set(reports))
    first = [name for name in pages if not name.startswith(LOADED_LATER)]
    assert 1000 < compressed(first) <= FIRST_LOAD_BYTES
    assert compressed(pages) <= ALL_BYTES
    for name in reports:
        assert compressed([name]) <= REPORT_BYTES


def test_the_page_refers_to_no_other_server() -> None:
    for path in DIST.iterdir():
        text = path.read_text().replace("http://www.w3.org/", "")
        assert "http://" not in text, path
        assert "https://" not in text.replace("https://github.com/leeoniya/uPlot", ""), path


def test_packages_are_exact_and_name_no_registry() -> None:
    lock = json.loads((UI / "package-lock.json").read_text())
    assert not any("resolved" in package for package in lock["packages"].values())
    named = json.loads((UI / "package.json").read_text())
    versions = {**named["dependencies"], **named["devDependencies"]}.values()
    assert all(version[0].isdigit() for version in versions)


@needs_node
def test_modules() -> None:
    done = run("node", "build.mjs", "--tests")
    assert done.returncode == 0, done.stderr
    done = run("node", "--test", *sorted(str(path) for path in (UI / "test-dist").glob("*.mjs")))
    assert done.returncode == 0, done.stdout


@needs_node
def test_types() -> None:
    done = run("node_modules/.bin/tsc")
    assert done.returncode == 0, done.stdout


@needs_node
def test_a_build_gives_the_same_bytes(tmp_path: Path) -> None:
    done = run("node", "build.mjs", "--out", str(tmp_path / "dist"))
    assert done.returncode == 0, done.stderr
    names = {path.name for path in DIST.iterdir()}
    assert names == {path.name for path in (tmp_path / "dist").iterdir()}
    for name in names:
        assert (DIST / name).read_bytes() == (tmp_path / "dist" / name).read_bytes(), name
