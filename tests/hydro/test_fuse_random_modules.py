"""Small random modules: a group equals the same module under torch.optim, or refuses it; it never differs in silence.

A module is a row of pieces, each of which does something that users' modules do: layers, branches on data and on
counts, shared weights, lists, hooks, work in place, buffers, attributes, closures. `make yardstick` draws 2,000
modules from each of four seeds (HEADRACE_MODULES, HEADRACE_MODULES_SEED) and prints what became of them.
"""

import os
import random
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from headrace_torch import hydro

CASES = int(os.environ.get("HEADRACE_MODULES", "25"))
SEED = int(os.environ.get("HEADRACE_MODULES_SEED", "0"))
WIDTH, ROWS, STEPS = 6, 5, 4
TELL_EVERY = 250  # cases
OUTCOMES: Counter[str] = Counter()


class Piece(nn.Module):
    """Something with one linear layer, from (B, WIDTH) to (B, WIDTH)."""

    def __init__(self, kind: str, before: list["Piece"]) -> None:
        super().__init__()
        self.kind, self.calls, self.total = kind, 0, 0.0
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.held: list[Any] = []
        self.prepare(before)

    def prepare(self, before: list["Piece"]) -> None:
        """What the constructor of such a module would do."""
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
        """A hook that depends on the module's state."""
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
    """A hook after accumulation."""
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


