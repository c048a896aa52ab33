"""Calls as jobs, with a real daemon."""

import concurrent.futures
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, as_completed
from pathlib import Path

import cloudpickle
import pytest

import stoker
from e2e.daemon_fixture import DaemonFixture, until
from stoker.api.calls import watcher
from stoker.api.errors import NotPicklable

cloudpickle.register_pickle_by_value(sys.modules[__name__])
SOON = 30.0


class Odd(Exception):
    def __init__(self, one: int, other: int) -> None:
        super().__init__(one)
        self.other = other


class Own(Exception):
    pass


def add(one: int, other: int = 10) -> int:
    print("adding", one, other)
    return one + other


def fail(text: str) -> None:
    raise Own(text, 3)


def wait_for(path: Path) -> str:
    while not path.exists():
        time.sleep(0.02)
    return "done"


# ---------------------------------------------------------------------------------- one call


def test_a_call_returns_its_value(executor: stoker.Executor) -> None:
    future = executor.submit(add, 1, other=2)
    assert future.result(SOON) == 3
    assert future.exception() is None
    assert (future.done(), future.running(), future.cancelled()) == (True, False, False)
    assert future.state == "COMPLETED"
    assert future.stdout() == "adding 1 2\n"
    assert future.stderr() is None
    assert isinstance(future, concurrent.futures.Future)
    job = future.job
    assert (job.name, job.exit_code, job.finished, job.ok) == ("add", 0, True, True)
    assert job.ended_at is not None
    assert job.submitted_at is not None
    assert job.ended_at > job.submitted_at


def test_its_files_are_private(executor: stoker.Executor) -> None:
    future = executor.submit(add, 1)
    assert future.result(SOON) == 11
    folder = future.paths.folder
    assert folder.stat().st_mode & 0o077 == 0
    assert folder.parent.stat().st_mode & 0o077 == 0
    assert future.paths.result_pickle.exists()
    assert not list(folder.glob("*.new"))


def test_a_call_has_the_requested_gpus(executor: stoker.Executor) -> None:
    executor.update_parameters(gpus_per_node=2)
    visible = executor.submit(os.getenv, "CUDA_VISIBLE_DEVICES").result(SOON)
    assert visible is not None
    assert len(visible.split(",")) == 2


