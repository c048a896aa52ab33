"""Accelerate with the epochs of stoker.training; its data is shuffled."""

import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from digest import tell
from torch.utils.data import DataLoader, TensorDataset

from stoker.training import job
from stoker.training.accelerate import epochs

set_seed(1)
accelerator = Accelerator(cpu=True)
x = torch.randn(40, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in epochs(accelerator):
    for inputs, targets in job.steps(loader):
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
        time.sleep(0.03)
    print("trained", epoch, flush=True)
tell(value.numpy() for value in accelerator.unwrap_model(model).state_dict().values())
