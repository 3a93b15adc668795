"""What one member does changes nothing in another: not its NaN, not its clipping, not its position, not its
departure.

In float32 on a CPU, to the last bit. Sizes here are multiples of the vector width, as hidden sizes usually are.
The probe reports for each model whether this holds (`ProbeReport.bit_stable`). `test_fuse_threads` varies the
threads.
"""

from typing import Any

import pytest
import torch
from fuse_models import Gpt, Mlp, Solo, apart, batches, built, factory, loss_of
from torch import Tensor, nn

from headrace_torch import hydro
from headrace_torch.hydro.fuse.dropout import Masks, key, signed

Trajectory = dict[int, tuple[list[float], dict[str, Tensor]]]


def trained(
    name: str, make: Any, members: list[dict[str, Any]], steps: int, engine: str = "grouped"
) -> tuple[hydro.Group, Trajectory]:
    """Losses at every step and the final parameters, by position."""
    group = hydro.fuse(make, members, "adamw", engine=engine)
    losses = [group.step(batch, loss_of).tolist() for batch in batches(name, steps, dtype=torch.float32)]
    return group, {
        i: ([one[i] for one in losses], group.member_state(i)["model"]) for i in range(len(members))
    }


def same(a: tuple[list[float], dict[str, Tensor]], b: tuple[list[float], dict[str, Tensor]]) -> bool:
    return a[0] == b[0] and all(torch.equal(a[1][name], b[1][name]) for name in a[1])


def mlp_with_dropout() -> nn.Module:
    return Mlp(rate=0.1)


def gpt_with_dropout() -> nn.Module:
    return Gpt(rate=0.1)


GOOD = [
    {"lr": 1e-3, "seed": 1, "dropout": 0.2},
    {"lr": 3e-3, "seed": 2, "dropout": 0.5, "clip": 0.1},
    {"lr": 5e-4, "seed": 3},
    {"lr": 2e-3, "seed": 4, "clip": 1.0},
]
BAD = {"lr": 1e30, "seed": 9, "dropout": 0.3, "clip": 1e20}


@pytest.mark.cases(2)
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_a_diverging_member_at_any_position(size: int) -> None:
    good = GOOD[: size - 1]
    _, alone = trained("mlp", mlp_with_dropout, good, 12)
    for position in range(size):
        members = [*good[:position], BAD, *good[position:]]
        group, found = trained("mlp", mlp_with_dropout, members, 12)
        assert not all(value.isfinite().all() for value in group.member_state(position)["model"].values())
        others = [i for i in range(size) if i != position]
        assert all(same(found[i], alone[j]) for j, i in enumerate(others)), position


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("name", "make"), [("gpt", gpt_with_dropout), ("cnn", factory("cnn", torch.float32))]
)
def test_a_diverging_member_beside_larger_models(name: str, make: Any) -> None:
    good = [{**member, "dropout": None} for member in GOOD] if name == "cnn" else GOOD
    _, alone = trained(name, make, good, 6)
    for position in (0, 2, 4):
        _, found = trained(name, make, [*good[:position], BAD, *good[position:]], 6)
        others = [i for i in range(5) if i != position]
        assert all(same(found[i], alone[j]) for j, i in enumerate(others)), position


def test_a_member_is_itself_in_groups_of_any_size_and_order() -> None:
    _, whole = trained("mlp", mlp_with_dropout, GOOD, 12)
    for order in ([0], [3], [1, 0], [2, 3], [3, 2, 1, 0], [1, 2, 3]):
        _, found = trained("mlp", mlp_with_dropout, [GOOD[i] for i in order], 12)
        assert all(same(found[place], whole[i]) for place, i in enumerate(order)), order


