"""Models that cannot be fused, each for a different reason; worker processes import them from here."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Recurrent(nn.Module):
    """An LSTM or a GRU."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.cell = kind(8, 8, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Gru(Recurrent):
    """The same with a GRU."""

    def __init__(self) -> None:
        super().__init__(nn.GRU)


class Item(nn.Module):
    """Reads a number out of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def middle(self, h: Tensor) -> Tensor:
        return h / (1 + h.norm().item())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.inside(x[:, 0])))


class Branch(Item):
    """Branches on data."""

    def middle(self, h: Tensor) -> Tensor:
        return 2 * h if h.sum() > 0 else h


class MaskIndex(Item):
    """Indexes with a boolean mask."""

    def middle(self, h: Tensor) -> Tensor:
        h = h.clone()
        h[h > 0] = h[h > 0] * 2
        return h


class Checkpointed(Item):
    """Recomputes activations in the backward pass, with dropout inside."""

    reentrant = False

    def middle(self, h: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.inner, h, use_reentrant=self.reentrant)
        return out

    def inner(self, h: Tensor) -> Tensor:
        return functional.dropout(torch.tanh(h), 0.25, self.training)


class CheckpointedReentrant(Checkpointed):
    """The older, reentrant kind."""

    reentrant = True


class Noise(Item):
    """Draws from torch's generator."""

    def middle(self, h: Tensor) -> Tensor:
        return h + 0.1 * torch.randn_like(h)


class Norm(Recurrent):
    """An LSTM with BatchNorm: buffers that workers change."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.cell(x)[0][:, -1]))


class Fails(Recurrent):
    """Raises for some inputs."""

    def forward(self, x: Tensor) -> Tensor:
        if x.abs().max() > 100:
            raise ArithmeticError("too large for this model")
        return super().forward(x)


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A loss that pickles."""
    return functional.cross_entropy(model(batch[0]), batch[1])


def sequences(count: int) -> list[tuple[Tensor, Tensor]]:
    """Batches of (6, 5, 8) sequences, always the same ones."""
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(6, 5, 8, generator=generator), torch.randint(0, 4, (6,), generator=generator))
        for _ in range(count)
    ]
