"""A job is one training: who goes on with it, and who is another one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.daemon.reports.format import parse
from training.training_dir import SOURCES, TrainingDir

TRAIN = """
import os, sys
from stoker.training import job

print(job.epochs_done, job.restarted, end=":")
for epoch in job.epochs(int(sys.argv[1])):
    print("", epoch, end="", flush=True)
    if str(epoch) in sys.argv[2:]:
        mark = os.environ["STOKER_REPORTS"] + "/crashed"
        if not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), 9)
print(flush=True)
"""
STOP = """
import os, sys
from stoker.training import job
for epoch in job.epochs(9):
    if epoch == 1:
        open(os.environ["STOKER_REPORTS"] + "/stop", "w").close()
"""


def shell(
    training_dir: TrainingDir, line: str, scripts: dict[str, str], **variables: object
) -> "subprocess.CompletedProcess[str]":
    """Run a line of shell as the job, with these scripts beside it."""
    for name, text in scripts.items():
        (training_dir.root / name).write_text(text)
    given = {name: str(value) for name, value in variables.items()}
    return subprocess.run(
        ["/bin/sh", "-c", line],
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
            "PYTHONPATH": str(SOURCES),
            **training_dir.variables,
            **given,
        },
        cwd=training_dir.root,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_a_wrapper_that_starts_a_stopped_training_again_trains_nothing(
    training_dir: TrainingDir,
) -> None:
    done = shell(
        training_dir, "python s.py; echo $?; python s.py; echo $?; python t.py 4; echo $?",
        {"s.py": STOP, "t.py": TRAIN},
    )  # fmt: skip
    assert done.stdout == "75\n75\n0 False:75\n"
    assert [line["k"] for line in training_dir.lines()] == [
        *("hello", "start", "end", "start", "end", "stopped")
    ]
    assert done.stderr.splitlines() == [
        "stoker: stopping before epoch 2 as requested; the job resumes later",
        "stoker: stopped before epoch 2 as requested; the job resumes later",
        "stoker: stopped before epoch 2 as requested; the job resumes later",
    ]


def test_a_training_that_a_wrapper_starts_again_after_a_crash_goes_on(
    training_dir: TrainingDir,
) -> None:
    line = "until python t.py 5 3; do :; done"
    done = shell(training_dir, line, {"t.py": TRAIN}, STOKER_EPOCHS_DONE=1)
    assert done.stdout.split("\n") == ["1 True: 1 2 33 True: 3 4", ""]
    assert training_dir.epochs("start") == [1, 2, 3, 3, 4]


def test_a_second_program_trains_from_the_beginning_without_reports_or_stops(
    training_dir: TrainingDir,
) -> None:
    line = "python t.py 3 && touch $STOKER_REPORTS/stop && python t.py 4"
    done = shell(training_dir, line, {"t.py": TRAIN})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "0 False: 0 1 2\n0 False: 0 1 2 3\n"
    assert training_dir.epochs("start") == [0, 1, 2]


def test_it_does_so_too_when_the_first_has_nothing_left_to_do(training_dir: TrainingDir) -> None:
    done = shell(
        training_dir, "python t.py 3 && python t.py 4", {"t.py": TRAIN}, STOKER_EPOCHS_DONE=3
    )
    assert done.stdout == "3 True:\n0 False: 0 1 2 3\n"
    assert training_dir.epochs("start") == []


def test_the_same_program_run_once_more_is_another_training(training_dir: TrainingDir) -> None:
    done = shell(training_dir, "for fold in 1 2; do python t.py 2; done", {"t.py": TRAIN})
    assert done.stdout == "0 False: 0 1\n0 False: 0 1\n"
    assert training_dir.epochs("start") == [0, 1]


def test_a_concurrent_loop_is_another_training(training_dir: TrainingDir) -> None:
    first = "from stoker.training import job\njob.start_epoch()\njob.start_epoch()\ninput()\n"
    line = "(sed /go/q; :) < in | python f.py & until grep -q '\"e\":1' $STOKER_REPORTS/report; "
    line += "do :; done; python f.py < /dev/null; echo go > in; wait"
    os.mkfifo(training_dir.root / "in")
    shell(training_dir, line, {"f.py": first})
    assert training_dir.epochs("start") == [0, 1]


def test_a_second_loop_is_another_training(training_dir: TrainingDir) -> None:
    job = training_dir.job(STOKER_EPOCHS_DONE=1)
    assert list(job.epochs(3)) == [1, 2]
    said = training_dir.lines()
    training_dir.ask_to_stop()
    for _ in range(2):
        seen = []
        for epoch in job.epochs(3):
            seen.append(epoch)
            job.report(loss=1)
            assert not job.should_stop()
        assert seen == [0, 1, 2]
    assert not job.restarted
    assert training_dir.lines() == said


def test_a_loop_after_an_unfinished_loop_is_another_training(training_dir: TrainingDir) -> None:
    job = training_dir.job()
    for fold in range(2):
        for epoch in job.epochs(5):
            if epoch == fold + 1:
                break
    assert training_dir.epochs("end") == [0, 1]


def test_epochs_beyond_those_asked_for_are_another_training(training_dir: TrainingDir) -> None:
    job = training_dir.job(EPOCHS_TO_BE_DONE=2)
    for _ in range(2):
        job.start_epoch()
        job.end_epoch()
    training_dir.ask_to_stop()
    job.start_epoch()
    job.start_epoch()
    assert training_dir.epochs("start") == [0, 1]


@pytest.mark.parametrize(("total", "told"), [(30, 30), (sys.maxsize, None)])
def test_the_number_of_epochs_is_reported_if_it_is_usable(
    training_dir: TrainingDir, total: int, told: int | None
) -> None:
    job = training_dir.job()
    for epoch in job.epochs(total):
        if epoch == 1:
            break
    starts = training_dir.lines("start")
    assert [line.get("n") for line in starts] == [told, told]
    assert all(parse(json.dumps(line).encode()) is not None for line in starts)


def test_epoch_numbers_that_restart_are_another_training(training_dir: TrainingDir) -> None:
    job = training_dir.job()
    for epoch in (0, 1, 1, 2):  # one was tried twice
        job.start_epoch(epoch)
    job.end_epoch()
    training_dir.ask_to_stop()
    for epoch in (0, 1, 2, 3):
        job.start_epoch(epoch)
        job.end_epoch()
    assert training_dir.epochs("start") == [0, 1, 1, 2]


def test_what_a_report_says_is_read_with_care(training_dir: TrainingDir) -> None:
    training_dir.reports.mkdir()
    lines = [
        b"", b"\xff\x00", b'{"k":"start","e":1}', b'{"k":"hello"}', b'{"k":"hello","pid":"x"}',
        b'{"k":"start","e":', b'{"k":"start","e":[]}', b'{"k":"stopped"}', b"{" * 9000,
    ]  # fmt: skip
    (training_dir.reports / "report").write_bytes(b"\n".join(lines))
    assert list(training_dir.job().epochs(2)) == [0, 1]


def test_the_other_machines_of_a_job_begin_where_the_first_does(training_dir: TrainingDir) -> None:
    training_dir.reports.mkdir()
    hello = json.dumps({"k": "hello", "pid": 0, "w": "another"}, separators=(",", ":"))
    (training_dir.reports / "report").write_text(f'{hello}\n{{"k":"start","e":7}}\n')
    job = training_dir.job(NUM_NODES=2, STOKER_EPOCHS_DONE=5)
    assert (job.epochs_done, job.restarted, job.apart) == (5, True, False)


CHILDREN = """
import multiprocessing, os, sys
from stoker.training import job

