"""Scores replicas on one common batch, at the end of an interval and before their parameters are averaged.

Training losses of replicas differ mostly because their batches differ. On a common batch that noise is the same
for all and cancels in the scores. The probe runs in evaluation mode (dropout off, BatchNorm's running statistics)
without gradients; afterwards, each module's mode and torch's global generators are what they were before.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from headrace_torch.hdet.fingerprint import of_batch
from headrace_torch.hdet.hyperparameter import ScalarHyperparameter

Batch = Any


class Probe:
    """A loss on a batch that all replicas share.

    Args:
        model: the model; under DDP its module is called, since DDP's own forward pass would copy rank 0's
            buffers to all.
        batch: gives the batch of a sync, the same on every rank (it is compared at the first and at every
            later sync). A held-out batch scores generalisation; a training batch scores optimisation.
        loss: gives the mean loss of the model on the batch, without label smoothing or other terms under exploration.
    """

    def __init__(
        self, model: nn.Module, batch: Callable[[int], Batch], loss: Callable[[nn.Module, Batch], Tensor]
    ) -> None:
        """Keeps the three."""
        self.model = model.module if isinstance(model, DistributedDataParallel) else model
        self._batch = batch
        self._loss = loss
        self._unread = False

    def score(self, sync: int) -> tuple[float, float]:
        """Returns the loss and a fingerprint of the batch, a whole number below 2^40."""
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices=devices), _evaluating(self.model), torch.no_grad():
            batch = self._batch(sync)
            return float(self._loss(self.model, batch)), self._fingerprint(batch)

    def _fingerprint(self, batch: Batch) -> float:
        found = of_batch(batch)
        if found is None and not self._unread:
            self._unread = True
            warnings.warn(
                f"a probe's batch of type {type(batch).__name__} cannot be compared between ranks: make sure that all "
                "ranks give the same, or give tensors, arrays, numbers or text in dictionaries, lists or dataclasses",
                stacklevel=2,
            )
        return float(found or 0)


class SwitchedOff(Probe):
    """A probe that runs with some hyperparameters at their probe values, and restores them afterwards."""

    def __init__(self, probe: Probe, off: Sequence[ScalarHyperparameter]) -> None:
        """Names the hyperparameters, each of which has a value for the probe."""
        self._inner, self._off = probe, off

    def score(self, sync: int) -> tuple[float, float]:
        """Returns what the probe does."""
        own: list[tuple[Callable[[float], None], float]] = [(one.set, float(one.get())) for one in self._off]
        for one in self._off:
            assert one.probe_value is not None
            one.set(one.probe_value)
        try:
            return self._inner.score(sync)
        finally:
            for write, value in own:
                write(value)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards each module has its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
