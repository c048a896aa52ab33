"""A small classifier in plain PyTorch that can be preempted and resumed with the same result.

    stoker submit --gpus 1 --epochs 20 python examples/training/pytorch.py

The checkpoint contains everything that the next epoch depends on: the model, the optimizer and
the state of the random generator that shuffles the data. The result is therefore exactly the same,
however often the job was preempted. Without stoker it trains from the first to the last epoch.
"""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker.training import job

PATH = f"{job.checkpoint_dir}/last.pt"


def save(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write and rename, so that an interrupted save leaves the previous checkpoint."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),
    }
    torch.save(state, f"{PATH}.new")
    os.replace(f"{PATH}.new", PATH)


def load(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state = torch.load(PATH)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])


torch.manual_seed(1)
points = torch.randn(4096, 8)
kinds = (points.norm(dim=1) > points.norm(dim=1).median()).long()
loader = DataLoader(TensorDataset(points, kinds), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

if job.restarted:
    load(model, optimizer)
for _epoch in job.epochs(20):
    right = 0
    for x, y in job.steps(loader):
        guess = model(x)
        optimizer.zero_grad()
        nn.functional.cross_entropy(guess, y).backward()
        optimizer.step()
        right += int((guess.argmax(1) == y).sum())
    job.report(accuracy=right / len(kinds))
    save(model, optimizer)
print(f"accuracy {right / len(kinds):.3f}")
