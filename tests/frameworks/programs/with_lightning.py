"""Lightning with the callback of stoker.training; its data comes in a fixed order."""

import os
import time

import lightning.pytorch as pl
import torch
from digest import tell
from torch.utils.data import DataLoader, TensorDataset

from stoker.training.lightning import StokerCallback


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        x, y = batch
        time.sleep(0.03)
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def on_train_epoch_end(self):
        print("trained", self.current_epoch, flush=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


torch.manual_seed(1)
x = torch.randn(40, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
model = Model()
callback = StokerCallback()
trainer = pl.Trainer(
    accelerator="cpu", devices=1, max_epochs=int(os.environ["EPOCHS_TO_BE_DONE"]),
    callbacks=[callback], logger=False, enable_checkpointing=False, enable_progress_bar=False,
)  # fmt: skip
trainer.fit(model, loader, ckpt_path=callback.ckpt_path)
tell(value.numpy() for value in model.state_dict().values())
