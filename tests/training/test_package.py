"""The library on its own: as a wheel, on old Pythons, quick to import."""

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from stoker import __version__
from training.training_dir import SOURCES, TrainingDir

REPOSITORY = SOURCES.parent
OURS = sorted([*SOURCES.glob("stoker/training/**/*.py"), *SOURCES.glob("kubernetesdlprofile/*.py")])
FRAMEWORKS = {"lightning.py", "keras.py", "transformers.py", "accelerate.py", "sacred.py"}

SCRIPT = """
import sys
from stoker.training import job
from kubernetesdlprofile import kubeprofiler
import stoker.training
api = kubeprofiler.KubeProfiler()
for epoch in job.epochs():
    for batch in job.steps([1, 2, 3]):
        job.report(loss=batch)
assert job.checkpoint is None and job.checkpoint_dir == api.root_dir
print(stoker.training.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build must leave nothing beside the sources."""
    root = tmp_path_factory.mktemp("wheel")
    for part in ("packaging/training", "src/stoker/training", "src/kubernetesdlprofile"):
        shutil.copytree(
            REPOSITORY / part, root / part, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(SOURCES / "stoker/__init__.py", root / "src/stoker/")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(root / "dist")],
        cwd=root / "packaging/training",
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (found,) = (root / "dist").glob("*.whl")
    return found


def test_the_wheel_holds_the_library_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        said = archive.read(metadata).decode()
    assert f"Name: stoker-training\nVersion: {__version__}\n" in said
    assert "Requires-Python: >=3.8" in said
    assert "Requires-Dist" not in said
    assert "stoker/__init__.py" not in names
    expected = {str(path.relative_to(SOURCES)) for path in OURS}
    assert {name for name in names if name.endswith(".py")} == expected


def old_pythons() -> list[str]:
    """Interpreters from 3.8 on that answer: on PATH, or kept by pyenv."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = []
    for minor in (8, 9, 10):
        kept = sorted(versions.glob(f"3.{minor}.*/bin/python"))
        for candidate in (shutil.which(f"python3.{minor}"), *map(str, kept)):
            if candidate is None:
                continue
            asked = subprocess.run(
                [candidate, "-c", "import sys; print(sys.version_info[1])"],
                capture_output=True,
                text=True,
                check=False,
            )
            if asked.stdout.strip() == str(minor):
                found.append(candidate)
                break
    return found


def test_the_wheel_works_from_a_directory_on_the_path_of_every_python_here(
    wheel: Path, tmp_path: Path
) -> None:
    library = tmp_path / "library"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(library)
    for number, python in enumerate([sys.executable, *old_pythons()]):
        training_dir = TrainingDir(tmp_path / str(number), EPOCHS_TO_BE_DONE=2)
        # Without site-packages: there a whole stoker may be installed, which has the library too.
        done = training_dir.run(SCRIPT, "-S", python=python, path=library)
        assert (done.returncode, done.stderr) == (0, ""), python
        assert done.stdout == f"{library}/stoker/training/__init__.py\n"
        assert training_dir.epochs("end") == [0, 1], python


def test_a_directory_with_the_library_beside_a_whole_stoker_harms_neither(
    wheel: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "library")
    training_dir = TrainingDir(tmp_path / "job", EPOCHS_TO_BE_DONE=1)
    done = training_dir.run(f"{SCRIPT}\nimport stoker.core", path=tmp_path / "library")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_every_file_is_python_3_8(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
    first = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    if len(tree.body) > 1:  # more than a docstring
        assert first[0].module == "__future__", "annotations would be read by Python 3.8"
    assert not re.search(r"\.remove(prefix|suffix)\(|zip\(.*strict=", path.read_text())


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_it_imports_the_standard_library_and_itself_only(path: Path) -> None:
    allowed = {*sys.stdlib_module_names, "stoker", "kubernetesdlprofile"}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            if path.name in FRAMEWORKS and name.split(".")[0] == path.stem:
                continue
            assert name.split(".")[0] in allowed
            assert not name.startswith("stoker.") or name.startswith("stoker.training")


def test_importing_it_brings_nothing_heavy_along(training_dir: TrainingDir) -> None:
    done = training_dir.run(
        "import sys\n"
        "before = set(sys.modules)\n"
        "from stoker.training import job\n"
        "job.start_epoch(); job.measure(); job.end_epoch()\n"
        "print(*sorted(set(sys.modules) - before))\n",
        path=SOURCES,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert loaded.isdisjoint({"json", "typing", "threading", "socket", "dataclasses", "logging"})
