"""Real processes: ranks that stop together, workers that keep quiet."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from training.training_dir import SOURCES, TrainingDir

RANK = """
import os, socket, sys
from stoker.training import job

# Gradients are shared by way of a socket: nobody ends a step alone.
peer = socket.socket(fileno=int(sys.argv[1]))
me = int(os.environ["RANK"])

def share():
    peer.sendall(b"g")
    assert peer.recv(1)

for epoch in job.epochs():
    for batch in job.steps(range(20)):
        share()
    print(epoch, job.should_stop(), flush=True)
    if epoch == 1 and me == 0:
        open(os.environ["STOKER_REPORTS"] + "/stop", "w").close()
"""


def test_two_ranks_stop_together(training_dir: TrainingDir) -> None:
    starter = f"""
import os, socket, subprocess, sys
ends = socket.socketpair()
ranks = [
    subprocess.Popen(
        [sys.executable, "-c", {RANK!r}, str(end.fileno())],
        pass_fds=[end.fileno()],
        env=dict(os.environ, RANK=str(i), LOCAL_RANK=str(i), WORLD_SIZE="2"),
        stdout=subprocess.PIPE,
        text=True,
    )
    for i, end in enumerate(ends)
]
for end in ends:
    end.close()
said = [rank.communicate(timeout=40)[0].split() for rank in ranks]
assert said[0] == said[1], said
print(*said[0], *[rank.returncode for rank in ranks])
"""
    done = training_dir.run(starter, EPOCHS_TO_BE_DONE=9, HEARTBEAT_FREQ=2, NUM_GPUS=2)
    assert done.returncode == 0, done.stderr
    # Asked after epoch 1, named within epoch 2 at the latest, stopped before 3.
    assert done.stdout.split() == ["0", "False", "1", "False", "2", "True", "75", "75"]
    assert training_dir.epochs("stop_at") == [3]
    assert training_dir.epochs("stopped") == [3]
    assert len(training_dir.lines("hello")) == 1
    assert done.stderr.count("stoker: stopping before epoch 3") == 1


WORKERS = """
import multiprocessing, os, sys
from kubernetesdlprofile.kubeprofiler import KubeProfiler
from stoker.training import job

api = KubeProfiler()  # at the top of the script, which spawned workers read again

def load(number):
    api.start_epoch()
    job.report(loss=number)
    for _ in range(5):
        api.measure()
    api.end_epoch()
    return number

if __name__ == "__main__":
    for way in ("fork", "spawn"):
        with multiprocessing.get_context(way).Pool(1) as pool:
            assert pool.map(load, [1, 2]) == [1, 2]
    if os.fork() == 0:
        load(3)
        sys.exit(0)
    os.wait()
"""


def test_workers_made_by_fork_or_spawn_keep_quiet_and_are_not_stopped(
    training_dir: TrainingDir,
) -> None:
    training_dir.ask_to_stop()
    script = training_dir.root / "train.py"
    script.write_text(WORKERS)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": str(SOURCES), "HEARTBEAT_FREQ": "1", **training_dir.variables},
        cwd=training_dir.root,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [line["k"] for line in training_dir.lines()] == ["hello"]
    assert not (training_dir.reports / "steps").exists()


def test_attempts_at_the_same_time_do_not_mix_lines(training_dir: TrainingDir) -> None:
    script = "from stoker.training import job\nfor epoch in job.epochs(200):\n    job.measure()\n"
    with ThreadPoolExecutor(3) as pool:
        ended = list(pool.map(lambda _: training_dir.run(script), range(3)))
    assert [done.returncode for done in ended] == [0, 0, 0]
    # Who comes when another one has begun keeps quiet; all may have come before that.
    told = sorted(training_dir.epochs("end"))
    assert told in [sorted(list(range(200)) * count) for count in (1, 2, 3)]


def test_a_stop_ends_the_process_with_75_and_one_line(training_dir: TrainingDir) -> None:
    training_dir.ask_to_stop()
    done = training_dir.run(
        "from stoker.training import job\n"
        "print('begins')\n"
        "for epoch in job.epochs(9): pass\n"
        "print('never')\n",
        EPOCHS_DONE=5,
    )
    assert done.returncode == 75
    assert done.stdout == "begins\n"
    assert done.stderr == "stoker: stopping before epoch 6 as requested; the job resumes later\n"


def test_a_closed_stderr_is_no_obstacle(training_dir: TrainingDir) -> None:
    training_dir.ask_to_stop()
    done = training_dir.run(
        "import sys\nsys.stderr = None\nfrom stoker.training import job\n"
        "job.start_epoch()\njob.start_epoch()"
    )
    assert done.returncode == 75
    assert training_dir.epochs("stopped") == [1]
