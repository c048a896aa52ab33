import os
from pathlib import Path

import pytest

from stoker.cli.options import environment
from stoker.cli.options.submission import build_submission
from stoker.client import submit_environment
from stoker.client.errors import UsageError
from stoker.core.launch import training_env as contract
from stoker.core.model.job import Job
from stoker.core.model.resources import Placement, ResourceRequest
from stoker.core.model.spec import Spec, Training


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(home)
    return home


def what(*argv: str) -> dict[str, object]:
    return dict(build_submission(argv, "submit")[0]["what"])


def test_one_word_that_is_not_a_file_is_a_shell_line(here: Path) -> None:
    assert what("python x | tee y") == {"line": "python x | tee y"}


def test_several_words_are_an_argv(here: Path) -> None:
    assert what("python", "t.py", "--lr", "0.1") == {"argv": ["python", "t.py", "--lr", "0.1"]}


def test_a_file_alone_is_a_script_with_its_directives(here: Path) -> None:
    text = "#!/bin/sh\n#SBATCH --gpus 2 --time 10\necho\n"
    (here / "train.sh").write_text(text)
    body, _ = build_submission(["--time", "20", "train.sh"], "submit")
    assert body["what"] == {"script": text, "script_name": "train.sh", "args": []}
    assert body["options"] == {"gpus": "2", "time": "20", "slurm_env": True}


def test_an_executable_script_alone_is_a_script_too(here: Path) -> None:
    (here / "train.sh").write_text("#!/bin/sh\n#STOKER --gpus 2\n")
    (here / "train.sh").chmod(0o755)
    assert build_submission(["./train.sh"], "submit")[0]["options"] == {"gpus": "2"}
    assert what("./train.sh", "a") == {"argv": ["./train.sh", "a"]}


def test_a_script_that_could_not_be_executed_takes_arguments(here: Path) -> None:
    (here / "train.sh").write_text("echo $1\n")
    assert what("train.sh", "--lr", "1")["args"] == ["--lr", "1"]


def test_a_program_alone_is_run_as_it_is(here: Path) -> None:
    (here / "tool").write_bytes(b"\x7fELF\0\0")
    assert what("tool") == {"argv": [str(here / "tool")]}


def test_a_python_file_without_a_first_line_is_not_given_to_a_shell(here: Path) -> None:
    (here / "t.py").write_text("print()\n")
    with pytest.raises(UsageError, match=r"python t\.py"):
        what("t.py")


def test_each_line_is_a_job_but_for_blanks_and_comments(here: Path) -> None:
    (here / "jobs").write_text("\na 1\n  # no\n b | c \n\n")
    assert what("--each-line", "jobs") == {"lines": ["a 1", "b | c"]}


@pytest.mark.parametrize(
    "argv",
    [[], [""], ["--wrap", "x", "y"], ["--each-line", "/dev/null"]],
)  # fmt: skip
def test_nothing_to_run_or_too_much(here: Path, argv: list[str]) -> None:
    with pytest.raises(UsageError):
        what(*argv)


def test_flags_take_precedence_over_variables_and_variables_over_directives(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "s").write_text("#SBATCH --gpus 1 --time 1 --mem 1G --comment c\n")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "2")
    monkeypatch.setenv("SBATCH_GPUS", "2")
    monkeypatch.setenv("STOKER_GPUS", "3")
    monkeypatch.setenv("SBATCH_MEM_PER_NODE", "2G")
    options = build_submission(["--mem", "4G", "s"], "submit")[0]["options"]
    assert options == {
        "gpus": "3", "time": "2", "mem": "4G", "comment": "c", "slurm_env": True
    }  # fmt: skip


def test_inside_a_job_its_own_variables_are_not_options(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_JOB_ID", "5")
    monkeypatch.setenv("STOKER_GPUS", "4")
    monkeypatch.setenv("STOKER_JOB_NAME", "outer")
    monkeypatch.setenv("STOKER_DEADLINE", "1700000000")
    monkeypatch.setenv("STOKER_TOKEN", "secret")
    body, _ = build_submission(["true"], "submit")
    assert body["options"] == {}
    assert "STOKER_TOKEN" not in body["environment"]
    assert body["environment"]["STOKER_HOME"] == str(here)


def test_slurms_variables_are_those_of_one_job() -> None:
    variables = {"SLURM_NTASKS": "2", "SLURMD_NODENAME": "n1", "SLURM_CLUSTER_NAME": "stoker"}
    inside = {**variables, "STOKER_JOB_ID": "5", "SLURM": "mine"}
    assert environment.job_environment(inside) == {"SLURM": "mine"}
    elsewhere = {**variables, "SLURM_CLUSTER_NAME": "lab", "STOKER_JOB_ID": "5"}
    assert environment.job_environment(elsewhere)["SLURM_NTASKS"] == "2"
    assert environment.job_environment(variables) == variables


def training_variables(distributed: bool, nodes: int = 1) -> set[str]:
    """Return the variables of a training job besides those of every job."""
    training = Training(epochs=3, batch_size=8, set_size=100, distributed=distributed)
    spec = Spec(
        kind="line", user="u", directory="/", shell="sh", environment="", request=ResourceRequest(),
        name="", training=training,
    )  # fmt: skip
    names = tuple(f"n{number}" for number in range(nodes))
    found = contract.training_variables(
        Job(5, "s", "", "u", 1.0), spec, Placement("n0", ()), names, "x-5"
    )
    return {name for name in found if not name.startswith("STOKER_")}


def test_a_job_that_a_training_job_submits_is_another_one() -> None:
    names = (
        training_variables(distributed=True)
        | training_variables(distributed=False)
        | training_variables(distributed=True, nodes=2)
    )
    mine = dict.fromkeys(names, "1") | {"STOKER_JOB_ID": "5", "STOKER_REPORTS": "/h/training/5.0"}
    assert environment.job_environment({**mine, "MINE": "2"}) == {"MINE": "2"}
    assert names <= submit_environment.TRAINING
    # Outside of one, they are as good as any other.
    assert environment.job_environment({"BATCH_SIZE": "8", "JOB_UUID": "x"})["BATCH_SIZE"] == "8"
    outside = {"BATCH_SIZE": "8", "STOKER_JOB_ID": "5"}  # a job that does not train
    assert environment.job_environment(outside) == {"BATCH_SIZE": "8"}


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ("/h/library/1.0-abc:/mine:/h/library", "/mine:/h/library"),
        ("/h/library/1.0-abc", None),
        ("/stoker/lib:/mine", "/mine"),
        ("/mine:/h/library/1.0-abc", "/mine:/h/library/1.0-abc"),
    ],
)
def test_our_copy_of_the_library_is_not_passed_on(path: str, left: str | None) -> None:
    inside = {"STOKER_JOB_ID": "5", "STOKER_REPORTS": "/h/training/5.0", "PYTHONPATH": path}
    assert environment.job_environment(inside).get("PYTHONPATH") == left
    assert environment.job_environment({"PYTHONPATH": path}) == {"PYTHONPATH": path}


