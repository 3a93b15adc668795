"""State that is sharded over the ranks of a gang, saved by `torch.distributed.checkpoint` (DCP).

FSDP2 (`fully_shard`) and tensor parallelism make a model's parameters, and with them the optimizer's moments, DTensors:
each rank has a part. DCP writes the parts of all ranks into one folder and reads them back into however many parts the
next gang has, so a trial may continue on another number of ranks.

Its files are read as PyTorch reads them: tensors without running code; the optimizer's settings, which are not
tensors, with `pickle`. A checkpoint comes from the trial itself or, in a population, from another trial of the
study.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer

_MODEL: Final = "model"
_OPTIMIZER: Final = "optimizer"


class ShardedState:
    """A sharded model and its optimizers, to track as one: `t.track(training=ShardedState(model, optimizer))`.

    Saving and loading are collective: every rank of the default process group takes part. Loading needs the model
    and the optimizers built and sharded as they were, on any number of ranks. An optimizer that has not taken a
    step is saved without state.
    """

    resharded = True
    """Another number of ranks can load it too."""

    def __init__(self, model: nn.Module, *optimizers: Optimizer) -> None:
        self.model = model
        self.optimizers: Sequence[Optimizer] = optimizers

    def save_files(self, folder: Path) -> None:
        """Writes the state of all ranks into `folder`; each rank writes its part."""
        save(self._state([bool(one.state) for one in self.optimizers]), checkpoint_id=folder)

    def load_files(self, folder: Path) -> None:
        """Reads what `save_files` wrote. Raises `ValueError` if another number of optimizers was saved."""
        keys = FileSystemReader(folder).read_metadata().state_dict_metadata
        stepped = [
            any(key.startswith(f"{_OPTIMIZER}_{n}.") for key in keys) for n in range(len(self.optimizers))
        ]
        if any(key.startswith(f"{_OPTIMIZER}_{len(stepped)}.") for key in keys):
            raise ValueError(f"the checkpoint has the state of more optimizers than these {len(stepped)}")
        state = self._state(stepped)
        load(state, checkpoint_id=folder)
        set_model_state_dict(self.model, state[_MODEL])
        for number, optimizer in enumerate(self.optimizers):
            if stepped[number]:
                set_optimizer_state_dict(self.model, optimizer, state[f"{_OPTIMIZER}_{number}"])

    def _state(self, stepped: Sequence[bool]) -> dict[str, Any]:
        """The state as DCP saves it; for loading, it is filled in place."""
        state: dict[str, Any] = {_MODEL: get_model_state_dict(self.model)}
        for number, optimizer in enumerate(self.optimizers):
            if stepped[number]:
                state[f"{_OPTIMIZER}_{number}"] = get_optimizer_state_dict(self.model, optimizer)
        return state
