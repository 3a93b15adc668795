"""The data for the models of `gate_truth.py`: a small set of rows for each seed, made by fixed teachers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from truth_models import (
    CLASSES,
    LATENTS,
    WORDS,
    ConvNext,
    Dlrm,
    Gnn,
    Llama,
    Mamba,
    Moe,
    NormedConv,
    Perceiver,
    SqueezeExcite,
    Towers,
    UNet,
    Vae,
)

Batch = tuple[tuple[Tensor, ...], Tensor]
Draw = Callable[[torch.Generator, int], Batch]


@dataclass(frozen=True)
class Task:
    """A model by its width, rows for it, and a loss on its output and the wanted one."""

    make: Callable[..., nn.Module]
    draw: Draw
    loss: Callable[[Any, Tensor], Tensor]
    count: int = 128

    def rows(self, seed: int, count: int | None = None) -> Batch:
        """The rows of a seed, the same for every width and rate."""
        return self.draw(torch.Generator().manual_seed(seed), count or self.count)


def fixed(*shape: int, seed: int = 0) -> Tensor:
    """A teacher's matrix."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / shape[0] ** 0.5


def teacher(x: Tensor, classes: int = CLASSES) -> Tensor:
    """Classes of rows, by a narrow perceptron."""
    return (2 * torch.tanh(2 * x @ fixed(x.shape[-1], 12)) @ fixed(12, classes, seed=1)).argmax(-1)


def rows_of(*shape: int) -> Draw:
    """Normal inputs, classified by the teacher."""

    def draw(generator: torch.Generator, rows: int) -> Batch:
        x = torch.randn(rows, *shape, generator=generator)
        return (x,), teacher(x.flatten(1))

    return draw


def text(generator: torch.Generator, rows: int) -> Batch:
    """Letters, each of which follows from the previous two, except one in ten."""
    found = torch.randint(WORDS, (rows, 13), generator=generator)
    surprise = torch.rand(rows, 13, generator=generator) < 0.1
    for place in range(2, 13):
        following = (3 * found[:, place - 1] + found[:, place - 2] // 4) % WORDS
        found[:, place] = torch.where(surprise[:, place], found[:, place], following)
    return (found[:, :-1],), found[:, 1:]


def pixels(generator: torch.Generator, rows: int) -> Batch:
    """Images, and a class for each pixel by its neighbours."""
    x = torch.randn(rows, 3, 6, 6, generator=generator)
    around = functional.unfold(x, 3, padding=1).mT
    return (x,), teacher(around).unflatten(1, (6, 6))


def graphs(generator: torch.Generator, rows: int) -> Batch:
    """Twelve nodes with three neighbours on average; the class depends on sums over neighbours of neighbours."""
    x = torch.randn(rows, 12, 6, generator=generator)
    upper = torch.triu(torch.rand(rows, 12, 12, generator=generator) < 0.27, 1).float()
    edges = upper + upper.mT
    return (x, edges), teacher((torch.tanh(edges @ x) + x).sum(1))


def clicks(generator: torch.Generator, rows: int) -> Batch:
    """Numbers, four categories, and whether it was clicked, which is partly random."""
    x = torch.randn(rows, 8, generator=generator)
    kinds = torch.randint(12, (rows, 4), generator=generator)
    table = fixed(12, 4, 3, seed=2) * 12**0.5
    tastes = torch.stack([table[kinds[:, i], i] for i in range(4)], 1)
    score = (tastes[:, 0] * tastes[:, 1]).sum(-1) + (tastes[:, 2] * (x @ fixed(8, 3, seed=3))).sum(-1)
    return (x, kinds), torch.rand(rows, generator=generator) < torch.sigmoid(2 * score)


def pairs(generator: torch.Generator, rows: int) -> Batch:
    """Two views of one thing."""
    thing = torch.randn(rows, 6, generator=generator)
    left, right = torch.tanh(thing @ fixed(6, 20)) * 2, torch.tanh(thing @ fixed(6, 12, seed=1)) * 2
    return (left, right), torch.zeros(rows)


def manifold(generator: torch.Generator, rows: int) -> Batch:
    """Points on a curved surface, with a little noise, to be reconstructed."""
    x = 2 * torch.tanh(torch.randn(rows, LATENTS, generator=generator) @ fixed(LATENTS, 20) * 2)
    x = x + 0.1 * torch.randn(rows, 20, generator=generator)
    return (x,), x


def crossed(output: Any, wanted: Tensor) -> Tensor:
    """Cross-entropy over the last dim; a second output is an auxiliary loss."""
    logits, extra = output if isinstance(output, tuple) else (output, None)
    loss = functional.cross_entropy(logits.flatten(0, -2), wanted.flatten())
    return loss if extra is None else loss + 0.05 * extra


def clicked(output: Any, wanted: Tensor) -> Tensor:
    """Binary cross-entropy."""
    return functional.binary_cross_entropy_with_logits(output, wanted.float())


def paired(output: Any, _wanted: Tensor) -> Tensor:
    """Each row's partner is the one in the same position, in both directions."""
    own = torch.arange(output.shape[0])
    return 0.5 * (functional.cross_entropy(output, own) + functional.cross_entropy(output.T, own))


def bounded(output: Any, wanted: Tensor) -> Tensor:
    """The evidence lower bound, per number."""
    rebuilt, mean, log_variance = output
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1).mean()
    return (rebuilt - wanted).square().mean() + 0.01 * divergence


TASKS: Mapping[str, Task] = {
    "LLaMA block": Task(Llama, text, crossed),
    "GNN, sums": Task(Gnn, graphs, crossed),
    "MoE, auxiliary loss": Task(Moe, rows_of(20), crossed),
    "two towers, contrastive": Task(Towers, pairs, paired),
    "ConvNeXt": Task(ConvNext, rows_of(3, 6, 6), crossed),
    "weight-normed convolutions": Task(NormedConv, rows_of(3, 6, 6), crossed),
    "selective state space": Task(Mamba, text, crossed),
    "Perceiver": Task(Perceiver, rows_of(9, 12), crossed),
    "VAE": Task(Vae, manifold, bounded),
    "DLRM": Task(Dlrm, clicks, clicked, count=512),
    "U-Net, pixels": Task(UNet, pixels, crossed),
    "squeeze-excite": Task(SqueezeExcite, rows_of(3, 6, 6), crossed),
}
