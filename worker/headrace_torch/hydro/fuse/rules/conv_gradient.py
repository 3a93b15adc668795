"""A grouped convolution whose weight gradients do not depend on how many members there are, on any number of threads.

oneDNN sums a weight's gradient over the batch. With several threads it may split that sum into one part per
thread, and how it splits it depends on the number of groups, and so on N: then members' last bits change when
others leave. Outputs and the gradients of inputs are not summed over the batch, and did not change for any N and 1
to 8 threads (torch 2.13). So on a CPU with several threads the weight's gradient, and the bias's, is computed in
one of two ways. Which one depends on the size of one member's convolution only, never on N:

    small    one call for all members, on one thread: nothing is split
    large    one call per member, on all threads: each call is split, and all in the same way
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Ints = tuple[int, ...]

LARGE = (
    2**23
)  # multiply-adds of one member; below this, starting a call per member costs more than two threads save
CONVOLUTIONS: Any = (functional.conv1d, functional.conv2d, functional.conv3d)


def applies(weight: Tensor) -> bool:
    """Whether a weight's gradient may be split among threads: several threads, a CPU, no casts of autocast in
    between."""
    several = weight.device.type == "cpu" and torch.get_num_threads() > 1
    return several and not torch.is_autocast_enabled("cpu")


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int | Ints,
    padding: int | Ints | str,
    dilation: int | Ints,
    groups: int,
    members: int,
) -> Tensor:
    """Convolves as torch's functions do.

    Args:
        x: (B, C, …) if the members share it, else (B, N·C, …).
        weight: (N·O, C / groups of a member, …).
        bias: (N·O,), or None.
        stride: as torch's.
        padding: as torch's.
        dilation: as torch's.
        groups: 1 if the members share `x`, else N times the groups of a member.
        members: N.

    Returns:
        (B, N·O, …).
    """
    spatial = x.dim() - 2
    steps, holes = _each(stride, spatial), _each(dilation, spatial)
    if isinstance(padding, str):
        x, margins = _padded(x, padding, weight.shape[2:], holes)
    else:
        margins = _each(padding, spatial)
    _settle()
    apply: Any = _Convolution.apply  # has no types in torch
    out: Tensor = apply(x, weight, bias, steps, margins, holes, groups, members)
    return out


class _Convolution(torch.autograd.Function):
    """Gradients are made of ops that autograd can differentiate again."""

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        groups: int,
        members: int,  # noqa: ARG004  for the backward pass
    ) -> Tensor:
        out: Tensor = CONVOLUTIONS[x.dim() - 3](x, weight, bias, stride, padding, dilation, groups)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004  torch's signature
        x, weight, bias, *ctx.geometry, ctx.groups, ctx.members = inputs
        ctx.biased = bias is not None
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = outputs
        x, weight = ctx.saved_tensors
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = _gradients(ctx, grad, x, weight, ctx.groups, (True, False, False))[0]
        of_weight = of_bias = None
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            summed = (False, True, ctx.biased)
            if grad.numel() // ctx.members * weight[0].numel() < LARGE:
                with _one_thread():
                    _, of_weight, of_bias = _gradients(ctx, grad, x, weight, ctx.groups, summed)
            else:
                of_weight, of_bias = _per_member(ctx, grad, x, weight, summed)
        return of_x, of_weight, of_bias, None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """Rules call this beneath the members' `vmap`, with stacked tensors."""
        raise NotImplementedError("a fused convolution within one more vmap")


def _per_member(
    ctx: Any, grad: Tensor, x: Tensor, weight: Tensor, summed: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor | None]:
    n = ctx.members
    shared = n > 1 and ctx.groups == 1
    groups = 1 if shared else ctx.groups // n
    images = [x] * n if shared else x.chunk(n, 1)
    kernel = weight[: weight.shape[0] // n]  # of any member: its numbers are not in its own gradient
    found = [
        _gradients(ctx, _apart(part), one if shared else _apart(one), kernel, groups, summed)
        for part, one in zip(grad.chunk(n, 1), images, strict=True)
    ]
    of_weight = torch.cat([one[1] for one in found])
    return of_weight, torch.cat([one[2] for one in found]) if ctx.biased else None


def _gradients(
    ctx: Any, grad: Tensor, x: Tensor, weight: Tensor, groups: int, mask: tuple[bool, bool, bool]
) -> Any:
    stride, padding, dilation = ctx.geometry
    size = [weight.shape[0]] if ctx.biased else None
    no_output_padding = [0] * len(stride)
    return torch.ops.aten.convolution_backward(
        grad, x, weight, size, stride, padding, dilation, False, no_output_padding, groups, mask
    )


def _apart(part: Tensor) -> Tensor:
    """A copy whose layout and alignment do not depend on the member's place."""
    return part.clone(memory_format=torch.contiguous_format)


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@cache
def _settle() -> None:
    """The first `set_num_threads` of a process also fixes MKL's number of threads: so it is called before any
    result, not after."""
    torch.set_num_threads(torch.get_num_threads())


def _each(value: int | Ints, spatial: int) -> Ints:
    many = (value,) if isinstance(value, int) else tuple(value)
    return many * spatial if len(many) == 1 else many


def _padded(x: Tensor, padding: str, kernel: torch.Size, dilation: Ints) -> tuple[Tensor, Ints]:
    """Padding by name, as numbers; what differs between the two ends is padded here, at the end as in torch."""
    if padding == "valid":
        return x, (0,) * len(dilation)
    totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    if any(total % 2 for total in totals):
        x = functional.pad(x, [side for total in reversed(totals) for side in (0, total % 2)])
    return x, tuple(total // 2 for total in totals)
