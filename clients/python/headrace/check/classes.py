"""The classes whose objects hold training state, if the script has imported their libraries."""

import random
import sys
from dataclasses import dataclass
from typing import Any

from headrace.check.snapshot import OwnerKind
from headrace.trial import ResumableBatches

_LIGHTNING = ("pytorch_lightning", "lightning.pytorch")


@dataclass(frozen=True, slots=True)
class Classes:
    """The relevant classes, if the script has imported their libraries."""

    module: tuple[type, ...] = ()
    optimizer: tuple[type, ...] = ()
    schedule: tuple[type, ...] = ()
    scaler: tuple[type, ...] = ()
    loader: tuple[type, ...] = ()
    loader_iterator: tuple[type, ...] = ()
    sampler: tuple[type, ...] = (ResumableBatches,)
    generator: tuple[type, ...] = (random.Random,)
    tensor: tuple[type, ...] = ()
    array: tuple[type, ...] = ()
    lightning_callback: tuple[type, ...] = ()
    lightning_module: tuple[type, ...] = ()
    trainer_callback: tuple[type, ...] = ()

    @property
    def callback(self) -> tuple[type, ...]:
        return (*self.lightning_callback, *self.trainer_callback)

    def owner(self, value: Any) -> OwnerKind | None:
        """The role of a value in a framework that saves its state."""
        kinds = {
            OwnerKind.LIGHTNING_CALLBACK: self.lightning_callback,
            OwnerKind.LIGHTNING_MODULE: self.lightning_module,
            OwnerKind.TRAINER_CALLBACK: self.trainer_callback,
        }
        return next((kind for kind, classes in kinds.items() if issubclass(type(value), classes)), None)

    @classmethod
    def imported(cls) -> "Classes":
        generators: list[type] = [random.Random]
        arrays: tuple[type, ...] = ()
        if (numpy := sys.modules.get("numpy")) is not None:
            generators += [numpy.random.Generator, numpy.random.RandomState]
            arrays = (numpy.ndarray,)
        torch = sys.modules.get("torch")
        if torch is None:
            return cls(generator=tuple(generators), array=arrays)
        return cls(
            module=(torch.nn.Module,),
            optimizer=(torch.optim.Optimizer,),
            schedule=(torch.optim.lr_scheduler.LRScheduler,),
            scaler=(torch.amp.GradScaler,),
            loader=(torch.utils.data.DataLoader,),
            loader_iterator=_named("_BaseDataLoaderIter", "torch.utils.data.dataloader"),
            sampler=(torch.utils.data.Sampler, ResumableBatches),
            generator=(*generators, torch.Generator),
            tensor=(torch.Tensor,),
            array=arrays,
            lightning_callback=_named("Callback", *_LIGHTNING),
            lightning_module=_named("LightningModule", *_LIGHTNING),
            trainer_callback=_named("TrainerCallback", "transformers.trainer_callback"),
        )


def _named(name: str, *modules: str) -> tuple[type, ...]:
    """The classes with this name in those of the modules that are imported."""
    found = (getattr(sys.modules.get(module), name, None) for module in modules)
    return tuple(kind for kind in found if isinstance(kind, type))
