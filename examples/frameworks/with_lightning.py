"""Handwritten digits with PyTorch Lightning. `headrace check with_lightning.py` proves that a pause changes nothing."""

import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from headrace import trial
from headrace_torch.lightning import TrialCallback


class Digits(pl.LightningModule):
    def __init__(self, t: trial.Trial) -> None:
        super().__init__()
        self.lr, self.epochs = t["lr"], t.max_steps
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))

    def training_step(self, batch: list[Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor]) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> object:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs)]


def train(t: trial.Trial) -> None:
    data = TensorDataset(torch.tensor(load_digits().data / 16).float(), torch.tensor(load_digits().target))
    learn, judge = random_split(data, [1197, 600], torch.Generator().manual_seed(2718))
    callback = TrialCallback(t)
    trainer = pl.Trainer(max_epochs=t.max_steps, callbacks=[callback], logger=False)
    loaders = DataLoader(learn, 64, shuffle=True), DataLoader(judge, 600)
    trainer.fit(Digits(t), *loaders, ckpt_path=callback.ckpt_path)


if __name__ == "__main__":
    trial.main(train, defaults={"lr": 1e-3}, steps=9)
