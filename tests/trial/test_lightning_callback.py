"""Callbacks of Lightning itself, after a pause in the middle of a fit."""

from typing import Any

import pytest
from recording_runtime import RecordingRuntime

from headrace.trial import Trial, script
from headrace.trial.runtime import Action

pl = pytest.importorskip("pytorch_lightning")

# Libraries that they import are deprecated, by each other.
pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore::Warning")]


def test_model_checkpoint_keeps_its_last_score_over_a_pause(recording: RecordingRuntime) -> None:
    recording.decisions = {2: Action.PAUSE}
    before, after = _fits(recording), _fits(recording)
    assert [report.step for report in recording.reports] == [1, 2, 3, 4]
    assert before["current_score"] is not None  # of epoch 1, the best one
    assert {name: after[name] for name in ("current_score", "best_model_score")} == {
        name: before[name] for name in ("current_score", "best_model_score")
    }


def _fits(recording: RecordingRuntime) -> dict[str, Any]:
    """The state of a `ModelCheckpoint` at the end of one process of the trial."""
    import torch

    from headrace_torch.lightning import TrialCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(2, 1)

        def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            return self.net(batch[0]).square().mean()

        def validation_step(self, _: list[torch.Tensor]) -> None:
            self.log("val_loss", torch.tensor(float(self.current_epoch)))  # it gets worse from the first on

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def train(t: Trial) -> None:
        callback = TrialCallback(t)
        kept.append(pl.callbacks.ModelCheckpoint(recording.checkpoint_dir, monitor="val_loss"))
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = pl.Trainer(
            max_epochs=t.max_steps, accelerator="cpu", callbacks=[kept[0], callback], **quiet
        )
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 2)), 4)
        trainer.fit(Module(), loader, loader, ckpt_path=callback.ckpt_path)

    kept: list[Any] = []
    script.run(train, recording, recording.attach())
    state: dict[str, Any] = kept[0].state_dict()
    return state
