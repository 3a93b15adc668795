"""A trial that the Hugging Face `Trainer` trains. A step is an evaluation.

```python
callback = TrialCallback(t)
args = TrainingArguments(output_dir=callback.output_dir, num_train_epochs=t.max_steps, eval_strategy="epoch")
trainer = Trainer(model=model, args=args, train_dataset=..., eval_dataset=..., callbacks=[callback])
trainer.train(resume_from_checkpoint=callback.checkpoint)   # None, unless the trial resumes
```

The checkpoint is the Trainer's own: after each evaluation the callback asks for one, and in `on_save`, when it is
complete, reports. At a rung the files go into the trial's checkpoint. The Trainer reads them back, and with them
its model, optimizer, schedule, scaler, counts, callbacks and random generators. It also skips the batches of an
epoch that it had trained, so a pause between two evaluations of one epoch is exact too. The Trainer takes a batch
from its dataset ahead of time. So a dataset that draws random numbers itself is exact only at the end of an epoch.

The Trainer saves what its callbacks count, as `EarlyStoppingCallback` does, but reads it back only if its
arguments say `restore_callback_states_from_checkpoint`. This callback sets that when the Trainer is made. It also
saves that a training ends by itself at an evaluation, so that a trial that is paused or killed there does not
continue training.

Only metrics of evaluations are reported. The training loss is a mean since the last time that it was logged, which
a checkpoint does not hold; what an evaluation says about its speed differs in each run.
"""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import TrainerCallback

from headrace.trial import Ended, Trial
from headrace.trial.runtime import Action
from headrace.trial.tracking import Unchanged
from headrace_torch.turns import Turns, refuse_other_budget, refuse_ranks

_NOT_TOLD = ("epoch", "_runtime", "_per_second", "_time", "_alloc_delta", "_peaked_delta")
"""Endings of metrics that are not results of a trial: the count of epochs, times and memory."""
_ENDS = "headrace-ends.json"
"""A file in a checkpoint at which the training ended by itself."""
_CONTROL = "TrainerControl"
_NOT_LOADED = "training_args.bin"
"""A file in a checkpoint that is a pickle of the arguments; the script makes these itself."""


