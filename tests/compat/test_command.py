"""`stoker compat`: the list, the way in, and the scripts that it writes and removes."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.cli import output
from stoker.compat import wrapper_scripts
from stoker.compat.registry import COMMANDS, ON_PATH
from stoker.main import main

Captured = pytest.CaptureFixture[str]
BESIDE = Path(sys.executable).parent


@pytest.fixture(autouse=True)
def fresh_output() -> Iterator[None]:
    """What the option parser remembers about one command must not reach the next."""
    output.wants_json, output.force_colour = False, None
    yield
    output.wants_json, output.force_colour = False, None


@pytest.fixture
def bin(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of one's own, alone on PATH: this machine may have a `grass`."""
    path = (home.parent / "my bin").resolve()
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    return path


def foreign(directory: Path, name: str = "grass") -> Path:
    """Another program of that name."""
    directory.mkdir(exist_ok=True)
    path = directory.resolve() / name
    path.write_text("#!/bin/sh\necho GIS\n")
    path.chmod(0o755)
    return path


def install(directory: Path, *words: str) -> int:
    return main(["compat", "install", *words, "--dir", str(directory)])


# ---------------------------------------------------------------------------- the list


def test_the_list_shows_which_program_each_command_runs(
    bin: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    gis = foreign(bin.parent / "gis")
    monkeypatch.setenv("PATH", os.pathsep.join([str(gis.parent), str(bin), str(BESIDE)]))
    assert install(bin, "auto") == 0
    capsys.readouterr()
    assert main(["compat"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    heading, *lines = out.splitlines()
    assert heading.split() == ["COMMAND", "ON", "PATH", "WHERE", "DESCRIPTION"]
    assert [line.split()[0] for line in lines] == list(COMMANDS)
    assert any("another program" in line and str(gis) in line for line in lines)
    assert main(["compat", "--json"]) == 0
    found = {
        command["name"]: command for command in json.loads(capsys.readouterr().out)["commands"]
    }
    assert found["grass"] == {
        "name": "grass", "text": COMMANDS["grass"], "path": str(gis), "owner": "other",
    }  # fmt: skip
    assert (found["auto"]["path"], found["auto"]["owner"]) == (str(bin / "auto"), "stoker")
    assert all(found[name]["owner"] == "stoker" for name in ON_PATH)
    assert found["simple_hypersearch"]["path"] == str(BESIDE.resolve() / "simple_hypersearch")


def test_commands_that_are_not_installed_have_no_path(bin: Path, capsys: Captured) -> None:
    assert main(["compat", "--json"]) == 0
    commands = json.loads(capsys.readouterr().out)["commands"]
    assert [(command["path"], command["owner"]) for command in commands] == [(None, None)] * len(
        COMMANDS
    )


def test_a_command_that_leads_to_the_packages_own_is_ours(bin: Path, capsys: Captured) -> None:
    """As with pipx: links in ~/.local/bin to an environment's commands."""
    (bin / "simple_hypersearch").symlink_to(BESIDE / "simple_hypersearch")
    assert main(["compat", "--json"]) == 0
    found = {
        command["name"]: command for command in json.loads(capsys.readouterr().out)["commands"]
    }
    assert found["simple_hypersearch"]["owner"] == "stoker"
    assert install(bin, "simple_hypersearch") == 0
    assert "already exists" in capsys.readouterr().err
    assert (bin / "simple_hypersearch").is_symlink()


# --------------------------------------------------------------------------- the way in


def test_all_arguments_after_the_name_are_passed_to_the_command(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["compat", "simple_hypersearch", "{a}", "-p", "a", "1"]) == 0
    assert capfd.readouterr().out == "1\n"
    assert main(["compat", "simple_hypersearch", "--help"]) == 0
    assert capfd.readouterr().out.startswith("  simple_hypersearch PATTERN")
    assert main(["compat", "simple_hypersearch", "--json"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("simple_hypersearch: There is no option --json.")


@pytest.mark.parametrize(
    ("words", "keyword"),
    [
        (["gras"], "Did you mean grass?"),
        (["xyzzy"], "To list them: stoker compat"),
        (["install", "gras"], "Did you mean grass?"),
        (["instal", "grass"], "Did you mean install?"),
        (["install"], "Name the commands"),
        (["uninstall"], "Name the commands"),
        (["install", "grass", "--all"], "Name the commands"),
        (["--force"], "--force is an option of stoker compat install."),
        (["--all"], "--all is an option of stoker compat install or uninstall."),
        (["uninstall", "--all", "--force"], "--force is an option of stoker compat install."),
        (["install", "--al"], "Did you mean --all?"),
        (["install", "grass", "--dir", ""], "--dir is empty."),
        (["uninstall", "grass", "--dir="], "--dir is empty."),
        (
            ["--quick", "auto", "status"],
            "after the name of the command: stoker compat auto --quick",
        ),
    ],
)
def test_invalid_arguments_are_refused(
    home: Path, capsys: Captured, words: list[str], keyword: str
) -> None:
    assert main(["compat", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert keyword in err
    assert not any(home.iterdir())


def test_errors_are_json_with_the_json_option(home: Path, capsys: Captured) -> None:
    assert main(["compat", "--json", "install", "gras"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["exit"] == 2


# ------------------------------------------------------------------------------ install


def test_a_script_runs_the_command_with_the_stoker_that_wrote_it(
    bin: Path, tmp_path: Path, capsys: Captured
) -> None:
    assert install(bin, "simple_hypersearch") == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"stoker: wrote {bin}/simple_hypersearch\n")
    (tmp_path / "stoker.py").write_text("raise SystemExit('the wrong stoker')")
    done = subprocess.run(
        ["simple_hypersearch", "{a}|{b}", "-p", "a", "x  y", "-p", "b", "$HOME *"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("x  y|$HOME *\n", "", 0)


def test_an_interpreter_with_an_awkward_path(
    bin: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = home.parent / 'it\'s an $odd "place"'
    odd.mkdir()
    python = odd / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(python))
        assert install(bin, "grass") == 0
    said = subprocess.check_output([bin / "grass", "a b", "--json"], text=True)
    assert said.splitlines() == ["-P", "-m", "stoker", "compat", "grass", "a b", "--json"]


def test_all_of_them_but_not_what_the_package_brought(
    bin: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join([str(bin), str(BESIDE)]))
    assert install(bin, "--all", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["written"] == [str(bin / "grass"), str(bin / "auto")]
    assert told["already"] == [str(BESIDE.resolve() / name) for name in ON_PATH]
    assert told["on_path"] is True
    assert sorted(path.name for path in bin.iterdir()) == ["auto", "grass"]


def test_slurms_commands_are_not_installed(bin: Path, capsys: Captured) -> None:
    assert install(bin, "slurm") == 2
    assert 'type: eval "$(stoker compat slurm)"' in capsys.readouterr().err
    assert list(bin.iterdir()) == []


def test_installing_twice_changes_nothing(bin: Path, capsys: Captured) -> None:
    assert install(bin, "grass") == 0
    before = (bin / "grass").stat()
    capsys.readouterr()
    assert install(bin, "grass", "grass") == 0
    assert "already exists" in capsys.readouterr().err
    assert (bin / "grass").stat().st_ino == before.st_ino


def test_a_newer_stoker_replaces_its_own_script(
    bin: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    assert install(bin, "grass") == 0
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/another/python")
        assert install(bin, "grass") == 0
    assert "/another/python" in (bin / "grass").read_text()
    assert main(["compat", "uninstall", "grass"]) == 0
    assert not any(bin.iterdir())


def test_another_program_of_that_name_is_not_hidden(
    bin: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    gis = foreign(bin.parent / "gis")
    monkeypatch.setenv("PATH", os.pathsep.join([str(bin), str(gis.parent)]))
    assert install(bin, "auto", "grass") == 1
    err = capsys.readouterr().err
    assert f"grass is another program here: {gis}." in err
    assert "--force" in err
    assert not any(bin.iterdir()), "all or nothing"
    assert install(bin, "auto", "grass", "--force") == 0
    assert f"grass now runs this command; {gis} still exists" in capsys.readouterr().err
    assert "GIS" in gis.read_text()
    assert shutil.which("grass") == str(bin / "grass")


def test_a_command_earlier_on_path_is_reported(
    bin: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    gis = foreign(bin.parent / "gis")
    monkeypatch.setenv("PATH", os.pathsep.join([str(gis.parent), str(bin)]))
    assert install(bin, "grass", "--force") == 0
    assert f"grass still runs {gis}" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "directory"])
def test_a_file_of_another_program_is_never_overwritten(
    bin: Path, capsys: Captured, kind: str
) -> None:
    target = bin / "grass"
    other = foreign(bin.parent / "gis")
    if kind == "file":
        foreign(bin)
    elif kind == "directory":
        target.mkdir()
    else:
        target.symlink_to(other if kind == "link" else "nowhere")
    before = target.lstat()
    assert install(bin, "auto", "grass", "--force") == 1
    assert f"{target} exists and is not stoker's." in capsys.readouterr().err
    after = target.lstat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert sorted(path.name for path in bin.iterdir()) == ["grass"]


def test_a_script_that_was_changed_is_not_overwritten(bin: Path, capsys: Captured) -> None:
    assert install(bin, "grass") == 0
    with (bin / "grass").open("a") as file:
        file.write("# mine\n")
    assert install(bin, "grass", "--force") == 1
    assert "has been changed since stoker wrote it" in capsys.readouterr().err
    assert (bin / "grass").read_text().endswith("# mine\n")


def test_when_a_directory_cannot_be_written_to_nothing_is_left(
    bin: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    opened = os.open

    def fail_at_the_second(path: str, *more: int) -> int:
        if "auto" in str(path):
            raise OSError(28, "No space left on device", path)
        return opened(path, *more)

    monkeypatch.setattr(wrapper_scripts.os, "open", fail_at_the_second)
    assert install(bin, "grass", "auto") == 1
    assert "No space left on device" in capsys.readouterr().err
    assert not any(bin.iterdir())


def test_a_script_of_an_older_version_is_replaced(
    bin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(wrapper_scripts, "SCRIPT", wrapper_scripts.SCRIPT + "# older\n")
        assert install(bin, "grass") == 0
    assert install(bin, "grass") == 0
    assert "# older" not in (bin / "grass").read_text()
    assert os.access(bin / "grass", os.X_OK)


def test_a_directory_that_cannot_be_one(bin: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "file").touch()
    assert install(tmp_path / "file" / "bin", "grass") == 1
    assert "Not a directory" in capsys.readouterr().err


# --------------------------------------------------------------------------- where it goes


def test_it_goes_where_the_stoker_that_was_typed_is(
    bin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bin / "stoker").touch()
    monkeypatch.setattr(sys, "argv", [str(bin / "stoker"), "compat", "install", "grass"])
    assert main(["compat", "install", "grass"]) == 0
    assert (bin / "grass").exists()


def test_without_a_writable_directory_it_goes_to_local_bin(
    bin: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(bin / "python"))
        assert main(["compat", "install", "grass"]) == 0
    local = (Path.home() / ".local" / "bin").resolve()
    assert os.access(local / "grass", os.X_OK)
    err = capsys.readouterr().err
    assert f"stoker: {local} is not on your PATH." in err
    line = err.partition("Add it: ")[2]
    found = subprocess.check_output(
        ["/bin/sh", "-c", line + "\ncommand -v grass"], text=True, env={**os.environ}
    )
    assert found == f"{local}/grass\n"


# ---------------------------------------------------------------------------- uninstall


def test_what_was_written_is_removed_and_nothing_else(bin: Path, capsys: Captured) -> None:
    foreign(bin, "other")
    assert install(bin, "grass", "auto") == 0
    capsys.readouterr()
    assert main(["compat", "uninstall", "grass"]) == 0
    assert capsys.readouterr().err == f"stoker: removed {bin}/grass\n"
    assert sorted(path.name for path in bin.iterdir()) == ["auto", "other"]
    assert main(["compat", "uninstall", "--all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"removed": [str(bin / "auto")], "left": []}
    assert [path.name for path in bin.iterdir()] == ["other"]
    assert main(["compat", "uninstall", "--all"]) == 0
    assert "nothing to remove" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["changed", "linked"])
def test_a_changed_script_is_left_alone(bin: Path, capsys: Captured, how: str) -> None:
    assert install(bin, "grass", "auto") == 0
    target = bin / "grass"
    if how == "changed":
        target.write_text(target.read_text() + "# mine\n")
    else:
        target.rename(bin / "elsewhere")
        target.symlink_to("elsewhere")
    assert main(["compat", "uninstall", "--all"]) == 1
    assert f"kept {target}" in capsys.readouterr().err
    assert target.exists()
    assert not (bin / "auto").exists()


def test_a_script_that_another_program_replaced_is_left_alone(bin: Path) -> None:
    assert install(bin, "grass") == 0
    (bin / "grass").unlink()
    other = foreign(bin)
    assert main(["compat", "uninstall", "--all"]) == 0
    assert "GIS" in other.read_text()


def test_uninstall_with_a_directory_removes_only_there(bin: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path.resolve() / "new" / "directory"
    assert install(bin, "grass") == 0
    assert install(elsewhere, "grass") == 0
    assert main(["compat", "uninstall", "grass", "--dir", str(elsewhere)]) == 0
    assert (bin / "grass").exists()
    assert not (elsewhere / "grass").exists()


def test_uninstalling_what_was_not_installed_fails(
    bin: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    assert main(["compat", "uninstall", "grass"]) == 1
    assert "grass was not installed by stoker." in capsys.readouterr().err
    foreign(bin)
    assert main(["compat", "uninstall", "grass"]) == 1
    assert f"{bin}/grass is another program." in capsys.readouterr().err
    assert main(["compat", "uninstall", "grass", "--dir", str(bin)]) == 1
    assert f"not installed in {bin} by stoker" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(BESIDE))
    assert main(["compat", "uninstall", "simple_hypersearch"]) == 1
    assert "`pip uninstall stoker` removes it" in capsys.readouterr().err
    assert (BESIDE / "simple_hypersearch").exists()


# --------------------------------------------------------------------------- completion


def offered(capsys: Captured, *words: str) -> list[str]:
    assert main(["__complete", "compat", *words]) == 0
    return [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()]


def test_completion(home: Path, capsys: Captured) -> None:
    assert offered(capsys, "") == [*COMMANDS, "install", "uninstall"]
    assert offered(capsys, "install", "simple_gpu_") == [
        "simple_gpu_scheduler",
        "simple_gpu_submit",
    ]
    assert offered(capsys, "install", "--f") == ["--force"]
    assert offered(capsys, "install", "grass", "--dir", "x") == ["@files"]
    assert offered(capsys, "grass", "--") == ["@files"]
