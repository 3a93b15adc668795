"""Small random modules: rows of pieces, each of which does something that users' modules do, and their losses."""

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH = 6


class Piece(nn.Module):
    """Something with one linear layer, from (B, WIDTH) to (B, WIDTH)."""

    def __init__(self, kind: str, before: list["Piece"]) -> None:
        super().__init__()
        self.kind, self.calls, self.total = kind, 0, 0.0
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.held: list[Any] = []
        self.prepare(before)

    def prepare(self, before: list["Piece"]) -> None:
        """Do what the constructor of such a module would do."""
        weight = self.layer.weight
        match self.kind:
            case "list":
                self.held = [weight]
            case "dict":
                self.held = [{"weight": weight}]
            case "plain layer":
                self.held = [nn.Linear(WIDTH, WIDTH)]
            case "plain tensor":
                self.held = [torch.randn(WIDTH)]
            case "constant tensor":
                self.held = [torch.linspace(0.5, 1.5, WIDTH)]
            case "tied" if before and "weight" in before[-1].layer._parameters:
                self.layer.weight = before[-1].layer.weight
            case "whole piece again" if before:
                self.again = before[-1]
            case "hook":
                weight.register_hook(lambda grad: grad * 0.5)
            case "hook of the module":
                weight.register_hook(self.changed)
            case "hook on all":
                weight.register_post_accumulate_grad_hook(halve)
            case "forward hook":
                self.layer.register_forward_hook(lambda _m, _i, out: out * 1.5)
            case "counting forward hook":
                self.layer.register_forward_hook(self.counted)
            case "frozen":
                self.layer.bias.requires_grad_(False)
            case "buffer":
                self.register_buffer("mean", torch.zeros(WIDTH))
            case "buffer anew":
                self.register_buffer("mean", torch.zeros(WIDTH))
            case "batch norm":
                self.norm = nn.BatchNorm1d(WIDTH)
            case "layer norm":
                self.norm = nn.LayerNorm(WIDTH)
            case "weight norm":
                nn.utils.parametrizations.weight_norm(self.layer)
            case "spectral norm":
                nn.utils.parametrizations.spectral_norm(self.layer)
            case "group norm":
                self.norm = nn.GroupNorm(2, WIDTH)
            case "convolution":
                self.inner = nn.Conv1d(1, 2, 3, padding=1)
            case "attention":
                self.inner = nn.MultiheadAttention(WIDTH, 2)
            case "recurrent":
                self.inner = nn.GRUCell(WIDTH, WIDTH)
            case "embedding":
                self.inner = nn.Embedding(WIDTH, WIDTH)
            case "layers in two lists":
                self.inner = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])
                self.held = list(self.inner)
            case "pre-hook":
                self.layer.register_forward_pre_hook(lambda _m, inputs: (inputs[0] * 1.5,))
            case "backward hook":
                self.layer.register_full_backward_hook(lambda _m, grads, _o: (grads[0] * 0.5,))

    def changed(self, grad: Tensor) -> Tensor:
        """A hook whose effect depends on the module's state."""
        return grad * (1 + 0.1 * self.calls)

    def counted(self, _module: nn.Module, _inputs: Any, out: Tensor) -> Tensor:
        """A hook that changes the module's state."""
        self.calls += 1
        return out * (1 + 0.1 * self.calls)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.kind in ("every other", "count", "hook of the module")
        match self.kind:
            case "list":
                return functional.linear(x, self.held[0])
            case "dict":
                return functional.linear(x, self.held[0]["weight"])
            case "plain layer":
                return self.layer(x) + self.held[0](x)
            case "plain tensor" | "constant tensor":
                return self.layer(x) * self.held[0]
            case "whole piece again" if hasattr(self, "again"):
                return self.layer(x) + self.again(x)
            case "every other":
                return self.layer(x) if self.calls % 2 else x
            case "count":
                return self.layer(x) * (1 + 0.1 * self.calls)
            case "branch":
                return self.layer(x) if x.detach().sum() > 0 else x * 0.5
            case "branch of shapes":
                return self.layer(x) if x.shape[0] > 2 else x
            case "running sum":
                self.total += float(x.detach().mean())
                return self.layer(x) + self.total
            case "cache":
                if not self.held:
                    self.held = [torch.linspace(0.5, 1.5, x.shape[1], dtype=x.dtype)]
                return self.layer(x) * self.held[0]
            case "initial":
                if not self.calls:
                    self.calls = 1
                    with torch.no_grad():
                        self.layer.bias.copy_(-x.mean(0))
                return self.layer(x)
            case "last":
                self.last = self.layer(x)
                return self.last
            case "last used":
                out = self.layer(x) + (self.last if hasattr(self, "last") else 0.0)
                self.last = out.detach()
                return out
            case "in place":
                return self.layer(x.clamp_(-1.0, 1.0).add_(0.1)) if x.is_leaf else self.layer(x).relu_()
            case "in place after":
                return self.layer(x).mul_(2.0).add_(x)
            case "buffer":
                self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
                return self.layer(x - self.mean)
            case "buffer anew":
                self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
                return self.layer(x - self.mean)
            case "batch norm" | "layer norm" | "group norm":
                return self.norm(self.layer(x))
            case "convolution":
                return self.layer(self.inner(x[:, None]).mean(1))
            case "attention":
                return x + self.inner(x, x, x)[0]
            case "recurrent":
                return self.inner(x, self.layer(x))
            case "embedding":
                return self.layer(x) + self.inner(x.argmax(-1))
            case "layers in two lists":
                return self.held[1](torch.relu(self.held[0](x)))
            case "hook in the pass":
                h = self.layer(x)
                if h.requires_grad:
                    h.register_hook(lambda grad: grad * 0.5)
                return h
            case "checkpointed":
                return checkpoint(self.layer, x, use_reentrant=False)
            case "late change":
                self.calls += 1
                return self.layer(x) * (1.0 if self.calls < 3 else 0.5)
            case "late hook":
                self.calls += 1
                if self.calls == 3:
                    self.layer.weight.register_hook(lambda grad: grad * 0.5)
                return self.layer(x)
            case "late layer":
                self.calls += 1
                return self.layer(x) if self.calls < 3 else x
            case "late buffer":
                self.calls += 1
                if self.calls == 3:
                    self.held = [x.detach().mean(0)]
                return self.layer(x) + (self.held[0] if self.held else 0.0)
            case "late tensor":
                self.calls += 1
                if self.calls == 2:
                    self.held = [self.layer.weight.detach().sum()]
                return self.layer(x) + (self.held[0] if self.held else 0.0)
            case "branch on weights":
                return self.layer(x) if self.layer.weight.detach().sum() > 0 else x
            case "unused":
                return x
            case "detached":
                return self.layer(x).detach() + x
            case "noise":
                return self.layer(x) + 0.0 * torch.randn_like(x)
            case "python noise":
                return self.layer(x) * (1.0 if random.random() < 2 else 0.5)
            case "clamped weight":
                with torch.no_grad():
                    self.layer.weight.clamp_(-0.3, 0.3)
                return self.layer(x)
            case "mask":
                h = self.layer(x)
                return torch.where(h > 0, h, 0.1 * h)
            case "index":
                h = self.layer(x)
                return h + h[h > 0].sum()
        return torch.tanh(self.layer(x))


