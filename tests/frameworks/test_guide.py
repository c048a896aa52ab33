"""The three examples of the submission guide, preempted at random moments: ten times each in
`make proofs`, which sets STOKER_PREEMPTIONS; in `make test` the plain one, three times.

The scripts are those of the guide (their heads list every change), so how far they are is seen
from outside: by what they save, or by what the framework prints.
"""

import os
import random
import re
import time
from collections.abc import Callable

import pytest

from frameworks.bench import PROGRAMS, Bench, Job
from frameworks.saves import Saves

PREEMPTIONS = int(os.environ.get("STOKER_PREEMPTIONS", "3"))
Witness = Callable[[], int]
"""How many epochs were trained, and saved where the script saves each: not asked of stoker."""


@pytest.mark.parametrize("seed", [1])
def test_the_pytorch_example(bench: Bench, seed: int) -> None:
    epochs = 40
    job = bench.run_scheduler(PROGRAMS / "guide_pytorch.py", epochs, batch=1, size=600)
    job.checkpoints.mkdir(parents=True, exist_ok=True)
    saves = Saves(job.checkpoints, "cifar_net.pth")
    try:
        survives(bench, job, epochs, saves, random.Random(seed))
    finally:
        saves.close()


@pytest.mark.parametrize("seed", [2])
def test_the_lightning_example(bench: Bench, seed: int) -> None:
    epochs, batches = 24, 2  # fewer, for they are long
    job = bench.run_scheduler(PROGRAMS / "guide_lightning.py", epochs, batch=4, size=4 * batches)

    def saved() -> int:
        """Lightning names its one checkpoint after the epoch and after all steps ever done."""
        names = [path.name for path in job.checkpoints.glob("lightning_logs/*/checkpoints/*")]
        found = [re.fullmatch(r"epoch=(\d+)-step=(\d+)\.ckpt", name) for name in names]
        ends = sorted((int(match[1]) + 1, int(match[2])) for match in found if match)
        assert all(steps == done * batches for done, steps in ends), ends
        return ends[-1][0] if ends else 0

    survives(bench, job, epochs, saved, random.Random(seed))


@pytest.mark.parametrize("seed", [3])
def test_the_tensorflow_example(bench: Bench, seed: int) -> None:
    epochs = 40
    job = bench.run_scheduler(PROGRAMS / "guide_tensorflow.py", epochs, batch=1, size=64)

    def printed() -> int:
        """Keras prints each epoch's number and, at its end, its figures."""
        text = "".join(job.outputs()).replace("\r", "\n").replace("\b", "")
        lines = re.findall(rf"Epoch (\d+)/{epochs}\n((?:.*\n)*?).*64/64 .*accuracy", text)
        numbers = [int(number) for number, _ in lines]
        assert numbers == list(range(1, len(numbers) + 1)), numbers
        return len(numbers)

    survives(bench, job, epochs, printed, random.Random(seed))
    assert "1/1 - " in job.outputs()[-1]  # what comes after training came once, at the very end
    assert not any("1/1 - " in output for output in job.outputs()[:-1])


def survives(bench: Bench, job: Job, epochs: int, witness: Witness, dice: random.Random) -> None:
    """Preempt it so often; nothing is lost, nothing is done twice, and the script is told so."""
    for attempt in range(PREEMPTIONS + 1):
        told = job.began()
        assert told["STOKER_ATTEMPT"] == str(attempt)
        # Read before it can have finished its first epoch: it has yet to import its framework.
        done = witness()
        assert told["EPOCHS_DONE"] == str(done)
        assert told["JOB_RESTARTED"] == ("TRUE" if done else "FALSE")
        if attempt < PREEMPTIONS:
            random_moment(job, done, dice, hurry=done > epochs - PREEMPTIONS)
            bench.preempt(job)
    view = job.completed()
    assert witness() == epochs
    assert view["training"]["epochs_done"] == epochs
    assert view["training"]["preemptions"] == PREEMPTIONS
    assert view["attempt"] == PREEMPTIONS


def random_moment(job: Job, done: int, dice: random.Random, hurry: bool) -> None:
    """While it still imports, while it trains its first epoch, or somewhere in a later one."""
    epochs = dice.choice([None, 0, 0, 1, 1, 2])
    if hurry or epochs is None:
        return
    job.listens()
    job.reaches(done + epochs)
    time.sleep(dice.uniform(0, 0.3))  # chance is the point of it
