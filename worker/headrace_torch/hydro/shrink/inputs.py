"""What a model is called with: given by the user, or guessed from its layers and tried on the meta device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headrace_torch.hydro.errors import ShrinkError

BATCH = 4
SEQUENCE = 8
# Sides of square images, most common first.
SIDES = (32, 28, 64, 224, 16, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One positional input without its batch size: numbers from a normal distribution, or integers below `below`."""

    shape: tuple[int, ...]
    below: int | None = None

    def draw(self, batch: int, generator: torch.Generator) -> Tensor:
        """Draws a batch."""
        if self.below is None:
            return torch.randn(batch, *self.shape, generator=generator)
        return torch.randint(self.below, (batch, *self.shape), generator=generator)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The positional arguments of a model's forward pass: a batch of the user's, or a specification to draw from."""

    given: tuple[Tensor, ...] = ()
    specs: tuple[TensorSpec, ...] = ()

    def example(self, batch: int | None = None, seed: int = 0) -> tuple[Tensor, ...]:
        """A batch.

        The user's own batch if one was given: unchanged, or rows picked by the seed if a batch size is requested.
        """
        generator = torch.Generator().manual_seed(seed)
        if not self.given:
            return tuple(spec.draw(batch or BATCH, generator) for spec in self.specs)
        if batch is None:
            return self.given
        rows = torch.randint(self.given[0].shape[0], (batch,), generator=generator)
        return tuple(one[rows] for one in self.given)


def given_inputs(inputs: Tensor | Sequence[Tensor]) -> Inputs:
    """Wraps what the user gave.

    Raises:
        ShrinkError: it is empty, or not made of tensors.
    """
    found = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    if not found or not all(isinstance(one, Tensor) for one in found):
        raise ShrinkError(
            "inputs must be a tensor, or a tuple of the tensors that forward() takes by position"
        )
    return Inputs(given=found)


def guess_inputs(model: nn.Module) -> Inputs:
    """Finds inputs that the model runs with.

    Candidates come from its layers in the order of registration; each is tried on the meta device, which computes
    shapes only.

    Args:
        model: on the meta device.

    Raises:
        ShrinkError: the model ran with none of them.
    """
    tried = []
    for spec in _candidates(model):
        shape = (BATCH, *spec.shape)
        dtype = torch.int64 if spec.below else torch.get_default_dtype()
        try:
            with torch.device("meta"), torch.no_grad():
                model(torch.empty(shape, dtype=dtype))
        except Exception as error:  # noqa: BLE001 - any error of the user's forward means: not this input
            tried.append(f"{shape} {dtype}: {str(error).splitlines()[0][:80]}" if str(error) else f"{shape}")
        else:
            return Inputs(specs=(spec,))
    first = f" (first try: {tried[0]})" if tried else ""
    raise ShrinkError(
        f"cannot guess what the model is called with{first}; pass inputs=, one batch as forward() takes it"
    )


def _candidates(model: nn.Module) -> Iterator[TensorSpec]:
    for layer in model.modules():
        match layer:
            case nn.Embedding():
                yield TensorSpec(shape=(SEQUENCE,), below=layer.num_embeddings)
            case nn.Conv1d():
                yield from (TensorSpec(shape=(layer.in_channels, side)) for side in SIDES)
            case nn.Conv2d():
                yield from (TensorSpec(shape=(layer.in_channels, side, side)) for side in SIDES)
            case nn.Conv3d():
                yield from (TensorSpec(shape=(layer.in_channels, 8, side, side)) for side in SIDES)
            case nn.Linear():
                yield TensorSpec(shape=(layer.in_features,))
                yield TensorSpec(shape=(SEQUENCE, layer.in_features))
                side = round(layer.in_features**0.5)
                if side * side == layer.in_features:
                    yield TensorSpec(shape=(1, side, side))
                side = round((layer.in_features / 3) ** 0.5)
                if 3 * side * side == layer.in_features:
                    yield TensorSpec(shape=(3, side, side))
            case nn.RNNBase():
                yield TensorSpec(shape=(SEQUENCE, layer.input_size))
            case nn.MultiheadAttention():
                yield TensorSpec(shape=(SEQUENCE, layer.embed_dim))
            case _:
                continue
