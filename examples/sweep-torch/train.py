"""Train a tiny PyTorch network: a trial for a sweep with early stopping.

    python train.py lr=0.1 width=32 dropout=0.1

A trial that was preempted, or whose node failed, resumes from its last epoch as the same trial.
Without stoker it trains from the first to the last epoch.
"""

import os
import sys

import torch
from torch import nn

from stoker.training import job

PATH = f"{job.checkpoint_dir}/last.pt"
settings = {"lr": 0.1, "width": 32, "dropout": 0.1, "epochs": 27}
for word in sys.argv[1:]:
    name, _, value = word.partition("=")
    settings[name] = type(settings[name])(value)

torch.manual_seed(1)
torch.set_num_threads(1)
points = torch.randn(1024, 8)
kinds = (points.norm(dim=1) > points.norm(dim=1).median()).long()
x, y, x_test, y_test = points[:768], kinds[:768], points[768:], kinds[768:]
model = nn.Sequential(
    nn.Linear(8, settings["width"]),
    nn.ReLU(),
    nn.Dropout(settings["dropout"]),
    nn.Linear(settings["width"], 2),
)
optimizer = torch.optim.SGD(model.parameters(), lr=settings["lr"], momentum=0.9)

if os.path.exists(PATH):
    state = torch.load(PATH)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
for epoch in job.epochs(settings["epochs"]):
    model.train()
    for batch in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = float((model(x_test).argmax(1) == y_test).float().mean())
    print(f"epoch {epoch + 1}: accuracy {accuracy:.4f}", flush=True)
    job.report(accuracy=accuracy, step=epoch + 1)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),
    }
    # Rename at the end, so that an interrupted save leaves the previous checkpoint.
    torch.save(state, f"{PATH}.new")
    os.replace(f"{PATH}.new", PATH)