@pytest.mark.cases(2)
@pytest.mark.parametrize(("name", "make"), [("mlp", mlp_with_dropout), ("gpt", gpt_with_dropout)])
@pytest.mark.parametrize("engine", ["grouped", "vmap"])
def test_dropout_is_that_of_the_member_alone(name: str, make: Any, engine: str) -> None:
    def double() -> nn.Module:
        return make().double()

    group = hydro.fuse(double, GOOD, engine=engine)
    data = batches(name, 6)
    losses = torch.stack([group.step(batch, loss_of) for batch in data])
    for i, member in enumerate(GOOD):
        one = hydro.fuse(double, [member], engine="separate")
        alone = torch.stack([one.step(batch, loss_of) for batch in data])
        torch.testing.assert_close(losses[:, i], alone[:, 0], rtol=1e-9, atol=0)
        assert apart(group.member_state(i)["model"], one.member_state(0)["model"]) < 1e-9


def test_clipping_is_per_member_and_equals_torch() -> None:
    members = [{"lr": 0.1, "seed": 1, "clip": limit} for limit in (1e-3, 0.1, 1e3)] + [{"lr": 0.1, "seed": 1}]
    group = hydro.fuse(factory("mlp"), members, "sgd", engine="grouped")
    alone = [Solo(built("mlp", 1), member, "sgd") for member in members]
    for batch in batches("mlp", 5):
        group.step(batch, loss_of)
        for one in alone:
            one.step(batch)
    for i, one in enumerate(alone):
        assert apart(group.member_state(i)["model"], one.model.state_dict()) < 1e-12
    states = [group.member_state(i)["model"]["head.weight"] for i in range(4)]
    assert torch.equal(states[2], states[3])  # a limit that is never reached
    assert not torch.equal(states[0], states[1])


def reference_word(low: int, high: int, call: int, index: int) -> int:
    """The mask's word in Python integers: what the 32-bit tensors must contain."""
    mask = 0xFFFFFFFF
    h = (index * 0x9E3779B1 + low + call) & mask
    h ^= h >> 16
    h = (h * 0x85EBCA6B) & mask
    h ^= high
    h ^= h >> 13
    h = (h * 0xC2B2AE35) & mask
    return h ^ (h >> 16)


def test_masks_are_the_hash_that_is_written_down() -> None:
    keys = [key(3, 0), key(3, 1), key(4, 0)]
    masks = Masks(keys, [0.25, None, 0.0], torch.device("cpu"))
    from headrace_torch.hydro.fuse.dropout import _split_mix

    for number in range(3):
        scales = masks.scales((50,), 0.5, torch.float64)
        call = _split_mix(number) & 0xFFFFFFFF
        for row, (one, rate) in enumerate(zip(keys, (0.25, 0.5, 0.0), strict=True)):
            words = [signed(reference_word(one & 0xFFFFFFFF, one >> 32, call, i)) for i in range(50)]
            kept = [word >= round(rate * 2**32) - 2**31 for word in words]
            assert scales[row].tolist() == [1 / (1 - rate) if keep else 0.0 for keep in kept]


def test_masks_look_independent() -> None:
    keys = [key(seed, step) for seed in range(4) for step in range(4)]
    masks = Masks(keys, [0.3] * len(keys), torch.device("cpu"))
    n = 40_000
    drawn = torch.cat([(masks.scales((n,), 0.0, torch.float64) > 0).double() for _ in range(3)])
    assert ((drawn.mean(1) - 0.7).abs() < 5 * (0.21 / n) ** 0.5).all()
    centred = drawn - drawn.mean(1, keepdim=True)
    correlation = centred @ centred.T / n / 0.21
    off = correlation - torch.diag(correlation.diagonal())
    assert off.abs().max() < 6 / n**0.5  # 1128 pairs of members, steps and calls
    lagged = (centred[:, 1:] * centred[:, :-1]).mean(1) / 0.21
    assert lagged.abs().max() < 5 / n**0.5


def test_a_rate_of_one_drops_everything() -> None:
    masks = Masks([key(0, 0)], [1.0], torch.device("cpu"))
    assert not masks.scales((64,), 0.5, torch.float32).any()
