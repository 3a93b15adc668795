"""The job of `same_job.py` as a bundle: up to 16 trials of Headrace in one process."""

from same_job_program import BATCH, IMAGES, LABELS, make_model, note_epoch, validate
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headrace import trial
from headrace_torch import hydro


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean over one trial's batch."""
    return cross_entropy(model(batch[0]), batch[1])


def train(bundle: trial.Bundle) -> None:
    """Trains all trials of a bundle, each from its first epoch or from where it was paused."""
    group = hydro.fuse(bundle.model(make_model), optimizer="adamw")
    batches = hydro.EpochBatches(group, IMAGES, LABELS, batch_size=BATCH, seed=7)
    bundle.track(group=group)
    for _turn in bundle.steps():
        for batch in batches:
            group.step(batch, loss_of)
        losses = [validate(group.member_model(one)) for one in group.ids]
        for epoch, loss in zip(bundle.member_steps, losses, strict=True):
            note_epoch(epoch, loss)
        bundle.report(val_loss=losses)
