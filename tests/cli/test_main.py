import errno
import json
import os
from pathlib import Path

import pytest

from client.fake_daemon import FakeDaemon
from stoker import __version__, places
from stoker.cli.verbs import ALIASES, MODULES, VERBS
from stoker.main import main

Captured = pytest.CaptureFixture[str]


def test_version(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"stoker {__version__}\n"


def test_help_names_every_verb(capsys: Captured) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {verb}" in text for verb in VERBS)


@pytest.mark.parametrize("verb", [verb for verb in [*VERBS, *ALIASES] if verb != "feed"])
def test_every_verb_has_help(verb: str, capsys: Captured) -> None:
    assert main(["help", verb]) == 0
    first = capsys.readouterr().out
    assert main([verb, "--help"]) == 0
    assert capsys.readouterr().out == first
    assert first.startswith("  stoker ")
    assert "--json" in first
    assert all(len(line) <= 100 for line in first.splitlines())


def test_help_of_an_action_is_that_of_its_verb(capsys: Captured) -> None:
    assert main(["nodes", "add", "lab", "slurm://", "--help"]) == 0
    assert capsys.readouterr().out.startswith("  stoker nodes ")
    assert main(["nodes", "add", "--", "--help"]) == 2


def test_the_verb_is_the_address() -> None:
    for verb in VERBS:
        if verb not in {"feed", "compat"}:
            assert MODULES[verb].endswith(f".{verb.replace('-', '_')}")


def test_a_mistyped_verb_gets_a_guess(capsys: Captured) -> None:
    assert main(["sumbit"]) == 2
    assert "Did you mean `stoker submit`?" in capsys.readouterr().err


def test_an_error_is_one_line_on_stderr(home: Path, capsys: Captured) -> None:
    assert main(["show", "5"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("stoker: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("argv", [["show", "5", "--json"], ["show", "--json", "--bogus"]])
def test_with_json_an_error_is_json_on_stdout(
    home: Path, capsys: Captured, argv: list[str]
) -> None:
    code = main(argv)
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out)["error"]["exit"] == code


def test_a_jobs_own_json_flag_is_not_ours(fake: FakeDaemon, capsys: Captured) -> None:
    error = {"code": "impossible", "message": "No.", "exit": 6}
    fake.answers["POST /v1/jobs"] = (422, {"error": error})
    assert main(["submit", "tool", "--json"]) == 6
    assert capsys.readouterr().err == "stoker: No.\n"
    assert main(["submit", "--json", "tool"]) == 6
    assert json.loads(capsys.readouterr().out) == {"error": error}


def test_a_submission_may_be_queued_if_every_daemon_dies(
    fake: FakeDaemon, capsys: Captured
) -> None:
    fake.answers["POST /v1/jobs"] = lambda _: None
    assert main(["submit", "tool"]) == 4
    assert capsys.readouterr().err == (
        "stoker: The daemon ended while it was replying. "
        "It may be queued: look with `stoker queue` before you submit it again.\n"
    )


def test_interrupting_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("stoker.cli.inspect.queue.main", interrupt)
    assert main([]) == 130
    assert capsys.readouterr() == ("", "")


def test_an_unreadable_file_is_reported_in_one_line(home: Path, capsys: Captured) -> None:
    sentence = "stoker: /no/such/file cannot be read: No such file or directory.\n"
    for argv in (["submit", "--each-line", "/no/such/file"], ["feed", "/no/such/file"]):
        assert main(argv) == 2
        assert capsys.readouterr().err == sentence


def test_a_directory_of_another_user_is_reported_in_one_line(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    (home / "state").mkdir()
    Path(places.state_dir()).mkdir()
    Path(places.state_dir()).chmod(0o777)
    assert main(["submit", "true"]) == 5
    assert "chmod 700" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["", "submit true", "daemon start", "gpus", "show 1", "feed"])
def test_the_home_of_another_user_is_reported_and_starts_no_daemon(
    verb: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    assert main(verb.split()) == 5
    assert capsys.readouterr().err.count("\n") == 1
    assert not any(home.iterdir())


def test_a_full_disk_has_an_exit_code_of_its_own(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def full(path: str, mode: int = 0o777) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(os, "mkdir", full)
    assert main(["submit", "true"]) == 7
    assert capsys.readouterr().err.endswith("No space left on device. Free some space.\n")