class TrialCallback(TrainerCallback):  # type: ignore[misc]  # the library is not type-checked
    """Reports every evaluation of `trainer.train`, saves at rungs, and ends the training when the trial must stop.

    Raises `TypeError` without a trial. When the training starts it raises `ValueError` for arguments with which a pause
    would not be exact.
    """

    def __init__(self, t: Trial) -> None:
        self._turns = Turns(t, "TrialCallback")
        self._t = t
        self._scratch = TemporaryDirectory(prefix="headrace-trainer-")
        self._metrics: dict[str, Any] = {}
        """Metrics of the evaluation that will be reported."""
        self._reported_at = 0
        """The Trainer's `global_step` of the last report."""
        self._trained_to = 0
        """Its `global_step` after the last optimizer step."""
        self._written: Path | None = None
        self._ends = False
        """Whether another callback ends the training at the evaluation that is saved."""
        self._optimizer: Any = None
        self._schedule: Any = None
        self.output_dir: str = self._scratch.name
        """A folder for `TrainingArguments(output_dir=...)` that is deleted when the process ends."""
        self.checkpoint: str | None = None
        """The argument for `trainer.train(resume_from_checkpoint=...)`; None in a trial that starts."""
        t.track(trainer=self)

    # The interface of a tracked object.

    def save_files(self, folder: Path) -> None:
        """Takes over the files that the Trainer has just written, at an evaluation. Elsewhere it raises `Unchanged` if
        the Trainer has not trained since, and `ValueError` if it has.
        """
        if self._written is None and self._trained_to == self._reported_at:
            raise Unchanged("the Trainer writes its checkpoints at evaluations")
        if self._written is None:
            raise ValueError(
                "the Trainer writes its checkpoints at evaluations, and has trained since the last one"
            )
        for source in self._written.rglob("*"):
            if source.is_file() and source.name != _NOT_LOADED:
                target = folder / source.relative_to(self._written)
                target.parent.mkdir(exist_ok=True)
                _link_or_copy(source, target)
        if self._ends:
            (folder / _ENDS).write_text(json.dumps(True))

    def load_files(self, folder: Path) -> None:
        """Remembers the checkpoint, which `trainer.train` reads."""
        self.checkpoint = str(folder)
        self._ends = (folder / _ENDS).exists()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's parameters: the trial warns if a checkpoint restored values other than its parameters."""
        return list(getattr(self._optimizer, "param_groups", ()))

    @property
    def lr_schedules(self) -> list[Any]:
        """The learning-rate schedule: the trial says where it ends."""
        return [self._schedule]

    # Hooks, in the order in which the Trainer calls them.

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002  (its signature)
        """Makes the Trainer read back what its callbacks count."""
        args.restore_callback_states_from_checkpoint = True

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002  (its signature)
        """Rejects what cannot be resumed exactly; then everything is restored, and the training starts.

        A training that had ended by itself ends again here, before its first batch. The Trainer offers no other way
        than to raise `Ended`, with which the trial's function ends too.
        """
        _refuse(args, state, self._t)
        if self.checkpoint is not None and state.global_step == 0:
            raise ValueError(
                f"the trial resumes after step {self._t.step}, and the training starts from scratch: write "
                "trainer.train(resume_from_checkpoint=callback.checkpoint), which is None in a trial's first run"
            )
        self._reported_at = self._trained_to = state.global_step
        self._optimizer, self._schedule = more.get("optimizer"), more.get("lr_scheduler")
        self._turns.begin()
        if self._ends:
            raise Ended(Action.STOP, "the training had already ended")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002  (its signature)
        """Notes how far the model is trained."""
        self._trained_to = state.global_step

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, Any], **_: Any) -> None:  # noqa: ARG002
        """Requests a checkpoint, after which it is reported. With several datasets, each one is a separate
        evaluation."""
        if state.global_step <= self._reported_at:
            return  # before the training, or requested by the script in the middle of it
        told = {name: value for name, value in metrics.items() if not name.endswith(_NOT_TOLD)}
        if not told:
            raise ValueError(
                f"the evaluation has no metric to report, only {', '.join(sorted(metrics))}: give its data "
                "labels, which produce eval_loss, or give the Trainer compute_metrics"
            )
        self._metrics |= told
        control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The checkpoint is complete: reports, and ends the training when the trial must stop."""
        self._written = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if (
            self._metrics
        ):  # else the Trainer's arguments saved it, without an evaluation: by default every 500 steps
            metrics, self._metrics = self._metrics, {}
            self._reported_at = state.global_step
            self._ends = bool(control.should_training_stop) and state.global_step < state.max_steps
            if not self._turns.end(metrics, last=self._ends):
                control.should_training_stop = True
        if args.output_dir == self.output_dir:
            shutil.rmtree(self._written)
        self._written = None


def _refuse(args: Any, state: Any, t: Trial) -> None:
    refuse_ranks(args.world_size, where="the Trainer", remedy="Start one process")
    strategy = str(getattr(args.eval_strategy, "value", args.eval_strategy))
    if strategy == "no":
        raise ValueError(
            'TrainingArguments(eval_strategy="no") never evaluates, and a step of the trial is an evaluation: give '
            'eval_strategy="epoch", or "steps" with eval_steps'
        )
    if str(getattr(args.save_strategy, "value", args.save_strategy)) == "best" or args.save_only_model:
        raise ValueError(
            'TrainingArguments(save_strategy="best") and save_only_model leave evaluations without a checkpoint to '
            "resume from: leave them out; the study's `objective: {keep: best}` keeps the best one"
        )
    if args.ignore_data_skip:
        raise ValueError(
            "TrainingArguments(ignore_data_skip=True) starts an epoch's data over after a pause: leave it out"
        )
    if args.load_best_model_at_end:
        raise ValueError(
            "TrainingArguments(load_best_model_at_end=True) knows the checkpoints of this process only, so not those "
            "before a pause: leave it out; the study's `objective: {keep: best}` keeps the best one"
        )
    states = getattr(state, "stateful_callbacks", None) or {}
    if several := [name for name, found in states.items() if isinstance(found, list)]:
        raise ValueError(
            f"the Trainer has two {several[0]}, and reads what two callbacks of one class count back wrongly after a "
            "pause: give it one of them"
        )
    stateful = [name for name in states if name != _CONTROL]
    if stateful and not getattr(args, "restore_callback_states_from_checkpoint", False):
        raise ValueError(
            f"{', '.join(stateful)} would start over after a pause: make the Trainer with callbacks=[callback], or "
            "give TrainingArguments(restore_callback_states_from_checkpoint=True)"
        )
    by_epoch = strategy == "epoch"
    steps = state.num_train_epochs if by_epoch else state.max_steps // state.eval_steps
    refuse_other_budget(
        t,
        steps,
        setting=f"num_train_epochs={state.num_train_epochs}"
        if by_epoch
        else f"eval_steps={state.eval_steps} in {state.max_steps} optimizer steps",
        remedy="Give TrainingArguments(num_train_epochs=t.max_steps)"
        if by_epoch
        else f"Give TrainingArguments(max_steps={state.eval_steps} * t.max_steps)",
    )


def _link_or_copy(source: Path, target: Path) -> None:
    """A second name for the file if both are on one file system, else a copy. The Trainer never changes a file."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copy2(source, target)
