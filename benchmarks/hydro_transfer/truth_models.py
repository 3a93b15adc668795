"""The twelve models of `gate_truth.py`: as users write them, by width."""

import torch
from architecture_models import zeroed
from torch import Tensor, nn
from torch.nn import functional

from headrace_torch import hydro

CLASSES, LATENTS, EXPERTS, STATE, WORDS, HEAD = 5, 4, 4, 4, 16, 8


class RmsNorm(nn.Module):
    """A gain, without subtracting the mean."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


def heads(x: Tensor) -> Tensor:
    """(batch, places, width) as heads of a fixed width."""
    return x.unflatten(-1, (-1, HEAD)).transpose(1, 2)


def rotated(x: Tensor) -> Tensor:
    """Rotary positions."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * 10.0 ** -torch.arange(half)
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * angle.cos() - right * angle.sin(), left * angle.sin() + right * angle.cos()], -1)


class Llama(nn.Module):
    """Two blocks of RMSNorm, rotary attention in heads of 8, and SwiGLU."""

    class Block(nn.Module):
        """One block."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
            self.query, self.key, self.value, self.out = (
                nn.Linear(width, width, bias=False) for _ in range(4)
            )
            self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
            self.down = nn.Linear(2 * width, width, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            h = self.norm1(x)
            q, k, v = rotated(heads(self.query(h))), rotated(heads(self.key(h))), heads(self.value(h))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).flatten(2))
            h = self.norm2(x)
            return x + self.down(functional.silu(self.gate(h)) * self.up(h))

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, width), RmsNorm(width)
        self.blocks = nn.ModuleList([self.Block(width) for _ in range(2)])
        self.readout = zeroed(nn.Linear(width, WORDS, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        for block in self.blocks:
            x = block(x)
        return self.readout(self.norm(x))


class Mamba(nn.Module):
    """A selective state space model: step, input and output depend on the sequence; a residual block with a gate."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words, self.norm, self.last = nn.Embedding(WORDS, width), RmsNorm(width), RmsNorm(width)
        self.into, self.gate = nn.Linear(width, width), nn.Linear(width, width)
        self.conv = nn.Conv1d(width, width, 3, padding=2, groups=width)
        self.step = nn.Linear(width, width)
        self.write, self.read = zeroed(nn.Linear(width, STATE)), zeroed(nn.Linear(width, STATE))
        nn.init.ones_(self.write.bias)
        nn.init.ones_(self.read.bias)
        self.decay = nn.Parameter(torch.arange(1.0, STATE + 1).log().repeat(width, 1))
        self.skip, self.out = nn.Parameter(torch.ones(width)), nn.Linear(width, width)
        self.readout = zeroed(nn.Linear(width, WORDS))

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        h = self.norm(x)
        u = functional.silu(self.conv(self.into(h).mT)[..., : x.shape[1]].mT)
        step, write, read = functional.softplus(self.step(u)), self.write(u), self.read(u)
        keep = torch.exp(-step[..., None] * self.decay.exp())
        state, found = torch.zeros_like(keep[:, 0]), []
        for place in range(x.shape[1]):
            new = (step[:, place] * u[:, place])[..., None] * write[:, place, None]
            state = keep[:, place] * state + new
            found.append((state * read[:, place, None]).sum(-1))
        mixed = (torch.stack(found, 1) + self.skip * u) * functional.silu(self.gate(h))
        return self.readout(self.last(x + self.out(mixed)))