KINDS = (
    "plain",
    "list",
    "dict",
    "plain layer",
    "plain tensor",
    "constant tensor",
    "tied",
    "whole piece again",
    "hook",
    "hook of the module",
    "hook on all",
    "forward hook",
    "counting forward hook",
    "frozen",
    "buffer",
    "buffer anew",
    "batch norm",
    "layer norm",
    "weight norm",
    "spectral norm",
    "group norm",
    "convolution",
    "attention",
    "recurrent",
    "embedding",
    "layers in two lists",
    "pre-hook",
    "backward hook",
    "hook in the pass",
    "checkpointed",
    "branch on weights",
    "late change",
    "late hook",
    "late layer",
    "late buffer",
    "late tensor",
    "every other",
    "count",
    "branch",
    "branch of shapes",
    "running sum",
    "cache",
    "initial",
    "last",
    "last used",
    "in place",
    "in place after",
    "unused",
    "detached",
    "noise",
    "python noise",
    "clamped weight",
    "mask",
    "index",
)


def halve(parameter: Tensor) -> None:
    """A hook after gradient accumulation."""
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


class Whole(nn.Module):
    """Pieces in a row, and a readout."""

    def __init__(self, kinds: tuple[str, ...]) -> None:
        super().__init__()
        made: list[Piece] = []
        for kind in kinds:
            made.append(Piece(kind, made))
        self.pieces, self.readout = nn.ModuleList(made), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for piece in self.pieces:
            x = piece(x)
        return self.readout(x)


class Loss:
    """A loss, of several kinds."""

    def __init__(self, kind: str) -> None:
        self.kind, self.calls, self.kept = kind, 0, []

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        out = model(batch[0])
        loss = functional.cross_entropy(out, batch[1])
        match self.kind:
            case "keeps":
                self.kept.append(out.detach())
            case "keeps numbers":
                self.kept.append(float(loss.detach()))
            case "counts":
                self.calls += 1
                return loss / self.calls
            case "penalty":
                return loss + 1e-2 * sum(one.square().sum() for one in model.parameters())
        return loss


LOSSES = ("plain", "plain", "keeps", "keeps numbers", "counts", "penalty")
