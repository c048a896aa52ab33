"""A sacred experiment that reports its metrics to stoker; two lines are added.

python train.py with lr=0.1          without stoker
stoker sweep --metric loss python train.py with lr=0.3,0.1,0.03
"""

import random

from sacred import Experiment

from stoker.training.sacred import StokerObserver  # one

ex = Experiment("parabola", save_git_info=False)
ex.observers.append(StokerObserver())  # two


@ex.config
def config():
    lr = 0.1  # noqa: F841 - sacred reads them
    steps = 40  # noqa: F841


@ex.automain
def train(_run, lr, steps, seed):
    noise = random.Random(seed)
    weight, wanted = 4.0, 1.5
    for step in range(steps):
        loss = (weight - wanted) ** 2
        weight -= lr * 2 * (weight - wanted + noise.gauss(0, 0.05))
        _run.log_scalar("loss", loss, step)
    return loss
