"""Models, batches and single members: the plain torch runs with which a fused group is compared.

The solo run is the user's own loop: a module, a torch optimizer, a torch scheduler, `clip_grad_norm_`.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler

from headrace_torch import hydro
from headrace_torch.hydro.fuse import Cosine, OneCycle, StepDecay, WarmUp

CLASSES, SYMBOLS, LENGTH = 10, 32, 16


class Mlp(nn.Module):
    """Two hidden layers, optionally with dropout."""

    def __init__(self, hidden: int = 32, rate: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(16, hidden),
            nn.ReLU(),
            nn.Dropout(rate),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Dropout(rate),
        )
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Cnn(nn.Module):
    """Two convolutions with BatchNorm.

    No bias before a BatchNorm, which would cancel it: the bias's gradient is rounding, and Adam divides by its
    size. A ReLU between the two does not help: a channel may be positive throughout (1.2e-9 in one such bias, on
    one CPU).
    """

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, 2 * channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(2 * channels)
        self.head = nn.Linear(8 * channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.norm(self.first(x))), 2)
        x = functional.max_pool2d(self.norm2(functional.relu(self.second(x))), 2)
        return self.head(x.flatten(1))


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut, as in ResNet-18."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside)
        self.conv2, self.norm2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside)
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(h)) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, two blocks, and an average over positions."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels)
        self.blocks = nn.Sequential(
            ResidualBlock(channels, channels, 1), ResidualBlock(channels, 2 * channels, 2)
        )
        self.head = nn.Linear(2 * channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(functional.relu(self.norm(self.stem(x))))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class GptBlock(nn.Module):
    """Causal attention and an MLP, each after a LayerNorm."""

    def __init__(self, width: int, heads: int, rate: float) -> None:
        super().__init__()
        self.heads, self.rate = heads, rate
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        rate = self.rate if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + functional.dropout(
            self.down(functional.gelu(self.up(self.norm2(x)))), self.rate, self.training
        )


class Gpt(nn.Module):
    """Tied embeddings, a positional parameter, a buffer of positions."""

    def __init__(self, width: int = 16, rate: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, width)
        self.place = nn.Parameter(torch.randn(LENGTH, width) * 0.02)
        self.register_buffer("positions", torch.arange(LENGTH), persistent=False)
        self.blocks = nn.ModuleList([GptBlock(width, 2, rate) for _ in range(2)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, SYMBOLS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place[self.positions[: tokens.shape[1]]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": Mlp, "cnn": Cnn, "resnet": ResNet, "gpt": Gpt}


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy over the last dim, the mean over everything else."""
    inputs, targets = batch
    out = model(inputs)
    return functional.cross_entropy(out.reshape(-1, out.shape[-1]), targets.reshape(-1))


def batches(
    name: str, count: int, size: int = 8, dtype: torch.dtype = torch.float64
) -> list[tuple[Tensor, Tensor]]:
    """Random batches that suit a model; they are always the same."""
    generator = torch.Generator().manual_seed(7)
    out = []
    for _ in range(count):
        if name == "gpt":
            tokens = torch.randint(0, SYMBOLS, (size, LENGTH + 1), generator=generator)
            out.append((tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()))
            continue
        shape = (size, 16) if name == "mlp" else (size, 3, 8, 8)
        inputs = torch.randn(shape, generator=generator, dtype=dtype)
        out.append((inputs, torch.randint(0, CLASSES, (size,), generator=generator)))
    return out


OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def scheduler_of(
    schedule: Any, optimizer: torch.optim.Optimizer, lr: float
) -> lr_scheduler.LRScheduler | None:
    """The torch scheduler after which one of our schedules is named."""
    match schedule:
        case None:
            return None
        case StepDecay():
            return lr_scheduler.StepLR(optimizer, schedule.every, schedule.gamma)
        case Cosine():
            return lr_scheduler.CosineAnnealingLR(optimizer, schedule.steps, schedule.floor)
        case WarmUp(after=None):
            return lr_scheduler.LinearLR(optimizer, schedule.start, 1.0, schedule.steps)
        case WarmUp():
            warm = lr_scheduler.LinearLR(optimizer, schedule.start, 1.0, schedule.steps)
            then = scheduler_of(schedule.after, optimizer, lr)
            assert then is not None
            return lr_scheduler.SequentialLR(optimizer, [warm, then], [schedule.steps])
        case OneCycle():
            return lr_scheduler.OneCycleLR(
                optimizer,
                max_lr=lr,
                total_steps=schedule.steps,
                pct_start=schedule.warm_part,
                anneal_strategy=schedule.anneal,
                cycle_momentum=schedule.cycle_momentum,
            )
    raise AssertionError(schedule)


class Solo:
    """A single member, in plain torch."""

    def __init__(self, model: nn.Module, member: Mapping[str, Any], optimizer: str) -> None:
        self.model = model
        own = ("schedule", "clip", "dropout", "seed", "batch_size", "scaler", "model")
        settings = {name: value for name, value in member.items() if name not in own}
        self.optimizer = OPTIMIZERS[optimizer](model.parameters(), **settings)
        self.scheduler = scheduler_of(member.get("schedule"), self.optimizer, member["lr"])
        self.clip = member.get("clip")

    def step(self, batch: Any, loss_fn: Callable[[nn.Module, Any], Tensor] = loss_of) -> float:
        self.optimizer.zero_grad()
        loss = loss_fn(self.model, batch)
        loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        return float(loss.detach())


