"""Digits with the Hugging Face Trainer. `headrace check with_transformers.py` proves that a pause changes nothing."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainingArguments

from headrace import trial
from headrace_torch.transformers import TrialCallback


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(inputs)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


def train(t: trial.Trial) -> None:
    inputs, labels = torch.tensor(load_digits().data / 16).float(), torch.tensor(load_digits().target)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(2718))
    data = [{"inputs": inputs[i], "labels": labels[i]} for i in order]
    callback = TrialCallback(t)
    arguments = TrainingArguments(
        output_dir=callback.output_dir,
        num_train_epochs=t.max_steps,
        eval_strategy="epoch",
        learning_rate=t["lr"],
        per_device_train_batch_size=64,
    )
    trainer = Trainer(Digits(), arguments, None, data[600:], data[:600], callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.checkpoint)


if __name__ == "__main__":
    trial.main(train, defaults={"lr": 1e-3}, steps=9)
