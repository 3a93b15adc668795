"""A plain loop with early stopping and a schedule that ends with the budget."""

import math

import torch
from noisy import LEARNT, data, network
from torch.nn.functional import cross_entropy

from headrace import trial

PATIENCE, BATCH = 2, 32


def train(t: trial.Trial) -> None:
    torch.set_num_threads(1)
    inputs, labels, judged, truth = data()
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=t["lr"])
    batches = trial.ResumableBatches(LEARNT, BATCH, seed=t.seed)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=t["lr"], total_steps=t.max_steps * LEARNT // BATCH
    )
    t.track(model=model, optimizer=optimizer, lr_scheduler=schedule, batches=batches)
    t.state.setdefault("best", math.inf)
    t.state.setdefault("bad", 0)
    for _epoch in t.steps():
        if t.state["bad"] >= PATIENCE:
            break
        model.train()
        for batch in batches:
            optimizer.zero_grad()
            cross_entropy(model(inputs[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
        model.eval()
        with torch.no_grad():
            loss = cross_entropy(model(judged), truth).item()
        t.state["bad"] = 0 if loss < t.state["best"] else t.state["bad"] + 1
        t.state["best"] = min(loss, t.state["best"])
        t.report(val_loss=loss)


if __name__ == "__main__":
    trial.main(train, defaults={"lr": 0.05}, steps=12)
