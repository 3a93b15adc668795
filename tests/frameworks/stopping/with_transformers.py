"""The Trainer's own early stopping, and a schedule that ends with the budget."""

import torch
from noisy import LEARNT, data, network
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import EarlyStoppingCallback, Trainer, TrainingArguments

from headrace import trial
from headrace_torch.transformers import TrialCallback

PATIENCE, BATCH = 2, 32


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(inputs)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


def train(t: trial.Trial) -> None:
    torch.set_num_threads(1)
    inputs, labels, judged, truth = data()
    learn = [{"inputs": one, "labels": label} for one, label in zip(inputs, labels, strict=True)]
    judge = [{"inputs": one, "labels": label} for one, label in zip(judged, truth, strict=True)]
    model = Noisy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=t["lr"])
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=t["lr"], total_steps=t.max_steps * LEARNT // BATCH
    )
    callback = TrialCallback(t)
    arguments = TrainingArguments(
        output_dir=callback.output_dir,
        num_train_epochs=t.max_steps,
        eval_strategy="epoch",
        metric_for_best_model="loss",
        greater_is_better=False,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=len(judge),
        disable_tqdm=True,
        use_cpu=True,
        seed=t.seed,
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=learn,
        eval_dataset=judge,
        optimizers=(optimizer, schedule),
        callbacks=[EarlyStoppingCallback(PATIENCE), callback],
    )
    trainer.train(resume_from_checkpoint=callback.checkpoint)


if __name__ == "__main__":
    trial.main(train, defaults={"lr": 0.05}, steps=12)
