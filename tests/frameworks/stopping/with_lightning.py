"""Lightning's own early stopping, and a schedule that ends with the budget."""

import pytorch_lightning as pl
import torch
from noisy import LEARNT, data, network
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from headrace import trial
from headrace_torch.lightning import TrialCallback

PATIENCE, BATCH = 2, 32


class Noisy(pl.LightningModule):
    def __init__(self, t: trial.Trial) -> None:
        super().__init__()
        self.lr, self.total_steps = t["lr"], t.max_steps * LEARNT // BATCH
        self.net = network()

    def training_step(self, batch: list[Tensor]) -> Tensor:
        return cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor]) -> None:
        self.log("val_loss", cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> object:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.lr, total_steps=self.total_steps
        )
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def train(t: trial.Trial) -> None:
    torch.set_num_threads(1)
    inputs, labels, judged, truth = data()
    callback = TrialCallback(t)
    stopping = pl.callbacks.EarlyStopping("val_loss", patience=PATIENCE)
    trainer = pl.Trainer(
        max_epochs=t.max_steps,
        callbacks=[stopping, callback],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    learn = DataLoader(TensorDataset(inputs, labels), BATCH, shuffle=True)
    judge = DataLoader(TensorDataset(judged, truth), len(judged))
    trainer.fit(Noisy(t), learn, judge, ckpt_path=callback.ckpt_path)


if __name__ == "__main__":
    trial.main(train, defaults={"lr": 0.05}, steps=12)
