"""A trial that PyTorch Lightning trains. A step is an epoch.

```python
callback = TrialCallback(t)
trainer = Trainer(max_epochs=t.max_steps, callbacks=[callback])
trainer.fit(model, loader, val_loader, ckpt_path=callback.ckpt_path)   # None, unless the trial resumes
```

The checkpoint is Lightning's own: `trainer.save_checkpoint` writes it and `trainer.fit(ckpt_path=...)` reads it. So it
holds the module, optimizers, schedules, precision, loops, the data module and the state of all callbacks. Six things
are not in it, are not loaded, or come at the wrong time, and are done here:

- *Random generators.* The trial saves them, and restores them in `on_train_start`.
- *The order of the data.* When it resumes, Lightning makes the loader's iterator before `on_train_start`, so with
  other random numbers. The loop is told to make it again, at the point where an uninterrupted run makes it.
- *`ReduceLROnPlateau` with the interval "epoch".* Lightning steps it after `on_train_epoch_end`, the hook in which
  checkpoints are saved. Its step is saved as pending, and taken when the trial resumes.
- *The last score of `ModelCheckpoint`.* It is in the checkpoint, but Lightning does not load it.
- *Which layers are frozen.* Callbacks such as `BackboneFinetuning` unfreeze layers in some epoch. A resumed fit freezes
  them again at its start.
- *That the fit ends here.* `EarlyStopping` saves what it counts, but not that it has just stopped the fit. A trial that
  is paused or killed at that epoch would train one more.

The report is made in `on_train_epoch_end`, after validation, after the module's own hook, and after every other
callback: Lightning calls callbacks that are `Checkpoint`s last, and this one must be the last of them. Because it
is a `Checkpoint`, Lightning writes no checkpoints of its own. With `enable_checkpointing=False` Lightning's
constructor rejects every `Checkpoint`, before any hook is called. While that constructor asks, this callback says
that it is not one.
"""

import importlib
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from headrace.trial import Trial, job_signals
from headrace_torch.frozen import freeze, frozen
from headrace_torch.turns import Turns, refuse_other_budget, refuse_ranks

