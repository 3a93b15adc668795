"""Lightning's own state, after a pause in the middle of a fit."""

from pathlib import Path
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
    kept: list[Any] = []

    def train(t: Trial) -> None:
        _fit(t, pl.callbacks.ModelCheckpoint(recording.checkpoint_dir, monitor="val_loss"), kept=kept)

    for _ in range(2):
        script.run(train, recording, recording.attach())
    before, after = (callbacks[0].state_dict() for callbacks in kept)
    assert [report.step for report in recording.reports] == [1, 2, 3, 4]
    assert before["current_score"] is not None  # of epoch 1, the best one
    assert {name: after[name] for name in ("current_score", "best_model_score")} == {
        name: before[name] for name in ("current_score", "best_model_score")
    }


def test_the_loops_of_a_checkpoint_are_those_of_a_fit_without_a_pause(tmp_path: Path) -> None:
    import torch

    def loops(recording: RecordingRuntime) -> Any:
        while not recording.reports or recording.reports[-1].step < 4:
            script.run(lambda t: _fit(t, kept=[]), recording, recording.attach())
        folder = recording.reports[-1].checkpoint_dir
        assert folder is not None
        (file,) = folder.rglob("trainer.ckpt")
        return torch.load(file, weights_only=False)["loops"]["fit_loop"]

    straight = RecordingRuntime(checkpoint_dir=tmp_path / "straight")
    paused = RecordingRuntime(checkpoint_dir=tmp_path / "paused", decisions={2: Action.PAUSE})
    assert loops(paused) == loops(straight)
    assert paused.restores == 1


def _evaluates_its_normalization(trainer: Any, module: Any) -> None:
    if trainer.current_epoch == 1:
        module.net[1].eval()


def test_a_layer_that_is_evaluated_stays_so_over_a_pause(tmp_path: Path) -> None:
    def weights(name: str, decisions: dict[int, Action]) -> Any:
        import torch

        recording = RecordingRuntime(checkpoint_dir=tmp_path / name, decisions=decisions)

        def train(t: Trial) -> None:
            callback = pl.callbacks.LambdaCallback(on_train_epoch_start=_evaluates_its_normalization)
            _fit(t, callback, kept=[])

        while not recording.reports or recording.reports[-1].step < 4:
            script.run(train, recording, recording.attach())
        folder = recording.reports[-1].checkpoint_dir
        assert folder is not None
        (file,) = folder.rglob("trainer.ckpt")
        found = torch.load(file, weights_only=False)["state_dict"]
        return {name: value.tolist() for name, value in found.items()}

    assert weights("paused", {2: Action.PAUSE}) == weights("straight", {})


def test_a_module_with_scripted_parts_resumes(recording: RecordingRuntime) -> None:
    recording.decisions = {2: Action.PAUSE}
    for _ in range(2):
        script.run(lambda t: _fit(t, kept=[], scripted=True), recording, recording.attach())
    assert [report.step for report in recording.reports] == [1, 2, 3, 4]


def test_a_fit_that_resumes_after_its_last_epoch_reports_nothing(recording: RecordingRuntime) -> None:
    def train(t: Trial) -> None:
        _fit(t, pl.callbacks.StochasticWeightAveraging(1e-2), kept=[])  # it evaluates once more

    for _ in range(2):  # the first process was killed before it ended
        script.run(train, recording, recording.attach())
    assert [report.step for report in recording.reports] == [1, 2, 3, 4]


def _fit(t: Trial, *callbacks: Any, kept: list[Any], scripted: bool = False) -> None:
    """One process of a trial; its callbacks are kept."""
    import torch

    from headrace_torch.lightning import TrialCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            norm = torch.nn.BatchNorm1d(2)
            self.net = torch.nn.Sequential(
                torch.nn.Linear(2, 2), torch.jit.script(norm) if scripted else norm, torch.nn.Linear(2, 1)
            )

        def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            return self.net(batch[0]).square().mean()

        def validation_step(self, _: list[torch.Tensor]) -> None:
            self.log("val_loss", torch.tensor(float(self.current_epoch)))  # it gets worse from the first on

        def configure_optimizers(self) -> dict[str, Any]:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}

    callback = TrialCallback(t)
    kept.append(callbacks)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(max_epochs=t.max_steps, accelerator="cpu", callbacks=[*callbacks, callback], **quiet)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(16.0).view(8, 2)), 4)
    trainer.fit(Module(), loader, loader, ckpt_path=callback.ckpt_path)
