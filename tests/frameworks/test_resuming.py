"""Scripts that were stopped and went on have the very weights of those that nobody stopped.

To the bit in all cases: each is a sequence of the same operations on the same numbers, in one
thread on the CPU. The plain PyTorch script and Accelerate keep the state of the random numbers
that shuffle their data, the Hugging Face Trainer has its own seed for each epoch, and Lightning
and Keras, which keep none, read their data here in a fixed order and draw nothing.
"""

import re
import zipfile
from pathlib import Path

import pytest

from frameworks.bench import BIN, EXAMPLES, PROGRAMS, Bench, Job, digest

EPOCHS = 8


@pytest.mark.parametrize(
    "framework", ["lightning", "keras", "tf_keras", "transformers", "accelerate"]
)
def test_a_callback_stops_resumes_and_ends_with_the_same_weights(
    bench: Bench, framework: str
) -> None:
    script = PROGRAMS / f"with_{framework.removeprefix('tf_')}.py"
    bench.environment["FLAVOUR"] = "tensorflow" if framework == "tf_keras" else ""
    job = bench.submit("python", script, epochs=EPOCHS)
    job.reaches(1)
    bench.preempt(job)
    told = job.began()
    assert told["JOB_RESTARTED"] == "TRUE"
    undisturbed = bench.alone(script, EPOCHS)
    view = job.completed()
    assert view["training"]["epochs_done"] == EPOCHS
    assert view["training"]["preemptions"] == 1
    first, second = ([*map(int, re.findall(r"^trained (\d+)$", text, re.MULTILINE))]
                     for text in job.outputs())  # fmt: skip
    assert first + second == list(range(EPOCHS))
    assert len(first) == int(told["EPOCHS_DONE"])
    assert job.weights() == digest(undisturbed)


def test_plain_pytorch_with_its_random_numbers_ends_with_the_same_weights(bench: Bench) -> None:
    epochs, script = 60, EXAMPLES / "pytorch.py"
    job = bench.submit("python", script, epochs=epochs)
    for preemption in (1, 2):
        job.reaches(job.counted() + 1)
        bench.preempt(job)
        assert int(job.began()["EPOCHS_DONE"]) >= preemption
    undisturbed = digits(bench.alone(script, epochs))
    view = job.completed()
    assert view["training"]["epochs_done"] == epochs
    assert view["training"]["preemptions"] == 2
    assert tensors(job.checkpoints) == tensors(bench.user / "alone" / "snapshots" / "job")
    assert digits(job.outputs()[-1]) == undisturbed


def digits(output: str) -> str:
    (found,) = re.findall(r"^accuracy (0\.\d+)$", output, re.MULTILINE)
    return str(found)


def tensors(directory: Path) -> dict[str, bytes]:
    """The raw numbers of a PyTorch checkpoint: weights, the optimizer's moments, random state."""
    with zipfile.ZipFile(directory / "last.pt") as archive:
        found = {name: archive.read(name) for name in archive.namelist() if "/data/" in name}
    assert len(found) > 8
    return found


def test_two_processes_of_torchrun_stop_at_the_same_epoch_and_go_on_together(pair: Bench) -> None:
    epochs = 12
    job = pair.submit(
        BIN / "torchrun", "--standalone", "--nproc_per_node", 2,
        PROGRAMS / "with_torchrun.py", epochs=epochs, gpus=2,
    )  # fmt: skip
    for _ in range(2):
        job.reaches(job.counted() + 1)
        pair.preempt(job, gpus=2)
    view = job.completed()
    assert view["training"]["epochs_done"] == epochs
    assert view["training"]["preemptions"] == 2
    both = [trained(job, rank) for rank in (0, 1)]
    assert both[0] == both[1]
    assert [epoch for _, epoch in both[0]] == list(range(epochs))
    assert [attempt for attempt, _ in both[0]] == sorted(attempt for attempt, _ in both[0])
    assert {attempt for attempt, _ in both[0]} >= {0, 2}


def trained(job: Job, rank: int) -> list[tuple[int, int]]:
    """Attempts and epochs, as one process has trained them."""
    lines = (job.checkpoints / "diary").read_text().splitlines()
    words = [[int(word) for word in line.split()] for line in lines]
    return [(attempt, epoch) for attempt, which, epoch in words if which == rank]


def test_an_example_without_any_framework_runs_with_stoker_and_without(bench: Bench) -> None:
    script = EXAMPLES / "plain.py"
    job = bench.submit("python", script, epochs=5)
    job.completed()
    (output,) = job.outputs()
    assert output == bench.alone(script, 5)
    assert output.splitlines()[-1] == "epoch 4: 1.414214"
    assert job.counted() == 5
