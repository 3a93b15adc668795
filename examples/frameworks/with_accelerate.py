"""Digits with Hugging Face Accelerate. `headrace check with_accelerate.py` proves that a pause changes nothing."""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split

from headrace import trial
from headrace_torch.accelerate import Prepared


def train(t: trial.Trial) -> None:
    data = TensorDataset(torch.tensor(load_digits().data / 16).float(), torch.tensor(load_digits().target))
    learn, judge = random_split(data, [1197, 600], torch.Generator().manual_seed(2718))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=t["lr"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, t.max_steps)
    loaders = DataLoader(learn, 64, shuffle=True), DataLoader(judge, 600)
    accelerator = Accelerator()
    model, optimizer, schedule, *loaders = accelerator.prepare(model, optimizer, schedule, *loaders)
    t.track(prepared=Prepared(accelerator))
    for _epoch in t.steps():
        model.train()
        for inputs, labels in loaders[0]:
            optimizer.zero_grad()
            accelerator.backward(cross_entropy(model(inputs), labels))
            optimizer.step()
        schedule.step()
        model.eval()
        with torch.no_grad():
            losses = [cross_entropy(model(inputs), labels) for inputs, labels in loaders[1]]
        t.report(val_loss=torch.stack(losses).mean())


if __name__ == "__main__":
    trial.main(train, defaults={"lr": 1e-3}, steps=9)
