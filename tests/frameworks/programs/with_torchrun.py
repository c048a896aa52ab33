"""Two processes that share every step: each writes down which epochs it has trained."""

import os
import time

import torch
import torch.distributed
from torch import nn

from stoker.training import job

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(rank)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
path = f"{job.checkpoint_dir}/last.pt"
if job.restarted:
    model.load_state_dict(torch.load(path))
for epoch in job.epochs():
    for x in job.steps(torch.randn(20, 8, 4)):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        time.sleep(0.01 * (1 + rank))  # they are not equally quick
    if rank == 0:
        torch.save(model.state_dict(), f"{path}.new")
        os.replace(f"{path}.new", path)
    with open(f"{job.checkpoint_dir}/diary", "a") as file:
        print(os.environ["STOKER_ATTEMPT"], rank, epoch, file=file)
torch.distributed.destroy_process_group()