def test_functions_made_on_the_spot_and_modules_beside_the_script(
    executor: stoker.Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside.py").write_text("def seven(): return 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    import beside  # type: ignore[import-not-found]

    factor = 6
    calls = [executor.submit(lambda: factor * 7), executor.submit(beside.seven)]
    assert [call.result(SOON) for call in calls] == [42, 7]


def test_what_it_raises_comes_back_as_it_was_with_the_traceback(
    executor: stoker.Executor,
) -> None:
    future = executor.submit(fail, "no")
    with pytest.raises(Own) as caught:
        future.result(SOON)
    assert caught.value.args == ("no", 3)
    cause = str(caught.value.__cause__)
    assert "Traceback" in cause
    assert "in fail" in cause
    assert "call." not in cause, "our own frames are nobody's business"
    assert future.exception() is caught.value
    assert (future.state, future.job.exit_code) == ("FAILED", 1)
    assert "in fail" in (future.stdout() or "")


def test_an_exception_that_cannot_be_made_from_its_args_comes_back(
    executor: stoker.Executor,
) -> None:
    def raises() -> None:
        raise Odd(1, 2)

    with pytest.raises(Odd) as caught:
        executor.submit(raises).result(SOON)
    assert (caught.value.args, caught.value.other) == ((1,), 2)
    assert "in raises" in str(caught.value.__cause__)


def test_a_call_that_cannot_be_pickled_is_rejected(executor: stoker.Executor) -> None:
    def raises() -> None:
        raise Own(threading.Lock())

    results = executor.map_array(lambda function: function(), [raises, threading.Lock])
    with pytest.raises(NotPicklable, match=r"cannot be pickled.*Own: <unlocked") as caught:
        results[0].result(SOON)
    assert "in raises" in str(caught.value.__cause__)
    with pytest.raises(NotPicklable, match="lock"):
        results[1].result(SOON)


def test_a_call_that_cannot_be_pickled_is_not_submitted(executor: stoker.Executor) -> None:
    executor.submit(add, 1).result(SOON)
    before = set(Path(stoker.api.calls.result_files.default_folder()).iterdir())
    with pytest.raises(NotPicklable, match="open files, connections"):
        executor.submit(print, threading.Lock())
    assert set(Path(stoker.api.calls.result_files.default_folder()).iterdir()) == before


def test_a_job_without_a_result_raises_its_cause(executor: stoker.Executor) -> None:
    def die() -> None:
        print("last words", flush=True)
        os.kill(os.getpid(), 9)

    future = executor.submit(die)
    with pytest.raises(stoker.JobFailed, match="FAILED: killed by SIGKILL") as caught:
        future.result(SOON)
    assert (caught.value.state, caught.value.exit_code) == ("FAILED", 137)
    assert caught.value.lines == ("last words",)
    assert caught.value.job_id == future.job_id


def test_a_call_that_takes_too_long(executor: stoker.Executor) -> None:
    executor.update_parameters(time="1s")
    with pytest.raises(stoker.JobFailed) as caught:
        executor.submit(time.sleep, 60).result(SOON)
    assert (caught.value.state, caught.value.exit_code) == ("TIMEOUT", 124)


def test_a_call_that_is_tried_again_has_the_outcome_of_its_last_attempt(
    executor: stoker.Executor, tmp_path: Path
) -> None:
    def second_time(path: Path) -> str:
        if path.exists():
            return "fine"
        path.touch()
        raise Own

    executor.update_parameters(retries=1)
    assert executor.submit(second_time, tmp_path / "once").result(SOON) == "fine"


def test_an_impossible_call_is_rejected(
    executor: stoker.Executor,
) -> None:
    executor.submit(add, 1).result(SOON)
    executor.update_parameters(gpus=64)
    before = set(Path(stoker.api.calls.result_files.default_folder()).iterdir())
    with pytest.raises(stoker.Impossible, match="Cannot be satisfied: 64 GPUs requested") as caught:
        executor.submit(add, 1)
    assert set(Path(stoker.api.calls.result_files.default_folder()).iterdir()) == before
    assert (caught.value.code, caught.value.exit_code) == ("impossible", 6)


def test_stderr_of_its_own(executor: stoker.Executor) -> None:
    executor.update_parameters(stderr_to_stdout=False)

    def both() -> None:
        print("out")
        print("err", file=sys.stderr)

    future = executor.submit(both)
    future.result(SOON)
    assert (future.stdout(), future.stderr()) == ("out\n", "err\n")


def test_a_call_that_can_never_start_is_not_waited_for(
    client: stoker.Client, executor: stoker.Executor, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    fails = client.submit(f"until [ -e {go} ]; do sleep 0.02; done; exit 1")
    executor.update_parameters(dependency=fails)
    calls = [executor.submit(add, 1), *executor.map_array(add, range(3))]
    until(lambda: watcher.watcher_of(client.daemon_client).dependents)
    go.touch()
    for call in calls:
        with pytest.raises(stoker.StokerError, match=f"Job {call.job_id} can never start: ."):
            call.result(SOON)
    with pytest.raises(stoker.StokerError, match="can never start"):
        executor.submit(add, 1).result(SOON)
    client.cancel(client.jobs("add", state="PENDING"))
    client.dismiss(fails)


# -------------------------------------------------------------------------------- cancelling


def test_a_running_call_is_cancelled(executor: stoker.Executor) -> None:
    future = executor.submit(time.sleep, 300)
    until(future.running)
    assert future.cancel()
    assert future.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(SOON)
    assert executor.client.wait(future)[0].state == "CANCELLED"
    assert future.cancel(), "it is cancelled, however often that is asked for"


def test_a_call_that_is_cancelled_from_outside(
    box: DaemonFixture, executor: stoker.Executor
) -> None:
    future = executor.submit(time.sleep, 300)
    box.stoker("cancel", future.job_id)
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(SOON)


def test_a_call_that_is_over_is_not_cancelled(executor: stoker.Executor) -> None:
    future = executor.submit(add, 1)
    future.result(SOON)
    assert not future.cancel()
    assert future.result() == 11


def test_shutdown_can_cancel_what_has_not_started(client: stoker.Client, tmp_path: Path) -> None:
    executor = stoker.Executor(client=client, gpus=4)
    first, *others = executor.map_array(wait_for, [tmp_path / "go"] * 3)
    until(first.running)
    executor.shutdown(wait=False, cancel_futures=True)
    assert not first.cancelled()
    assert all(other.cancelled() for other in others)
    (tmp_path / "go").touch()
    assert first.result(SOON) == "done"
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(add, 1)


# --------------------------------------------------------------------------------- many calls


def test_map_is_one_array_and_keeps_the_order(
    client: stoker.Client, executor: stoker.Executor
) -> None:
    assert list(executor.map(add, range(5), range(5))) == [0, 2, 4, 6, 8]
    last = client.jobs("last")
    assert len(last) == 5
    assert {job.array for job in last} == {last[0].id}


def test_map_without_arguments_is_nothing(executor: stoker.Executor) -> None:
    assert list(executor.map(add, [])) == []


def test_array_parallelism(executor: stoker.Executor, tmp_path: Path) -> None:
    executor.update_parameters(array_parallelism=1)
    calls = executor.map_array(wait_for, [tmp_path / "go"] * 3)
    until(lambda: any(call.running() for call in calls))
    assert sorted(job.state for job in executor.client.jobs(calls)) == [
        "PENDING", "PENDING", "RUNNING",
    ]  # fmt: skip
    (tmp_path / "go").touch()
    assert [call.result(SOON) for call in calls] == ["done"] * 3


def test_map_gives_up_in_time_and_cancels_the_rest(
    executor: stoker.Executor, tmp_path: Path
) -> None:
    results = executor.map(wait_for, [tmp_path / "never"] * 2, timeout=0.2)
    with pytest.raises(TimeoutError):
        next(results)
    until(lambda: all(job.finished for job in executor.client.jobs("last")[1:]))


def test_a_batch_is_one_array_of_different_calls(executor: stoker.Executor) -> None:
    with executor.batch():
        one = executor.submit(add, 1)
        with pytest.raises(stoker.StokerError, match="no job id yet"):
            print(one.job_id)
        two = executor.submit(max, 3, 4)
    assert (one.result(SOON), two.result(SOON)) == (11, 4)
    assert one.job_id.removesuffix("_0") == two.job_id.removesuffix("_1")


def test_a_batch_that_breaks_is_not_submitted(
    client: stoker.Client, executor: stoker.Executor
) -> None:
    before = client.jobs("last")[0].id

    made = []

    def on_failed() -> None:
        with executor.batch():
            made.append(executor.submit(add, 1))
            raise Own

    with pytest.raises(Own):
        on_failed()
    assert client.jobs("last")[0].id == before
    with pytest.raises(concurrent.futures.CancelledError):
        made[0].result(SOON)


def test_the_tools_of_the_standard_library(executor: stoker.Executor, tmp_path: Path) -> None:
    calls = [executor.submit(add, number) for number in range(3)]
    assert sorted(call.result() for call in as_completed(calls, SOON)) == [10, 11, 12]
    shown_text: list[int] = []
    calls[0].add_done_callback(lambda call: shown_text.append(call.result()))
    assert shown_text == [10]
    slow, bad = executor.submit(wait_for, tmp_path / "go"), executor.submit(fail, "x")
    done, left = concurrent.futures.wait([slow, bad], SOON, FIRST_EXCEPTION)
    assert (done, left) == ({bad}, {slow})
    (tmp_path / "go").touch()


def test_with_waits_for_all(client: stoker.Client) -> None:
    with stoker.Executor(client=client) as executor:
        calls = [executor.submit(add, number) for number in range(2)]
    assert all(call.done() for call in calls)


def test_one_thread_waits_for_all_of_them(executor: stoker.Executor, tmp_path: Path) -> None:
    calls = [executor.submit(wait_for, tmp_path / "go") for _ in range(20)]
    until(lambda: any(call.running() for call in calls))
    named = [each for each in threading.enumerate() if each.name == "stoker-futures"]
    assert len(named) == 1
    (tmp_path / "go").touch()
    assert {call.result(SOON) for call in calls} == {"done"}


# --------------------------------------------------------------------- processes come and go


def test_another_process_takes_up_the_result(box: DaemonFixture, tmp_path: Path) -> None:
    script = tmp_path / "caller.py"
    script.write_text(
        "import os, pathlib, stoker\n"
        "class Point:\n"
        "    def __init__(self, x): self.x = x\n"
        "def call(path):\n"
        "    import time\n"
        "    while not path.exists(): time.sleep(0.02)\n"
        "    return Point(7)\n"
        f"future = stoker.Executor().submit(call, pathlib.Path({str(tmp_path / 'go')!r}))\n"
        "print(future.job_id, flush=True)\n"
        "os._exit(9)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 9, done.stderr
    future = stoker.Future.of(done.stdout.strip())
    assert not future.done()
    (tmp_path / "go").touch()
    assert future.result(SOON).x == 7
    again = stoker.Executor().future(int(done.stdout))
    assert again.done()
    assert again.result().x == 7


def test_the_daemon_may_be_killed_and_stopped_meanwhile(
    box: DaemonFixture, executor: stoker.Executor, tmp_path: Path
) -> None:
    killed = executor.map_array(wait_for, [tmp_path / "a", tmp_path / "b"])
    until(lambda: all(call.running() for call in killed))
    box.crash()
    (tmp_path / "a").touch()
    assert killed[0].result(SOON) == "done", "the one who waits has started another daemon"
    box.stoker("daemon", "stop")
    assert not box.answers()
    (tmp_path / "b").touch()
    with pytest.raises(TimeoutError):
        killed[1].result(0.5)
    assert not box.answers(), "who stopped a daemon wants it stopped"
    box.up()
    assert killed[1].result(SOON) == "done"


def test_a_job_that_is_no_call_has_no_future(client: stoker.Client) -> None:
    future = stoker.Future.of(client.run("true"))
    with pytest.raises(stoker.NotFound, match="not submitted by an Executor"):
        future.result(SOON)
    with pytest.raises(stoker.NotFound, match="no job 999999"):
        stoker.Future.of(999999)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_waits_by_itself(executor: stoker.Executor) -> None:
    executor.submit(add, 1).result(SOON)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            value = stoker.Executor().submit(add, 5).result(SOON)
            os.write(writer, str(value).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 10) == b"15"
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("tls", [False, True])
def test_a_daemon_behind_a_port(
    client: stoker.Client, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    port = client.daemon_client.listen("127.0.0.1:0", tls=tls)
    monkeypatch.setenv("STOKER_SERVER", f"{'tls' if tls else 'tcp'}://{port['address']}")
    monkeypatch.setenv("STOKER_TOKEN_FILE", port["token_file"])
    monkeypatch.setenv("STOKER_FINGERPRINT", port["fingerprint"] or "")
    with stoker.Executor() as executor:
        assert list(executor.map(add, range(3))) == [10, 11, 12]
    client.daemon_client.unlisten(port["address"])


def test_ids_are_written_as_ranges() -> None:
    assert list(watcher.id_ranges([5])) == ["5-5"]
    assert list(watcher.id_ranges([1, 2, 3, 7, 9, 10])) == ["1-3", "7-7", "9-10"]