_FILE = "trainer.ckpt"
_NEAR = 4
"""The most frames between a question of Lightning's constructor and the callback's answer."""
_INEXACT = {
    "ModelPruning": "leaves its masks out of checkpoints, so a resumed trial would prune other weights: leave it out, "
    "and prune the best model once it is trained",
    "LearningRateFinder": "searches again whenever the trial resumes: leave it out, and put the learning rate in the "
    "study's space",
    "BatchSizeFinder": "searches again whenever the trial resumes: leave it out, and put the batch size in the study's "
    "space",
}
"""Lightning's callbacks with which a resumed trial trains something else or fails, and what to do."""
_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""The two package names of Lightning; their classes are not the same."""


class TrialCallback:
    """Reports every epoch of `trainer.fit`, saves at rungs, and stops the fit when the trial must stop.

    It reports everything that was logged with `self.log`, by its name. Raises `TypeError` without a trial. When
    the fit starts, it raises `ValueError` for settings with which a pause would not be exact.
    """

    def __new__(cls, *_: Any) -> "TrialCallback":
        """An instance of the `Callback` of the package that the script uses, and for `isinstance` also of its
        `Checkpoint`."""
        base, checkpoint = _callback_classes()
        if issubclass(cls, base):
            return object.__new__(cls)
        seen_as = type(cls.__name__, (cls, checkpoint), {})
        as_seen = property(lambda me: type(me) if _checkpoints_are_refused() else seen_as)
        own = type(cls.__name__, (cls, base), {"__class__": as_seen})
        return object.__new__(own)

    def __init__(self, t: Trial) -> None:
        self._turns = Turns(t, "TrialCallback")
        self._t = t
        self._pending: dict[str, float] = {}
        """The values with which plateau schedules, by their position, must still step after the saved epoch."""
        self._ends = False
        """Whether another callback, or the module, ends the fit after the saved epoch."""
        self._frozen: dict[str, list[str]] | None = None
        """What was frozen at the saved epoch; None in a trial that starts."""
        self.trainer: Any = None
        self.ckpt_path: str | None = None
        """The argument for `trainer.fit(ckpt_path=...)`; None in a trial that starts."""
        t.track(trainer=self)

    # The interface of a tracked object.

    def save_files(self, folder: Path) -> None:
        """Lets the trainer write its checkpoint into the folder."""
        self.trainer.save_checkpoint(folder / _FILE)

    def load_files(self, folder: Path) -> None:
        """Remembers the checkpoint, which `trainer.fit` reads."""
        self.ckpt_path = str(folder / _FILE)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameters of all optimizers: the trial warns if a checkpoint restored values other than its
        parameters."""
        optimizers = self.trainer.optimizers if self.trainer is not None else ()
        return [group for optimizer in optimizers for group in optimizer.param_groups]

    @property
    def lr_schedules(self) -> list[Any]:
        """The learning-rate schedules: the trial says where they end."""
        configs = self.trainer.lr_scheduler_configs if self.trainer is not None else ()
        return [config.scheduler for config in configs]

    # What Lightning stores for a callback, in that checkpoint.

    def state_dict(self) -> dict[str, Any]:
        """The pending steps of plateau schedules, whether the fit ends here, and what is frozen."""
        state: dict[str, Any] = {"pending": dict(self._pending), "ends": self._ends}
        if self.trainer is not None:  # else a checkpoint that the script saves before the fit
            state["frozen"] = frozen(self.trainer.lightning_module)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._pending = dict(state_dict["pending"])
        self._ends = bool(state_dict.get("ends"))
        self._frozen = state_dict.get("frozen")

    # Hooks, in the order in which Lightning calls them.

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002  (Lightning's signature)
        """Rejects what cannot be resumed exactly, before anything is trained."""
        if stage == "fit":
            self.trainer = trainer
            _refuse(trainer, self, self._t)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Rejects a fit that would train a resumed trial from the beginning."""
        if self.ckpt_path is not None and str(trainer.ckpt_path) != self.ckpt_path:
            raise ValueError(
                f"the trial resumes after step {self._t.step}, and the fit starts from scratch: write "
                "trainer.fit(..., ckpt_path=callback.ckpt_path), which is None in a trial's first run"
            )

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Restores the last score of each `ModelCheckpoint`."""
        for callback in trainer.callbacks:
            saved = checkpoint["callbacks"].get(callback.state_key, {})
            if "current_score" in saved and hasattr(callback, "current_score"):
                callback.current_score = saved["current_score"]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Everything else is restored: restores the random generators and frozen layers, and takes the pending steps.

        A fit that had ended by itself ends again, before its first batch.
        """
        self._turns.begin()
        job_signals.hold_again()  # Lightning's handler would end the fit
        if self._frozen is not None:
            freeze(pl_module, self._frozen)
        if self._ends:
            trainer.should_stop = True
        progress = trainer.fit_loop.epoch_loop.scheduler_progress
        for place, value in self._pending.items():
            progress.increment_ready()
            pl_module.lr_scheduler_step(trainer.lr_scheduler_configs[int(place)].scheduler, value)
            progress.increment_completed()
        self._pending = {}
        # While this is set, the first epoch keeps the iterator that was made before the generators were restored.
        trainer.fit_loop._resuming_from_checkpoint = False

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Reports what was logged, which also saves; the fit stops when the trial must stop."""
        metrics = dict(trainer.callback_metrics)
        if not metrics:
            raise ValueError(
                'nothing was logged in this epoch, so there is nothing to report: self.log("val_loss", loss) in '
                "validation_step or training_step, under the name of the study's objective"
            )
        self._pending = _steps_of_plateaus(trainer) if pl_module.automatic_optimization else {}
        self._ends = bool(trainer.should_stop)
        goes_on = self._turns.end(metrics, last=self._ends)
        self._pending = {}  # in this process Lightning takes them, right after this hook
        if not goes_on:
            trainer.should_stop = True


def _refuse(trainer: Any, callback: TrialCallback, t: Trial) -> None:
    # These two change other settings, which the script did not give; so they come first.
    if trainer.fast_dev_run:
        raise ValueError(
            "Trainer(fast_dev_run=...) trains a few batches, and a step of the trial is an epoch: leave it out, and "
            "give the study fewer steps"
        )
    if getattr(trainer, "barebones", False):
        raise ValueError(
            "Trainer(barebones=True) logs nothing, so there is nothing to report: leave it out, and turn off "
            "the slow parts yourself, as with enable_checkpointing=False and enable_progress_bar=False"
        )
    refuse_ranks(trainer.world_size, where="the Trainer", remedy="Give Trainer(devices=1)")
    if trainer.max_steps != -1:
        raise ValueError(
            f"Trainer(max_steps={trainer.max_steps}) ends within an epoch, and a step of the trial is an epoch: give "
            "Trainer(max_epochs=t.max_steps) and leave max_steps out"
        )
    refuse_other_budget(
        t,
        trainer.max_epochs,
        setting=f"Trainer(max_epochs={trainer.max_epochs})",
        remedy="Give Trainer(max_epochs=t.max_steps)",
    )
    if (trainer.min_epochs or 0) > 1 or trainer.min_steps:
        raise ValueError(
            "Trainer(min_epochs=..., min_steps=...) would continue training when the trial is told to leave: "
            "leave them out, and give the study grace_steps or a higher first rung"
        )
    if trainer.enable_validation and trainer.check_val_every_n_epoch != 1:
        raise ValueError(
            f"Trainer(check_val_every_n_epoch={trainer.check_val_every_n_epoch}) has epochs without a validation, "
            "whose report would repeat older values: leave it out; a step of the trial is an epoch with its validation"
        )
    if (epochs := trainer.reload_dataloaders_every_n_epochs) > 1:
        raise ValueError(
            f"Trainer(reload_dataloaders_every_n_epochs={epochs}) keeps a loader for some epochs, and a resumed trial "
            "would make it anew in between: give 1, or leave it out"
        )
    for one in trainer.callbacks:
        for kind in type(one).__mro__:
            if kind.__name__ in _INEXACT and kind.__module__.startswith(_PACKAGES):
                raise ValueError(f"{kind.__name__} {_INEXACT[kind.__name__]}")
    if trainer.callbacks[-1] is not callback:
        raise ValueError(
            f"{type(trainer.callbacks[-1]).__name__} comes after TrialCallback, so a pause would lose what it does at "
            "the end of an epoch: put TrialCallback last in Trainer(callbacks=[...])"
        )


def _steps_of_plateaus(trainer: Any) -> dict[str, float]:
    """The value with which Lightning is about to step each plateau schedule, by the schedule's position."""
    due: dict[str, float] = {}
    for place, config in enumerate(trainer.lr_scheduler_configs):
        by_epoch = config.reduce_on_plateau and config.interval == "epoch"
        value = trainer.callback_metrics.get(config.monitor) if by_epoch else None
        if value is not None and (trainer.current_epoch + 1) % config.frequency == 0:
            due[str(place)] = float(value)
    return due


def _checkpoints_are_refused() -> bool:
    """Whether a trainer that is being made with `enable_checkpointing=False` asks which of its callbacks save.

    Nothing else shows it in time: Lightning checks the types of the callbacks before it calls one.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_NEAR):
        if frame is None:
            return False
        if frame.f_code.co_name == "checkpoint_callbacks":
            asks = frame.f_back
            return asks is not None and asks.f_locals.get("enable_checkpointing") is False
        frame = frame.f_back
    return False


def _callback_classes() -> tuple[type, type]:
    """Lightning's base classes for callbacks, and for those that save, of the package that the script has imported."""
    name = next((name for name in _PACKAGES if name in sys.modules), None)
    if name is None:
        raise ImportError(
            "TrialCallback is for a script that uses Lightning, and this one has imported neither lightning.pytorch "
            "nor pytorch_lightning. Run `pip install 'headrace[lightning]'`"
        )
    callbacks = importlib.import_module(f"{name}.callbacks")
    return callbacks.Callback, callbacks.Checkpoint
