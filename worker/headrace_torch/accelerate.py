"""A trial that trains with Hugging Face Accelerate. A step is an epoch of the prepared loaders.

```python
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
t.track(prepared=Prepared(accelerator))
for _epoch in t.steps():
    for batch in loader: ...
    t.report(val_loss=loss)
```

Accelerate leaves the loop to the script, so the trial's own loop is used, and one object is tracked: everything
that `accelerator.prepare` has seen, and everything registered with `accelerator.register_for_checkpointing`.
Accelerate's own `save_state` and `load_state` write and read it. They do not store how many epochs a prepared
loader has yielded, which determines the order of the next one; this module stores it. Nothing stores the position
within an epoch, so a checkpoint in the middle of one is rejected.
"""

import json
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from headrace_torch.turns import refuse_ranks

_EPOCHS = "epochs.json"


class Prepared:
    """Everything that an accelerator has prepared, to track as one object:
    `t.track(prepared=Prepared(accelerator))`.

    Make it after `accelerator.prepare(...)`. Raises `ValueError` if nothing is prepared, if the accelerator names
    its checkpoints itself, or if it trains on several ranks.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        if not isinstance(accelerator, Accelerator):
            raise TypeError(f"Prepared(...) got a {type(accelerator).__name__}; give it the Accelerator")
        if not accelerator._models:
            raise ValueError(
                "Prepared(accelerator) has no model to save: call it after accelerator.prepare(model, optimizer, ...)"
            )
        if accelerator.project_configuration.automatic_checkpoint_naming:
            raise ValueError(
                "ProjectConfiguration(automatic_checkpoint_naming=True) saves into a separate folder, and a trial's "
                "checkpoint is one folder: leave it out"
            )
        refuse_ranks(accelerator.num_processes, where="the Accelerator", remedy="Start one process")
        self._accelerator = accelerator

    def save_files(self, folder: Path) -> None:
        """Writes the state into the folder. Raises `ValueError` within an epoch of a prepared loader."""
        if self._accelerator.gradient_state.in_dataloader:
            raise ValueError(
                "t.report(...) saves within an epoch of a prepared DataLoader, whose position is not "
                "saved: report after the loop over the loader, and let the loop run to its end, without `break`"
            )
        self._accelerator.save_state(str(folder))
        (folder / _EPOCHS).write_text(json.dumps([loader.iteration for loader in self._loaders()]))

    def load_files(self, folder: Path) -> None:
        """Reads what `save_files` wrote. Raises `ValueError` if other loaders are prepared."""
        epochs = json.loads((folder / _EPOCHS).read_text())
        if len(epochs) != len(self._loaders()):
            raise ValueError(
                f"the checkpoint knows {len(epochs)} prepared loaders, and this accelerator has "
                f"{len(self._loaders())}; resume a trial with the script that it was paused with"
            )
        self._accelerator.load_state(str(folder))
        for loader, epoch in zip(self._loaders(), epochs, strict=True):
            loader.iteration = epoch

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameters of all optimizers: the trial warns if a checkpoint restored values other than its
        parameters."""
        return [group for optimizer in self._accelerator._optimizers for group in optimizer.param_groups]

    @property
    def lr_schedules(self) -> list[Any]:
        """The learning-rate schedules: the trial says where they end."""
        return [prepared.scheduler for prepared in self._accelerator._schedulers]

    def _loaders(self) -> list[Any]:
        return list(self._accelerator._dataloaders)