def train(rank, gate):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    for epoch in job.epochs(9):
        gate.wait(40)
        for step in range(12):
            job.measure()
            gate.wait(40)
        if epoch == 1 and rank == 0:
            open(os.environ["STOKER_REPORTS"] + "/stop", "w").close()
    sys.exit(3)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    gate = context.Barrier(2)
    ranks = [context.Process(target=train, args=(rank, gate)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    print([rank.exitcode for rank in ranks])
"""


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_ranks_started_by_the_script_report_and_stop_together(
    training_dir: TrainingDir, way: str
) -> None:
    done = shell(training_dir, f"python c.py {way}", {"c.py": CHILDREN}, HEARTBEAT_FREQ=1)
    assert done.stdout == "[75, 75]\n", done.stderr
    assert training_dir.epochs("start") == [0, 1, 2]
    assert training_dir.epochs("stopped") == [3]


def test_launchers_that_add_the_rank_to_the_words_of_each_process_make_one_program(
    training_dir: TrainingDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stoker.training.reports.earlier_reports import program_id

    monkeypatch.setattr(sys, "argv", ["train.py", "--local-rank=0", "--lr", "1"])
    one = program_id(child=False)
    monkeypatch.setattr(sys, "argv", ["train.py", "--local-rank=1", "--lr", "1"])
    assert program_id(child=False) == one
    monkeypatch.setattr(sys, "argv", ["train.py", "--local-rank=1", "--lr", "2"])
    assert program_id(child=True) != one