def double(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A factory of modules in float64, as a user would write it."""

    def made() -> nn.Module:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return make()
        finally:
            torch.set_default_dtype(before)

    return made


def batches(given: int) -> list[tuple[Tensor, Tensor]]:
    """Two batches, in turn."""
    generator = torch.Generator().manual_seed(given)
    two = [
        (
            torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64),
            torch.randint(3, (ROWS,), generator=generator),
        )
        for _ in range(2)
    ]
    return [two[step % 2] for step in range(STEPS)]


def alone(
    make: Callable[[], nn.Module], member: dict[str, Any], optimizer: str, loss: str, data: int
) -> tuple[list[float], dict[str, Tensor]]:
    """Plain torch, with nothing of Hydro."""
    torch.manual_seed(member["seed"])
    model, loss_fn = make(), Loss(loss)
    settings = {key: value for key, value in member.items() if key not in ("seed", "clip")}
    chosen = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer](
        model.parameters(), **settings
    )
    losses = []
    for batch in batches(data):
        chosen.zero_grad()
        out = loss_fn(model, batch)
        out.backward()
        if "clip" in member:
            nn.utils.clip_grad_norm_(model.parameters(), member["clip"])
        chosen.step()
        losses.append(float(out.detach()))
    return losses, {name: one.detach().clone() for name, one in model.state_dict().items()}


def apart(one: Tensor, two: Tensor) -> float:
    """The greatest difference, relative to the greatest number; infinite for a stray NaN."""
    a, b = one.to(torch.float64), two.to(torch.float64)
    if not torch.equal(a.isnan(), b.isnan()):
        return float("inf")
    return float((a - b).nan_to_num().abs().max() / a.nan_to_num().abs().max().clamp_min(1e-30))


def check(
    kinds: tuple[str, ...],
    loss: str,
    optimizer: str,
    engine: str,
    *,
    as_module: bool,
    clip: bool,
    data: int,
    size: int = 2,
) -> None:
    """Trains some members in a group, and each alone; fails where they differ and nothing was said."""
    make = double(lambda: Whole(kinds))
    members: list[dict[str, Any]] = [
        {"lr": rate, "seed": 0 if as_module else seed}
        for seed, rate in enumerate((0.03, 0.01, 0.02)[:size], start=1)
    ]
    members[0]["weight_decay"] = 0.1
    if clip:
        members[1]["clip"] = 0.5
    if optimizer == "sgd":
        members[0] |= {"momentum": 0.9}
    else:  # a bias in front of a batch norm has a gradient of rounding only, which Adam divides by its size
        members = [{**one, "eps": 1e-4} for one in members]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            source: Any = make
            if as_module:
                torch.manual_seed(0)
                source = make()
            group = hydro.fuse(source, members, optimizer, engine=engine)
            loss_fn = Loss(loss)
            losses = [group.step(batch, loss_fn) for batch in batches(data)]
        except hydro.HydroError as error:
            OUTCOMES[f"refused: {str(error)[:60]}"] += 1
            return
        except Exception as error:  # noqa: BLE001  what torch itself refuses
            with pytest.raises(type(error)):
                [alone(make, member, optimizer, loss, data) for member in members]
            OUTCOMES["torch raises too"] += 1
            return
        expected = [alone(make, member, optimizer, loss, data) for member in members]
    OUTCOMES[str(group.engine)] += 1
    found = torch.stack(losses)
    for i, (numbers, tensors) in enumerate(expected):
        assert apart(torch.tensor(numbers, dtype=torch.float64), found[:, i]) <= 1e-7, group.engine
        state = group.member_state(i)["model"]
        # Relative to the member's greatest number: a bias in front of a batch norm is rounding, scaled up by Adam.
        names = [name for name, value in tensors.items() if value.is_floating_point()]
        ours, theirs = (torch.cat([one[name].flatten() for name in names]) for one in (tensors, state))
        assert apart(ours, theirs) <= 1e-7


@hypothesis_seed(SEED)
@settings(
    max_examples=CASES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    derandomize=False,
)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3).map(tuple),
    loss=st.sampled_from(LOSSES),
    optimizer=st.sampled_from(["adamw", "adam", "sgd"]),
    engine=st.sampled_from(["auto", "auto", "grouped", "vmap", "separate"]),
    as_module=st.booleans(),
    clip=st.booleans(),
    data=st.integers(0, 3),
    size=st.integers(2, 3),
)
def test_a_random_module_equals_torch_optim_or_is_refused(
    kinds: tuple[str, ...],
    loss: str,
    optimizer: str,
    engine: str,
    as_module: bool,
    clip: bool,
    data: int,
    size: int,
) -> None:
    check(kinds, loss, optimizer, engine, as_module=as_module, clip=clip, data=data, size=size)
    if (cases := OUTCOMES.total()) % TELL_EVERY == 0:
        told = ", ".join(f"{number} {what}" for what, number in OUTCOMES.most_common())
        print(f"seed {SEED}, {cases} cases, none differs: {told}", flush=True)


@pytest.mark.parametrize("engine", ["auto", "separate"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_piece_alone(kind: str, engine: str) -> None:
    """Every kind once, so that no draw leaves one out."""
    check((kind, "plain"), "plain", "adamw", engine, as_module=False, clip=False, data=0)


def test_a_step_that_cannot_be_fused_later_falls_back() -> None:
    """The first step takes one branch for all members; a later one depends on members."""
    check(("branch", "branch"), "plain", "adamw", "auto", as_module=False, clip=False, data=0)


def test_a_later_step_is_not_repeated_where_the_loss_counts() -> None:
    """One call serves all members of a fused step; separately each member would see the others' calls."""
    group = hydro.fuse(
        double(lambda: Whole(("branch", "branch"))), [{"lr": 0.03, "seed": 1}, {"lr": 0.01, "seed": 2}]
    )
    loss = Loss("counts")
    first, second, *_ = batches(0)
    group.step(first, loss)
    assert group.engine in ("grouped", "vmap")
    with pytest.raises(hydro.FusionGapError, match="not repeated separately: a call changes what the loss"):
        group.step(second, loss)
    assert group.steps() == {0: 1, 1: 1}


@pytest.mark.parametrize("late", ["late layer", "late buffer"])
def test_a_later_step_is_not_repeated_where_the_model_remembers(late: str) -> None:
    """A separate module would begin with a count of 0."""
    check(("branch", "branch", late), "plain", "adamw", "auto", as_module=False, clip=False, data=0, size=3)


def counting(*, engine: str) -> hydro.Group:
    """Two members that have taken a step."""
    make = double(lambda: Whole(("late change",)))
    group = hydro.fuse(make, [{"lr": 0.03, "seed": 1}, {"lr": 0.01, "seed": 2}], engine=engine)
    group.step(batches(0)[0], Loss("plain"))
    return group


def test_a_model_that_counts_keeps_its_engine() -> None:
    for engine in ("separate", "vmap"):
        group, loss = counting(engine=engine), Loss("plain")
        group.repack()
        found = [group.step(batch, loss) for batch in batches(0)[1:]]
        losses, _ = alone(
            double(lambda: Whole(("late change",))), {"lr": 0.03, "seed": 1}, "adamw", "plain", 0
        )
        assert [float(one[0]) for one in found] == pytest.approx(losses[1:], rel=1e-7)


def test_no_member_joins_a_fused_pass_that_counts() -> None:
    with pytest.raises(hydro.FuseError, match=r"no member can join later: .*calls, and a fused pass has one"):
        counting(engine="vmap").add([{"lr": 0.01}])
    assert counting(engine="separate").add([{"lr": 0.01}]) == [2]