class Moe(nn.Module):
    """Two of four experts for each row. The balance of the experts is a second output, which the loss adds."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.router = nn.Linear(20, width), zeroed(nn.Linear(width, EXPERTS))
        self.experts = nn.ModuleList([nn.Linear(width, width) for _ in range(EXPERTS)])
        self.readout = zeroed(nn.Linear(width, CLASSES))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.relu(self.first(x))
        shares = self.router(x).softmax(-1)
        chosen = shares * (shares >= shares.topk(2, -1).values[:, -1:])
        mixed = sum(chosen[:, i : i + 1] * torch.relu(one(x)) for i, one in enumerate(self.experts))
        balance = EXPERTS * ((chosen > 0).float().mean(0) * shares.mean(0)).sum()
        return self.readout(mixed), balance


class UNet(nn.Module):
    """Two resolutions, joined by concatenation; a class for each pixel."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(3, width, 3, padding=1), nn.GroupNorm(width // 8, width)
        self.down, self.norm2 = nn.Conv2d(width, 2 * width, 3, padding=1), nn.GroupNorm(width // 8, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join, self.norm3 = nn.Conv2d(2 * width, width, 1), nn.GroupNorm(width // 8, width)
        self.readout = nn.Conv2d(width, CLASSES, 1)
        nn.init.zeros_(self.readout.weight)

    def forward(self, x: Tensor) -> Tensor:
        high = torch.relu(self.norm1(self.first(x)))
        low = torch.relu(self.norm2(self.down(functional.max_pool2d(high, 2))))
        out = torch.relu(self.norm3(self.join(torch.cat([high, self.up(low)], 1))))
        return self.readout(out).movedim(1, -1)


class Gnn(nn.Module):
    """Three rounds of messages, summed over neighbours (GIN); the graph's class from the sum of its nodes."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(6, width)
        self.rounds = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.readout = zeroed(nn.Linear(width, CLASSES))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        for one in self.rounds:
            x = torch.relu(one(x + edges @ x))
        return self.readout(x.sum(1))


class Dlrm(nn.Module):
    """Tables for categories and a perceptron for numbers; their products over the width are concatenated with the
    numbers."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(12, width) for _ in range(4)])
        self.numbers, self.numbers2 = nn.Linear(8, width), nn.Linear(width, width)
        self.query = hydro.Query()
        for one in self.tables:
            nn.init.normal_(one.weight, std=0.05)
        self.products, self.top = nn.Linear(10, width), nn.Linear(2 * width, width)
        self.readout = zeroed(nn.Linear(width, 1))

    def forward(self, x: Tensor, kinds: Tensor) -> Tensor:
        dense = torch.relu(self.numbers2(torch.relu(self.numbers(x))))
        every = torch.stack([dense, *(one(kinds[:, i]) for i, one in enumerate(self.tables))], 1)
        products = self.query(every) @ every.mT / every.shape[-1] ** 0.5
        left, right = torch.tril_indices(5, 5, -1)
        both = torch.cat([dense, torch.relu(self.products(products[:, left, right]))], -1)
        return self.readout(torch.relu(self.top(both)))[:, 0]


class ConvNext(nn.Module):
    """A stem and two blocks: depthwise 5×5, LayerNorm, an inverted bottleneck, a gain per channel."""

    class Block(nn.Module):
        """One block."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.each, self.norm = nn.Conv2d(width, width, 5, padding=2, groups=width), nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.gain = nn.Parameter(torch.full((width,), 0.1))

        def forward(self, x: Tensor) -> Tensor:
            h = self.norm(self.each(x).movedim(1, -1))
            return x + (self.gain * self.down(functional.gelu(self.up(h)))).movedim(-1, 1)

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 2, stride=2), nn.LayerNorm(width)
        self.blocks = nn.ModuleList([self.Block(width) for _ in range(2)])
        self.readout = zeroed(nn.Linear(width, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.readout(self.norm(x.mean((2, 3))))


class SqueezeExcite(nn.Module):
    """Convolutions whose channels are weighted by a perceptron of their means."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(3, width, 3), nn.BatchNorm2d(width)
        self.second, self.norm2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.squeeze, self.excite = nn.Linear(width, width // 4), nn.Linear(width // 4, width)
        self.readout = zeroed(nn.Linear(width, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.first(x)))
        h = self.norm2(self.second(x))
        weights = torch.sigmoid(self.excite(torch.relu(self.squeeze(h.mean((2, 3))))))
        return self.readout(torch.relu(x + h * weights[:, :, None, None]).mean((2, 3)))


class Perceiver(nn.Module):
    """Four latent rows read the input by attention, twice, with a perceptron after each."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.latents, self.into = nn.Parameter(torch.randn(LATENTS, width)), nn.Linear(12, width)
        self.places = nn.Parameter(0.02 * torch.randn(9, width))
        self.norm1, self.norm2, self.last = (nn.LayerNorm(width) for _ in range(3))
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.readout = zeroed(nn.Linear(width, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x) + self.places
        k, v = heads(self.key(x)), heads(self.value(x))
        latents = self.latents.expand(x.shape[0], -1, -1)
        for _ in range(2):
            q = heads(self.query(self.norm1(latents)))
            mixed = functional.scaled_dot_product_attention(q, k, v)
            latents = latents + self.out(mixed.transpose(1, 2).flatten(2))
            latents = latents + self.down(functional.gelu(self.up(self.norm2(latents))))
        return self.readout(self.last(latents.mean(1)))


class Towers(nn.Module):
    """Two perceptrons whose outputs, of length 1, should agree for a pair and for no other (CLIP)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.right = nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.left_out, self.right_out = nn.Linear(width, 8), nn.Linear(width, 8)
        self.temperature = nn.Parameter(torch.tensor(2.66))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        left = functional.normalize(self.left_out(self.left(x)), dim=-1)
        right = functional.normalize(self.right_out(self.right(y)), dim=-1)
        return self.temperature.exp() * left @ right.T


class Vae(nn.Module):
    """An encoder, four latent numbers with noise, a decoder."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.into, self.hidden = nn.Linear(20, width), nn.Linear(width, width)
        self.mean, self.log_variance = zeroed(nn.Linear(width, LATENTS)), zeroed(nn.Linear(width, LATENTS))
        self.out, self.out2 = nn.Linear(LATENTS, width), nn.Linear(width, width)
        self.readout = zeroed(nn.Linear(width, 20))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = torch.relu(self.hidden(torch.relu(self.into(x))))
        mean, log_variance = self.mean(h), self.log_variance(h)
        drawn = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.readout(torch.relu(self.out2(torch.relu(self.out(drawn))))), mean, log_variance


class NormedConv(nn.Module):
    """Convolutions whose kernels are a length times a direction, with He's initial values."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        layers = nn.Conv2d(3, width, 3), nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 1)
        for one in layers:
            nn.init.kaiming_normal_(one.weight, nonlinearity="relu")
            nn.init.zeros_(one.bias)
        self.first, self.second, self.third = (nn.utils.parametrizations.weight_norm(one) for one in layers)
        self.readout = zeroed(nn.Linear(width, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x))))
        return self.readout(torch.relu(self.third(x)).mean((2, 3)))