def test_variables_given_twice_are_all_sent(here: Path) -> None:
    (here / "s").write_text("#STOKER --env A=1 --env B=1\n")
    options = build_submission(["--env", "A=2", "s"], "submit")[0]["options"]
    assert options == {"env": ["A=1", "B=1", "A=2"]}


def test_the_current_directory_is_sent(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/sh")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("PWD", "/somewhere/else")
    before = os.umask(0o027)
    try:
        body, _ = build_submission(["-D", "sub", "true"], "submit")
    finally:
        os.umask(before)
    assert body["umask"] == 0o027
    assert body["directory"] == str(here)
    assert body["options"]["chdir"] == str(here / "sub")
    assert body["shell"] == "/bin/sh"
    assert "COLUMNS" not in body["environment"]
    assert body["environment"]["PATH"] == os.environ["PATH"]


@pytest.fixture
def gone(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory we are in has been deleted."""
    (here / "gone").mkdir()
    monkeypatch.chdir(here / "gone")
    (here / "gone").rmdir()


def test_from_a_deleted_directory_another_can_be_named(gone: None) -> None:
    body, _ = build_submission(["-D", "/tmp", "true"], "submit")
    assert body["directory"] == body["options"]["chdir"] == "/tmp"


@pytest.mark.parametrize("argv", [["true"], ["-D", "sub", "true"]])
def test_a_deleted_directory_is_reported(gone: None, argv: list[str]) -> None:
    with pytest.raises(UsageError, match="no longer exists"):
        build_submission(argv, "submit")


@pytest.mark.parametrize("word", ["train.sh", "./train", "/no/such", "ls"])
def test_a_single_word_is_a_program(here: Path, word: str) -> None:
    assert what(word) == {"argv": [word]}


@pytest.mark.parametrize("line", ["a.sh;b", "$X/a.sh", "a b.sh", "ls|wc", "~/x{gpu}"])
def test_a_line_of_shell_is_a_line(here: Path, line: str) -> None:
    assert what(line) == {"line": line}


@pytest.mark.parametrize(
    ("text", "why"), [(b"a\n\xff\n", "not valid UTF-8"), (b"a\nb\0\n", "a NUL byte")]
)
def test_a_bad_line_in_a_bulk_is_named(here: Path, text: bytes, why: str) -> None:
    (here / "jobs").write_bytes(text)
    with pytest.raises(UsageError, match=f"Line 2 of jobs .*{why}"):
        what("--each-line", "jobs")


def test_a_linked_directory_keeps_its_name(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "real").mkdir()
    (here / "link").symlink_to(here / "real")
    monkeypatch.chdir(here / "link")
    monkeypatch.setenv("PWD", str(here / "link"))
    assert submit_environment.current_directory() == str(here / "link")


def test_a_missing_shell_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/nosuchshell")
    assert submit_environment.shell() == "/bin/sh"


def test_variables_that_are_not_text_are_left_out_and_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert environment.job_environment({"A": "1", "B": "\udcff"}) == {"A": "1"}
    assert "B" in capsys.readouterr().err


def test_bring_into_is_relative_to_the_current_directory(here: Path) -> None:
    for typed, meant in (("out", f"{here}/out"), ("/x/../y", "/y"), ("~/r", f"{Path.home()}/r")):
        body, _ = build_submission(["--bring-into", typed, "true"], "submit")
        assert body["options"] == {"bring_into": meant}


def test_only_what_was_typed_is_filled_in(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "100%j").mkdir()
    monkeypatch.chdir(here / "100%j")
    body, _ = build_submission(["--bring-into", "res/%a", "true"], "submit")
    assert body["options"] == {"bring_into": f"{here}/100%%j/res/%a"}
