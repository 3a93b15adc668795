"""A Lightning script as a trial: it must not believe that it is the Slurm job of its worker."""

import logging
import os
import time
import warnings

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.environments import SLURMEnvironment
from torch.utils.data import DataLoader, TensorDataset

from headrace.trial import Trial
from headrace_torch.lightning import TrialCallback

warnings.filterwarnings("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class Line(pl.LightningModule):
    """Fits a line."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.layer, self.lr = torch.nn.Linear(2, 1), lr

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """The squared error."""
        time.sleep(float(os.environ.get("LIT_BATCH_S", "0")))
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD."""
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def train(t: Trial) -> None:
    """Trains, and fails if the trial could take itself for a Slurm job."""
    if found := [name for name in os.environ if name.startswith(("SLURM", "PMI_", "PMIX_", "SBATCH"))]:
        raise RuntimeError(f"the trial sees {', '.join(found)}")
    if SLURMEnvironment.detect():
        raise RuntimeError("Lightning takes the trial for a Slurm job")
    pl.seed_everything(t.seed, verbose=False)
    x = torch.randn(32, 2)
    data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
    callback = TrialCallback(t)
    trainer = pl.Trainer(
        max_epochs=t.max_steps,
        accelerator="cpu",
        devices=1,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Line(float(t.params["x"])), data, ckpt_path=callback.ckpt_path)
