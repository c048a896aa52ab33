"""Calls in a folder that other users can write to: their files are never executed."""

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import stoker
from e2e.daemon_fixture import DaemonFixture
from e2e.other_users import as_user
from stoker.api import Client
from stoker.api.calls import call_runner as call
from stoker.api.calls import result_files
from stoker.api.calls.parameters import Settings
from stoker.api.calls.result_files import Call, CallBatch, Outcome
from stoker.client.errors import PermissionDenied

cloudpickle.register_pickle_by_value(sys.modules[__name__])
ROOT_ONLY = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")


class Evil:
    """Leaves a file where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (open, (str(self.mark), "w"))


def twice(number: int) -> int:
    return 2 * number


def fails() -> None:
    raise LookupError("as it should")


class Bench:
    """A folder of another user, and calls in it."""

    def __init__(self, base: Path) -> None:
        self.base, self.mark = base / "shared", base / "mark"
        self.base.mkdir()
        self.base.chmod(0o777)
        self.evil = f"open({str(self.mark)!r}, 'w')\n"

    def write(
        self, function: Callable[..., Any] = twice, *args: object, inside: bool = False
    ) -> CallBatch:
        directory = str(self.base.parent) if inside else "/nowhere"
        calls = [Call(function, args or (21,))]
        if function is fails:
            calls = [Call(fails)]
        return result_files.write_calls(
            str(self.base), directory, os.urandom(6).hex(), calls, Settings(options={})
        )

    def run(self, batch: CallBatch, *python: str) -> "subprocess.CompletedProcess[str]":
        """Run a call as the daemon does."""
        argv = batch.what.get("argv")
        words = ["sh", "-c", str(batch.what.get("line"))] if argv is None else list(argv)  # type: ignore[call-overload]
        if python:
            words[1:1] = python
        return subprocess.run(
            words, env={**os.environ, **batch.variables}, cwd=self.base.parent,
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip

    def outcome(self, batch: CallBatch) -> Outcome | None:
        return result_files.read_outcome(Path(batch.folder, "0.result"), "5")

    def refused(self, batch: CallBatch) -> str:
        """Run a call that must not run; return what it says."""
        done = self.run(batch)
        assert done.returncode == 1
        assert not self.mark.exists(), "it was executed"
        found = self.outcome(batch)
        return done.stderr + str(found.error if found else "")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    return Bench(tmp_path)


def runner_of(batch: CallBatch) -> Path:
    """Return the copy of the runner that a call has."""
    (found,) = Path(batch.folder).glob("call.*.py")
    return found


@pytest.mark.parametrize("inside", [False, True])
def test_a_planted_runner_is_not_run(bench: Bench, inside: bool) -> None:
    name = runner_of(bench.write()).name
    (bench.base / name).write_text(bench.evil)
    batch = bench.write(inside=inside)
    done = bench.run(batch)
    assert (done.returncode, done.stderr) == (0, "")
    assert bench.outcome(batch) == Outcome(42)
    assert not bench.mark.exists()


@pytest.mark.parametrize("inside", [False, True])
def test_planted_modules_are_not_imported(bench: Bench, inside: bool) -> None:
    modules = (
        "hashlib",
        "_blake2",
        "_pickle",
        "pickle",
        "signal",
        "traceback",
        "cloudpickle",
        "os",
    )
    batch = bench.write(fails, inside=inside)
    for place in (bench.base, Path(batch.folder)):
        for name in modules:
            (place / f"{name}.py").write_text(bench.evil)
    shutil.copytree(
        bench.base, bench.base / "library", ignore=lambda *_: [os.path.basename(batch.folder)]
    )
    bench.run(batch)
    found = bench.outcome(batch)
    assert found is not None
    assert isinstance(found.error, LookupError)
    assert not bench.mark.exists()


@pytest.mark.parametrize("inside", [False, True])
def test_a_runner_that_was_changed_after_the_submission_is_not_run(
    bench: Bench, inside: bool
) -> None:
    batch = bench.write(inside=inside)
    runner_of(batch).write_text(bench.evil)
    assert "was changed; it is not run" in bench.refused(batch)


@pytest.mark.parametrize("name", ["settings", "0.task"])
def test_what_was_not_written_by_the_submitter_is_not_unpickled(bench: Bench, name: str) -> None:
    batch = bench.write()
    path = Path(batch.folder, name)
    for seal in (b"", bytes(call.SEAL_BYTES)):
        path.write_bytes(pickle.dumps(Evil(bench.mark)) + seal)
        assert f"{name} was changed by another program" in bench.refused(batch)
    path.unlink()
    os.mkfifo(path)
    bench.refused(batch)


def test_a_function_that_calls_share_is_sealed_too(bench: Bench) -> None:
    calls = [Call(twice, (number,)) for number in range(2)]
    batch = result_files.write_calls(
        str(bench.base), "/nowhere", "key", calls, Settings(options={})
    )
    assert bench.run(batch).returncode == 0
    Path(batch.folder, "function").write_bytes(pickle.dumps(Evil(bench.mark)) + bytes(32))
    assert "function was changed" in bench.refused(batch)


def test_files_of_one_call_are_rejected_for_another(bench: Bench) -> None:
    first, second = bench.write(twice, 1), bench.write(twice, 2)
    shutil.copy(Path(first.folder, "0.task"), Path(second.folder, "0.task"))
    assert "0.task was changed" in bench.refused(second)
    shutil.rmtree(second.folder)
    os.rename(first.folder, second.folder)
    assert "settings was changed" in bench.refused(second)


def test_without_a_key_nothing_is_unpickled(bench: Bench) -> None:
    batch = bench.write()
    forged = call.CallFolder(batch.folder, b"")
    Path(batch.folder, "settings").write_bytes(
        (body := pickle.dumps(Evil(bench.mark))) + forged.seal("settings", body)
    )
    bench.refused(CallBatch(batch.folder, batch.what, batch.is_uploaded))


def swap(folder: str) -> int:
    """Have another directory where the call was."""
    os.rename(folder, folder + ".away")
    os.mkdir(folder)
    return 1


def test_a_result_is_not_written_to_a_folder_that_was_exchanged(bench: Bench) -> None:
    batch = result_files.write_calls(
        str(bench.base), "/nowhere", "key", [Call(swap, (str(bench.base / "key"),))],
        Settings(options={}),
    )  # fmt: skip
    done = bench.run(batch)
    assert done.returncode == 1
    assert "was replaced while the call ran" in done.stderr
    assert os.listdir(batch.folder) == []


def test_what_a_call_saves_is_sealed_for_the_next_attempt(bench: Bench) -> None:
    batch = bench.write()
    folder = call.CallFolder(batch.folder, bytes.fromhex(batch.variables[call.KEY_VARIABLE]))
    call.CallRunner(folder, "0").save((twice, (4,), {}))
    assert bench.run(batch).returncode == 0
    assert bench.outcome(batch) == Outcome(8)


def planted(bench: Bench, batch: CallBatch) -> None:
    """Have a result that leaves a file when it is read."""
    head = {"kind": "value", "what": "", "traceback": ""}
    data = pickle.dumps(head) + pickle.dumps(Evil(bench.mark))
    Path(batch.folder, "0.result").write_bytes(data)


@pytest.mark.parametrize("how", ["all", "group", "link", "file", "owner"])
def test_a_result_that_others_may_have_written_is_not_unpickled(
    bench: Bench, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = bench.write()
    planted(bench, batch)
    folder = Path(batch.folder)
    if how in ("all", "group"):
        folder.chmod(0o777 if how == "all" else 0o770)
    elif how == "link":
        folder.rename(bench.base / "away")
        folder.symlink_to(bench.base / "away")
    elif how == "file":
        folder.rename(bench.base / "away")
        (folder.parent / folder.name).symlink_to(bench.base / "away" / "0.result")
    else:
        real = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: real + 1)
    found = bench.outcome(batch)
    assert found is not None
    assert isinstance(found.error, PermissionDenied)
    assert "is not used" in str(found.error)
    assert not bench.mark.exists()


def test_a_result_that_is_a_link_is_not_read(bench: Bench) -> None:
    batch = bench.write()
    planted(bench, batch)
    Path(batch.folder, "0.result").rename(bench.base / "elsewhere")
    Path(batch.folder, "0.result").symlink_to(bench.base / "elsewhere")
    found = bench.outcome(batch)
    assert found is not None
    assert isinstance(found.error, PermissionDenied)
    assert not bench.mark.exists()


def test_a_python_without_cloudpickle_borrows_ours_and_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_files, "_search_path", lambda _: [])
    calls = [Call(twice, (21,))]
    where = str(bench.base.parent)
    batch = result_files.write_calls(str(bench.base), where, "key", calls, Settings(options={}))
    path = Path(batch.folder, "library")
    line = str(batch.what["line"]).replace('exec "$p" ', 'exec "$p" -S ')
    bare = CallBatch(batch.folder, {"line": line}, True, batch.variables)
    done = bench.run(bare)
    assert (done.returncode, done.stderr) == (0, "")
    assert bench.outcome(batch) == Outcome(42)
    path.write_bytes(pickle.dumps(Evil(bench.mark)))
    assert "library was changed" in bench.refused(bare)


def test_a_folder_of_ours_is_not_used_if_it_is_exchanged_while_it_is_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.mkdir

    def exchanged(path: Any, mode: int = 0o777, **more: Any) -> None:
        real(path, 0o777, **more)
        os.chmod(path, 0o777)

    monkeypatch.setattr(os, "mkdir", exchanged)
    (bench.base.parent / "home").mkdir()
    monkeypatch.setattr(result_files, "_load_key", lambda: "ab" * 32)
    with pytest.raises(PermissionDenied):
        bench.write()


def test_the_key_is_private_and_stays_the_same(bench: Bench) -> None:
    first, second = bench.write(), bench.write()
    assert first.variables == second.variables
    path = Path(result_files.default_folder(), "key")
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0
    path.write_text("short")
    with pytest.raises(stoker.UsageError, match="is damaged"):
        bench.write()


# -- a real daemon, and a real other user --------------------------------------------------------


def test_the_key_is_in_no_reply_and_not_in_the_environment_of_the_function(
    executor: stoker.Executor,
) -> None:
    future = executor.submit(os.environ.get, call.KEY_VARIABLE)
    assert future.result(30) is None
    key = Path(result_files.default_folder(), "key").read_text()
    assert key not in str(future.job.raw)
    assert key not in str(future.paths)


@ROOT_ONLY
def test_another_user_cannot_have_code_run_through_a_shared_folder(
    box: DaemonFixture, client: Client, tmp_path: Path
) -> None:
    shared = box.user.parent / "shared"
    shared.mkdir()
    for path in (box.user.parent, shared):
        path.chmod(0o777)
    mark = shared / "mark"
    executor = stoker.Executor(shared, client=client, hold=True)
    name = runner_of(
        result_files.write_calls(
            str(shared), "/nowhere", "k", [Call(twice, (1,))], Settings(options={})
        )
    ).name
    evil = f"import os\nopen({str(mark)!r}, 'w').write(str(os.getuid()))\n"
    as_user(65534, lambda: str((shared / name).write_text(evil)))
    good, bad = executor.submit(twice, 21), executor.submit(twice, 5)

    def exchange() -> str:
        """What another user can do while the job waits."""
        folder = bad.paths.folder
        os.rename(folder, f"{folder}.away")
        os.mkdir(folder, 0o777)
        (folder / name).write_text(evil)
        for each in ("settings", "0.task", "0.result"):
            (folder / each).write_bytes(pickle.dumps(Evil(mark)))
        for path in folder.iterdir():
            path.chmod(0o666)
        return "done"

    assert bad.paths.folder.name
    assert as_user(65534, exchange) == "done"
    client.release([good, bad])
    assert good.result(30) == 42
    with pytest.raises((stoker.JobFailed, PermissionDenied)):
        bad.result(30)
    assert not mark.exists()
