"""The Hugging Face Trainer with the callback of stoker.training, on a tiny model made here."""

import os
import time

import torch
from digest import tell
from transformers import BertConfig, BertForSequenceClassification
from transformers import Trainer, TrainerCallback, TrainingArguments

from stoker.training import job
from stoker.training.transformers import StokerCallback


class Told(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(0.03)

    def on_epoch_end(self, args, state, control, **kwargs):
        print("trained", round(state.epoch) - 1, flush=True)


torch.manual_seed(1)
config = BertConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=16, max_position_embeddings=16,
)  # fmt: skip
words = torch.randint(0, 50, (40, 8))
data = [{"input_ids": row, "labels": int(row.sum()) % 2} for row in words]
directory = job.checkpoint_dir
args = TrainingArguments(
    directory, num_train_epochs=int(os.environ["EPOCHS_TO_BE_DONE"]), use_cpu=True,
    per_device_train_batch_size=4, report_to=[], disable_tqdm=True, seed=1, save_strategy="no",
)  # fmt: skip
model = BertForSequenceClassification(config)
callback = StokerCallback(directory)
trainer = Trainer(model, args, train_dataset=data, callbacks=[callback, Told()])
trainer.train(resume_from_checkpoint=callback.checkpoint)
tell(value.numpy() for value in model.state_dict().values())
