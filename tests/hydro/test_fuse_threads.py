"""The bits of fused members are the same on any number of threads, also in convolutions' weight gradients."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import pytest
import torch
from fuse_models import batches, factory, loss_of, mixed_members
from torch import Tensor
from torch.nn import functional

from headrace_torch import hydro
from headrace_torch.hydro.fuse.rules.conv_gradient import LARGE, convolve

SINGLE = torch.float32
N = 6


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of threads, and restores the old one."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.cases(1)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("name", "optimizer"), [("cnn", "adamw"), ("resnet", "sgd")])
def test_survivors_do_not_change_by_a_bit_on_threads(
    threads: Callable[[int], None], count: int, name: str, optimizer: Literal["adamw", "sgd"]
) -> None:
    threads(count)
    members = mixed_members(optimizer, steps=60)
    stays, packed = (
        hydro.fuse(factory(name, SINGLE), members, optimizer, engine="grouped") for _ in range(2)
    )
    for number, batch in enumerate(batches(name, 12, dtype=SINGLE)):
        if number in (3, 6):
            packed.drop([0, 3] if number == 3 else [4, 1])
        everyone, some = stays.step(batch, loss_of), packed.step(batch, loss_of)
        assert some.tolist() == everyone[packed.ids].tolist(), number
    ours, theirs = packed.member_state(2)["model"], stays.member_state(2)["model"]
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert torch.get_num_threads() == count
    probed = hydro.fuse(factory(name, SINGLE), members, optimizer, workers=0)
    probed.step(batches(name, 1, dtype=SINGLE)[0], loss_of)
    assert probed.report is not None
    assert probed.report.bit_stable["grouped"]


# batch, a member's input and output channels, side length, spatial dims, groups of a member, whether images are
# shared, and further arguments of torch's function
CASES: dict[str, tuple[int, int, int, int, int, int, bool, dict[str, Any]]] = {
    "small and shared": (8, 3, 8, 8, 2, 1, True, {"padding": 1}),
    "small": (8, 8, 8, 8, 2, 1, False, {"padding": 1}),
    "strided": (8, 8, 16, 8, 2, 1, False, {"stride": 2, "padding": 1}),
    "depthwise": (8, 8, 8, 8, 2, 8, False, {"padding": "same"}),
    "sequences": (8, 8, 16, 32, 1, 1, False, {"padding": "same", "dilation": 2}),
    "volumes": (4, 4, 8, 4, 3, 1, False, {"padding": "valid"}),
    "large": (32, 16, 64, 8, 2, 1, False, {"padding": (1, 1)}),
    "large and shared": (32, 16, 64, 8, 2, 1, True, {"padding": 1}),
    "large and in groups": (32, 32, 128, 8, 2, 2, False, {"padding": 1}),
}


@pytest.mark.cases(7)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("side", [3, 2])
# torch warns about its own copy
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_gradients_are_torchs_and_the_same_to_the_bit_for_any_n(
    threads: Callable[[int], None], case: str, count: int, side: int
) -> None:
    batch, inside, outside, length, spatial, groups, shared, options = CASES[case]
    generator = torch.Generator().manual_seed(3)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    images = drawn(batch, inside, *[length] * spatial) if shared else None
    own = drawn(batch, N, inside, *[length] * spatial)
    weight = drawn(N, outside, inside // groups, *[side] * spatial)
    bias = drawn(N, outside)
    convolution: Any = (functional.conv1d, functional.conv2d, functional.conv3d)[spatial - 1]
    geometry = {"stride": 1, "padding": 0, "dilation": 1, **options}

    def gradients(n: int, dtype: torch.dtype, *, ours: bool) -> list[Tensor]:
        x = images if images is not None else own[:, :n].flatten(1, 2)
        leaves = [one.to(dtype).requires_grad_() for one in (x, weight[:n].flatten(0, 1), bias[:n].flatten())]
        every = groups * n if images is None else groups
        function: Any = partial(convolve, members=n) if ours else convolution
        out = function(*leaves, **geometry, groups=every)
        target = torch.cos(torch.arange(out[:, :outside].numel(), dtype=dtype)).view_as(out[:, :outside])
        found = torch.autograd.grad((out * torch.cat([target] * n, 1)).sum(), leaves)
        return [out.detach(), *found]

    threads(count)
    for found, expected in zip(
        gradients(N, torch.float64, ours=True), gradients(N, torch.float64, ours=False), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    whole = gradients(N, SINGLE, ours=True)
    assert (whole[0].numel() // N * weight[0, 0].numel() >= LARGE) == ("large" in case)
    for n in range(2, N):
        part = gradients(n, SINGLE, ours=True)
        for place, (a, b) in enumerate(zip(whole, part, strict=True)):
            if place == 1 and shared:
                continue  # the gradient of shared images is a sum over members and belongs to none
            dim = 0 if place > 1 else 1
            assert torch.equal(a.narrow(dim, 0, b.shape[dim]), b), (n, place)
    assert torch.get_num_threads() == count


def autocast_loss(model: Any, batch: Any) -> Tensor:
    """The forward pass in bfloat16, the loss in float32."""
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model, batch)
    return loss.float()


@pytest.mark.cases(2)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
def test_survivors_do_not_change_by_a_bit_under_autocast(
    threads: Callable[[int], None], count: int, name: str
) -> None:
    threads(count)
    members = mixed_members("adamw", steps=60)
    stays, packed = (hydro.fuse(factory(name, SINGLE), members, "adamw", engine="grouped") for _ in range(2))
    for number, batch in enumerate(batches(name, 8, dtype=SINGLE)):
        if number == 3:
            packed.drop([0, 3])
        everyone, some = stays.step(batch, autocast_loss), packed.step(batch, autocast_loss)
        assert some.tolist() == everyone[packed.ids].tolist(), number
    assert stays.report is not None
    assert stays.report.error["grouped"] < 1e-5  # the loss itself rounds to float32