def built(name: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A model whose initial values depend on a seed only."""
    torch.manual_seed(seed)
    return MODELS[name]().to(dtype)


def factory(name: str, dtype: torch.dtype = torch.float64) -> Callable[[], nn.Module]:
    """A factory as a user would write it."""

    def make() -> nn.Module:
        return MODELS[name]().to(dtype)

    return make


def apart(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The greatest difference between two state dicts, each tensor relative to its own largest number.

    Numbers below 1e-6 are compared with an absolute tolerance of 1e-15: some gradients (of key biases) are pure
    rounding.
    """
    worst = 0.0
    for name, value in expected.items():
        a, b = value.double(), found[name].double()
        size = max(float(a.abs().max()), 1e-6)
        worst = max(worst, float((a - b).abs().max()) / size)
    return worst


def mixed_members(optimizer: str, steps: int = 50) -> list[dict[str, Any]]:
    """Five members that differ in everything, each with a schedule of its own."""
    rate = {"sgd": 0.05, "adam": 2e-3, "adamw": 2e-3}[optimizer]
    schedules: Sequence[Any] = (
        None,
        StepDecay(every=10, gamma=0.5),
        Cosine(steps=steps, floor=1e-5),
        WarmUp(steps=10, start=0.1, after=Cosine(steps=steps - 10)),
        OneCycle(steps=steps),
    )
    special: Sequence[dict[str, Any]]
    if optimizer == "sgd":
        special = (
            {"momentum": 0.9},
            {"momentum": 0.8, "nesterov": True, "weight_decay": 1e-3},
            {"momentum": 0.5, "dampening": 0.1},
            {"weight_decay": 1e-2},
            {"momentum": 0.9, "clip": 0.5},
        )
    else:
        special = (
            {},
            {"betas": (0.8, 0.95), "weight_decay": 0.1},
            {"eps": 1e-6, "clip": 0.5},
            {"betas": (0.5, 0.99), "weight_decay": 0.0},
            {"weight_decay": 0.03},
        )
    return [
        {"lr": rate * 1.5**i, "seed": i, "schedule": schedule, **own}
        for i, (schedule, own) in enumerate(zip(schedules, special, strict=True))
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What became of members: their losses at every step (S steps, N members), and the states at the end."""

    losses_SN: Tensor  # noqa: N815  shape suffixes
    states: list[dict[str, Tensor]]
    """Of each member: parameters, buffers, and the optimizer's moments, which are sums over all gradients."""

    def distance(self, other: "Trained") -> float:
        """The greatest relative difference."""
        losses, expected = self.losses_SN.double(), other.losses_SN.double()
        worst = float(((losses - expected) / expected).abs().max())
        return max(worst, *(apart(*pair) for pair in zip(self.states, other.states, strict=True)))


def trained_fused(
    model: str,
    optimizer: str,
    engine: Any,
    *,
    steps: int,
    device: str = "cpu",
    dtype: torch.dtype = torch.float64,
) -> Trained:
    """Trains five different members as a group."""
    members = mixed_members(optimizer)
    group = hydro.fuse(factory(model, dtype), members, optimizer, engine=engine, device=device)
    losses = [group.step(batch, loss_of) for batch in _batches_on(model, steps, device, dtype)]
    states = []
    for position in range(len(members)):
        state = group.member_state(position)
        states.append(_flat(state["model"], state["optimizer"]["state"]))
    return Trained(losses_SN=torch.stack([row.cpu() for row in losses]), states=states)


def trained_alone(
    model: str, optimizer: str, *, steps: int, device: str = "cpu", dtype: torch.dtype = torch.float64
) -> Trained:
    """Trains the same members, each in plain torch."""
    members = mixed_members(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's SequentialLR warns about a call of its own
        alone = [
            Solo(built(model, member["seed"], dtype).to(device), member, optimizer) for member in members
        ]
        batches_on_device = _batches_on(model, steps, device, dtype)
        losses = [[one.step(batch) for one in alone] for batch in batches_on_device]
    states = [_flat(one.model.state_dict(), one.optimizer.state_dict()["state"]) for one in alone]
    return Trained(losses_SN=torch.tensor(losses, dtype=torch.float64), states=states)


def _batches_on(model: str, steps: int, device: str, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """The same numbers for every dtype, rounded."""
    return [
        (inputs.to(device, dtype if inputs.is_floating_point() else None), targets.to(device))
        for inputs, targets in batches(model, steps)
    ]


def _flat(model: Mapping[str, Tensor], moments: Mapping[int, Mapping[str, Any]]) -> dict[str, Tensor]:
    found = {f"model.{name}": value.cpu() for name, value in model.items()}
    for index, entry in moments.items():
        found |= {
            f"moment.{index}.{name}": value.cpu() for name, value in entry.items() if torch.is_tensor(value)
        }
    return found
